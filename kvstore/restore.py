"""Copies of a data directory, while no replica has it open: check one, take one, make a site live again from one.

A backup is a state that its site once had. What the site said after it, its peers remember and the copy does not: dots
that they have delivered, messages that it acknowledged and they have forgotten since. If the copy came back as the site
itself, it would use those dots again for other updates, and nobody could tell the two apart. So what is made of a
backup is another *incarnation* of its site, and all its peers are *unproven* in it: it takes no client's write before
each of them has said hello and knows of nothing that is missing here (SAFETY 3).

An incarnation must be greater than all before it and must not come twice, also when one backup is restored at two
places: it is the time of the restore in microseconds, or one more than the last where a clock has gone back.

The rest stays as it was. What lies in the outbox was stamped and may have been sent: sent again it is a repeat, thrown
away it would be missed for ever. A remembered request has its write in the same copy, so its answer is still true;
without it a client that asks again would write again. (Requests that were done after the backup are forgotten, as are
their writes; whoever asks for one of those again is a new client to us.)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from causal.model import Site
from kvstore.config import Cluster
from kvstore.errors import BadRequest, CorruptRecord, ForeignData, KvError, StorageFailed
from kvstore.persist import open_replica, save
from kvstore.storage.contract import Batch, VerifyReport
from kvstore.storage.folder import DATA, ROOTS, nobody_inside, sync_path
from kvstore.storage.lmdb import LmdbStorage


class Restored(NamedTuple):
    """A data directory that was made of a backup."""

    site: str
    incarnation: int
    commit: int  # the newest of the backup
    records: Mapping[str, int]  # by table
    size_bytes: int


class BackedUp(NamedTuple):
    """A copy of a data directory."""

    commit: int  # the newest in it
    size_bytes: int


def verify_directory(path: Path) -> VerifyReport:
    """Read everything and check it. A directory that a replica has open is StorageFailed, naming the process."""
    with _opened(path) as storage:
        return storage.verify()


def backup_directory(path: Path, target: Path) -> BackedUp:
    """A compact copy of a directory that no replica has open; of one that has, its Admin service makes it."""
    with _opened(path) as storage:
        storage.backup(target)
        return BackedUp(storage.number, (target / DATA).stat().st_size)


def restore(
    backup: Path,
    target: Path,
    cluster: Cluster,
    site_name: str,
    *,
    now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> Restored:
    """Make a new data directory of a backup, which stays as it is. Under the new name there is a whole one or none."""
    site = cluster.site(site_name)
    _check_is_one(backup)
    unfinished = _begun(target)
    try:
        _copy(backup, unfinished)
        with LmdbStorage(unfinished) as storage:
            report = storage.verify()
            if not report.is_sound:
                why = f"{report.bad_count} bad records, the first: {report.bad[0].why}"
                raise CorruptRecord(f"{unfinished} cannot be restored: {why}", path=str(unfinished), why=why)
            incarnation = _begin_anew(storage, cluster, site.number, now_us)
            size_bytes = storage.size_bytes()
        sync_path(unfinished)
        unfinished.rename(target)
        sync_path(target.parent)
    except OSError as error:
        raise StorageFailed(path=str(target), why=f"nothing could be restored there: {error}") from error
    except KvError as error:
        raise _naming(error, unfinished, target if isinstance(error, StorageFailed) else backup) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return Restored(site.name, incarnation, report.number, report.records, size_bytes)


def _begin_anew(storage: LmdbStorage, cluster: Cluster, site: Site, now_us: Callable[[], int]) -> int:
    with storage.snapshot() as view:
        replica = open_replica(cluster, site, view, str(storage.path))
    replica.incarnation = max(replica.incarnation + 1, now_us())
    replica.unproven = set(replica.links)
    batch = Batch(storage.number + 1)
    save(replica, batch)
    storage.commit(batch)
    return replica.incarnation


@contextmanager
def _opened(path: Path) -> Iterator[LmdbStorage]:
    _check_is_one(path)
    with LmdbStorage(path) as storage:
        yield storage


def _check_is_one(path: Path) -> None:
    """Opening would make a new store where there is none."""
    if not (path / DATA).is_file():
        raise ForeignData(path=str(path), why=f"there is no {DATA} in it")


def _begun(target: Path) -> Path:
    """The directory beside it in which it is made."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise BadRequest(why=f"{target} exists already, and a restore replaces nothing")
    unfinished = target.with_name(target.name + ".unfinished")
    try:
        unfinished.mkdir(mode=0o700)
    except FileExistsError:
        raise BadRequest(why=f"{unfinished} exists already; if no restore is under way, remove it") from None
    except OSError as error:
        raise StorageFailed(path=str(target), why=f"nothing can be restored there: {error}") from error
    return unfinished


def _copy(backup: Path, target: Path) -> None:
    with nobody_inside(backup):
        for name in (DATA, ROOTS):  # roots are there when it is the directory of a replica that was in mode `periodic`
            if (backup / name).exists():
                shutil.copyfile(backup / name, target / name)


def _naming(error: KvError, copy: Path, place: Path) -> KvError:
    """What is wrong is said of the place that will still be there."""
    details: dict[str, str | int] = {
        name: value.replace(str(copy), str(place)) for name, value in error.details.items()
    }
    return type(error)(str(error).replace(str(copy), str(place)), **details)
