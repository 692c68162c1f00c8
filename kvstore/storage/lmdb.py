"""The contract on LMDB: a B-tree in a memory map, copied on write, with two root pages that take turns.

A commit writes the changed pages to free places, syncs, and then writes the root that was not in use: a crash leaves
the old root or the new one. Nothing is recycled that a reader can still reach. How py-lmdb 3.0 with its engine 0.9
behaves at the edges was tried out, and decides the rest of this file:

*A full map.* MapFullError comes from a put, a delete or the commit. The transaction is lost; the map is doubled and
the batch written again. A map that was given too small for its file is made large enough on opening.

*Bad keys.* A put that is refused for its key leaves its transaction usable: a commit would keep the half before it.

*Sync.* `sync` is an fdatasync for the pages, then a synced write of the root. `metasync-off` saves the second sync,
so that commit N makes N - 1 durable. After a failed fdatasync the next commit *succeeds*: we stop instead. Closing
does not sync, a new file's directory is not synced, and `env.sync()` without force does nothing in mode `periodic`.

*Periodic* lets roots reach the disk before their pages. A kill does no harm, the system writes the rest. But of the
power losses that were rebuilt from recorded writes, most left a broken file, not merely an older state. So each sync
makes a checkpoint (checkpoint.py), and a power loss takes the store back to the last one.

*Formats.* py-lmdb carries two engines whose files are foreign to each other, and an environment variable may choose;
so the engine is named. A file of the other one is refused as no LMDB file.

*Others.* A second process may open and write the files, so the directory is locked. A file that was cut short opens
well and kills its reader with SIGBUS, so its length is compared with its last page before anything else is read.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import lmdb

from kvstore.errors import BadRequest, CorruptRecord, ForeignData, KvError, StorageFailed
from kvstore.storage.checkpoint import Checkpoint
from kvstore.storage.contract import TABLES, Batch, Compacted, Snapshot, Storage, VerifyReport
from kvstore.storage.folder import DATA, lock_folder, sync_path, unusable
from kvstore.storage.snapshot import HOUSE, NUMBER, Gate, LmdbSnapshot, seal, unseal

FORMAT = 1  # of the data file; a newer one is refused
MAGIC = b"causal-kvstore data "
MODES = {"sync": (True, True), "metasync-off": (True, False), "periodic": (False, True)}  # sync, metasync
SNAPSHOTS_MAX = 1024  # read transactions at once; beyond it: StorageFailed for the one too many
ENGINE = 0  # LMDB 0.9; its files are not those of 1.0

Rows = dict[str, list[tuple[bytes, bytes]]]  # by table: keys and sealed values


class LmdbStorage(Storage):
    """One data directory. The map begins with `map_bytes` and doubles when it is full, up to `map_bytes_max`."""

    env: lmdb.Environment
    tables: dict[str, lmdb._Database]

    def __init__(
        self,
        path: Path,
        *,
        durability: str = "sync",
        create: bool = False,
        map_bytes: int = 1 << 30,
        map_bytes_max: int = 1 << 40,
        snapshot_wait_s: float = 1.0,
    ) -> None:
        self.path = path
        self.gate = Gate()
        self._sync, self._metasync = MODES[durability]
        self._map_bytes = min(map_bytes, map_bytes_max)
        self._map_bytes_max = map_bytes_max
        self._snapshot_wait_s = snapshot_wait_s  # for open snapshots when the map is full; beyond it: they end
        self._checkpoint = Checkpoint(path)
        self._writing = threading.Lock()  # a commit, or a sync: backups on other threads need one, too
        self._failure = ""  # why everything is refused, if it is
        self._is_closed = False
        self._lock = lock_folder(path, create=create)
        try:
            self._open()
        except OSError as error:
            os.close(self._lock)
            raise unusable(path, error.strerror or str(error)) from error
        except BaseException:
            os.close(self._lock)
            raise

    # Opening

    def _open(self) -> None:
        self._checkpoint.put_back()
        if not (self.path / DATA).exists():
            self._create()
        self.env = self._open_env(self.path, is_synced=self._sync)
        try:
            self._check_length()
            self.tables = self._open_tables()
            with self.env.begin(self.tables[HOUSE]) as txn:
                self._number = int.from_bytes(unseal(HOUSE, NUMBER, txn.get(NUMBER, b"")))
            self._make_durable()  # a killed process may have left commits that the disk has not seen yet
            if self._sync:
                self._checkpoint.discard()
        except lmdb.Error as error:
            self.env.close()
            raise unusable(self.path, str(error)) from error
        except BaseException:
            self.env.close()
            raise

    def _open_env(self, path: Path, *, is_synced: bool) -> lmdb.Environment:
        try:
            return lmdb.open(
                str(path),
                lib_version=ENGINE,
                map_size=self._map_bytes,
                sync=is_synced,
                metasync=self._metasync,
                max_dbs=len(TABLES) + 1,
                max_readers=SNAPSHOTS_MAX + 2,  # of the checkpoint, the old one and the new
                max_spare_txns=1,
                create=False,
                mode=0o700,
            )
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise ForeignData(path=str(self.path), why=f"{DATA} is no LMDB file of the kind we write") from error
        except lmdb.Error as error:
            raise unusable(self.path, str(error)) from error

    def _check_length(self) -> None:
        length, needed = (self.path / DATA).stat().st_size, self.size_bytes()
        if length < needed:
            why = f"it has {length} bytes of {needed}"
            raise CorruptRecord(f"{self.path / DATA} was cut short: {why}", path=str(self.path), why=why)

    def _create(self) -> None:
        """A new file, whole or not there: half of one would be refused for ever."""
        new = self.path / "creating"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        with self._open_env(new, is_synced=True) as env, env.begin(write=True) as txn:
            tables = {name: env.open_db(name.encode(), txn) for name in (HOUSE, *TABLES)}
            for key, value in ((b"format", MAGIC + FORMAT.to_bytes(2)), (NUMBER, bytes(8))):
                txn.put(key, seal(HOUSE, key, value), db=tables[HOUSE])
        self._move_in(new)

    def _move_in(self, new: Path) -> None:
        sync_path(new / DATA)
        (new / DATA).rename(self.path / DATA)
        sync_path(self.path)
        shutil.rmtree(new)

    def _open_tables(self) -> dict[str, lmdb._Database]:
        found = None
        with suppress(lmdb.Error):
            house = self.env.open_db(HOUSE.encode(), create=False)
            with self.env.begin(house) as txn:
                found = txn.get(b"format")
        if found is None or not found.startswith(MAGIC):
            raise ForeignData(path=str(self.path), why=f"{DATA} belongs to another program")
        number = int.from_bytes(unseal(HOUSE, b"format", found)[len(MAGIC) :])
        if number != FORMAT:
            raise ForeignData(path=str(self.path), why=f"its format is {number}, and this version reads {FORMAT}")
        return {HOUSE: house, **{name: self.env.open_db(name.encode(), create=False) for name in TABLES}}

    # Writing

    @property
    def number(self) -> int:
        return self._number

    @property
    def durable(self) -> int:
        return self._durable

    def commit(self, batch: Batch) -> None:
        self._check_usable()
        assert batch.number == self._number + 1, f"commit {batch.number} after {self._number}"
        rows = _sealed_rows(batch)
        with self._writing:
            while not self._has_written(batch, rows):
                self._grow()
            if self._sync:
                self._durable = batch.number if self._metasync else self._number
            self._number = batch.number

    def _has_written(self, batch: Batch, rows: Rows) -> bool:
        """False when the map was full; then nothing of it is there."""
        try:
            with self.env.begin(write=True) as txn:
                self._write(txn, batch, rows)
        except lmdb.MapFullError:
            return False
        except lmdb.BadValsizeError as error:
            raise ValueError(f"commit {batch.number} has a key that no table can have: {error}") from error
        except (lmdb.Error, OSError) as error:
            raise self._failed(f"commit {batch.number}: {error}") from error
        return True

    def _write(self, txn: lmdb.Transaction[bytes], batch: Batch, rows: Rows) -> None:
        for table, start, stop in batch.drops:
            with txn.cursor(self.tables[table]) as cursor:
                is_more = cursor.set_range(start)
                while is_more and cursor.key() < stop:
                    is_more = cursor.delete() and cursor.key() != b""  # a delete moves on; without a key, to the end
        for table, key in batch.deletes:
            if key:  # LMDB would object to an empty one; nothing is there, as with any other that is not
                txn.delete(key, db=self.tables[table])
        for table, some in rows.items():
            with txn.cursor(self.tables[table]) as cursor:
                cursor.putmulti(some)

    def _grow(self) -> None:
        size = self.env.info()["map_size"]
        if size >= self._map_bytes_max:
            raise self._failed(f"the map is full, and its {size} bytes are all that is allowed")
        try:
            with self.gate.shut(self._snapshot_wait_s):
                self._checkpoint.release()
                self.env.set_mapsize(min(2 * size, self._map_bytes_max))
            if not self._sync:
                self._make_durable()  # the checkpoint has lost its reader
        except (lmdb.Error, OSError) as error:
            raise self._failed(f"the map of {size} bytes is full and cannot grow: {error}") from error

    def sync(self) -> None:
        with self._writing:
            self._check_usable()
            if self._durable < self._number:
                try:
                    self._make_durable()
                except (lmdb.Error, OSError) as error:
                    raise self._failed(f"sync after commit {self._number}: {error}") from error

    def _make_durable(self) -> None:
        if self._sync:
            self.env.sync(True)
        else:
            self._checkpoint.save(self.env)
        self._durable = self._number

    # Reading

    def snapshot(self) -> Snapshot:
        self._check_usable()
        return LmdbSnapshot(self)

    def verify(self) -> VerifyReport:
        self._check_usable()
        with LmdbSnapshot(self, stays=True) as snapshot:
            return snapshot.verify(self._number)

    def size_bytes(self) -> int:
        return (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]

    # Copies

    def backup(self, target: Path) -> None:
        self._check_usable()
        unfinished = target.with_name(target.name + ".unfinished")
        if target.exists() or unfinished.exists():
            raise BadRequest(why=f"{target if target.exists() else unfinished} exists already")
        epoch = self.gate.enter(stays=True)
        try:
            self._copy(unfinished)
        finally:
            self.gate.leave(epoch, stays=True)
        try:
            self.sync()  # a copy must not know more than this store will after a power loss (SAFETY 2)
            unfinished.rename(target)  # under its name there is a whole backup or none
            sync_path(target.parent)
        except OSError as error:
            raise StorageFailed(path=str(target), why=f"no copy could be made: {error}") from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def compact(self) -> Compacted:
        self._check_usable()
        before = self.size_bytes()
        copy = self.path / "compacting"
        shutil.rmtree(copy, ignore_errors=True)
        with self._writing, self.gate.shut(self._snapshot_wait_s):
            self._copy(copy)
            try:
                self._make_durable()
                self._checkpoint.discard()  # from here on the old file stands for itself, and so will the new one
                self.env.close()
                self._move_in(copy)
                self._open()
            except (OSError, lmdb.Error, KvError) as error:
                raise self._failed(f"compaction: {error}") from error
        return Compacted(before, self.size_bytes())

    def _copy(self, target: Path) -> None:
        """Into a new directory, synced. A copy that fails leaves nothing."""
        try:
            target.mkdir(mode=0o700)
            try:
                self.env.copy(str(target), compact=True)
                sync_path(target / DATA)
                sync_path(target)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
        except (lmdb.Error, OSError) as error:
            raise StorageFailed(path=str(target), why=f"no copy could be made: {error}") from error

    # Ending

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if not self._failure:
                self.sync()
        finally:
            self._failure = self._failure or "it is closed"
            with self._writing, self.gate.shut(0):
                self._checkpoint.release()
                self.env.close()
            os.close(self._lock)

    def _check_usable(self) -> None:
        if self._failure:
            raise StorageFailed(path=str(self.path), why=self._failure)

    def _failed(self, why: str) -> StorageFailed:
        self._failure = why
        return StorageFailed(path=str(self.path), why=why)


def _sealed_rows(batch: Batch) -> Rows:
    rows: Rows = {HOUSE: [(NUMBER, seal(HOUSE, NUMBER, batch.number.to_bytes(8)))]}
    for table, key, value in batch.puts:
        if table not in rows:
            rows[table] = []
        rows[table].append((key, seal(table, key, value)))
    return rows
