"""Both clients against a real replica: its services, its corridor, its disk, and its restarts."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kvstore import ABSENT, Client, Delete, Entry, Get, Put, Written, aio, connect
from kvstore.client import Session
from kvstore.config import Cluster, SiteConfig
from kvstore.errors import BadToken, PositionTooOld, SnapshotGone, UnseenVersion, ValueTooLarge, VersionMismatch
from kvstore.limits import Limits
from kvstore.node import Node
from kvstore.values import Position, Version


def make_cluster(folder: Path, *, merge: dict[bytes, str] | None = None, **limits: int) -> Cluster:
    ports = []
    for _ in range(2):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    site = SiteConfig("a", 0, f"127.0.0.1:{ports[0]}", f"127.0.0.1:{ports[1]}", "data")
    cluster = Cluster("test", (site,), {b"": ("a",)}, limits=Limits(**limits), folder=folder)
    return cluster if merge is None else replace(cluster, merge=merge)


@contextmanager
def running(cluster: Cluster) -> Iterator[str]:
    """The replica in a thread with an event loop of its own; its address for clients."""
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    failures: list[BaseException] = []

    async def serve() -> None:
        node = Node(cluster, "a", reflection=False)
        loop.call_later(0, ready.set)
        await node.run(stop)

    def work() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert ready.wait(20)
        yield cluster.sites[0].client
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()
    assert not failures


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    with running(make_cluster(tmp_path, value_max=100_000, scan_page_max=7)) as found:
        yield found


def there(kv: Client | Session, key: bytes) -> Entry:
    entry = kv.get(key)
    assert entry is not None
    return entry


def test_keys_are_written_compared_expired_and_deleted(address):
    with connect(address) as kv:
        first = kv.put(b"one", b"1", expect=ABSENT)
        assert first.site == "a" and there(kv, b"one").version == first.version
        with pytest.raises(VersionMismatch) as found:
            kv.put(b"one", b"2", expect=ABSENT)
        assert found.value.definite and found.value.details["found"] == str(first.version)
        second = kv.put(b"one", b"2", expect=first.version, ttl_ms=60_000)
        assert second.version > first.version and there(kv, b"one").expires_ms > 0
        kv.delete(b"one", expect=second.version)
        assert kv.get(b"one") is None
        with pytest.raises(ValueTooLarge):
            kv.put(b"one", b"v" * 100_001)


def test_many_keys(address):
    with connect(address) as kv:
        written = kv.batch([Put(b"many/%02d" % number, b"v") for number in range(20)] + [Delete(b"many/00")])
        assert len(written.versions) == 21 and [*written.versions] == sorted(written.versions)
        assert [*kv.get_many([b"many/05", b"many/00", b"many/01"])] == [b"many/05", b"many/01"]
        assert [entry.key for entry in kv.scan(b"many/")] == [b"many/%02d" % number for number in range(1, 20)]
        assert [entry.key for entry in kv.scan(b"many/", limit=9)] == [b"many/%02d" % number for number in range(1, 10)]
        found = kv.pipeline([Get(b"many/03"), Put(b"many/03", b"w"), Put(b"many/03", b"x", expect=ABSENT)])
        assert isinstance(found[1], Written) and isinstance(found[2], VersionMismatch)


def test_a_request_id_has_one_effect(address):
    with connect(address) as kv:
        first = kv.put(b"once", b"1", request_id=b"the same")
        kv.put(b"once", b"2")
        assert kv.put(b"once", b"1", request_id=b"the same") == first
        assert there(kv, b"once").value == b"2"


def test_a_snapshot_stays_as_it_was(address):
    with connect(address) as kv:
        kv.put(b"then", b"old")
        with kv.snapshot() as then:
            kv.put(b"then", b"new")
            assert then.get_many([b"then"])[b"then"].value == b"old"
            assert [entry.value for entry in then.scan(b"then")] == [b"old"]
            then.renew()
        with pytest.raises(SnapshotGone):
            then.get_many([b"then"])


def test_operators_are_answered(address, tmp_path):
    with connect(address) as kv:
        kv.put(b"k", b"v")
        assert kv.status().site == "a" and kv.status().commit > 0
        assert kv.explain().held_total == 0
        copy = tmp_path / "copy"
        assert kv.backup(str(copy)).commit > 0 and copy.is_dir()


def test_a_watch_misses_nothing_and_repeats_nothing_over_restarts(tmp_path):
    cluster = make_cluster(tmp_path, changes_max=50)
    kv = connect(cluster.sites[0].client)
    with running(cluster):
        watch = kv.watch(b"w/")
        beginning = watch.position
        kv.batch([Put(b"w/0", b"v"), Put(b"other", b"v"), Put(b"w/1", b"v")])
        seen = [next(watch)]
    with running(cluster):
        kv.put(b"w/2", b"v")
        seen += [next(watch), next(watch)]
        kv.delete(b"w/2")
        seen.append(next(watch))
        assert [(one.key, one.value) for one in seen] == [
            (b"w/0", b"v"),
            (b"w/1", b"v"),
            (b"w/2", b"v"),
            (b"w/2", None),
        ]
        assert seen[0].dot == seen[1].dot != seen[2].dot
        with kv.watch(b"w/", position=beginning) as again:
            assert [next(again) for _ in range(4)] == seen
        for _ in range(60):
            kv.put(b"other", b"v")
        with pytest.raises(PositionTooOld):
            kv.watch(b"w/", position=beginning)
        with pytest.raises(PositionTooOld):
            kv.watch(b"w/", position=Position(0, 99, 1))
        kv.close()


def test_writers_go_on_over_a_restart_and_what_they_were_told_is_there(tmp_path):
    cluster = make_cluster(tmp_path)
    kv = connect(cluster.sites[0].client, timeout_s=30.0)
    versions: dict[bytes, list[object]] = {}

    def work(name: bytes) -> None:
        versions[name] = [kv.put(b"%s/%03d" % (name, number), b"v").version for number in range(100)]

    threads = [threading.Thread(target=work, args=(name,)) for name in (b"x", b"y")]
    with running(cluster):
        for thread in threads:
            thread.start()
        for _ in kv.watch(b"x/", patience_s=30.0):
            break  # they are at it
    with running(cluster):
        for thread in threads:
            thread.join(30)
        for name, told in versions.items():
            assert [entry.version for entry in kv.scan(name + b"/")] == told, "there, and written once"
        assert set(versions) == {b"x", b"y"}
        kv.close()


def test_thousands_of_single_calls_of_an_asyncio_client(tmp_path):
    cluster = make_cluster(tmp_path)

    async def main() -> None:
        stop = asyncio.Event()
        replica = asyncio.create_task(Node(cluster, "a", reflection=False).run(stop))
        try:
            await crowd()
        finally:
            stop.set()
            await replica

    async def crowd() -> None:
        async with aio.connect(cluster.sites[0].client) as kv, kv.watch(b"crowd/") as watch:
            keys = [b"crowd/%04d" % number for number in range(3000)]
            written = await asyncio.gather(*[kv.put(key, key) for key in keys])
            assert len({one.version for one in written}) == 3000
            found = await asyncio.gather(*[kv.get(key) for key in keys])
            assert [one.value for one in found if one] == keys
            seen = set()
            async for change in watch:
                seen.add(change.key)
                if len(seen) == 3000:
                    break
            async with kv.snapshot() as then:
                await kv.delete(keys[0])
                assert [entry.key async for entry in then.scan(b"crowd/")] == keys

    asyncio.run(main())


# Sessions


def test_a_session_does_everything_and_goes_on_with_its_token(address):
    with connect(address) as kv:
        one = kv.session()
        first = one.put(b"s/1", b"v")
        assert there(one, b"s/1").version == first.version
        one.batch([Put(b"s/2", b"v"), Delete(b"s/1")])
        assert [*one.get_many([b"s/1", b"s/2"])] == [b"s/2"]
        assert isinstance(one.pipeline([Get(b"s/2"), Put(b"s/3", b"v")])[1], Written)
        assert [entry.key for entry in one.scan(b"s/", page_size=1)] == [b"s/2", b"s/3"]
        with one.watch(b"s/") as watch:
            for number in range(3):  # each moves the session on, and the watch with it
                one.put(b"s/4", b"%d" % number)
                assert next(watch).value == b"%d" % number
        again = kv.session(one.token())
        assert again.read(b"s/4").entry is not None
        assert again.read(b"s/4", freshness="any").site == "a"
        assert kv.session().get(b"s/4", max_age_ms=60_000) is not None
        for wrong in (one.token()[:-1], b"x", bytes(len(one.token()))):
            with pytest.raises(BadToken) as found:
                kv.session(wrong).put(b"s/5", b"v")
            assert found.value.definite
        assert kv.get(b"s/5") is None


def test_a_session_of_an_asyncio_client(tmp_path):
    cluster = make_cluster(tmp_path)

    async def story() -> None:
        async with aio.connect(cluster.sites[0].client) as kv:
            one = kv.session()
            await asyncio.gather(*[one.put(b"s/%d" % number, b"v") for number in range(5)])
            async with one.watch(b"s/") as watch:
                await one.put(b"s/1", b"w")
                assert (await anext(watch)).value == b"w"
            assert [entry.key async for entry in one.scan(b"s/")] == [b"s/%d" % number for number in range(5)]
            with pytest.raises(BadToken):
                await kv.session(b"x").get(b"s/1")
            assert (await kv.session(await one.token()).read(b"s/1", max_age_ms=60_000)).entry is not None

    async def main() -> None:
        stop = asyncio.Event()
        replica = asyncio.create_task(Node(cluster, "a", reflection=False).run(stop))
        try:
            await asyncio.wait_for(story(), 30)
        finally:
            stop.set()
            await replica

    asyncio.run(main())


def test_siblings_stand_side_by_side_until_a_write_that_has_seen_them(tmp_path):
    cluster = make_cluster(tmp_path, merge={b"": "lww", b"cart/": "siblings"})
    with running(cluster) as address, connect(address) as kv:
        one, other = kv.session(), kv.session()
        one.put(b"cart/1", b"apple")
        other.put(b"cart/1", b"pear")  # it has not seen the apple
        entry = there(one, b"cart/1")
        assert entry.value == b"pear" and [sibling.value for sibling in entry.siblings] == [b"apple"]
        one.put(b"cart/1", b"apple, pear")
        assert there(one, b"cart/1").siblings == () and there(kv, b"cart/1").value == b"apple, pear"
        other.put(b"cart/1", b"plum")  # replaces its own pear, which is gone, and nothing else
        assert len(there(kv, b"cart/1").siblings) == 1
        kv.put(b"cart/1", b"all", replaces=there(kv, b"cart/1"))
        assert there(kv, b"cart/1").versions == (there(other, b"cart/1").version,)
        with pytest.raises(UnseenVersion):
            kv.put(b"cart/1", b"v", replaces=[Version((1 << 63) - 1, 0)])
        other.delete(b"cart/1")
        assert kv.get(b"cart/1") is None
