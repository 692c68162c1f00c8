"""Reading from LMDB: what a reader checks, and how readers and a growing map keep out of each other's way.

*Checksums.* LMDB has none. Each value ends with a crc32 over table, key and value. A crc over something and its own
crc is always the same number, so checking is one comparison, and nothing is cut apart before it.

*The gate.* A read transaction keeps the root page it began with, without a lock; the only thing that can take it away
is `set_mapsize`. py-lmdb 3.0 lets that call through while read transactions are open, and *ends* them; and while the
call waits for a copy under way, every begin on another thread fails. So readers count themselves in and
out here, the map is changed when nobody is inside, and only a snapshot that stays too long is ended. Copies and checks
of the whole store cannot be ended: a full map waits for them. A reader waits for other readers only a moment: the
thread that runs the timers of leased snapshots must not be stopped by one of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

import lmdb

from kvstore.errors import CorruptRecord, StorageFailed
from kvstore.storage.contract import BAD_SHOWN_MAX, TABLES, Bad, Snapshot, SnapshotEnded, VerifyReport
from kvstore.update import escape

if TYPE_CHECKING:
    from kvstore.storage.lmdb import LmdbStorage

HOUSE = "storage"  # the table of the store itself: format and number
NUMBER = b"number"
HUSH_S = 0.02  # that new readers are kept waiting for old ones; beyond it: they pass, the change of the map waits

RESIDUE = 0x2144DF1C  # the crc32 of anything followed by its crc32
_pack_crc = Struct("<I").pack
_SEEDS = {table: crc32(table.encode() + b"\0") for table in (HOUSE, *TABLES)}


def seal(table: str, key: bytes, value: bytes) -> bytes:
    return value + _pack_crc(crc32(value, crc32(key, _SEEDS[table])))


def unseal(table: str, key: bytes, sealed: bytes) -> bytes:
    if crc32(sealed, crc32(key, _SEEDS[table])) != RESIDUE:
        raise CorruptRecord(table=table, key=escape(key), why="its checksum is wrong")
    return sealed[:-4]


class Gate:
    """Readers inside, or one change of the map."""

    def __init__(self) -> None:
        self.epoch = 0  # changes so far: a snapshot of another epoch has ended
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._turn = threading.Lock()  # one change at a time
        self._inside = 0
        self._staying = 0  # of those, the ones that cannot be ended
        self._is_wanted = False  # somebody waits for those inside to leave
        self._is_shut = False

    def enter(self, *, stays: bool = False) -> int:
        with self._lock:
            while self._is_shut:
                self._changed.wait()
            self._inside += 1
            self._staying += stays
            return self.epoch

    def leave(self, epoch: int, *, stays: bool = False) -> None:
        with self._lock:
            if epoch != self.epoch:
                return  # ended, and counted out, by a change
            self._inside -= 1
            self._staying -= stays
            if self._is_wanted:
                self._changed.notify_all()

    @contextmanager
    def shut(self, wait_s: float) -> Iterator[None]:
        """Alone inside, after this wait and a little; only those who cannot be ended are waited for longer."""
        with self._turn:
            with self._lock:
                self._is_wanted = True
                if not self._is_cleared():
                    self._let_in()
                    self._changed.wait_for(self._is_empty, wait_s)
                    self._changed.wait_for(lambda: not self._staying)
                    self._is_cleared()  # or not, and then whoever is still inside is ended
                self._is_wanted = False
                self.epoch += 1
                self._inside = 0
            try:
                yield
            finally:
                with self._lock:
                    self._let_in()

    def _is_cleared(self) -> bool:
        """Nobody gets in. Readers that overlap would never leave it empty otherwise, brief as each of them is."""
        self._is_shut = True
        return self._changed.wait_for(self._is_empty, HUSH_S)

    def _is_empty(self) -> bool:
        return not self._inside

    def _let_in(self) -> None:
        self._is_shut = False
        self._changed.notify_all()


class LmdbSnapshot(Snapshot):
    def __init__(self, storage: LmdbStorage, *, stays: bool = False) -> None:
        self._gate = storage.gate
        self._stays = stays
        self._is_open = True
        self._epoch = self._gate.enter(stays=stays)
        self._env = storage.env
        try:
            self._txn = storage.env.begin()
        except lmdb.Error as error:
            self._gate.leave(self._epoch, stays=stays)
            raise StorageFailed(path=str(storage.path), why=f"no snapshot could be taken: {error}") from error
        self._tables = storage.tables  # only now: a compaction while we waited has opened them anew

    @property
    def number(self) -> int:
        found = self.get(HOUSE, NUMBER)
        if found is None:
            raise CorruptRecord(table=HOUSE, key=escape(NUMBER), why="it is missing")
        return int.from_bytes(found)

    def get(self, table: str, key: bytes) -> bytes | None:
        try:
            sealed = self._txn.get(key, None, self._tables[table])
        except lmdb.BadValsizeError:
            return None  # no record can have such a key
        except lmdb.Error as error:
            raise self._translated(table, error) from error
        return None if sealed is None else self._opened(table, key, sealed)

    def scan(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        rows = self._backward(table, start, stop) if reverse else self._forward(table, start, stop)
        return islice(rows, limit)

    def _forward(self, table: str, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        opened = self._opened
        for key, sealed in self.sealed_rows(table, start):
            if stop is not None and key >= stop:
                return
            yield key, opened(table, key, sealed)

    def _backward(self, table: str, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        opened = self._opened
        try:
            cursor = self._txn.cursor(self._tables[table])
            is_placed = cursor.prev() if stop is not None and cursor.set_range(stop) else cursor.last()
            for key, sealed in cursor.iterprev() if is_placed else ():
                if key < start:
                    return
                yield key, opened(table, key, sealed)
        except lmdb.Error as error:
            raise self._translated(table, error) from error

    def sealed_rows(self, table: str, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and unchecked values, to the end of the table."""
        try:
            cursor = self._txn.cursor(self._tables[table])
            if cursor.set_range(start):
                yield from cursor
        except lmdb.Error as error:
            raise self._translated(table, error) from error

    def count(self, table: str) -> int:
        try:
            return self._txn.stat(self._tables[table])["entries"]
        except lmdb.Error as error:
            raise self._translated(table, error) from error

    def verify(self, newest: int) -> VerifyReport:
        """Of all there is; `newest` is the number to report when the one inside cannot be read."""
        number = newest
        with suppress(CorruptRecord):
            number = self.number
        good = dict.fromkeys((HOUSE, *TABLES), 0)
        bad: list[Bad] = []
        bad_count = 0
        for table in good:
            for fault in self.check(table):
                if fault is None:
                    good[table] += 1
                else:
                    bad_count += 1
                    bad += [fault] if bad_count <= BAD_SHOWN_MAX else []
        del good[HOUSE]
        return VerifyReport(number, good, tuple(bad), bad_count)

    def check(self, table: str) -> Iterator[Bad | None]:
        """One for each record: None if it is good. And one without a key if the table itself is not whole."""
        count = 0
        try:
            for key, sealed in self.sealed_rows(table):
                count += 1
                try:
                    self._opened(table, key, sealed)
                    yield None
                except CorruptRecord as error:
                    yield Bad(table, key, str(error))
            expected = self._txn.stat(self._tables[table])["entries"]
            if count != expected:
                yield Bad(table, b"", f"table {table} has {count} records that can be found, of {expected}")
        except CorruptRecord as error:
            self._txn.abort()  # LMDB gives nothing more of a transaction in which it met a broken page
            self._txn = self._env.begin()
            yield Bad(table, b"", str(error))

    _opened = staticmethod(unseal)

    def _translated(self, table: str, error: lmdb.Error) -> Exception:
        if not self._is_open or self._epoch != self._gate.epoch:
            return SnapshotEnded("the snapshot is closed, or was open for too long when the map had to change")
        return CorruptRecord(f"table {table} cannot be read: {error}", table=table, key="", why=str(error))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._txn.abort()
            self._gate.leave(self._epoch, stays=self._stays)
