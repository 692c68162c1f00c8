"""The contract without a disk: sorted lists of keys beside dicts of values. For tests and simulations.

A snapshot takes hold of the tables as they are. A commit that finds a table held by somebody changes a copy and
leaves the original to the holders; a table that nobody holds is changed in place. So a commit costs what it changes,
unless a snapshot is open across it. Which of the tables is held must be counted for each one by itself: after a
commit, old and new state still share the tables that it did not touch.

Nothing here survives the process, and there are no checksums: a bit that flips in memory is not what they are for.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from kvstore.errors import BadRequest, StorageFailed
from kvstore.storage.contract import (
    TABLE_KEY_MAX,
    TABLES,
    Batch,
    Compacted,
    Snapshot,
    SnapshotEnded,
    Storage,
    VerifyReport,
)


class Table:
    __slots__ = ("holders", "keys", "values")

    def __init__(self, keys: list[bytes], values: dict[bytes, bytes]) -> None:
        self.keys = keys  # sorted
        self.values = values
        self.holders = 0  # open snapshots that read from here

    def copy(self) -> Table:
        return Table(self.keys.copy(), self.values.copy())

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def drop(self, *, start: bytes, stop: bytes) -> None:
        first, end = self.places(start, stop)
        for key in self.keys[first:end]:
            del self.values[key]
        del self.keys[first:end]

    def places(self, start: bytes, stop: bytes | None) -> tuple[int, int]:
        first = bisect_left(self.keys, start)
        return first, len(self.keys) if stop is None else max(first, bisect_left(self.keys, stop))


class MemorySnapshot(Snapshot):
    def __init__(self, storage: MemoryStorage, tables: dict[str, Table], number: int) -> None:
        self._storage = storage
        self._tables: dict[str, Table] | None = tables
        self._number = number

    @property
    def number(self) -> int:
        self._held()
        return self._number

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._held()[table].values.get(key)

    def scan(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        held = self._held()[table]
        first, end = held.places(start, stop)
        places = range(end - 1, first - 1, -1) if reverse else range(first, end)
        return islice(self._rows(held, places), limit)

    def _rows(self, held: Table, places: range) -> Iterator[tuple[bytes, bytes]]:
        for place in places:
            self._held()
            key = held.keys[place]
            yield key, held.values[key]

    def count(self, table: str) -> int:
        return len(self._held()[table].keys)

    def _held(self) -> dict[str, Table]:
        if self._tables is None or self._storage.is_closed:
            raise SnapshotEnded("the snapshot is closed")
        return self._tables

    def close(self) -> None:
        tables, self._tables = self._tables, None
        if tables is not None:
            self._storage.let_go(tables)


class MemoryStorage(Storage):
    def __init__(self) -> None:
        self.is_closed = False
        self._tables = {name: Table([], {}) for name in TABLES}
        self._number = 0
        self._lock = threading.Lock()  # a snapshot must not be taken in the middle of a commit

    @property
    def number(self) -> int:
        return self._number

    @property
    def durable(self) -> int:
        return self._number

    def commit(self, batch: Batch) -> None:
        self._check_open()
        assert batch.number == self._number + 1, f"commit {batch.number} after {self._number}"
        self._check_keys(batch)
        with self._lock:
            self._apply(batch)
            self._number = batch.number

    def _check_keys(self, batch: Batch) -> None:
        """Before anything changes, for nothing can be taken back here."""
        for name, key, _ in batch.puts:
            if not 0 < len(key) <= TABLE_KEY_MAX:
                raise ValueError(f"a key of {len(key)} bytes for table {name}")

    def _apply(self, batch: Batch) -> None:
        touched = {name for name, *_ in (*batch.puts, *batch.deletes, *batch.drops)}
        assert touched <= set(TABLES), f"no such tables: {touched - set(TABLES)}"
        self._tables = {
            name: table.copy() if table.holders and name in touched else table for name, table in self._tables.items()
        }
        for name, start, stop in batch.drops:
            self._tables[name].drop(start=start, stop=stop)
        for name, key in batch.deletes:
            self._tables[name].delete(key)
        for name, key, value in batch.puts:
            self._tables[name].put(key, value)

    def snapshot(self) -> Snapshot:
        self._check_open()
        with self._lock:
            for table in self._tables.values():
                table.holders += 1
            return MemorySnapshot(self, self._tables, self._number)

    def let_go(self, tables: dict[str, Table]) -> None:
        with self._lock:
            for table in tables.values():
                table.holders -= 1

    def sync(self) -> None:
        self._check_open()

    def verify(self) -> VerifyReport:
        with self.snapshot() as snapshot:
            records = {name: sum(1 for _ in snapshot.scan(name)) for name in TABLES}
            return VerifyReport(snapshot.number, records, (), 0)

    def backup(self, target: Path) -> None:
        self._check_open()
        raise BadRequest(why=f"a store in memory has nothing to copy to {target}")

    def compact(self) -> Compacted:
        size = self.size_bytes()
        return Compacted(size, size)

    def size_bytes(self) -> int:
        with self.snapshot() as snapshot:
            return sum(len(key) + len(value) for name in TABLES for key, value in snapshot.scan(name))

    def close(self) -> None:
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise StorageFailed(path="memory", why="it is closed")
