"""What only a disk can do to a store: rot, fill up, fail, be somebody else's, lose its process in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kvstore.errors import BadRequest, CorruptRecord, ForeignData, StorageFailed
from kvstore.storage import Batch, Snapshot, SnapshotEnded
from kvstore.storage.folder import DATA, LOCK
from kvstore.storage.lmdb import FORMAT, MAGIC, MODES, LmdbStorage
from kvstore.storage.snapshot import HOUSE, LmdbSnapshot, seal
from tests.kvstore.test_storage import contents, put

ROOT = Path(__file__).resolve().parents[2]
SMALL_MAP = 1 << 17
PAGE = os.sysconf("SC_PAGE_SIZE")
PRELUDE = """
import sys
from pathlib import Path
from kvstore.storage import Batch
from kvstore.storage.lmdb import LmdbStorage
"""


def program(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", PRELUDE + source, *map(str, arguments)]


def run(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        program(source, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


@contextmanager
def raw_table(path: Path, table: str) -> Iterator[tuple[lmdb.Transaction[bytes], Any]]:
    """The file behind the back of its store."""
    with lmdb.open(str(path), lib_version=0, max_dbs=16) as env:
        db = env.open_db(table.encode(), create=False)
        with env.begin(write=True) as txn:
            yield txn, db


# Rot


def fault(read: Callable[[], object]) -> dict[str, str] | str:
    try:
        return f"nobody noticed: {read()!r}"
    except CorruptRecord as error:
        return error.details


def check_a_changed_bit_is_noticed(make: Callable[[Path], LmdbStorage], path: Path) -> None:
    with make(path) as store:
        put(store, {b"a": b"good", b"b\xff": b"goes bad", b"c": b"good"})
    with raw_table(path, "keys") as (txn, db):
        sealed = bytearray(txn.get(b"b\xff", b"", db))
        sealed[0] ^= 1
        txn.put(b"b\xff", bytes(sealed), db=db)
    with make(path) as store, store.snapshot() as snapshot:
        assert snapshot.get("keys", b"a") == b"good"
        for read in (
            lambda: snapshot.get("keys", b"b\xff"),
            lambda: list(snapshot.scan("keys")),
            lambda: list(snapshot.scan("keys", reverse=True)),
        ):
            assert fault(read) == {"table": "keys", "key": "b\\xff", "why": "its checksum is wrong"}


def test_a_changed_bit_is_an_error_that_names_table_and_key(tmp_path: Path) -> None:
    check_a_changed_bit_is_noticed(LmdbStorage, tmp_path)


class TrustingSnapshot(LmdbSnapshot):
    _opened = staticmethod(lambda table, key, sealed: sealed[:-4])


class Trusting(LmdbStorage):
    def snapshot(self) -> Snapshot:
        return TrustingSnapshot(self)


def test_a_store_that_does_not_check_is_caught(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="nobody noticed"):
        check_a_changed_bit_is_noticed(Trusting, tmp_path)


@pytest.mark.parametrize(("table", "key"), [("keys", b"other"), ("meta", b"k")])
def test_a_record_in_the_wrong_place_is_corrupt_although_its_own_bytes_are_whole(
    tmp_path: Path, table: str, key: bytes
) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"k": b"v"})
    with raw_table(tmp_path, "keys") as (txn, db):
        sealed = txn.get(b"k", b"", db)
    with raw_table(tmp_path, table) as (txn, db):
        txn.put(key, sealed, db=db)
    with LmdbStorage(tmp_path) as store, store.snapshot() as snapshot, pytest.raises(CorruptRecord):
        snapshot.get(table, key)


@pytest.mark.parametrize("sealed", [b"", b"abc", b"\0\0\0\0"])
def test_a_record_that_lost_its_checksum_is_corrupt(tmp_path: Path, sealed: bytes) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"k": b"v"})
    with raw_table(tmp_path, "keys") as (txn, db):
        txn.put(b"k", sealed, db=db)
    with LmdbStorage(tmp_path) as store, store.snapshot() as snapshot, pytest.raises(CorruptRecord):
        snapshot.get("keys", b"k")


def test_verify_counts_the_bad_and_names_the_first(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"%02d" % key: b"v" for key in range(40)})
    with raw_table(tmp_path, "keys") as (txn, db):
        for key in range(20, 35):
            txn.put(b"%02d" % key, b"rotten", db=db)
    with LmdbStorage(tmp_path) as store:
        report = store.verify()
    assert not report.is_sound
    assert (report.number, report.bad_count, report.records["keys"]) == (1, 15, 25)
    assert [bad.key for bad in report.bad] == [b"%02d" % key for key in range(20, 30)]


def test_verify_goes_on_behind_a_table_with_a_broken_page(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"%04d" % key: b"in the keys" * 20 for key in range(500)})
        put(store, {b"%04d" % key: b"in the outbox" * 20 for key in range(500)}, table="outbox")
    data = bytearray((tmp_path / DATA).read_bytes())
    broken = data.index(b"in the keys") // PAGE * PAGE
    data[broken : broken + PAGE] = b"?" * PAGE
    (tmp_path / DATA).write_bytes(data)
    with LmdbStorage(tmp_path) as store:
        report = store.verify()
    assert [(bad.table, bad.key) for bad in report.bad] == [("keys", b"")]
    assert report.number == 2 and report.records["keys"] < report.records["outbox"] == 500


def test_verify_notices_that_records_are_missing_from_a_page(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"%04d" % key: b"in the keys" for key in range(20)})
    data = bytearray((tmp_path / DATA).read_bytes())
    count_at = data.rindex(b"in the keys") // PAGE * PAGE + 12  # where its list of records ends
    data[count_at] -= 2
    (tmp_path / DATA).write_bytes(data)
    with LmdbStorage(tmp_path) as store:
        assert [bad.why for bad in store.verify().bad] == ["table keys has 19 records that can be found, of 20"]


def test_verify_says_so_when_the_stores_own_table_is_bad(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"k": b"v"})
        with store.env.begin(write=True, db=store.tables[HOUSE]) as txn:
            txn.put(b"number", b"rotten")
        assert [bad.table for bad in store.verify().bad] == [HOUSE]
    with pytest.raises(CorruptRecord, match="number"):
        LmdbStorage(tmp_path)


def test_a_file_that_was_cut_short_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        put(store, {b"%04d" % key: b"v" * 1000 for key in range(1000)})
    os.truncate(tmp_path / DATA, (tmp_path / DATA).stat().st_size // 2)
    with pytest.raises(CorruptRecord, match="cut short"):
        LmdbStorage(tmp_path)


# A full map


def test_the_map_grows_by_itself(tmp_path: Path) -> None:
    rows = {b"%04d" % key: b"v" * 3000 for key in range(500)}
    with LmdbStorage(tmp_path, map_bytes=SMALL_MAP) as store:
        put(store, rows)  # four times over in one commit
        assert contents(store) == rows
        assert store.env.info()["map_size"] >= store.size_bytes() > SMALL_MAP
    with LmdbStorage(tmp_path, map_bytes=SMALL_MAP) as store:
        assert contents(store) == rows  # a map smaller than the file is made to fit it
        put(store, {b"more": b"v" * 100_000})
        assert len(contents(store)) == 501


def test_deletes_that_find_the_map_full_grow_it_too(tmp_path: Path) -> None:
    """Copy on write: deleting takes pages, and so does the list of the free ones, which the commit writes."""
    grown_by_a_drop = 0
    for count in range(20, 34):
        folder = tmp_path / str(count)
        with LmdbStorage(folder, create=True, map_bytes=SMALL_MAP) as store:
            put(store, {b"%04d" % key: b"v" * 3000 for key in range(count)})
            map_bytes = store.env.info()["map_size"]
            store.commit(Batch(2, drops=[("keys", b"0001", b"9")], deletes=[("keys", b"0000")]))
            assert contents(store) == {} and store.verify().is_sound
            grown_by_a_drop += store.env.info()["map_size"] > map_bytes
    assert grown_by_a_drop


def test_readers_do_not_notice_that_the_map_grows(tmp_path: Path) -> None:
    errors, reads, is_over = list[Exception](), [0], threading.Event()
    with LmdbStorage(tmp_path, map_bytes=SMALL_MAP, durability="periodic", snapshot_wait_s=60) as store:

        def read() -> None:
            while not is_over.is_set():
                try:
                    with store.snapshot() as snapshot:
                        assert snapshot.number == sum(1 for _ in snapshot.scan("keys"))
                        reads[0] += 1
                except Exception as error:
                    errors.append(error)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(1, 201):
            put(store, {b"%04d" % number: b"v" * 50_000})
        is_over.set()
        for reader in readers:
            reader.join()
        assert store.gate.epoch >= 6  # it grew from 128 KiB to more than 8 MiB
    assert errors == [] and reads[0]


def test_a_snapshot_that_stays_too_long_is_ended_and_holds_up_nobody_after(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path, map_bytes=SMALL_MAP, snapshot_wait_s=0.05) as store:
        put(store, {b"a": b"1", b"b": b"2"})
        forgotten = store.snapshot()
        rows = forgotten.scan("keys")
        next(rows)
        put(store, {b"large": b"v" * SMALL_MAP})
        for read in (lambda: forgotten.get("keys", b"a"), lambda: next(rows)):
            with pytest.raises(SnapshotEnded):
                read()
        store._snapshot_wait_s = 60  # would be felt if the forgotten one still counted
        put(store, {b"larger": b"v" * 8 * SMALL_MAP})
        forgotten.close()
        with store.snapshot() as snapshot:
            put(store, {b"small": b"v"})
            assert snapshot.number == 3


def test_a_full_map_waits_for_a_backup_however_long_it_takes(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path, map_bytes=SMALL_MAP, snapshot_wait_s=0.01) as store:
        epoch = store.gate.enter(stays=True)
        writer = threading.Thread(target=put, args=(store, {b"large": b"v" * SMALL_MAP}))
        writer.start()
        writer.join(0.2)
        assert writer.is_alive()
        assert contents(store) == {}  # and readers pass meanwhile
        store.gate.leave(epoch, stays=True)
        writer.join(10)
        assert len(contents(store)) == 1


def test_a_map_at_its_limit_stops_the_store(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path, map_bytes=SMALL_MAP, map_bytes_max=2 * SMALL_MAP) as store:
        put(store, {b"k": b"v"})
        with pytest.raises(StorageFailed, match=f"full, and its {2 * SMALL_MAP} bytes"):
            put(store, {b"large": b"v" * 4 * SMALL_MAP})
        with pytest.raises(StorageFailed, match="full"):
            store.snapshot()
    with LmdbStorage(tmp_path) as store:
        assert contents(store) == {b"k": b"v"} and store.number == 1


# A disk that fails


class Failing:
    """Stands before the environment and breaks one thing."""

    def __init__(self, env: lmdb.Environment, *, at: str) -> None:
        self._env = env
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, **options: Any) -> Any:
        return Uncommittable(self._env.begin(**options)) if self._at == "commit" else self._env.begin(**options)

    def sync(self, force: bool) -> None:
        if self._at == "sync":
            raise lmdb.Error("mdb_env_sync: Input/output error")
        self._env.sync(force)


class Uncommittable:
    def __init__(self, txn: Any) -> None:
        self._txn = txn

    def __enter__(self) -> Any:
        return self._txn

    def __exit__(self, *_: object) -> None:
        self._txn.abort()
        raise lmdb.Error("mdb_txn_commit: Input/output error")


@pytest.mark.parametrize("at", ["commit", "sync"])
def test_after_a_failed_commit_or_sync_the_store_refuses_everything(tmp_path: Path, at: str) -> None:
    """And after a failed sync it goes back to the last good one: what it could not write only seems to be there."""
    with LmdbStorage(tmp_path, durability="periodic") as store:
        put(store, {b"k": b"v"})
        store.sync()
        put(store, {b"unsynced": b"v"})
        env = store.env
        store.env = Failing(env, at=at)  # type: ignore[assignment]
        with pytest.raises(StorageFailed, match=rf"{at}.*Input/output error") as failure:
            store.sync() if at == "sync" else put(store, {b"k": b"w"})
        assert not failure.value.definite
        store.env = env  # the disk works again, as if nothing had been
        for call in (lambda: store.commit(Batch(3)), store.snapshot, store.sync, store.verify, store.compact):
            with pytest.raises(StorageFailed, match=at):
                call()
    with LmdbStorage(tmp_path, durability="periodic") as store:
        assert sorted(contents(store)) == ([b"k"] if at == "sync" else [b"k", b"unsynced"])


def test_a_disk_without_space_stops_the_store_and_keeps_what_was_committed(tmp_path: Path) -> None:
    ended = run(
        """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
