"""What an asyncio client reads piece by piece: scans, watches, events.

A watch begins when it is awaited or entered. What a session has to do with it: reader.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from kvstore import calls
from kvstore.checks import checked_timeout
from kvstore.errors import KvError, Unavailable
from kvstore.retry import Route
from kvstore.streams import STREAM_S, Following, Listening, Scanning, Stream, Watching
from kvstore.values import Change, Entry, Position

if TYPE_CHECKING:
    from kvstore.aio import Caller
    from kvstore.aio_session import Session

Piece = TypeVar("Piece")


def scan(
    caller: Caller,
    source: Scanning,
    timeout_s: float | None,
    *,
    pinned_at: int | None = None,
    session: Session | None = None,
) -> AsyncGenerator[Entry, None]:
    return _pages(caller, source, checked_timeout(timeout_s, caller.timeout_s), pinned_at, session)


async def _pages(
    caller: Caller, source: Scanning, page_s: float, pinned_at: int | None, session: Session | None
) -> AsyncGenerator[Entry, None]:
    """Time runs from the first piece that is asked for."""
    route = caller.route if session is None else session.route
    reader = Reader(caller, source, route, begin_s=page_s, resume_s=page_s, stream_s=page_s, pinned_at=pinned_at)
    try:
        while (page := await _page(caller, reader, source, session)) is not None:
            for entry in page:
                yield entry
    finally:
        reader.close()


async def _page(
    caller: Caller, reader: Reader[Entry], source: Scanning, session: Session | None
) -> Sequence[Entry] | None:
    started_ns = time.monotonic_ns()
    async with _turn(session):
        if session is not None:
            await session.begin_before(source)
        if source.strand.is_overtaken:
            reader.begin_anew()
        page = await reader.read()
        diary = caller.diary if session is None else session.diary
        if diary is not None and page:
            diary.page(page, source, started_ns=started_ns)
        return page


def _turn(session: Session | None) -> AbstractAsyncContextManager[object]:
    return nullcontext() if session is None else session.lock


async def listen(caller: Caller, source: Listening) -> AsyncIterator[Any]:
    """Time runs from the first piece that is asked for."""
    begin_s = caller.timeout_s
    reader = Reader(caller, source, caller.route, begin_s=begin_s, resume_s=begin_s, stream_s=STREAM_S, pinned_at=None)
    try:
        while (found := await reader.read()) is not None:
            for piece in found:
                yield piece
    finally:
        reader.close()


class Reader(Generic[Piece]):
    """Reads a stream, and opens it again where it broke off."""

    def __init__(
        self,
        caller: Caller,
        source: Stream[Piece],
        route: Route,
        *,
        begin_s: float,
        resume_s: float,
        stream_s: float,
        pinned_at: int | None,
    ) -> None:
        self._caller = caller
        self._following = Following(
            route,
            source,
            now_s=caller.now_s(),
            begin_s=begin_s,
            resume_s=resume_s,
            stream_s=stream_s,
            pinned_at=pinned_at,
        )
        self._stream: Any = None
        self._is_closed = False

    async def read(self) -> Sequence[Piece] | None:
        """What the next answer brings; None: that was all."""
        answer = await self.answer()
        return None if answer is None else self.take(answer)

    async def answer(self) -> Any:
        """The next answer; None: that was the last."""
        while not self._is_closed and not self._following.source.is_done:
            try:
                return await self._next()
            except KvError as failure:
                if self._was_closed_by_another():
                    return None
                self._stream = None
                await self._caller.wait_or_raise(self._following, failure)
        return None

    def take(self, answer: Any) -> Sequence[Piece]:
        return self._following.came(answer)

    def begin_anew(self) -> None:
        """Leave this stream; what was not taken from it comes again."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._following.begin_anew(self._caller.now_s())

    async def _next(self) -> Any:
        if self._stream is None:
            self._stream = self._caller.open(self._following)
        try:
            answer = await self._caller.read(self._stream, self._following)
        except asyncio.CancelledError:
            self._stream = None  # gRPC ends a stream whose reader is cancelled; the next read opens another
            if self._was_closed_by_another():
                return None
            raise
        if answer is None and self._following.source.is_endless:
            raise Unavailable(site=self._caller.endpoints[self._following.at], why="it ended the stream")
        return answer

    def _was_closed_by_another(self) -> bool:
        task = asyncio.current_task()
        return self._is_closed and (task is None or not task.cancelling())

    def close(self) -> None:
        """Whoever reads hears that it is the end."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.cancel()


class Watch:
    """The changes under a prefix, one by one, in an order that respects causality: `async for change in watch`.

    `position` is where another watch goes on after the changes that this one has handed out; changes that were written
    together count together, when the last of them is out. `close` ends the loop, from any task.
    """

    def __init__(
        self,
        caller: Caller,
        source: Watching,
        timeout_s: float | None,
        patience_s: float,
        session: Session | None = None,
    ) -> None:
        self._caller = caller
        self._source = source
        self._session = session
        self._begin_s = checked_timeout(timeout_s, caller.timeout_s)
        self._patience_s = checked_timeout(patience_s, patience_s)
        self._reader: Reader[Change] | None = None

    async def _begin(self) -> Self:
        """The first answer says where it begins."""
        if self._reader is None:
            begin_s, patience_s, position = self._begin_s, self._patience_s, self._source.position
            at = None if position is None else await _holder(self._caller, position, begin_s)
            session, caller = self._session, self._caller
            route = caller.route if session is None else session.route
            async with _turn(session):
                if session is not None:
                    await session.begin_before(self._source)
                self._reader = Reader(
                    caller, self._source, route, begin_s=begin_s, resume_s=patience_s, stream_s=STREAM_S, pinned_at=at
                )
                await self._reader.read()
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._begin().__await__()

    @property
    def position(self) -> Position | None:
        return self._source.position

    @property
    def site(self) -> str:
        """The name of the site that is watched."""
        return self._source.site

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        await self._begin()
        while (change := self._source.next()) is None:
            if self._reader is None or not await self._read(self._reader):
                raise StopAsyncIteration
        return change

    async def _read(self, reader: Reader[Change]) -> bool:
        answer = await reader.answer()
        if answer is None:
            return False
        try:
            async with _turn(self._session):
                return await self._take(reader, answer)
        except BaseException:
            reader.begin_anew()  # what was not taken must come again
            raise

    async def _take(self, reader: Reader[Change], answer: Any) -> bool:
        if not self._source.must_ask_again(answer):
            reader.take(answer)
            return True
        reader.begin_anew()
        while (again := await reader.answer()) is not None:  # what came once is there, so this does not take long
            reader.take(again)
            if again.changes:
                return True
        return False

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _holder(caller: Caller, position: Position, timeout_s: float) -> int:
    """Which endpoint is the site that a position speaks of. With one endpoint, the replica itself will judge."""
    if len(caller.endpoints) == 1:
        return 0
    for at in range(len(caller.endpoints)):
        try:
            status = await caller.ask(calls.status(), timeout_s / len(caller.endpoints), pinned_at=at)
        except KvError:
            continue
        if status.site_number == position.site:
            return at
    raise Unavailable(site=f"site {position.site}", why="no endpoint answers as the site of this position")
