"""The state to which mode `periodic` goes back after a power loss: its roots in a file, its pages kept by a reader.

Without a sync at each commit the disk may hold a root whose pages never reached it. And what the last synced root needs
may be overwritten, for LMDB recycles what no reader reaches. So every sync begins a read transaction, which keeps its
state from being recycled until the next sync is complete, and saves the two root pages in a file of their own. That
file has two slots that take turns: a torn write leaves the other one, whose pages are still kept.

When the machine was started anew since (its boot id is another), the roots are put back before the data file is
opened, and the store stands exactly at its last sync. Nothing but the two roots is written for it, and the slots stay
as they are until the store is open; a power loss in the middle means doing the same again. A killed process loses
nothing: the boot id is the same, and the system still has all its writes.

A failed sync is like a power loss in one way: the system takes the pages that it could not write for clean, a later
sync says that all is well, and a reader sees what the disk does not have. So it leaves a slot that no boot id fits.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from struct import Struct
from zlib import crc32

import lmdb

from kvstore.errors import CorruptRecord, ForeignData
from kvstore.storage.folder import DATA, ROOTS, sync_path, write_synced
from kvstore.storage.snapshot import RESIDUE

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NO_BOOT = bytes(36)  # fits no boot: such roots are always put back

_HEAD = Struct("<Q36sI")  # turn, boot id, bytes of the roots that follow
_CRC = Struct("<I")
_STRIDE = 1 << 17  # of a slot; two pages of the largest kind are half of it
_TXNID = Struct("=Q")
_TXNID_AT = 144  # in a root page: the number of the transaction that wrote it


class Checkpoint:
    def __init__(self, folder: Path) -> None:
        self._data = folder / DATA
        self._file = folder / ROOTS
        self._pin: lmdb.Transaction[bytes] | None = None
        self._turn = 0  # of the newest slot; the first is 1
        self._roots = b""  # in the newest slot
        self._is_named = False  # the directory is known to hold the file's name on disk

    def put_back(self) -> None:
        """Before the data file is opened, in every mode: a store may have been in mode `periodic` before."""
        try:
            saved = self._file.read_bytes()
        except FileNotFoundError:
            return
        slots = [slot for at in (0, _STRIDE) if (slot := _unpacked(saved[at : at + _STRIDE]))]
        if slots:
            self._turn, boot, self._roots = max(slots)
            if boot == NO_BOOT or boot != _boot_id():
                self._write_roots()
        elif len(saved) > _STRIDE:  # shorter, the first of all was being written, and no commit had come yet
            why = "neither of its two slots is whole"
            raise CorruptRecord(f"{self._file} is corrupt: {why}", path=str(self._file), why=why)

    def save(self, env: lmdb.Environment) -> None:
        """Between two commits. The state before stays protected until this one is on disk."""
        pin = env.begin()
        try:
            with self._data.open("rb") as data:
                roots = data.read(2 * env.stat()["psize"])
            env.sync(True)
        except (lmdb.Error, OSError):
            self._distrust()
            raise
        self._save_slot(roots, _boot_id())
        self.release()
        self._pin = pin

    def release(self) -> None:
        """Before the map changes or the file is closed; save again before the next commit."""
        if self._pin is not None:
            self._pin.abort()
            self._pin = None

    def discard(self) -> None:
        """Before the first commit in another mode, or to another data file: these roots would be put into it."""
        self.release()
        self._turn, self._roots, self._is_named = 0, b"", False
        if self._file.exists():
            self._file.unlink()
            sync_path(self._file.parent)

    def _distrust(self) -> None:
        """In the slot that is not in use; the newest one has the same roots, should this write be torn."""
        if self._roots:
            with suppress(OSError):
                self._save_slot(self._roots, NO_BOOT)

    def _save_slot(self, roots: bytes, boot: bytes) -> None:
        self._turn += 1
        slot = _HEAD.pack(self._turn, boot, len(roots)) + roots
        write_synced(self._file, slot + _CRC.pack(crc32(slot)), at=(self._turn - 1) % 2 * _STRIDE)
        if not self._is_named:
            sync_path(self._file.parent)
            self._is_named = True
        self._roots = roots

    def _write_roots(self) -> None:
        """Into the file that they were taken from: its own roots have grown since, or are the same."""
        size = len(self._roots) // 2
        found = b""
        with suppress(FileNotFoundError), self._data.open("rb") as data:
            found = data.read(2 * size)
        if len(found) < 2 * size or any(_txnid(found, at) < _txnid(self._roots, at) for at in (0, size)):
            why = f"{DATA} is not the file that {ROOTS} belongs to, but an older one or a copy"
            raise ForeignData(path=str(self._data.parent), why=why)
        write_synced(self._data, self._roots, at=0)


def _unpacked(saved: bytes) -> tuple[int, bytes, bytes] | None:
    if len(saved) < _HEAD.size:
        return None
    turn, boot, length = _HEAD.unpack_from(saved)
    end = _HEAD.size + length
    return (turn, boot, saved[_HEAD.size : end]) if crc32(saved[: end + _CRC.size]) == RESIDUE else None


def _txnid(roots: bytes, page_at: int) -> int:
    txnid: int = _TXNID.unpack_from(roots, page_at + _TXNID_AT)[0]
    return txnid


def _boot_id() -> bytes:
    """36 characters, new at each start of the machine. Where nobody knows it, every opening counts as one."""
    with suppress(OSError):
        return BOOT_ID.read_bytes()[:36].ljust(36, b"\0")
    return NO_BOOT