store = LmdbStorage(Path(sys.argv[1]))
while True:
    store.commit(Batch(store.number + 1, puts=[("keys", b"%04d" % store.number, b"v" * 10_000)]))
    print(store.number, flush=True)
""",
        tmp_path,
    )
    assert ended.returncode == 1 and "StorageFailed" in ended.stderr.splitlines()[-1], ended.stderr
    with LmdbStorage(tmp_path) as store:
        assert store.number == int(ended.stdout.split()[-1]) == len(contents(store)) > 5
        assert store.verify().is_sound


# Somebody else's


def test_the_files_of_others_are_refused_and_left_as_they_are(tmp_path: Path) -> None:
    names = ("text", "short", "other program", "other tables", "other engine", "empty")
    folders = {name: tmp_path / name for name in names}
    for folder in folders.values():
        folder.mkdir()
    (folders["text"] / DATA).write_bytes(b"Dear diary, " * 1000)
    (folders["short"] / DATA).write_bytes(b"x")
    with lmdb.open(str(folders["other program"]), lib_version=0) as env, env.begin(write=True) as txn:
        txn.put(HOUSE.encode(), b"not a table")
    with lmdb.open(str(folders["other tables"]), lib_version=0, max_dbs=2) as env:
        env.open_db(HOUSE.encode())
    with lmdb.open(str(folders["other engine"]), lib_version=1) as env, env.begin(write=True) as txn:
        txn.put(b"k", b"v")
    lmdb.open(str(folders["empty"]), lib_version=0).close()
    for folder in folders.values():
        before = (folder / DATA).read_bytes()
        with pytest.raises(ForeignData, match="is not ours to open"):
            LmdbStorage(folder)
        assert (folder / DATA).read_bytes() == before


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    LmdbStorage(tmp_path).close()
    with raw_table(tmp_path, HOUSE) as (txn, db):
        txn.put(b"format", seal(HOUSE, b"format", MAGIC + (FORMAT + 1).to_bytes(2)), db=db)
    with pytest.raises(ForeignData, match=f"format is {FORMAT + 1}, and this version reads {FORMAT}"):
        LmdbStorage(tmp_path)


def test_a_directory_in_use_is_refused_to_the_same_and_to_another_process(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        with pytest.raises(StorageFailed, match=f"process {os.getpid()} has it open"):
            LmdbStorage(tmp_path)
        other = run("LmdbStorage(Path(sys.argv[1]))", tmp_path)
        assert f"cannot be used: process {os.getpid()} has it open" in other.stderr.splitlines()[-1]
        put(store, {b"k": b"v"})
    assert run("LmdbStorage(Path(sys.argv[1])).close()", tmp_path).returncode == 0


def test_a_directory_that_is_missing_or_no_directory_is_refused_unless_it_may_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none", tmp_path / "file", tmp_path / "none" / "deeper"):
        with pytest.raises(StorageFailed, match=r"data directory .* cannot be used: "):
            LmdbStorage(path)
    deeper = tmp_path / "none" / "deeper"
    LmdbStorage(deeper, create=True).close()
    assert (deeper / DATA).stat().st_mode & 0o077 == deeper.stat().st_mode & 0o077 == 0


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Nothing is read-only for root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.mark.usefixtures("ordinary_user")
def test_a_read_only_directory_is_refused() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o555)
        with pytest.raises(StorageFailed, match="Permission denied"):
            LmdbStorage(folder)
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


# Restarts


def test_a_reopened_store_is_as_it_was(tmp_path: Path) -> None:
    for number in range(1, 4):
        with LmdbStorage(tmp_path) as store:
            assert store.number == store.durable == number - 1 == len(contents(store))
            put(store, {b"%d" % number: b"v"})


def test_durable_follows_the_mode(tmp_path: Path) -> None:
    for mode, after_two in (("sync", 2), ("metasync-off", 1), ("periodic", 0)):
        with LmdbStorage(tmp_path / mode, create=True, durability=mode) as store:
            put(store, {b"a": b"1"})
            put(store, {b"b": b"2"})
            assert (store.number, store.durable) == (2, after_two)
            store.sync()
            assert store.durable == 2


WRITER = """
store = LmdbStorage(Path(sys.argv[1]), durability=sys.argv[2], map_bytes=1 << 17)
while True:
    number = store.number + 1
    puts = [("keys", b"%08d-%d" % (number, part), b"v" * 200) for part in range(5)]
    store.commit(Batch(number, puts + [("meta", b"newest", b"%d" % number)]))
    print(number, flush=True)
