"""Power losses in mode `periodic`, rebuilt: after each of them the store stands exactly at its last sync.

A `Machine` watches a data directory. LMDB writes its file by system calls and never through its map, so the pages that
a commit wrote are those that differ after it; of syncs and of our own writes the machine hears. So it knows what is
on disk for sure and what may be, and can be made to lose its power at any point: what was synced is there, and of the
rest any part, each page as any commit since left it.

A broken file can kill its reader, so images are opened in another process. What it finds is compared with what was
committed. Planted bugs at the end show that the images are cruel enough.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pytest

from kvstore.storage import Batch, Storage, checkpoint
from kvstore.storage.checkpoint import Checkpoint
from kvstore.storage.folder import DATA, ROOTS, sync_path, write_synced
from kvstore.storage.lmdb import LmdbStorage
from tests.kvstore.test_storage import contents

ROOT = Path(__file__).resolve().parents[2]
PAGE, SECTOR = os.sysconf("SC_PAGE_SIZE"), 512
SMALL_MAP = 1 << 18
IMAGES_MAX = 80  # of one life; the points of a loss are drawn from all there are


class Loss(NamedTuple):
    """A loss of power."""

    image: dict[str, bytes]  # what is then on disk
    numbers: set[int]  # the commits at which the store may stand; while a slot is being written there are two


class Machine:
    """What of a directory is on disk, what may be, and at which commits the store may stand after a loss of power."""

    def __init__(self, folder: Path, seed: int, states: dict[int, str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.chance = random.Random(seed)
        self.disk: dict[str, bytes] = {name: self._read(name) for name in (DATA, ROOTS) if (folder / name).exists()}
        self.under_way: dict[str, dict[int, list[bytes]]] = {DATA: {}, ROOTS: {}}  # offset -> each version of it
        self.seen = self.disk.get(DATA, b"")
        self.states = states  # by number, what was committed
        self.durable = self.next = max(states)
        self.images: list[Loss] = []
        self.changes_of_map = 0

    def _read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def look(self) -> None:
        """Which pages the data file got since we last looked."""
        now = self._read(DATA)
        for at in range(0, len(now), PAGE):
            if now[at : at + PAGE] != self.seen[at : at + PAGE]:
                self.under_way[DATA].setdefault(at, []).append(now[at : at + PAGE])
        self.seen = now

    def write(self, name: str, data: bytes, at: int) -> None:
        for part in range(0, len(data), SECTOR):
            self.under_way[name].setdefault(at + part, []).append(data[part : part + SECTOR])

    def synced(self, name: str) -> None:
        self.disk[name] = self._read(name)
        self.under_way[name] = {}
        self.seen = self.disk.get(DATA, b"")

    def may_lose_power(self) -> None:
        if self.chance.random() < 0.6:
            self.images.append(Loss(self._image(), {self.durable, self.next}))

    def _image(self) -> dict[str, bytes]:
        likely = self.chance.choice([0.0, 0.3, 0.5, 0.9, 1.0])
        are_roots_there = self.chance.random() < 0.5  # roots before their pages: the worst that can happen
        image = {name: bytearray(data) for name, data in self.disk.items()}
        for name, parts in self.under_way.items():
            for at, versions in parts.items():
                is_root = name == DATA and at < 2 * PAGE
                if self.chance.random() < likely or (is_root and are_roots_there):
                    file, part = image.setdefault(name, bytearray()), self.chance.choice(versions)
                    file.extend(bytes(max(0, at + len(part) - len(file))))
                    file[at : at + len(part)] = part
        if DATA in image and self.chance.random() < 0.3:  # the length is there, its pages are not
            image[DATA].extend(bytes(max(0, len(self.seen) - len(image[DATA]))))
        return {name: bytes(data) for name, data in image.items()}


class Watched:
    """Stands before an environment and tells the machine of its syncs."""

    def __init__(self, env: lmdb.Environment, machine: Machine) -> None:
        self._env = env
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def sync(self, force: bool) -> None:
        self._machine.look()
        self._machine.may_lose_power()
        self._env.sync(force)
        self._machine.synced(DATA)
        self._machine.may_lose_power()


class WatchedStorage(LmdbStorage):
    machine: Machine

    @classmethod
    def on(cls, machine: Machine) -> WatchedStorage:
        kind = type(cls.__name__, (cls,), {"machine": machine})  # it is needed before the first line of __init__
        store: WatchedStorage = kind(machine.folder, durability="periodic", map_bytes=SMALL_MAP)
        return store

    def _open_env(self, path: Path, *, is_synced: bool) -> Any:
        env = super()._open_env(path, is_synced=is_synced)
        return Watched(env, self.machine) if path == self.path else env

    def _move_in(self, new: Path) -> None:
        self.machine.may_lose_power()
        super()._move_in(new)
        self.machine.synced(DATA)
        self.machine.may_lose_power()

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        self.machine.look()
        self.machine.states[batch.number] = digest(contents(self))
        self.machine.may_lose_power()


@contextmanager
def watched_files(machine: Machine) -> Iterator[None]:
    """Tells the machine of what the checkpoint writes."""

    def write(path: Path, data: bytes, *, at: int) -> None:
        machine.write(path.name, data, at)
        if path.name == ROOTS:
            machine.next = max(machine.states)
        machine.may_lose_power()
        write_synced(path, data, at=at)
        machine.synced(path.name)
        machine.durable = machine.next
        machine.may_lose_power()

    def sync(path: Path) -> None:
        if not (machine.folder / ROOTS).exists():  # it has been discarded; the disk may not know yet
            machine.may_lose_power()
            machine.disk.pop(ROOTS, None)
        sync_path(path)
        machine.may_lose_power()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_synced", write)
        patch.setattr(checkpoint, "sync_path", sync)
        yield


def digest(rows: dict[bytes, bytes]) -> str:
    return hashlib.sha256(repr(sorted(rows.items())).encode()).hexdigest()


def live(store: Storage, chance: random.Random, commits: int) -> None:
    """Writes of all sizes over each other, so that pages are freed and taken again; a sync now and then."""
    for number in range(store.number + 1, store.number + commits + 1):
        batch = Batch(number)
        for _ in range(chance.randrange(1, 12)):
            key = b"%03d" % chance.randrange(120)
            if chance.random() < 0.3:
                batch.deletes.append(("keys", key))
            else:
                batch.puts.append(("keys", key, b"%d:" % number + b"x" * chance.choice((20, 200, 1500, 5000))))
        store.commit(batch)
        if number % 8 == 0:
            store.sync()
        if number % 21 == 0:
            store.compact()


def lose_power_often(
    folder: Path,
    *,
    seed: int,
    states: dict[int, str] | None = None,
    commits: int = 70,
    kind: type[WatchedStorage] = WatchedStorage,
) -> Machine:
    machine = Machine(folder, seed, states or {0: digest({})})
    with watched_files(machine):
        store = kind.on(machine)
        live(store, machine.chance, commits)
        machine.changes_of_map = store.gate.epoch
        store.close()
    return machine


# The judge, in another process


READER = """
import json, sys
from pathlib import Path
from kvstore.errors import KvError
from kvstore.storage import checkpoint
from kvstore.storage.lmdb import LmdbStorage
from tests.kvstore.test_storage_power import digest
from tests.kvstore.test_storage import contents

