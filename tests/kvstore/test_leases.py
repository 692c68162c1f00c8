"""Leased snapshots: one moment under one handle, for a bounded time, and never another moment instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstore.errors import SnapshotGone, TooManyWaiting
from kvstore.leases import LEASE_DEFAULT_MS, Leases
from kvstore.limits import Limits
from kvstore.storage.contract import Batch, SnapshotEnded
from kvstore.storage.lmdb import LmdbStorage
from kvstore.storage.memory import MemoryStorage


class Clocks:
    def __init__(self) -> None:
        self.mono_s = 100.0
        self.wall_ms = 5000


def lent(storage: Any = None, **limits: int) -> tuple[Leases, Clocks, Any]:
    clocks, storage = Clocks(), storage or MemoryStorage()
    leases = Leases(storage, Limits(**limits), lambda: clocks.wall_ms, monotonic_s=lambda: clocks.mono_s)
    return leases, clocks, storage


def commit(storage: Any, key: bytes, value: bytes) -> None:
    storage.commit(Batch(storage.number + 1, [("keys", key, value)]))


def test_a_lease_shows_the_moment_it_was_opened() -> None:
    leases, _, storage = lent()
    commit(storage, b"k", b"1")
    lease = leases.open()
    commit(storage, b"k", b"2")
    assert (lease.number, lease.clock_ms, lease.lease_ms) == (1, 5000, LEASE_DEFAULT_MS)
    with leases.reading(lease.handle) as read:
        assert read.view.get("keys", b"k") == b"1"
        assert read.view.number == 1


def test_handles_are_random_and_each_is_its_own() -> None:
    leases, _, _ = lent()
    handles = {leases.open().handle for _ in range(10)}
    assert len(handles) == 10 and {len(handle) for handle in handles} == {16}


def test_a_lease_ends_by_itself() -> None:
    leases, clocks, _ = lent()
    lease = leases.open(1000)
    clocks.mono_s += 0.999
    assert leases.get(lease.handle) is lease
    clocks.mono_s += 0.001
    with pytest.raises(SnapshotGone):
        leases.get(lease.handle)
    assert len(leases) == 0
    with pytest.raises(SnapshotEnded):
        lease.view.get("keys", b"k")


def test_a_sweep_closes_what_has_run_out_and_nothing_else() -> None:
    leases, clocks, _ = lent()
    short, long = leases.open(1000), leases.open(2000)
    clocks.mono_s += 1
    leases.sweep()
    assert len(leases) == 1 and leases.get(long.handle) is long
    with pytest.raises(SnapshotEnded):
        short.view.get("keys", b"k")


def test_a_renewed_lease_lives_on_but_no_longer_than_its_life() -> None:
    leases, clocks, _ = lent(snapshot_lease_max_ms=5000)
    lease = leases.open(1000)
    for expected in (2000, 2000, 2000, 2000, 1000):
        assert leases.renew(lease.handle, 2000).lease_ms == expected
        clocks.mono_s += 0.999 if expected == 1000 else 1
    assert leases.renew(lease.handle, 2000).lease_ms <= 1
    clocks.mono_s += 0.002
    with pytest.raises(SnapshotGone) as gone:
        leases.renew(lease.handle, 2000)
    assert gone.value.details == {"limit": "5000"}


def test_more_than_the_server_gives_is_cut() -> None:
    leases, _, _ = lent(snapshot_lease_max_ms=3000)
    assert leases.open(1 << 31).lease_ms == 3000
    assert leases.open().lease_ms == 3000


def test_the_wall_clock_has_no_say_in_how_long_a_lease_runs() -> None:
    leases, clocks, _ = lent()
    lease = leases.open(1000)
    clocks.wall_ms += 1 << 40
    assert leases.get(lease.handle) is lease


def test_releasing_twice_or_what_never_was_is_no_error() -> None:
    leases, _, _ = lent()
    lease = leases.open()
    for handle in (lease.handle, lease.handle, b"", b"never"):
        leases.release(handle)
    with pytest.raises(SnapshotGone):
        leases.get(lease.handle)


def test_only_so_many_are_lent_and_ended_ones_make_room() -> None:
    leases, clocks, _ = lent(snapshots_max=2)
    first = leases.open(1000)
    leases.open(5000)
    with pytest.raises(TooManyWaiting) as refused:
        leases.open()
    assert refused.value.details == {"limit": "2", "what": "snapshots"}
    clocks.mono_s += 1
    leases.open()
    with pytest.raises(SnapshotGone):
        leases.get(first.handle)


def test_closing_ends_all() -> None:
    leases, _, _ = lent()
    views = [leases.open().view for _ in range(3)]
    leases.close()
    assert len(leases) == 0
    for view in views:
        with pytest.raises(SnapshotEnded):
            view.get("keys", b"k")


def test_a_snapshot_that_the_storage_ended_is_gone_and_makes_room(tmp_path: Path) -> None:
    """The map is too small for what is written, so it grows, and ends the snapshots that are open."""
    with LmdbStorage(tmp_path / "data", create=True, map_bytes=1 << 18, snapshot_wait_s=0.01) as storage:
        leases, _, _ = lent(storage)
        commit(storage, b"k", b"1")
        lease = leases.open()
        for number in range(8):
            commit(storage, b"k%d" % number, b"v" * (1 << 16))
        with pytest.raises(SnapshotGone), leases.reading(lease.handle) as read:
            read.view.get("keys", b"k")
        assert len(leases) == 0
        with leases.reading(leases.open().handle) as read:
            assert read.view.get("keys", b"k") == b"1"
        leases.close()
