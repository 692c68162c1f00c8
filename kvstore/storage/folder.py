"""A data directory: what lies in it, who has it open, and how a change of its files is made to last.

A write is in the system's memory until somebody syncs the file; a new name is there until somebody syncs the directory
that holds it. Files are therefore made beside, synced, and then moved to their name: under a name there is a whole
file or none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from kvstore.errors import StorageFailed

DATA = "data.mdb"  # the tables, a file of LMDB, beside its own lock.mdb
LOCK = "replica.lock"  # the process that has the directory open
ROOTS = "synced.roots"  # where mode `periodic` goes back to: checkpoint.py


def lock_folder(path: Path, *, create: bool) -> int:
    """Ours alone until the file that is returned is closed, or the process ends."""
    try:
        made = [one for one in (path, *path.parents) if not one.exists()] if create else []
        if made:
            path.mkdir(mode=0o700, parents=True)
        for one in made:
            sync_path(one.parent)
        file = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise unusable(path, error.strerror or str(error)) from error
    try:
        flock(file, LOCK_EX | LOCK_NB)
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
    except OSError as error:
        why = f"process {_holder(file)} has it open" if isinstance(error, BlockingIOError) else str(error)
        os.close(file)
        raise unusable(path, why) from error
    return file


@contextmanager
def nobody_inside(path: Path) -> Iterator[None]:
    """To copy its files from outside. Nothing is written there; without a lock file it was never open."""
    if not (path / LOCK).exists():
        yield
        return
    file = os.open(path / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            flock(file, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise unusable(path, f"process {_holder(file)} has it open") from error
        yield
    finally:
        os.close(file)


def _holder(file: int) -> str:
    return os.pread(file, 20, 0).decode(errors="replace")


def unusable(path: Path, why: str) -> StorageFailed:
    return StorageFailed(f"the data directory {path} cannot be used: {why}", path=str(path), why=why)


def sync_path(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_synced(path: Path, data: bytes, *, at: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.pwrite(file, data, at) != len(data):
            raise OSError(f"{path}: only a part could be written")
        os.fsync(file)
    finally:
        os.close(file)
