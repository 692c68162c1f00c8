"""Reads: inline on the loop, each from one snapshot of the storage.

A snapshot shows one commit, so whatever is read from it was true at one moment, and its number is the answer's
`commit`. It is never kept open while something is awaited. A scan is therefore read page by page, each from a snapshot
of its own unless the client has leased one. The work of a page is bounded by the keys it looks at, not by those it
finds: a page behind many deleted keys may be empty, and still says how far it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kvstore.config import SiteConfig
from kvstore.errors import BatchTooLarge, KvError
from kvstore.leases import Leases
from kvstore.limits import Limits
from kvstore.rpc.wire import fill, to_error
from kvstore.storage.contract import Snapshot, Storage
from kvstore.update import Record, unpack_record
from kvstore.v1 import kv_pb2


class Range(NamedTuple):
    """What is left of a scan."""

    start: bytes
    stop: bytes | None  # None: to the end
    last_key: bytes  # looked at so far; empty: none
    page_max: int  # entries of a page
    left: int | None  # entries that the whole scan may still give; None: all


class Reading:
    """What clients read at one site."""

    def __init__(
        self, site: SiteConfig, storage: Storage, leases: Leases, limits: Limits, clock_ms: Callable[[], int]
    ) -> None:
        self._site = site.name
        self._storage = storage
        self._leases = leases
        self._answer_bytes_max = limits.message_bytes_max
        self._page_max = limits.scan_page_max
        self._page_bytes_max = limits.scan_page_bytes_max
        self._clock_ms = clock_ms

    def get(self, key: bytes) -> kv_pb2.GetResponse:
        with self._storage.snapshot() as view:
            response = kv_pb2.GetResponse(site=self._site, commit=view.number)
            record = _alive(view, key, self._clock_ms())
        if record is not None:
            fill(response.entry, key, record)
        return response

    def get_many(self, keys: list[bytes], handle: bytes) -> kv_pb2.GetManyResponse:
        """All at one moment; an answer that would be too large is refused whole."""
        size = 0
        with self._moment(handle) as (view, clock_ms):
            response = kv_pb2.GetManyResponse(site=self._site, commit=view.number)
            for key in keys:
                record = _alive(view, key, clock_ms)
                if record is not None:
                    size += len(key) + len(record.value or b"")
                    if size > self._answer_bytes_max:
                        raise BatchTooLarge(size=size, unit="bytes", limit=self._answer_bytes_max)
                    fill(response.entries.add(), key, record)
        return response

    def answer(self, gets: Iterable[tuple[bytes, kv_pb2.PipelineResult]]) -> int:
        """The gets of a pipeline, each into its result; the number of the commit they were read at.

        What does not fit into the answer any more fails by itself: asked again alone it will fit.
        """
        size = 0
        clock_ms = self._clock_ms()
        with self._storage.snapshot() as view:
            number = view.number
            for key, result in gets:
                try:
                    record = _alive(view, key, clock_ms)
                    if record is not None:
                        size += len(key) + len(record.value or b"")
                        if size > self._answer_bytes_max:
                            raise BatchTooLarge(size=size, unit="bytes", limit=self._answer_bytes_max)
                        fill(result.get.entry, key, record)
                    result.get.commit = number
                except KvError as error:
                    result.error.CopyFrom(to_error(error))
        return number

    # Scans

    def range(self, request: kv_pb2.ScanRequest, start: bytes, stop: bytes | None) -> Range:
        """All of a scan, before its first page."""
        page_max = min(request.page_size or self._page_max, self._page_max)
        return Range(start, stop, request.after, page_max, request.limit or None)

    def page(self, wanted: Range, handle: bytes) -> tuple[kv_pb2.ScanResponse, Range | None]:
        """The next page, and what is left after it; None: nothing."""
        most = wanted.page_max if wanted.left is None else min(wanted.page_max, wanted.left)
        last_key, size, looked = wanted.last_key, 0, 0
        is_last = False
        with self._moment(handle) as (view, clock_ms):
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
                record = unpack_record(data, key=key)
                if record.is_alive(clock_ms):
                    fill(entries.add(), key, record)
        response.last_key = last_key
        left = None if wanted.left is None else wanted.left - len(entries)
        if is_last or left == 0:
            return response, None
        return response, wanted._replace(start=last_key + b"\0", last_key=last_key, left=left)

    @contextmanager
    def _moment(self, handle: bytes) -> Iterator[tuple[Snapshot, int]]:
        """What to read from, and the clock that says what is expired there: now, or a leased moment."""
        if handle:
            with self._leases.reading(handle) as lease:
                yield lease.view, lease.clock_ms
        else:
            with self._storage.snapshot() as view:
                yield view, self._clock_ms()


def _alive(view: Snapshot, key: bytes, clock_ms: int) -> Record | None:
    data = view.get("keys", key)
    if data is None:
        return None
    record = unpack_record(data, key=key)
    return record if record.is_alive(clock_ms) else None
