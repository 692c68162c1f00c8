"""What a replica answers to a call about keys, whoever brings it: a client, or a peer that does not hold them.

A read looks at the last commit, here and now, and waits only for what its session has seen. A write waits for that too,
enters the corridor, and is answered when it is committed. What the session carries away comes from the same commit as
the answer (sessions.py).

Any replica serves any key. Reads of keys that are held elsewhere go on to a holder, in one hop, session and all; writes
are stamped here and go out without being held, unless they are compared with what a holder has (forwarding.py). A call
that was forwarded once is never forwarded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol, TypeVar

from causal.model import Mask
from kvstore.config import Cluster, SiteConfig
from kvstore.effects import Write, Written
from kvstore.errors import DeadlineExceeded, KvError
from kvstore.leases import Leases
from kvstore.loop import Loop, Results
from kvstore.past import Past
from kvstore.rpc.decode import Decoder
from kvstore.rpc.reading import Look, Reading
from kvstore.sessions import PLAIN, Lack, Sessions, Wanted
from kvstore.storage.contract import Storage
from kvstore.v1 import kv_pb2

Response = TypeVar("Response")


class Forwarding(Protocol):
    """Asks a holder."""

    async def ask(self, kind: str, request: Any, holders: Mask, deadline_s: float) -> Any:
        """The answer of one of these sites to a call of this kind: get, get_many, put, delete or batch."""


@contextmanager
def done() -> Iterator[None]:
    """Something is committed already: whatever goes wrong now, no error says that nothing was done."""
    try:
        yield
    except KvError as error:
        error.definite = False
        raise


class Answering:
    def __init__(
        self,
        cluster: Cluster,
        site: SiteConfig,
        loop: Loop,
        storage: Storage,
        leases: Leases,
        sessions: Sessions,
        forwarding: Forwarding,
        clock_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        self.decode = Decoder(cluster, site, sessions.seal)
        self.reading = Reading(site, storage, leases, cluster.limits, loop, sessions, clock_ms)
        self.sessions = sessions
        self._site = site.name
        self._loop = loop
        self._forwarding = forwarding
        self._now_ms = now_ms

    # Reads

    async def get(
        self, request: kv_pb2.GetRequest, deadline_s: float, *, is_forwarded: bool = False
    ) -> kv_pb2.GetResponse:
        key = self.decode.key(request.key)
        holders = self.decode.holders_of((key,))
        if not self.decode.is_here(holders):
            forwarded: kv_pb2.GetResponse = await self._elsewhere(
                "get", request, (key,), holders, deadline_s, is_forwarded=is_forwarded
            )
            return forwarded
        wanted = self.decode.wanted(request)
        if wanted is PLAIN:
            answer = self.reading.get(key)
            assert not isinstance(answer, Lack)  # nothing was wanted
            return answer[0]
        return await self.read(lambda asked_ms: self.reading.get(key, wanted, asked_ms), wanted, deadline_s)

    async def get_many(
        self, request: kv_pb2.GetManyRequest, deadline_s: float, *, is_forwarded: bool = False
    ) -> kv_pb2.GetManyResponse:
        keys = self.decode.get_many(request)
        holders = self.decode.holders_of(keys)
        if not self.decode.is_here(holders):
            if request.snapshot:  # it is one of this site, and no other can read there
                is_forwarded = True
            forwarded: kv_pb2.GetManyResponse = await self._elsewhere(
                "get_many", request, keys, holders, deadline_s, is_forwarded=is_forwarded
            )
            return forwarded
        wanted, handle = self.decode.wanted(request), request.snapshot
        return await self.read(
            lambda asked_ms: self.reading.get_many(keys, handle, wanted, asked_ms), wanted, deadline_s
        )

    async def read(
        self, read: Callable[[int], tuple[Response, Look] | Lack], wanted: Wanted, deadline_s: float
    ) -> Response:
        """What `read` gives, as soon as nothing is lacking for it, with the session's new token."""
        asked_ms, asked_s = self._now_ms(), monotonic()
        while isinstance(answer := read(asked_ms), Lack):
            await self.sessions.until(answer, asked_s=asked_s, deadline_s=deadline_s)
        response, look = answer
        if wanted.past is not None:
            past = await self.after_read(look, wanted.past, deadline_s)
            response.session = self.sessions.seal.seal(past)  # type: ignore[attr-defined]
        return response

    async def after_read(self, look: Look, past: Past, deadline_s: float) -> Past:
        """What a session has seen that looked here."""
        seen = look.seen()
        await self.sessions.durable(seen.commit if seen.newest is None else seen.newest, deadline_s)
        return self.sessions.after_read(past, seen)

    # Writes

    async def put(
        self, request: kv_pb2.PutRequest, deadline_s: float, *, is_forwarded: bool = False
    ) -> kv_pb2.PutResponse:
        write = self.decode.put(request)
        if self.is_elsewhere(write):
            forwarded: kv_pb2.PutResponse = await self._write_elsewhere(
                "put", request, write, deadline_s, is_forwarded=is_forwarded
            )
            return forwarded
        written, token = await self._write(write, self.decode.wanted(request, for_write=True), deadline_s)
        response = kv_pb2.PutResponse(site=self._site, commit=written.commit, session=token)
        version = response.version
        version.time, version.site = written.versions[0]
        return response

    async def delete(
        self, request: kv_pb2.DeleteRequest, deadline_s: float, *, is_forwarded: bool = False
    ) -> kv_pb2.DeleteResponse:
        write = self.decode.delete(request)
        if self.is_elsewhere(write):
            forwarded: kv_pb2.DeleteResponse = await self._write_elsewhere(
                "delete", request, write, deadline_s, is_forwarded=is_forwarded
            )
            return forwarded
        written, token = await self._write(write, self.decode.wanted(request, for_write=True), deadline_s)
        response = kv_pb2.DeleteResponse(site=self._site, commit=written.commit, session=token)
        version = response.version
        version.time, version.site = written.versions[0]
        return response

    async def batch(
        self, request: kv_pb2.BatchRequest, deadline_s: float, *, is_forwarded: bool = False
    ) -> kv_pb2.BatchResponse:
        write = self.decode.batch(request)
        if self.is_elsewhere(write):
            forwarded: kv_pb2.BatchResponse = await self._write_elsewhere(
                "batch", request, write, deadline_s, is_forwarded=is_forwarded
            )
            return forwarded
        written, token = await self._write(write, self.decode.wanted(request, for_write=True), deadline_s)
        response = kv_pb2.BatchResponse(site=self._site, commit=written.commit, session=token)
        for time, site in written.versions:
            response.versions.add(time=time, site=site)
        return response

    async def _write(self, write: Write, wanted: Wanted, deadline_s: float) -> tuple[Written, bytes]:
        if wanted is not PLAIN:
            await self.sessions.arrive(wanted, deadline_s)
            write = write._replace(past=wanted.past)
        (result,) = await self.ask((write,), deadline_s)
        if isinstance(result, KvError):
            raise result.with_traceback(None)  # one that stands for many calls must not gather all their frames
        if wanted.past is None:
            return result, b""
        return result, await self.token_of_write(write, result, deadline_s)

    async def token_of_write(self, write: Write, written: Written, deadline_s: float) -> bytes:
        with done():
            await self.sessions.durable(written.commit, deadline_s)
            return self.sessions.seal.seal(self.sessions.after_write(write, written))

    async def ask(self, writes: Sequence[Write], deadline_s: float) -> Results:
        """The answers to writes, each all or nothing by itself."""
        seconds = max(0.0, deadline_s - monotonic())
        answer = self._loop.ask(writes)
        timer = asyncio.get_running_loop().call_later(seconds, answer.cancel)  # what is still in the inbox is not done
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the client went away
            waiting_for = "the write was handed over and may still be done"
            raise DeadlineExceeded(timeout_ms=round(seconds * 1000), waiting_for=waiting_for) from None
        finally:
            timer.cancel()

    # Elsewhere

    def is_elsewhere(self, write: Write) -> bool:
        return self.decode.needs_holder(write) and not self.decode.is_here(self.decode.holders_of_write(write))

    async def _write_elsewhere(
        self, kind: str, request: Any, write: Write, deadline_s: float, *, is_forwarded: bool
    ) -> Any:
        keys, holders = self.decode.compared_keys(write), self.decode.holders_of_write(write)
        return await self._elsewhere(kind, request, keys, holders, deadline_s, is_forwarded=is_forwarded)

    async def _elsewhere(
        self, kind: str, request: Any, keys: Iterable[bytes], holders: Mask, deadline_s: float, *, is_forwarded: bool
    ) -> Any:
        if is_forwarded:
            self.decode.check_held(keys)
        self.decode.wanted(request, for_write=kind not in ("get", "get_many"))  # a bad token goes no further
        return await self._forwarding.ask(kind, request, holders, deadline_s)