checkpoint.BOOT_ID = Path("/proc/sys/kernel/random/uuid")  # always another boot
if sys.argv[1] == "as it is":
    checkpoint.Checkpoint.put_back = lambda self: None
for line in sys.stdin:
    try:
        with LmdbStorage(Path(line.strip()), durability="periodic") as store:
            found = [store.number, digest(contents(store)) if store.verify().is_sound else "unsound"]
    except KvError as error:
        found = [-1, str(error)]
    print(json.dumps(found), flush=True)
"""


def verdicts(machine: Machine, folder: Path, *, how: str = "put back") -> list[str]:
    """What is wrong with the store after these losses of power."""
    losses = machine.images
    if len(losses) > IMAGES_MAX:
        losses = random.Random(0).sample(losses, IMAGES_MAX)
    folders = [laid_out(loss, folder / str(place)) for place, loss in enumerate(losses)]
    wrong = []
    for loss, (number, found) in zip(losses, opened(folders, how), strict=True):
        if number not in loss.numbers:
            wrong.append(f"stands at {number}, not at {sorted(loss.numbers)}: {found}")
        elif machine.states[number] != found:
            wrong.append(f"stands at {number} with other contents")
    return wrong


def laid_out(loss: Loss, folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, data in loss.image.items():
        (folder / name).write_bytes(data)
    return folder


def opened(folders: list[Path], how: str) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while len(found) < len(folders):
        rest = "\n".join(map(str, folders[len(found) :]))
        reader = [sys.executable, "-c", READER, how]
        done = subprocess.run(reader, cwd=ROOT, input=rest, capture_output=True, text=True, timeout=60, check=False)
        found += [tuple(json.loads(line)) for line in done.stdout.splitlines()]
        if done.returncode:
            found.append((-1, f"the reader died: {done.returncode} {done.stderr[-500:]}"))
    return found


def boot(patch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    """Start the machine anew."""
    (folder / "boot id").write_text(name)
    patch.setattr(checkpoint, "BOOT_ID", folder / "boot id")


# Losses of power


@pytest.mark.parametrize("seed", range(4))
def test_after_a_power_loss_the_store_stands_exactly_at_its_last_sync(tmp_path: Path, seed: int) -> None:
    machine = lose_power_often(tmp_path / "live", seed=seed)
    assert len(machine.images) > 50
    assert machine.changes_of_map >= 5, "it should have grown, and been compacted"
    assert verdicts(machine, tmp_path / "images") == []


def test_one_power_loss_after_the_other_also_in_the_middle_of_coming_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, states = tmp_path / "0", {0: digest({})}
    for life in range(5):
        boot(monkeypatch, tmp_path, f"boot {life}")
        machine = lose_power_often(folder, seed=life, states=states, commits=20)
        assert verdicts(machine, tmp_path / f"images {life}") == []
        loss = machine.chance.choice([loss for loss in machine.images if len(loss.numbers) == 1])
        folder = laid_out(loss, tmp_path / str(life + 1))
        states = {number: state for number, state in machine.states.items() if number <= max(loss.numbers)}
    assert max(states) > 20


def test_roots_that_were_half_put_back_are_put_back_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = lose_power_often(tmp_path / "live", seed=9)
    boot(monkeypatch, tmp_path, "second")
    chance = random.Random(9)

    def write_some(path: Path, data: bytes, *, at: int) -> None:
        file = bytearray(path.read_bytes())
        for part in range(0, len(data), SECTOR):
            if chance.random() < 0.5:
                file[at + part : at + part + SECTOR] = data[part : part + SECTOR]
        path.write_bytes(file)
        raise InterruptedError

    machine.images = [loss for loss in machine.images if ROOTS in loss.image]
    for place, loss in enumerate(machine.images):
        folder = laid_out(loss, tmp_path / "half" / str(place))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "write_synced", write_some)
            with suppress(InterruptedError):
                Checkpoint(folder).put_back()
        loss.image[DATA] = (folder / DATA).read_bytes()
    assert verdicts(machine, tmp_path / "images") == []


# Planted bugs


class Unprotected(Checkpoint):
    def save(self, env: lmdb.Environment) -> None:
        super().save(env)
        self.release()


class OneSlot(Checkpoint):
    def _save_slot(self, roots: bytes, boot: bytes) -> None:
        self._turn += 1
        super()._save_slot(roots, boot)


class SavesBeforeItSyncs(Checkpoint):
    def save(self, env: lmdb.Environment) -> None:
        self._save_slot(self._data.read_bytes()[: 2 * PAGE], checkpoint._boot_id())
        super().save(env)


class KeepsTheRootsOfTheOldFile(Checkpoint):
    def discard(self) -> None:
        self.release()


class GrowsWithoutItsReader(WatchedStorage):
    def _grow(self) -> None:
        with self.gate.shut(0):
            self._checkpoint.release()
            self.env.set_mapsize(2 * self.env.info()["map_size"])


@pytest.mark.parametrize("bug", [Unprotected, OneSlot, SavesBeforeItSyncs, KeepsTheRootsOfTheOldFile])
def test_a_planted_bug_in_the_checkpoint_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: type[Checkpoint]
) -> None:
    monkeypatch.setattr("kvstore.storage.lmdb.Checkpoint", bug)
    assert verdicts(lose_power_often(tmp_path / "live", seed=0), tmp_path / "images")


def test_a_map_that_grows_without_a_new_checkpoint_is_caught(tmp_path: Path) -> None:
    machine = lose_power_often(tmp_path / "live", seed=0, kind=GrowsWithoutItsReader)
    assert verdicts(machine, tmp_path / "images")


def test_a_store_that_is_opened_as_the_power_loss_left_it_is_caught(tmp_path: Path) -> None:
    machine = lose_power_often(tmp_path / "live", seed=0)
    assert verdicts(machine, tmp_path / "images", how="as it is")
