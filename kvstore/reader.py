"""What a blocking client reads piece by piece: scans, watches, events, and everything under a snapshot."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from kvstore import calls
from kvstore.checks import checked_timeout
from kvstore.errors import KvError, Unavailable
from kvstore.streams import STREAM_S, Following, Lease, Listening, Scanning, Stream, Watching
from kvstore.values import Change, Entry, Position

if TYPE_CHECKING:
    from kvstore.client import Caller

Piece = TypeVar("Piece")


RELEASE_S = 1.0  # seconds for giving a snapshot back; beyond it: its lease ends by itself


def scan(caller: Caller, source: Scanning, timeout_s: float | None, pinned_at: int | None = None) -> Iterator[Entry]:
    page_s = checked_timeout(timeout_s, caller.timeout_s)
    return _pieces(caller, source, begin_s=page_s, stream_s=page_s, pinned_at=pinned_at)


def listen(caller: Caller, source: Listening) -> Iterator[Any]:
    return _pieces(caller, source, begin_s=caller.timeout_s, stream_s=STREAM_S, pinned_at=None)


def _pieces(
    caller: Caller, source: Stream[Piece], *, begin_s: float, stream_s: float, pinned_at: int | None
) -> Iterator[Piece]:
    """Time runs from the first piece that is asked for."""
    reader = Reader(caller, source, begin_s=begin_s, resume_s=begin_s, stream_s=stream_s, pinned_at=pinned_at)
    try:
        while (found := reader.read()) is not None:
            yield from found
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
            now_s=time.monotonic(),
            begin_s=begin_s,
            resume_s=resume_s,
            stream_s=stream_s,
            pinned_at=pinned_at,
        )
        self._stream: Any = None
        self._closed = Event()

    def read(self) -> Sequence[Piece] | None:
        """What the next answer brings; None: that was all."""
        while not self._closed.is_set() and not self._following.source.is_done:
            try:
                answer = self._next()
            except KvError as failure:
                if self._closed.is_set():
                    return None
                self._stream = None
                self._caller.wait_or_raise(self._following, failure)
            else:
                return None if answer is None else self._following.came(answer)
        return None

    def _next(self) -> Any:
        if self._stream is None:
            self._stream = self._caller.open(self._following)
        answer = self._caller.read(self._stream, self._following)
        if answer is None and self._following.source.is_endless:
            raise Unavailable(site=self._caller.endpoints[self._following.at], why="it ended the stream")
        return answer

    def close(self) -> None:
        """From any thread; whoever reads hears that it is the end."""
        self._closed.set()
        if self._stream is not None:
            self._stream.cancel()


class Watch:
    """The changes under a prefix, one by one, in an order that respects causality: `for change in watch`.

    `position` is where another watch goes on after the changes that this one has handed out; changes that were written
    together count together, when the last of them is out. `close` ends the loop, from any thread.
    """

    def __init__(self, caller: Caller, source: Watching, timeout_s: float | None, patience_s: float) -> None:
        self._source = source
        begin_s = checked_timeout(timeout_s, caller.timeout_s)
        patience_s = checked_timeout(patience_s, patience_s)
        at = None if source.position is None else _holder(caller, source.position, begin_s)
        self._reader = Reader(caller, source, begin_s=begin_s, resume_s=patience_s, stream_s=STREAM_S, pinned_at=at)
        self._reader.read()  # the first answer says where it begins

    @property
    def position(self) -> Position | None:
        return self._source.position

    @property
    def site(self) -> str:
        """The name of the site that is watched."""
        return self._source.site

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while (change := self._source.next()) is None:
            if self._reader.read() is None:
                raise StopIteration
        return change

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _holder(caller: Caller, position: Position, timeout_s: float) -> int:
    """Which endpoint is the site that a position speaks of. With one endpoint, the replica itself will judge."""
    if len(caller.endpoints) == 1:
        return 0
    for at in range(len(caller.endpoints)):
        try:
            status = caller.ask(calls.status(), timeout_s / len(caller.endpoints), pinned_at=at)
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
        call = calls.snapshot(lease_ms)
        course = caller.course(call.kind, timeout_s)
        answer = caller.run(call, course)
        self._lease = Lease(answer, at=course.at, now_s=time.monotonic())

    @property
    def site(self) -> str:
        return self._lease.site

    @property
    def commit(self) -> int:
        """The number of the commit that it shows."""
        return self._lease.commit

    def get_many(self, keys: Iterable[bytes], *, timeout_s: float | None = None) -> dict[bytes, Entry]:
        call = calls.get_many(keys, self._lease.handle)
        self._renew_when_due()
        return self._caller.ask(call, timeout_s, pinned_at=self._lease.at)

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
    ) -> Iterator[Entry]:
        request = calls.scan_request(
            prefix=prefix, start=start, end=end, after=after, page_size=page_size, snapshot=self._lease.handle
        )
        return self._renewing(scan(self._caller, Scanning(request, limit), timeout_s, pinned_at=self._lease.at))

    def _renewing(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        self._renew_when_due()
        for entry in entries:
            yield entry
            self._renew_when_due()

    def renew(self) -> None:
        """For those who pause for longer than half a lease between two reads."""
        call = calls.renew_snapshot(self._lease.handle, self._lease_ms)
        answer = self._caller.ask(call, None, pinned_at=self._lease.at)
        self._lease.renewed(answer.lease_ms, time.monotonic())

    def close(self) -> None:
        """Closing one that has ended is fine, and one whose replica is away ends by itself."""
        try:
            self._caller.ask(calls.release_snapshot(self._lease.handle), RELEASE_S, pinned_at=self._lease.at)
        except KvError:
            return

    def _renew_when_due(self) -> None:
        if self._lease.is_due(time.monotonic()):
            self.renew()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
