"""Copies of data directories: a site that lives again from one is another incarnation, and waits for its peers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore.config import Cluster
from kvstore.effects import Greeted, Input, Operation, Step, Write, Written
from kvstore.errors import BadRequest, CorruptRecord, ForeignData, StorageFailed, UnknownSite
from kvstore.errors import Restored as RestoredError
from kvstore.persist import open_replica, save
from kvstore.replica import Replica
from kvstore.restore import backup_directory, restore, verify_directory
from kvstore.storage import checkpoint
from kvstore.storage.folder import DATA, LOCK
from kvstore.storage.lmdb import FORMAT, MAGIC, LmdbStorage
from kvstore.storage.snapshot import HOUSE, seal
from kvstore.update import unpack_record
from tests.kvstore.test_storage import contents
from tests.kvstore.test_storage_lmdb import raw_table
from tests.simulation.cluster import make_cluster

CLUSTER = make_cluster(3, "optimal")
NOW_MS = 1_700_000_000_000
A, B, C = range(3)


class Site:
    """A replica on a disk, without its outside."""

    def __init__(self, folder: Path, *, site: int = A, durability: str = "sync") -> None:
        self.storage = LmdbStorage(folder, create=True, durability=durability)
        with self.storage.snapshot() as view:
            self.replica: Replica = open_replica(CLUSTER, site, view)

    def do(self, inputs: Sequence[Input]) -> Step:
        with self.storage.snapshot() as view:
            step = self.replica.step(inputs, NOW_MS, view)
        if step.changed:
            save(self.replica, step.batch)
            self.storage.commit(step.batch)
        return step

    def put(self, key: bytes, value: bytes, request_id: bytes = b"") -> Written:
        (answer,) = self.do([Write((Operation(key, value),), request_id)]).answers.values()
        if not isinstance(answer, Written):
            raise answer
        return answer

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: object) -> None:
        self.storage.close()


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a live site that wrote twice, and once more afterwards."""
    with Site(tmp_path / "live") as site:
        site.put(b"k", b"1", b"request 1")
        site.put(b"k", b"2", b"request 2")
        site.storage.backup(tmp_path / "backup")
        site.put(b"k", b"3", b"request 3")
    return tmp_path / "backup"


