"""Reads: inline on the loop, each from one snapshot of the storage.

A snapshot shows one commit, so whatever is read from it was true at one moment, and its number is the answer's
`commit`. It is never kept open while something is awaited. A scan is therefore read page by page, each from a snapshot
of its own unless the client has leased one. The work of a page is bounded by the keys it looks at, not by those it
finds: a page behind many deleted keys may be empty, and still says how far it came.

With a session, the same snapshot decides whether the session may read here at all; if not, the answer is what is
lacking, and whoever asked tries again when something has come (sessions.py). What is expired is judged by the later of
two clocks, the site's and the session's: what a session saw expire does not come back to it at a site whose clock is
behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from causal.model import Dot
from kvstore.clock import time_ms
from kvstore.config import SiteConfig
from kvstore.effects import Committed
from kvstore.errors import BatchTooLarge, KvError
from kvstore.leases import Leases
from kvstore.limits import Limits
from kvstore.loop import Loop
from kvstore.rpc.wire import fill, to_error
from kvstore.sessions import PLAIN, Lack, Seen, Sessions, Wanted
from kvstore.storage.contract import Snapshot, Storage
from kvstore.update import Record, living, records_of, unpack_record
from kvstore.v1 import kv_pb2


class Range(NamedTuple):
    """What is left of a scan."""

    start: bytes
    stop: bytes | None  # None: to the end
    last_key: bytes  # looked at so far; empty: none
    page_max: int  # entries of a page
    left: int | None  # entries that the whole scan may still give; None: all


class Look:
    """What one read saw, while it reads."""

    __slots__ = ("clock_ms", "commit", "dots", "expired", "is_whole", "newest")

    def __init__(self, commit: int, clock_ms: int) -> None:
        self.commit = commit
        self.clock_ms = clock_ms
        self.newest = 0
        self.dots: list[Dot] = []
        self.is_whole = False  # it saw that something is not there, which may be due to anything in the commit
        self.expired = False

    def at(self, view: Snapshot, key: bytes) -> tuple[Record, ...]:
        data = view.get("keys", key)
        if data is None:
            self.is_whole = True
            return ()
        return self.of(unpack_record(data, key=key))

    def of(self, row: Record) -> tuple[Record, ...]:
        """The values that live in this row."""
        values = living(row, self.clock_ms)
        self.newest = max(self.newest, row.commit)  # the row's: who reads it has seen what took something away, too
        for record in records_of(row):
            self.dots.append(record.dot)
            self.expired |= bool(record.expires_ms) and not record.is_alive(self.clock_ms)
        return values

    def seen(self) -> Seen:
        if self.is_whole:  # what is not there may have expired, and been swept away without a trace
            return Seen(self.commit, None, None, self.clock_ms)
        return Seen(self.commit, self.dots, self.newest, self.clock_ms if self.expired else 0)


class Reading:
    """What clients read at one site. Each read gives an answer and what it saw, or what is lacking for it."""

    def __init__(
        self,
        site: SiteConfig,
        storage: Storage,
        leases: Leases,
        limits: Limits,
        loop: Loop,
        sessions: Sessions,
        clock_ms: Callable[[], int],
    ) -> None:
        self._site = site.name
        self._storage = storage
        self._leases = leases
        self._loop = loop
        self._sessions = sessions
        self._answer_bytes_max = limits.message_bytes_max
        self._page_max = limits.scan_page_max
        self._page_bytes_max = limits.scan_page_bytes_max
        self._clock_ms = clock_ms

    def get(self, key: bytes, wanted: Wanted = PLAIN, asked_ms: int = 0) -> tuple[kv_pb2.GetResponse, Look] | Lack:
        with self._storage.snapshot() as view:
            look = self._look(view.number, None, self._clock_ms(), wanted, asked_ms)
            if isinstance(look, Lack):
                return look
            values = look.at(view, key)
        response = kv_pb2.GetResponse(site=self._site, commit=look.commit)
        if values:
            fill(response.entry, key, *values)
        return self._tell(response), look

    def get_many(
        self, keys: list[bytes], handle: bytes, wanted: Wanted = PLAIN, asked_ms: int = 0
    ) -> tuple[kv_pb2.GetManyResponse, Look] | Lack:
        """All at one moment; an answer that would be too large is refused whole."""
        size = 0
        with self._moment(handle) as (view, committed, clock_ms):
            look = self._look(view.number, committed, clock_ms, wanted, asked_ms)
            if isinstance(look, Lack):
                return look
            response = kv_pb2.GetManyResponse(site=self._site, commit=view.number)
            for key in keys:
                values = look.at(view, key)
                if values:
                    size += len(key) + _bytes_of(values)
                    if size > self._answer_bytes_max:
                        raise BatchTooLarge(size=size, unit="bytes", limit=self._answer_bytes_max)
                    fill(response.entries.add(), key, *values)
        return (response if handle else self._tell(response)), look

    def answer(
        self, gets: Iterable[tuple[bytes, kv_pb2.PipelineResult]], wanted: Wanted = PLAIN, asked_ms: int = 0
    ) -> Look | Lack:
        """The gets of a pipeline, each into its result.

        What does not fit into the answer any more fails by itself: asked again alone it will fit.
        """
        size, staleness_ms = 0, self._sessions.staleness_ms()
        with self._storage.snapshot() as view:
            look = self._look(view.number, None, self._clock_ms(), wanted, asked_ms)
            if isinstance(look, Lack):
                return look
            for key, result in gets:
                try:
                    values = look.at(view, key)
                    if values:
                        size += len(key) + _bytes_of(values)
                        if size > self._answer_bytes_max:
                            raise BatchTooLarge(size=size, unit="bytes", limit=self._answer_bytes_max)
                        fill(result.get.entry, key, *values)
                    result.get.commit = look.commit
                    if staleness_ms is not None:
                        result.get.staleness_ms = staleness_ms
                except KvError as error:
                    result.error.CopyFrom(to_error(error))
        return look

    def _look(
        self, number: int, committed: Committed | None, clock_ms: int, wanted: Wanted, asked_ms: int
    ) -> Look | Lack:
        """The beginning of a read of this commit; or why it cannot begin."""
        if wanted is not PLAIN:
            lack = self._sessions.lack(wanted, committed or self._loop.committed(number), asked_ms)
            if committed is not None:  # a leased moment, which nothing is added to any more
                lack = lack or self._sessions.lack_of_old(wanted, committed)
                if lack is not None:
                    raise lack.error(0)
            if lack is not None:
                return lack
            if wanted.past is not None:
                clock_ms = max(clock_ms, time_ms(wanted.past.time))
        return Look(number, clock_ms)

    def _tell(self, response: Any) -> Any:
        staleness_ms = self._sessions.staleness_ms()
        if staleness_ms is not None:
            response.staleness_ms = staleness_ms
        return response

    # Scans

    def range(self, request: kv_pb2.ScanRequest, start: bytes, stop: bytes | None) -> Range:
        """All of a scan, before its first page."""
        page_max = min(request.page_size or self._page_max, self._page_max)
        return Range(start, stop, request.after, page_max, request.limit or None)

    def page(
        self, wanted: Range, handle: bytes, past: Wanted = PLAIN, asked_ms: int = 0
    ) -> tuple[kv_pb2.ScanResponse, Look, Range | None] | Lack:
        """The next page, and what is left after it; None: nothing."""
        most = wanted.page_max if wanted.left is None else min(wanted.page_max, wanted.left)
        last_key, size, looked = wanted.last_key, 0, 0
        is_last = False
        with self._moment(handle) as (view, committed, clock_ms):
            look = self._look(view.number, committed, clock_ms, past, asked_ms)
            if isinstance(look, Lack):
                return look
            look.is_whole = True
            response = kv_pb2.ScanResponse(site=self._site, commit=view.number)
            entries = response.entries
            rows = view.scan("keys", wanted.start, wanted.stop)
            while len(entries) < most and looked < self._page_max and size < self._page_bytes_max:
                row = next(rows, None)
                if row is None:
                    is_last = True
                    break
                key, data = row
                if looked and size + len(key) + len(data) > self._page_bytes_max:
                    break
                last_key, size, looked = key, size + len(key) + len(data), looked + 1
                values = look.of(unpack_record(data, key=key))
                if values:
                    fill(entries.add(), key, *values)
        response.last_key = last_key
        left = None if wanted.left is None else wanted.left - len(entries)
        if not handle:
            self._tell(response)
        if is_last or left == 0:
            return response, look, None
        return response, look, wanted._replace(start=last_key + b"\0", last_key=last_key, left=left)

    @contextmanager
    def _moment(self, handle: bytes) -> Iterator[tuple[Snapshot, Committed | None, int]]:
        """What to read from, its record, and the clock that says what is expired there: now, or a leased moment."""
        if handle:
            with self._leases.reading(handle) as lease:
                yield lease.view, lease.committed, lease.clock_ms
        else:
            with self._storage.snapshot() as view:
                yield view, None, self._clock_ms()


def _bytes_of(values: Iterable[Record]) -> int:
    return sum([len(record.value or b"") for record in values])
