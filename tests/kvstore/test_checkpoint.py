"""What may happen to a store with a checkpoint besides a loss of power: test_storage_power.py rebuilds those."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kvstore.errors import CorruptRecord, ForeignData
from kvstore.storage import checkpoint
from kvstore.storage.folder import DATA, LOCK, ROOTS
from kvstore.storage.lmdb import LmdbStorage
from tests.kvstore.test_storage import contents, put

PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Start the machine anew."""
    monkeypatch.setattr(checkpoint, "BOOT_ID", tmp_path / "boot id")

    def boot(name: str) -> None:
        (tmp_path / "boot id").write_text(name)

    boot("first")
    return boot


def killed(store: LmdbStorage, target: Path) -> Path:
    """What the system would have of the files if this process were killed now."""
    return Path(shutil.copytree(store.path, target, ignore=shutil.ignore_patterns("lock.mdb", LOCK)))


def test_a_kill_loses_nothing_and_a_new_start_of_the_machine_all_since_the_last_sync(
    tmp_path: Path, boot: Callable[[str], None]
) -> None:
    with LmdbStorage(tmp_path / "live", create=True, durability="periodic") as store:
        put(store, {b"a": b"synced"})
        store.sync()
        put(store, {b"b": b"not yet"})
        copies = [killed(store, tmp_path / name) for name in ("killed", "lost", "of nobody knows which boot")]
    with LmdbStorage(copies[0], durability="periodic") as store:
        assert (store.number, store.durable, sorted(contents(store))) == (2, 2, [b"a", b"b"])
    boot("second")
    with LmdbStorage(copies[1], durability="periodic") as store:
        assert (store.number, store.durable, sorted(contents(store))) == (1, 1, [b"a"])
        put(store, {b"c": b"v"})
    with LmdbStorage(copies[1], durability="periodic") as store:
        assert sorted(contents(store)) == [b"a", b"c"]
    (tmp_path / "boot id").unlink()
    with LmdbStorage(copies[2], durability="periodic") as store:
        assert sorted(contents(store)) == [b"a"]


@pytest.mark.parametrize("mode", ["sync", "metasync-off"])
def test_a_store_in_another_mode_does_not_go_back_to_a_checkpoint(
    tmp_path: Path, boot: Callable[[str], None], mode: str
) -> None:
    with LmdbStorage(tmp_path / "live", create=True, durability="periodic") as store:
        put(store, {b"a": b"1"})
    with LmdbStorage(tmp_path / "live", durability=mode) as store:
        put(store, {b"b": b"2"})
    boot("second")
    with LmdbStorage(tmp_path / "live", durability="periodic") as store:
        assert store.number == 2


def test_the_roots_of_one_file_are_not_put_into_another(tmp_path: Path, boot: Callable[[str], None]) -> None:
    with LmdbStorage(tmp_path / "live", create=True, durability="periodic") as store:
        for number in range(5):
            put(store, {b"%d" % number: b"v"})
        store.backup(tmp_path / "copy")
    boot("second")
    shutil.copy(tmp_path / "copy" / DATA, tmp_path / "live" / DATA)
    with pytest.raises(ForeignData, match=r"not the file that synced\.roots belongs to"):
        LmdbStorage(tmp_path / "live")
    assert (tmp_path / "live" / DATA).read_bytes() == (tmp_path / "copy" / DATA).read_bytes()
    (tmp_path / "live" / DATA).unlink()
    with pytest.raises(ForeignData, match="belongs to"):
        LmdbStorage(tmp_path / "live")


def test_a_checkpoint_of_which_nothing_can_be_read_is_corrupt(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path, durability="periodic") as store:
        put(store, {b"k": b"v"})
    (tmp_path / ROOTS).write_bytes(bytes((tmp_path / ROOTS).stat().st_size))
    with pytest.raises(CorruptRecord, match="neither of its two slots is whole"):
        LmdbStorage(tmp_path, durability="periodic")


def test_the_number_of_a_root_is_where_we_look_for_it(tmp_path: Path) -> None:
    with LmdbStorage(tmp_path) as store:
        for number in range(2, 6):
            put(store, {b"%d" % number: b"v"})
            data = (tmp_path / DATA).read_bytes()
            found = [checkpoint._txnid(data, at) for at in (0, PAGE)]
            assert sorted(found) == [store.env.info()["last_txnid"] - 1, store.env.info()["last_txnid"]]


def test_a_file_that_was_never_finished_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "creating").mkdir()
    (tmp_path / "creating" / DATA).write_bytes(b"half a page")
    with LmdbStorage(tmp_path) as store:
        put(store, {b"k": b"v"})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([DATA, LOCK, "lock.mdb"])
