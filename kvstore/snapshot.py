"""Reads as of one moment, under a lease at one replica."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from kvstore import calls
from kvstore.errors import KvError
from kvstore.reader import scan
from kvstore.streams import Lease, Scanning
from kvstore.terms import Fresh
from kvstore.values import Entry

if TYPE_CHECKING:
    from kvstore.client import Caller

RELEASE_S = 1.0  # seconds for giving a snapshot back; beyond it: its lease ends by itself


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
        call = calls.read_many(keys, Fresh(), self._lease.handle)
        self._renew_when_due()
        return self._caller.ask(call, timeout_s, pinned_at=self._lease.at).entries

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
            prefix=prefix,
            start=start,
            end=end,
            after=after,
            page_size=page_size,
            snapshot=self._lease.handle,
            fresh=Fresh(),
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
