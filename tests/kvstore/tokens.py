"""Replicas that play by a script and know sessions, and stories that both clients can play.

A token names the writes that a session has seen, in plain words: `a:1,b:3`. A replica has those that it took itself and
those that the test brought it (`bring`); a session that has seen another is told PAST_MISSING.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

from kvstore import aio, connect
from kvstore.client import Client, Session
from kvstore.errors import KvError, PastMissing
from kvstore.reader import Watch
from kvstore.rpc.wire import abort
from kvstore.terms import Level
from kvstore.v1 import kv_pb2, model_pb2
from tests.kvstore.script import Script, served

CLIENTS = ("blocking", "asyncio")


def seen_in(token: bytes) -> set[str]:
    return set(token.decode().split(",")) - {"", "nothing"}


def token_of(seen: Iterable[str]) -> bytes:
    return (",".join(sorted(seen)) or "nothing").encode()


class TokenScript(Script):
    def __init__(self, site: str = "a", number: int = 0) -> None:
        super().__init__(site, number)
        self.has: set[str] = set()
        self.wrote: dict[bytes, str] = {}  # the write that a key has its value of
        self.gives_tokens = True
        self.under_way = self.most_under_way = 0
        self.pause_s = 0.0

    def bring(self, other: TokenScript) -> None:
        """All that the other has."""
        self.has |= other.has
        self.wrote.update(other.wrote)
        self.data.update(other.data)

    async def _play(self, name: str, request: Any, context: Any, work: Any) -> Any:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(self.pause_s)
        try:
            return await super()._play(name, request, context, lambda asked: self._in_session(asked, work))
        finally:
            self.under_way -= 1

    def _in_session(self, request: Any, work: Any) -> Any:
        if not hasattr(request, "session"):
            return work(request)
        seen = self.landed(request)
        answer = work(request)
        answer.site = self.site
        if seen is not None and self.gives_tokens:
            answer.session = token_of(seen | self._seen_by(request))
        if isinstance(answer, kv_pb2.GetResponse) and request.freshness.level == Level.ANY:
            answer.staleness_ms = 77
        return answer

    def landed(self, request: Any) -> set[str] | None:
        """What the session has seen, if all of it is here; None: there is no session."""
        level = request.freshness.level
        if not request.session and level != Level.SESSION:
            return None
        seen = seen_in(request.session)
        for one in sorted(seen - self.has):
            origin, _, seq = one.partition(":")
            if level != Level.ANY:
                raise PastMissing(site=self.site, origin=origin, seq=seq, waited_ms=5)
        return seen

    def _seen_by(self, request: Any) -> set[str]:
        if isinstance(request, kv_pb2.GetRequest | kv_pb2.GetManyRequest):
            keys = [request.key] if isinstance(request, kv_pb2.GetRequest) else request.keys
            return {self.wrote[key] for key in keys if key in self.wrote}
        return {f"{self.site}:{self.effects}"} if self.effects else set()

    def _apply(self, request: Any, value: bytes | None) -> model_pb2.Version:
        version = super()._apply(request, value)
        self.wrote[request.key] = f"{self.site}:{self.effects}"
        self.has.add(self.wrote[request.key])
        return version

    async def Scan(self, request, context):  # noqa: N802
        try:
            seen = self.landed(request)
        except KvError as error:
            self.requests.append(request)
            await abort(context, error)
        async for page in super().Scan(request, context):
            if seen is not None and self.gives_tokens:
                seen |= {self.wrote[one.key] for one in page.entries if one.key in self.wrote}
                page.session = token_of(seen)
            page.site = self.site
            yield page

    async def Watch(self, request, context):  # noqa: N802
        """A change is seen as the write w:INDEX, which every replica has."""
        try:
            seen = self.landed(request)
        except KvError as error:
            self.requests.append(request)
            await abort(context, error)
        async for answer in super().Watch(request, context):
            if seen is not None:
                seen |= {f"w:{one.index}" for one in answer.changes}
                self.has |= seen
                answer.session = token_of(seen)
            yield answer


# Both clients in the same stories


class Threaded:
    """The blocking client, or a session of it, as if it were the other: each call in a thread of its own."""

    def __init__(self, inner: Client | Session) -> None:
        self.inner = inner

    def session(self, token: bytes | None = None) -> Threaded:
        assert isinstance(self.inner, Client)
        return Threaded(self.inner.session(token))

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            return await asyncio.to_thread(getattr(self.inner, name), *arguments, **options)

        return call

    async def scan(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        entries = self.inner.scan(*arguments, **options)
        while (entry := await asyncio.to_thread(next, entries, None)) is not None:
            yield entry

    def watch(self, *arguments: Any, **options: Any) -> Watching:
        return Watching(lambda: self.inner.watch(*arguments, **options))


class Watching:
    def __init__(self, begin: Callable[[], Watch]) -> None:
        self._begin = begin

    async def __aenter__(self) -> Watching:
        self._watch = await asyncio.to_thread(self._begin)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.close()

    async def __anext__(self) -> Any:
        change = await asyncio.to_thread(next, self._watch, None)
        if change is None:
            raise StopAsyncIteration
        return change

    def __aiter__(self) -> Watching:
        return self

    @property
    def position(self) -> Any:
        return self._watch.position


Story = Callable[..., Awaitable[Any]]


def play(story: Story, *scripts: Script, client: str, **options: Any) -> None:
    """Tell a story of a client of these replicas; `client` is blocking or asyncio."""
    options = {"timeout_s": 5.0, **options}

    async def main() -> None:
        async with AsyncExitStack() as stack:
            addresses = [await stack.enter_async_context(served(one)) for one in scripts]
            if client == "asyncio":
                kv: Any = await stack.enter_async_context(aio.connect(addresses, **options))
            else:
                inner = connect(addresses, **options)
                stack.push_async_callback(asyncio.to_thread, inner.close)
                kv = Threaded(inner)
            await asyncio.wait_for(story(kv), 20)

    asyncio.run(main())


def three() -> tuple[TokenScript, TokenScript, TokenScript]:
    return TokenScript("a", 0), TokenScript("b", 1), TokenScript("c", 2)


def sent(script: TokenScript, kind: type) -> list[tuple[bytes, int]]:
    """The token and the freshness of each such request."""
    return [(one.session, one.freshness.level) for one in script.asked(kind)]


def replaced(request: Any) -> list[int]:
    return [one.time for one in request.replaces]
