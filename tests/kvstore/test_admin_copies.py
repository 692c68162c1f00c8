"""Copies of a replica's data and snapshots of it, asked for over gRPC while it goes on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.storage.lmdb import LmdbStorage
from kvstore.v1 import admin_pb2, kv_pb2, kv_pb2_grpc
from tests.kvstore.running import failure, running, told, until

# Backup


def test_a_backup_is_a_whole_copy_that_knows_its_commit(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            written = await cluster.put("a", b"k", b"kept")
            target = tmp_path / "copy"
            made = await cluster.admin("a").Backup(admin_pb2.BackupRequest(directory=str(target)))
            await cluster.put("a", b"k", b"later")
            assert (made.directory, made.site) == (str(target), "a")
            assert made.commit >= written.commit and made.size_bytes == (target / "data.mdb").stat().st_size > 0
            with LmdbStorage(target) as copy, copy.snapshot() as view:
                assert copy.number == made.commit
                assert b"kept" in (view.get("keys", b"k") or b"")

    told(story)


def test_a_backup_that_cannot_be_is_refused_with_a_reason_and_leaves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            (tmp_path / "there").mkdir()
            (tmp_path / "file").touch()
            before = sorted(tmp_path.rglob("*"))
            for directory, why in (
                ("", "absolute"),
                ("relative/copy", "absolute"),
                (str(tmp_path / "data" / ".." / "copy"), "absolute"),
                (f"{tmp_path}/a\0b", "absolute"),
                (str(tmp_path / "there"), "exists already"),
                (str(tmp_path / "nowhere" / "copy"), "there is no directory"),
                (str(tmp_path / "file" / "copy"), "there is no directory"),
                (str(tmp_path / ("x" * 300)), "too long"),
                (str(tmp_path / "data" / "a"), "inside the data directory"),
                (str(tmp_path / "data" / "a" / "copy"), "inside the data directory"),
            ):
                request = admin_pb2.BackupRequest(directory=directory)
                code, error = await failure(cluster.admin("a").Backup(request))
                assert (code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST"), directory
                assert why in str(error), str(error)
            assert sorted(tmp_path.rglob("*")) == before
            await cluster.put("a", b"alive")

    told(story)


class SlowCopies:
    """Backups that wait for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_free = False
        whole = LmdbStorage.backup

        def backup(storage: LmdbStorage, target: Path) -> None:
            while not self.is_free:
                time.sleep(0.005)
            whole(storage, target)

        monkeypatch.setattr(LmdbStorage, "backup", backup)


