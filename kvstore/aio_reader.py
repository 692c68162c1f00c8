"""What an asyncio client reads piece by piece: scans, watches, events, and everything under a snapshot.

A watch or a snapshot begins when it is awaited or entered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from kvstore import calls
from kvstore.checks import checked_timeout
from kvstore.errors import KvError, SnapshotGone, Unavailable
from kvstore.streams import STREAM_S, Following, Lease, Listening, Scanning, Stream, Watching
from kvstore.values import Change, Entry, Position

if TYPE_CHECKING:
    from kvstore.aio import Caller

Piece = TypeVar("Piece")


RELEASE_S = 1.0  # seconds for giving a snapshot back; beyond it: its lease ends by itself


def scan(
    caller: Caller, source: Scanning, timeout_s: float | None, pinned_at: int | None = None
) -> AsyncGenerator[Entry, None]:
    page_s = checked_timeout(timeout_s, caller.timeout_s)
    return _pieces(caller, source, begin_s=page_s, stream_s=page_s, pinned_at=pinned_at)


def listen(caller: Caller, source: Listening) -> AsyncIterator[Any]:
    return _pieces(caller, source, begin_s=caller.timeout_s, stream_s=STREAM_S, pinned_at=None)


async def _pieces(
    caller: Caller, source: Stream[Piece], *, begin_s: float, stream_s: float, pinned_at: int | None
) -> AsyncGenerator[Piece, None]:
    """Time runs from the first piece that is asked for."""
    reader = Reader(caller, source, begin_s=begin_s, resume_s=begin_s, stream_s=stream_s, pinned_at=pinned_at)
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
        *,
        begin_s: float,
        resume_s: float,
        stream_s: float,
        pinned_at: int | None,
    ) -> None:
        self._caller = caller
        self._following = Following(
            caller.route,
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
        while not self._is_closed and not self._following.source.is_done:
            try:
                answer = await self._next()
            except KvError as failure:
                if self._was_closed_by_another():
                    return None
                self._stream = None
                await self._caller.wait_or_raise(self._following, failure)
            else:
                return None if answer is None else self._following.came(answer)
        return None

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

    def __init__(self, caller: Caller, source: Watching, timeout_s: float | None, patience_s: float) -> None:
        self._caller = caller
        self._source = source
        self._begin_s = checked_timeout(timeout_s, caller.timeout_s)
        self._patience_s = checked_timeout(patience_s, patience_s)
        self._reader: Reader[Change] | None = None

    async def _begin(self) -> Self:
        """The first answer says where it begins."""
        if self._reader is None:
            begin_s, patience_s, position = self._begin_s, self._patience_s, self._source.position
            at = None if position is None else await _holder(self._caller, position, begin_s)
            self._reader = Reader(
                self._caller, self._source, begin_s=begin_s, resume_s=patience_s, stream_s=STREAM_S, pinned_at=at
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
            if self._reader is None or await self._reader.read() is None:
                raise StopAsyncIteration
        return change

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


class SnapshotReader:
    """Reads as of one moment at one replica. The lease is renewed by reading; it has an end all the same."""

    def __init__(self, caller: Caller, lease_ms: int | None, timeout_s: float | None) -> None:
        self._caller = caller
        self._lease_ms = lease_ms
        self._call = calls.snapshot(lease_ms)
        self._timeout_s = timeout_s
        self._leased: Lease | None = None

    async def _begin(self) -> Self:
        if self._leased is None:
            course = self._caller.course(self._call.kind, self._timeout_s)
            answer = await self._caller.run(self._call, course)
            self._leased = Lease(answer, at=course.at, now_s=self._caller.now_s())
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._begin().__await__()

    @property
    def _lease(self) -> Lease:
        if self._leased is None:
            raise SnapshotGone("a snapshot begins when it is awaited or entered", limit=0)
        return self._leased

    @property
    def site(self) -> str:
        return self._lease.site

    @property
    def commit(self) -> int:
        """The number of the commit that it shows."""
        return self._lease.commit

    async def get_many(self, keys: Iterable[bytes], *, timeout_s: float | None = None) -> dict[bytes, Entry]:
        call = calls.get_many(keys, self._lease.handle)
        await self._renew_when_due()
        return await self._caller.ask(call, timeout_s, pinned_at=self._lease.at)

    def scan(
        self,
        prefix: bytes = b"",
        *,
        start: bytes = b"",
        end: bytes = b"",
        after: bytes = b"",
        limit: int | None = None,
        page_size: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Entry]:
        request = calls.scan_request(
            prefix=prefix, start=start, end=end, after=after, page_size=page_size, snapshot=self._lease.handle
        )
        return self._renewing(scan(self._caller, Scanning(request, limit), timeout_s, pinned_at=self._lease.at))

    async def _renewing(self, entries: AsyncGenerator[Entry, None]) -> AsyncIterator[Entry]:
        await self._renew_when_due()
        async with aclosing(entries):
            async for entry in entries:
                yield entry
                await self._renew_when_due()

    async def renew(self) -> None:
        """For those who pause for longer than half a lease between two reads."""
        call = calls.renew_snapshot(self._lease.handle, self._lease_ms)
        answer = await self._caller.ask(call, None, pinned_at=self._lease.at)
        self._lease.renewed(answer.lease_ms, self._caller.now_s())

    async def close(self) -> None:
        """Closing one that has ended is fine, and one whose replica is away ends by itself."""
        try:
            await self._caller.ask(calls.release_snapshot(self._lease.handle), RELEASE_S, pinned_at=self._lease.at)
        except KvError:
            return

    async def _renew_when_due(self) -> None:
        if self._lease.is_due(self._caller.now_s()):
            await self.renew()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