"""


@pytest.mark.parametrize("mode", MODES)
def test_kill_9_loses_no_commit_that_was_reported_and_leaves_no_half(tmp_path: Path, mode: str) -> None:
    """This says nothing about power: what a killed process has written is safe in the system's memory."""
    reported = 0
    for cycle in range(3):
        writer = subprocess.Popen(program(WRITER, tmp_path, mode), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for line in writer.stdout:
            reported = int(line)
            if reported >= 40 * (cycle + 1) + cycle:
                break
        writer.send_signal(signal.SIGKILL)
        rest, _ = writer.communicate(timeout=30)
        reported = max([reported, *(int(line) for line in rest.split("\n")[:-1])])
        with LmdbStorage(tmp_path) as store, store.snapshot() as snapshot:
            assert store.number == snapshot.number >= reported
            assert snapshot.get("meta", b"newest") == b"%d" % store.number
            parts = [b"%08d-%d" % (number, part) for number in range(1, store.number + 1) for part in range(5)]
            assert [key for key, _ in snapshot.scan("keys")] == parts


# Copies


def test_a_backup_made_while_writing_is_one_whole_commit_and_opens_as_a_store(tmp_path: Path) -> None:
    is_over, failures = threading.Event(), list[Exception]()
    with LmdbStorage(tmp_path / "live", create=True, map_bytes=SMALL_MAP, durability="periodic") as store:
        put(store, {b"%04d" % key: b"1" * 500 for key in range(1000)})

        def write() -> None:
            try:
                while not is_over.is_set():
                    number = b"%d" % (store.number + 1)
                    put(store, {b"%04d" % key: number * 200 for key in range(1000)})
            except Exception as error:
                failures.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        for copy in range(4):
            store.backup(tmp_path / f"copy {copy}")
        is_over.set()
        writer.join()
        assert failures == [] and store.number > 1
    numbers = []
    for copy in range(4):
        with LmdbStorage(tmp_path / f"copy {copy}") as store:
            numbers.append(store.number)
            assert store.verify().is_sound
            assert {value[: len(str(store.number))] for value in contents(store).values()} == {b"%d" % store.number}
            put(store, {b"it": b"lives"})
    assert numbers == sorted(numbers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy 0", "copy 1", "copy 2", "copy 3", "live"]


@pytest.mark.parametrize("mode", MODES)
def test_a_backup_holds_nothing_that_a_power_loss_could_take_from_its_store(tmp_path: Path, mode: str) -> None:
    with LmdbStorage(tmp_path / "live", create=True, durability=mode) as store:
        put(store, {b"k": b"v"})
        store.backup(tmp_path / "copy")
        durable = store.durable
    with LmdbStorage(tmp_path / "copy") as copy:
        assert copy.number == durable == 1


def test_a_backup_whose_store_cannot_be_synced_is_none(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path / "live", create=True, durability="periodic") as store:
        put(store, {b"k": b"v"})
        env = store.env
        store.env = Failing(env, at="sync")  # type: ignore[assignment]
        with pytest.raises(StorageFailed, match="sync after commit 1"):
            store.backup(tmp_path / "copy")
        store.env = env
    assert [path.name for path in tmp_path.iterdir()] == ["live"]


def test_a_backup_over_something_that_exists_is_refused(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        (tmp_path / "there").mkdir()
        (tmp_path / "other.unfinished").mkdir()
        for name in ("there", "other"):
            with pytest.raises(BadRequest, match="exists already"):
                store.backup(tmp_path / name)


def test_a_backup_that_fails_leaves_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        with pytest.raises(StorageFailed, match="no copy could be made"):
            store.backup(tmp_path / "none" / "copy")
        put(store, {b"k": b"v"})
        assert contents(store) == {b"k": b"v"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([DATA, LOCK, "lock.mdb"])


@pytest.mark.parametrize("mode", MODES)
def test_compaction_gives_space_back(tmp_path: Path, mode: str) -> None:
    with LmdbStorage(tmp_path, durability=mode) as store:
        put(store, {b"%04d" % key: b"v" * 1000 for key in range(3000)})
        store.commit(Batch(2, drops=[("keys", b"0010", b"9")]))
        compacted = store.compact()
        assert compacted.after_bytes < compacted.before_bytes / 10
        assert (tmp_path / DATA).stat().st_size == compacted.after_bytes
    with LmdbStorage(tmp_path, durability="sync") as store:
        assert store.number == 2 and len(contents(store)) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([DATA, LOCK, "lock.mdb"])