def test_while_a_backup_runs_the_replica_goes_on_and_a_second_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = SlowCopies(monkeypatch)

    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            ask = cluster.admin("a").Backup
            first = asyncio.ensure_future(ask(admin_pb2.BackupRequest(directory=str(tmp_path / "one"))))
            await asyncio.sleep(0.05)
            await asyncio.wait_for(cluster.put("a", b"k"), 5)
            code, error = await failure(ask(admin_pb2.BackupRequest(directory=str(tmp_path / "two"))))
            assert (code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WAITING")
            copies.is_free = True
            assert (await first).directory == str(tmp_path / "one")
            await ask(admin_pb2.BackupRequest(directory=str(tmp_path / "two")))

    told(story)


def test_a_backup_whose_caller_has_gone_is_still_made_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = SlowCopies(monkeypatch)

    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            ask = cluster.admin("a").Backup
            code, _ = await failure(ask(admin_pb2.BackupRequest(directory=str(tmp_path / "one")), timeout=0.1))
            assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            copies.is_free = True
            await until(lambda: (tmp_path / "one" / "data.mdb").exists())
            await until_free(ask, tmp_path)

    async def until_free(ask: Any, folder: Path) -> None:
        for number in range(100):
            try:
                await ask(admin_pb2.BackupRequest(directory=str(folder / f"next{number}")))
                return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
        raise AssertionError("the place of the first one was never free again")

    told(story)


# Snapshots


def test_a_snapshot_shows_the_moment_it_was_opened_until_it_is_released(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            written = await cluster.put("a", b"k", b"old")
            stub, keys = cluster.admin("a"), kv_pb2_grpc.KeyValueStub(cluster.channels["a"])
            lent = await stub.Snapshot(admin_pb2.SnapshotRequest())
            assert (lent.site, lent.commit) == ("a", written.commit) and 0 < lent.lease_ms <= 60_000
            await cluster.put("a", b"k", b"new")
            seen = await keys.GetMany(kv_pb2.GetManyRequest(keys=[b"k"], snapshot=lent.snapshot))
            assert b"old" in seen.SerializeToString() and b"new" not in seen.SerializeToString()
            renewed = await stub.RenewSnapshot(admin_pb2.RenewSnapshotRequest(lease_ms=5, snapshot=lent.snapshot))
            assert renewed.lease_ms == 5
            await stub.ReleaseSnapshot(admin_pb2.ReleaseSnapshotRequest(snapshot=lent.snapshot))
            await stub.ReleaseSnapshot(admin_pb2.ReleaseSnapshotRequest(snapshot=lent.snapshot))
            code, error = await failure(stub.RenewSnapshot(admin_pb2.RenewSnapshotRequest(snapshot=lent.snapshot)))
            assert (code, error.reason) == (grpc.StatusCode.NOT_FOUND, "SNAPSHOT_GONE")

    told(story)


def test_a_snapshot_comes_with_the_token_of_who_has_seen_all_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=2, cut=(("a", "b"),)) as cluster:
            await cluster.until_open()
            await cluster.put("a", b"k", b"1")
            lent = await cluster.admin("a").Snapshot(admin_pb2.SnapshotRequest())
            await cluster.put("a", b"k", b"2")
            a, b = (kv_pb2_grpc.KeyValueStub(cluster.channels[name]) for name in "ab")
            then = kv_pb2.GetManyRequest(keys=[b"k"], snapshot=lent.snapshot, session=lent.session)
            answer: Any = await a.GetMany(then, timeout=5)
            assert [entry.value for entry in answer.entries] == [b"1"] and answer.session
            _, error = await failure(b.Get(kv_pb2.GetRequest(key=b"k", session=answer.session), timeout=0.3))
            assert (error.reason, error.details["origin"], error.details["seq"]) == ("PAST_MISSING", "a", "1")
            now: Any = await a.Get(kv_pb2.GetRequest(key=b"k", session=answer.session), timeout=5)
            assert now.entry.value == b"2"
            then.session = now.session
            _, error = await failure(a.GetMany(then, timeout=5))
            assert error.reason == "PAST_MISSING", "the session has seen more than that moment"
            cluster.cut()
            await until(lambda: cluster["b"].replica.ordering.delivered[0] == 2)
            moved: Any = await b.Get(kv_pb2.GetRequest(key=b"k", session=now.session), timeout=5)
            assert moved.entry.value == b"2"

    told(story)


@pytest.mark.parametrize("protocol", ["fifo", "unordered"])
def test_where_there_are_no_sessions_a_snapshot_has_no_token(protocol: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1, protocol=protocol) as cluster:
            lent = await cluster.admin("a").Snapshot(admin_pb2.SnapshotRequest())
            assert lent.snapshot and lent.session == b""

    told(story)


def test_there_are_only_so_many_snapshots_and_none_lives_longer_than_it_may(tmp_path: Path) -> None:
    async def story() -> None:
        limits = {"snapshots_max": 2, "snapshot_lease_max_ms": 1_000}
        async with running(tmp_path, replicas=1, limits=limits) as cluster:
            ask = cluster.admin("a").Snapshot
            lent = [(await ask(admin_pb2.SnapshotRequest(lease_ms=5_000))).lease_ms for _ in range(2)]
            assert all(900 < lease_ms <= 1_000 for lease_ms in lent)
            code, error = await failure(ask(admin_pb2.SnapshotRequest()))
            assert (code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_WAITING")

    told(story)
