"""One contract, every store: what holds for the tables of a replica, wherever they are kept.

The checks that guard a promise are functions of a store, so that the planted bugs at the end can be shown to each of
them: a check that a broken store passes keeps nothing out. What only a disk can do is in test_storage_lmdb.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstore.errors import StorageFailed
from kvstore.storage import TABLES, Batch, Snapshot, SnapshotEnded, Storage
from kvstore.storage.contract import TABLE_KEY_MAX
from kvstore.storage.lmdb import LmdbStorage, Rows
from kvstore.storage.memory import MemorySnapshot, MemoryStorage
from kvstore.storage.snapshot import LmdbSnapshot

STORES: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda _: MemoryStorage(),
    "lmdb": LmdbStorage,
    "lmdb, metasync off": lambda path: LmdbStorage(path, durability="metasync-off"),
    "lmdb, periodic": lambda path: LmdbStorage(path, durability="periodic"),
}
EVERYTHING = (b"", b"\xff" * (TABLE_KEY_MAX + 1))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with STORES[request.param](tmp_path) as store:
        yield store


def put(store: Storage, rows: dict[bytes, bytes], *, table: str = "keys") -> None:
    store.commit(Batch(store.number + 1, puts=[(table, key, value) for key, value in rows.items()]))


def contents(store: Storage, table: str = "keys") -> dict[bytes, bytes]:
    with store.snapshot() as snapshot:
        return dict(snapshot.scan(table))


# Commits


def test_a_new_store_is_empty_and_at_commit_zero(store: Storage) -> None:
    with store.snapshot() as snapshot:
        assert (store.number, store.durable, snapshot.number) == (0, 0, 0)
        assert [list(snapshot.scan(table)) for table in TABLES] == [[]] * len(TABLES)
        assert snapshot.get("keys", b"k") is None


def test_the_next_snapshot_sees_what_was_committed(store: Storage) -> None:
    put(store, {b"k": b"v"})
    with store.snapshot() as snapshot:
        assert (snapshot.number, snapshot.get("keys", b"k"), store.number) == (1, b"v", 1)


def test_after_a_sync_everything_committed_is_durable_and_never_more(store: Storage) -> None:
    for number in range(1, 4):
        put(store, {b"k": b"%d" % number})
        assert store.durable <= store.number == number
        store.sync()
        assert store.durable == number
        store.sync()


def test_an_empty_batch_is_a_commit_with_a_number(store: Storage) -> None:
    store.commit(Batch(1))
    with store.snapshot() as snapshot:
        assert snapshot.number == store.number == 1


def test_tables_do_not_see_each_other(store: Storage) -> None:
    store.commit(Batch(1, puts=[(table, b"k", table.encode()) for table in TABLES]))
    store.commit(Batch(2, deletes=[("keys", b"k")], drops=[("meta", *EVERYTHING)]))
    assert {table: contents(store, table) for table in TABLES} == {
        table: {} if table in ("keys", "meta") else {b"k": table.encode()} for table in TABLES
    }


def test_a_put_outlives_the_deletes_and_drops_of_its_batch_and_the_last_put_stays(store: Storage) -> None:
    put(store, {b"a": b"old", b"b": b"old", b"c": b"old"})
    puts = [("keys", b"a", b"1"), ("keys", b"b", b"1"), ("keys", b"a", b"2")]
    store.commit(Batch(2, puts, deletes=[("keys", b"a")], drops=[("keys", *EVERYTHING)]))
    assert contents(store) == {b"a": b"2", b"b": b"1"}


def test_what_is_not_there_can_be_deleted(store: Storage) -> None:
    store.commit(Batch(1, deletes=[("keys", b"k"), ("keys", b"")], drops=[("keys", b"a", b"z"), ("keys", b"z", b"a")]))
    assert store.number == 1


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_number_out_of_turn_is_a_bug(store: Storage, number: int) -> None:
    put(store, {b"k": b"v"})
    with pytest.raises(AssertionError, match="after 1"):
        store.commit(Batch(number, puts=[("keys", b"k", b"w")]))
    assert contents(store) == {b"k": b"v"}


def test_an_unknown_table_is_a_bug_and_nothing_of_its_batch_is_done(store: Storage) -> None:
    with pytest.raises((KeyError, AssertionError)):
        store.commit(Batch(1, puts=[("keys", b"k", b"v"), ("kyes", b"k", b"v")]))
    assert contents(store) == {}


@pytest.mark.parametrize("value", [b"", b"\0", b"v" * (1 << 20)], ids=["empty", "zero", "large"])
@pytest.mark.parametrize("key", [b"\0", b"\xff" * TABLE_KEY_MAX], ids=["short", "long"])
def test_keys_and_values_of_every_size_come_back_as_they_were(store: Storage, key: bytes, value: bytes) -> None:
    put(store, {key: value})
    assert contents(store) == {key: value}


@pytest.mark.parametrize("key", [b"", b"k" * (TABLE_KEY_MAX + 1)], ids=["empty", "too long"])
def test_an_impossible_key_cannot_be_written_and_is_never_there(store: Storage, key: bytes) -> None:
    with pytest.raises(ValueError, match="key"):
        put(store, {key: b"v"})
    with store.snapshot() as snapshot:
        assert snapshot.get("keys", key) is None


def check_a_commit_that_fails_leaves_nothing(store: Storage) -> None:
    before = {b"a": b"1", b"b": b"2", b"c": b"3"}
    put(store, before)
    bad = [("keys", b"a", b"new"), ("keys", b"d", b"new"), ("keys", b"k" * 600, b""), ("keys", b"e", b"new")]
    with pytest.raises(ValueError, match="key"):
        store.commit(Batch(2, bad, deletes=[("keys", b"b")], drops=[("keys", b"c", b"d")]))
    with store.snapshot() as snapshot:
        assert snapshot.number == store.number == 1
        assert dict(snapshot.scan("keys")) == before
    put(store, {b"d": b"4"})
    assert contents(store) == {**before, b"d": b"4"}


def test_a_commit_that_fails_in_the_middle_leaves_nothing_and_the_next_one_takes_its_number(store: Storage) -> None:
    check_a_commit_that_fails_leaves_nothing(store)


# Snapshots


def check_a_snapshot_sees_no_later_commit(store: Storage) -> None:
    put(store, {b"a": b"1", b"b": b"1"})
    put(store, {b"t": b"1"}, table="tombstones")
    with store.snapshot() as old:
        half = old.scan("keys")
        seen = [next(half)]
        store.commit(Batch(3, puts=[("keys", b"a", b"2"), ("keys", b"c", b"2")], deletes=[("keys", b"b")]))
        store.commit(Batch(4, puts=[("tombstones", b"t", b"2")]))
        seen += half
        with store.snapshot() as new:
            assert (old.number, new.number) == (2, 4)
            assert (old.get("keys", b"a"), new.get("keys", b"a")) == (b"1", b"2")
            assert (old.get("tombstones", b"t"), new.get("tombstones", b"t")) == (b"1", b"2")
            assert list(old.scan("keys")) == seen == [(b"a", b"1"), (b"b", b"1")]
            assert list(new.scan("keys")) == [(b"a", b"2"), (b"c", b"2")]


def test_a_snapshot_sees_no_later_commit(store: Storage) -> None:
    check_a_snapshot_sees_no_later_commit(store)


def test_a_closed_snapshot_is_of_no_use_and_can_be_closed_again(store: Storage) -> None:
    put(store, {b"a": b"1", b"b": b"2"})
    with store.snapshot() as snapshot:
        rows = snapshot.scan("keys")
        next(rows)
    snapshot.close()
    for read in (
        lambda: snapshot.number,
        lambda: snapshot.get("keys", b"a"),
        lambda: list(snapshot.scan("keys")),
        lambda: list(snapshot.scan("keys", reverse=True)),
        lambda: snapshot.count("keys"),
        lambda: next(rows),
    ):
        with pytest.raises(SnapshotEnded):
            read()


def test_a_count_is_of_one_table_and_of_the_moment_of_its_snapshot(store: Storage) -> None:
    put(store, {b"%d" % key: b"1" for key in range(100)})
    put(store, {b"t": b"1"}, table="tombstones")
    with store.snapshot() as old:
        store.commit(Batch(3, puts=[("keys", b"new", b"2"), ("keys", b"1", b"2")], drops=[("keys", b"2", b"3")]))
        with store.snapshot() as new:
            assert [old.count(table) for table in ("keys", "tombstones", "outbox")] == [100, 1, 0]
            assert new.count("keys") == len(list(new.scan("keys"))) == 90


def test_readers_on_other_threads_always_see_one_whole_commit(store: Storage) -> None:
    commits, wrong, is_over = 60, list[object](), threading.Event()

    def read() -> None:
        newest = 0
        while not is_over.is_set():
            with store.snapshot() as snapshot:
                number = snapshot.number
                seen = {int(value) for _, value in snapshot.scan("keys")}
                if seen != ({number} if number else set()) or number < newest:
                    wrong.append((newest, number, seen))
                newest = number

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, commits + 1):
        put(store, {b"%d" % key: b"%d" % number for key in range(20)})
    is_over.set()
    for reader in readers:
        reader.join()
    assert wrong == [] and store.number == commits


# Ranges


def check_a_drop_takes_its_start_and_leaves_its_stop(store: Storage) -> None:
    rows = {bytes([key]): b"v" for key in b"abcdefgh"}
    put(store, rows)
    store.commit(Batch(2, drops=[("keys", b"b", b"d"), ("keys", b"f", b"f"), ("keys", b"g", b"g\0")]))
    assert list(contents(store)) == [b"a", b"d", b"e", b"f", b"h"]
    store.commit(Batch(3, drops=[("keys", b"e", b"zzz")]))
    assert list(contents(store)) == [b"a", b"d"]


def test_a_drop_takes_its_start_and_leaves_its_stop(store: Storage) -> None:
    check_a_drop_takes_its_start_and_leaves_its_stop(store)


SHORT_KEYS = st.text("\0ab\xff", min_size=1, max_size=3).map(lambda text: text.encode("latin-1"))
BOUNDS = st.one_of(st.just(b""), SHORT_KEYS)
BATCHES = st.tuples(
    st.lists(st.tuples(SHORT_KEYS, st.binary(max_size=3)), max_size=12),
    st.lists(BOUNDS, max_size=4),
    st.lists(st.tuples(BOUNDS, BOUNDS), max_size=2),
)
SCANS = st.tuples(BOUNDS, st.none() | BOUNDS, st.none() | st.integers(0, 5), st.booleans())


@settings(max_examples=150)
@given(data=st.data())
def check_against_a_plain_dict(store: Storage, data: st.DataObject) -> None:
    model: dict[bytes, bytes] = {}
    store.commit(Batch(store.number + 1, drops=[("keys", *EVERYTHING)]))
    for puts, deletes, drops in data.draw(st.lists(BATCHES, min_size=1, max_size=4)):
        batch = Batch(store.number + 1)
        batch.puts += [("keys", key, value) for key, value in puts]
        batch.deletes += [("keys", key) for key in deletes]
        batch.drops += [("keys", start, stop) for start, stop in drops]
        store.commit(batch)
        model = {key: model[key] for key in model if not any(start <= key < stop for start, stop in drops)}
        model = {key: model[key] for key in model if key not in deletes} | dict(puts)
    with store.snapshot() as snapshot:
        for start, stop, limit, reverse in data.draw(st.lists(SCANS, max_size=6)):
            inside = [key for key in sorted(model, reverse=reverse) if start <= key and (stop is None or key < stop)]
            found = list(snapshot.scan("keys", start, stop, limit=limit, reverse=reverse))
            assert found == [(key, model[key]) for key in inside][:limit]
        assert {key: snapshot.get("keys", key) for key in model} == model


@pytest.mark.parametrize("name", ["memory", "lmdb, periodic"])
def test_batches_and_scans_do_what_they_would_do_to_a_plain_dict(name: str, tmp_path: Path) -> None:
    with STORES[name](tmp_path) as store:
        check_against_a_plain_dict(store)


# The rest of a store's life


def test_verify_counts_the_records_of_every_table(store: Storage) -> None:
    put(store, {b"a": b"1", b"b": b"2"})
    put(store, {b"a": b"1"}, table="outbox")
    report = store.verify()
    assert report.is_sound and report.number == 2
    assert report.records == {**dict.fromkeys(TABLES, 0), "keys": 2, "outbox": 1}


def test_a_compaction_keeps_everything(store: Storage) -> None:
    put(store, {b"%04d" % key: b"v" * 500 for key in range(2000)})
    store.commit(Batch(2, drops=[("keys", b"0010", b"9")]))
    before, kept = store.size_bytes(), contents(store)
    compacted = store.compact()
    assert (compacted.before_bytes, compacted.after_bytes) == (before, store.size_bytes())
    assert contents(store) == kept and len(kept) == 10
    put(store, {b"later": b"v"})
    assert contents(store) == {**kept, b"later": b"v"} and store.number == 3


def test_a_closed_store_refuses_everything_and_can_be_closed_again(store: Storage) -> None:
    put(store, {b"k": b"v"})
    snapshot = store.snapshot()
    store.close()
    store.close()
    for call in (lambda: store.commit(Batch(2)), store.snapshot, store.sync, store.verify, store.compact):
        with pytest.raises(StorageFailed, match="closed"):
            call()
    with pytest.raises(SnapshotEnded):
        snapshot.get("keys", b"k")
    snapshot.close()


# Planted bugs


class ChecksKeysTooLate(MemoryStorage):
    def _check_keys(self, batch: Batch) -> None:
        for name, key, value in batch.puts:
            super()._check_keys(Batch(0, puts=[(name, key, value)]))
            self._tables[name].put(key, value)


class CommitsTheHalfBeforeABadKey(LmdbStorage):
    def _write(self, txn: lmdb.Transaction[bytes], batch: Batch, rows: Rows) -> None:
        try:
            super()._write(txn, batch, rows)
        except lmdb.BadValsizeError:
            txn.commit()
            raise


class DoesNotCountItsReaders(MemoryStorage):
    def snapshot(self) -> Snapshot:
        return MemorySnapshot(self, self._tables, self._number)

    def let_go(self, tables: object) -> None:
        pass


class ForgetsWhatIsStillShared(MemoryStorage):
    """Counts readers for the state as a whole: the tables that a commit did not touch are still shared afterwards."""

    def _apply(self, batch: Batch) -> None:
        super()._apply(batch)
        for table in self._tables.values():
            table.holders = 0

    def let_go(self, tables: object) -> None:
        pass


class LooksAtTheNewest(LmdbSnapshot):
    def __init__(self, storage: LmdbStorage) -> None:
        super().__init__(storage)
        self._storage = storage

    def get(self, table: str, key: bytes) -> bytes | None:
        with LmdbSnapshot(self._storage) as newest:
            return newest.get(table, key)


class GivesTheNewest(LmdbStorage):
    def snapshot(self) -> Snapshot:
        return LooksAtTheNewest(self)


class DropsItsStop(MemoryStorage):
    def commit(self, batch: Batch) -> None:
        super().commit(replace(batch, drops=[(table, start, stop + b"\0") for table, start, stop in batch.drops]))


class LeavesItsStart(LmdbStorage):
    def commit(self, batch: Batch) -> None:
        super().commit(replace(batch, drops=[(table, start + b"\0", stop) for table, start, stop in batch.drops]))


PLANTED: list[tuple[Callable[[Path], Storage], Callable[[Storage], None]]] = [
    (lambda _: ChecksKeysTooLate(), check_a_commit_that_fails_leaves_nothing),
    (CommitsTheHalfBeforeABadKey, check_a_commit_that_fails_leaves_nothing),
    (lambda _: DoesNotCountItsReaders(), check_a_snapshot_sees_no_later_commit),
    (lambda _: ForgetsWhatIsStillShared(), check_a_snapshot_sees_no_later_commit),
    (GivesTheNewest, check_a_snapshot_sees_no_later_commit),
    (lambda _: DropsItsStop(), check_a_drop_takes_its_start_and_leaves_its_stop),
    (LeavesItsStart, check_a_drop_takes_its_start_and_leaves_its_stop),
]


@pytest.mark.parametrize(("broken", "check"), PLANTED)
def test_a_planted_bug_is_caught(
    tmp_path: Path, broken: Callable[[Path], Storage], check: Callable[[Storage], None]
) -> None:
    with broken(tmp_path) as store, pytest.raises(AssertionError):
        check(store)