def everything(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# A site that lives again


def check_that_it_is_another_one(folder: Path, incarnation: int) -> None:
    with Site(folder) as site:
        assert site.replica.incarnation == incarnation > 1
        with pytest.raises(RestoredError, match="has not heard yet from b, c"):
            site.put(b"k", b"new")
        site.do([Greeted(B, 1, is_accepted_by_peer=True), Greeted(B, 1)])
        with pytest.raises(RestoredError, match="has not heard yet from c"):
            site.put(b"k", b"new")
    with Site(folder) as site:  # and a restart does not change it
        assert site.replica.incarnation == incarnation and site.replica.unproven == {C}


def test_a_restored_site_is_a_new_incarnation_that_takes_no_write_before_its_peers_spoke(
    tmp_path: Path, backup: Path
) -> None:
    restored = restore(backup, tmp_path / "again", CLUSTER, "a")
    assert (restored.site, restored.commit, restored.records["keys"]) == ("a", 2, 1)
    check_that_it_is_another_one(tmp_path / "again", restored.incarnation)


def test_a_copy_that_is_started_as_the_site_itself_is_caught(tmp_path: Path, backup: Path) -> None:
    shutil.copytree(backup, tmp_path / "again")
    with pytest.raises(AssertionError):
        check_that_it_is_another_one(tmp_path / "again", 2)


def test_a_restored_site_goes_on_where_the_backup_was_when_nothing_is_lost(tmp_path: Path, backup: Path) -> None:
    restore(backup, tmp_path / "again", CLUSTER, "a")
    with Site(tmp_path / "again") as site:
        assert unpack_record(contents(site.storage)[b"k"], key=b"k").value == b"2"
        assert {peer: (link.sent, link.acked) for peer, link in site.replica.links.items()} == {B: (2, 0), C: (2, 0)}
        site.do([hello for peer in (B, C) for hello in (Greeted(peer, 1, is_accepted_by_peer=True), Greeted(peer, 1))])
        assert site.replica.unproven == set() and site.replica.ordering.clock == 2
        step = site.do([Write((Operation(b"k", b"4"),))])
        assert [envelope.number for envelope in step.sends[B]] == [3]
        assert site.replica.ordering.clock == 3 and site.storage.verify().is_sound


def test_requests_from_before_the_backup_are_answered_and_not_done_again(tmp_path: Path, backup: Path) -> None:
    restore(backup, tmp_path / "again", CLUSTER, "a")
    with Site(tmp_path / "again") as site:
        assert site.put(b"k", b"2", b"request 2").is_repeat
        with pytest.raises(RestoredError):
            site.put(b"k", b"3", b"request 3")


def test_every_restore_is_an_incarnation_of_its_own(tmp_path: Path, backup: Path) -> None:
    found = [restore(backup, tmp_path / f"again {place}", CLUSTER, "a").incarnation for place in range(3)]
    assert sorted(set(found)) == found
    again = tmp_path / "again and again"
    later = restore(tmp_path / "again 2", again, CLUSTER, "a", now_us=lambda: 5)  # of a clock that has gone back
    assert later.incarnation == found[-1] + 1


def test_a_backup_is_left_as_it_is_and_an_empty_target_is_taken(tmp_path: Path, backup: Path) -> None:
    before = everything(backup)
    (tmp_path / "again").mkdir()
    restore(backup, tmp_path / "again", CLUSTER, "a")
    assert everything(backup) == before and list(before) == [DATA]
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == sorted([DATA, LOCK, "lock.mdb"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "backup", "live"]


def test_the_directory_of_a_replica_that_lost_its_power_can_be_restored_to_its_last_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Site(tmp_path / "live", durability="periodic") as site:
        site.put(b"k", b"synced")
        site.storage.sync()
        site.put(b"k", b"not yet")
        shutil.copytree(site.storage.path, tmp_path / "lost", ignore=shutil.ignore_patterns("lock.mdb", LOCK))
    (tmp_path / "boot id").write_text("another")
    monkeypatch.setattr(checkpoint, "BOOT_ID", tmp_path / "boot id")
    assert restore(tmp_path / "lost", tmp_path / "again", CLUSTER, "a").commit == 1


# What is refused


def test_a_target_that_holds_something_is_refused(tmp_path: Path, backup: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "other.unfinished").mkdir()
    for name in ("live", "backup", "file", "other"):
        with pytest.raises(BadRequest, match="exists already"):
            restore(backup, tmp_path / name, CLUSTER, "a")
    with pytest.raises(StorageFailed, match="nothing can be restored there"):
        restore(backup, tmp_path / "none" / "deeper", CLUSTER, "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "file", "live", "other.unfinished"]


OTHERS: dict[str, Callable[[Cluster], Cluster]] = {
    "cluster id": lambda cluster: replace(cluster, cluster_id="another"),
    "protocol and options": lambda cluster: replace(cluster, protocol="vector"),
    "placement": lambda cluster: replace(cluster, placement={b"": ("a", "b", "c"), b"x": ("a",)}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_backup_of_something_else_is_refused_with_both_values(tmp_path: Path, backup: Path, what: str) -> None:
    with pytest.raises(ForeignData, match=f"backup is not ours to open: its {what} is .*, but this replica's is "):
        restore(backup, tmp_path / "again", OTHERS[what](CLUSTER), "a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", "live"]


def test_a_backup_of_another_site_or_of_none_is_refused(tmp_path: Path, backup: Path) -> None:
    with pytest.raises(ForeignData, match="its site number is 0, but this replica's is 1"):
        restore(backup, tmp_path / "again", CLUSTER, "b")
    with pytest.raises(UnknownSite):
        restore(backup, tmp_path / "again", CLUSTER, "z")
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(ForeignData, match=f"there is no {DATA} in it"):
            restore(nothing, tmp_path / "again", CLUSTER, "a")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_backup_of_the_future_or_of_another_program_is_refused(tmp_path: Path, backup: Path) -> None:
    with raw_table(backup, HOUSE) as (txn, db):
        txn.put(b"format", seal(HOUSE, b"format", MAGIC + (FORMAT + 1).to_bytes(2)), db=db)
    with pytest.raises(ForeignData, match=f"backup is not ours to open: its format is {FORMAT + 1}"):
        restore(backup, tmp_path / "again", CLUSTER, "a")
    (backup / DATA).write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(ForeignData, match="no LMDB file"):
        restore(backup, tmp_path / "again", CLUSTER, "a")


def test_a_corrupt_backup_is_refused_by_the_name_of_its_first_bad_record(tmp_path: Path, backup: Path) -> None:
    with raw_table(backup, "keys") as (txn, db):
        txn.put(b"k", b"rotten", db=db)
    with pytest.raises(
        CorruptRecord, match=r"backup cannot be restored: 1 bad records, the first: .* of k in table keys"
    ):
        restore(backup, tmp_path / "again", CLUSTER, "a")
    os.truncate(backup / DATA, (backup / DATA).stat().st_size // 2)
    with pytest.raises(CorruptRecord, match=f"backup/{DATA} was cut short"):
        restore(backup, tmp_path / "again", CLUSTER, "a")
    assert not (tmp_path / "again").exists()


def test_the_directory_of_a_running_replica_is_refused_by_its_process(tmp_path: Path) -> None:
    with Site(tmp_path / "live") as site:
        site.put(b"k", b"v")
        for call in (
            lambda: verify_directory(tmp_path / "live"),
            lambda: backup_directory(tmp_path / "live", tmp_path / "copy"),
            lambda: restore(tmp_path / "live", tmp_path / "again", CLUSTER, "a"),
        ):
            with pytest.raises(StorageFailed, match=f"live cannot be used: process {os.getpid()} has it open"):
                call()
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


# Directories at rest


def test_a_directory_at_rest_can_be_verified_and_copied(tmp_path: Path, backup: Path) -> None:
    report = verify_directory(tmp_path / "live")
    assert report.is_sound and (report.number, report.records["keys"], report.records["requests"]) == (3, 1, 6)
    copied = backup_directory(tmp_path / "live", tmp_path / "copy")
    assert copied == (3, (tmp_path / "copy" / DATA).stat().st_size)
    assert restore(tmp_path / "copy", tmp_path / "again", CLUSTER, "a").commit == 3
    assert verify_directory(tmp_path / "again").number == 4
    with raw_table(backup, "outbox") as (txn, db):
        txn.put(b"k", b"rotten", db=db)
    assert [bad.table for bad in verify_directory(backup).bad] == ["outbox"]


def test_what_is_no_data_directory_is_not_made_one_by_looking_at_it(tmp_path: Path) -> None:
    for call in (verify_directory, lambda path: backup_directory(path, tmp_path / "copy")):
        with pytest.raises(ForeignData, match=f"there is no {DATA} in it"):
            call(tmp_path)
    assert list(tmp_path.iterdir()) == []
