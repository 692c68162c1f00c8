"""Leased snapshots: one moment of the store, kept readable over many calls, for a bounded time.

A snapshot is a read transaction, and while it is open the storage can reuse nothing that it can still see. So nobody
owns one: it is lent, ends by itself when its lease runs out, and lives only so long in all, however often the lease is
renewed. The storage may end it earlier still, when its map has to grow. A reader then hears SnapshotGone and opens
another one; what it must never get is another moment under the same handle.

What is expired in a snapshot is judged by the site's clock at the moment it was opened, so that its pages agree.
Leases themselves run by a clock that nobody can set.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvstore.effects import Committed
from kvstore.errors import SnapshotGone, TooManyWaiting
from kvstore.limits import Limits
from kvstore.storage.contract import Snapshot, SnapshotEnded, Storage
from kvstore.wall import wall_ms

LEASE_DEFAULT_MS = 10_000  # of a lease that is asked for without a length
HANDLE_BYTES = 16  # random: who has not been given a handle cannot guess it


@dataclass(slots=True)
class Lease:
    handle: bytes
    view: Snapshot
    number: int  # of the commit that it shows
    clock_ms: int  # the site's clock when it was opened
    lease_ms: int  # that the lease was given, from when it was opened or last renewed
    until_s: float  # when the lease runs out
    end_s: float  # when it ends for good
    committed: Committed | None = None  # the record of that commit, for sessions that read it


class Leases:
    """All snapshots that are lent out. They are read on the thread of the loop only."""

    def __init__(
        self,
        storage: Storage,
        limits: Limits,
        clock_ms: Callable[[], int] = wall_ms,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._most = limits.snapshots_max
        self._life_ms = limits.snapshot_lease_max_ms
        self._clock_ms = clock_ms
        self._now_s = monotonic_s
        self._open: dict[bytes, Lease] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, lease_ms: int = 0) -> Lease:
        """A snapshot of this moment; 0: for as long as we like."""
        self.sweep()
        if len(self._open) >= self._most:
            raise TooManyWaiting(limit=self._most, what="snapshots")
        view = self._storage.snapshot()
        try:
            number = view.number
        except BaseException:
            view.close()
            raise
        now_s = self._now_s()
        end_s = now_s + self._life_ms / 1000
        lease = Lease(secrets.token_bytes(HANDLE_BYTES), view, number, self._clock_ms(), 0, now_s, end_s)
        self._prolong(lease, lease_ms)
        self._open[lease.handle] = lease
        return lease

    def renew(self, handle: bytes, lease_ms: int = 0) -> Lease:
        """The same for longer, counted from now. It may be less than was asked for: a life is bounded."""
        lease = self.get(handle)
        self._prolong(lease, lease_ms)
        return lease

    def release(self, handle: bytes) -> None:
        """Nobody needs it any more. One that has ended is no error."""
        lease = self._open.pop(handle, None)
        if lease is not None:
            lease.view.close()

    def get(self, handle: bytes) -> Lease:
        lease = self._open.get(handle)
        if lease is not None and self._now_s() >= lease.until_s:
            self.release(handle)
            lease = None
        if lease is None:
            raise self._gone()
        return lease

    @contextmanager
    def reading(self, handle: bytes) -> Iterator[Lease]:
        """Read from it, without awaiting anything. Where the storage has ended it, it is gone."""
        lease = self.get(handle)
        try:
            yield lease
        except SnapshotEnded:
            self.release(handle)
            raise self._gone() from None

    def sweep(self) -> None:
        """End what has run out; to be called now and then."""
        now_s = self._now_s()
        for handle in [lease.handle for lease in self._open.values() if now_s >= lease.until_s]:
            self.release(handle)

    def close(self) -> None:
        for handle in list(self._open):
            self.release(handle)

    def _prolong(self, lease: Lease, lease_ms: int) -> None:
        now_s = self._now_s()
        left_ms = max(0, int((lease.end_s - now_s) * 1000))
        lease.lease_ms = min(lease_ms or LEASE_DEFAULT_MS, left_ms)
        lease.until_s = now_s + lease.lease_ms / 1000

    def _gone(self) -> SnapshotGone:
        return SnapshotGone(limit=self._life_ms)
