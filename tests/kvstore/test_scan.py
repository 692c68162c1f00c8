"""Scans: everything in the range, once, in order, in pages of bounded work, with no snapshot open while waiting."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.placement import end_of_prefix
from kvstore.storage.contract import Snapshot, Storage
from kvstore.storage.memory import MemoryStorage
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from tests.kvstore.served import (
    NOW_MS,
    Served,
    all_of,
    open_storage,
    put,
    put_operation,
    refusal,
    refusal_of,
    run,
    until,
)


@pytest.fixture(params=["memory", "lmdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with open_storage(request.param, tmp_path) as opened:
        yield opened


async def fill(served: Served, *keys: bytes, value: bytes = b"v") -> None:
    for first in range(0, len(keys), 50):
        operations = [put_operation(key, value) for key in keys[first : first + 50]]
        await served.stub.Batch(kv.BatchRequest(operations=operations), timeout=10)


async def scan(served: Served, **fields: Any) -> list[kv.ScanResponse]:
    return await all_of(served.stub.Scan(kv.ScanRequest(**fields), timeout=10))


async def collect(stream: Any, into: list[kv.ScanResponse]) -> None:
    async for page in stream:
        into.append(page)


def keys_of(pages: list[kv.ScanResponse]) -> list[bytes]:
    return [entry.key for page in pages for entry in page.entries]


async def refused_scan(served: Served, **fields: Any) -> tuple[str, str, dict[str, str]]:
    found = await refusal(scan(served, **fields))
    return found.status, found.reason, found.details


# Which keys


KEYS = [b"\x00", b"a", b"a\x00", b"a\xff", b"a\xff\xff", b"b", b"b1", b"b2", b"c", b"\xff", b"\xff\xff"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, KEYS),
        ({"prefix": b""}, KEYS),
        ({"prefix": b"a"}, [b"a", b"a\x00", b"a\xff", b"a\xff\xff"]),
        ({"prefix": b"a\xff"}, [b"a\xff", b"a\xff\xff"]),
        ({"prefix": b"\xff"}, [b"\xff", b"\xff\xff"]),
        ({"prefix": b"none"}, []),
        ({"range": kv.KeyRange()}, KEYS),
        ({"range": kv.KeyRange(start=b"b")}, [b"b", b"b1", b"b2", b"c", b"\xff", b"\xff\xff"]),
        ({"range": kv.KeyRange(end=b"a\xff")}, [b"\x00", b"a", b"a\x00"]),
        ({"range": kv.KeyRange(start=b"b", end=b"b2")}, [b"b", b"b1"]),
        ({"range": kv.KeyRange(start=b"b", end=b"b" * 480 + b"\0")}, [b"b", b"b1", b"b2"]),
        ({"range": kv.KeyRange(start=b"b", end=b"c"), "after": b"b1"}, [b"b2"]),
        ({"prefix": b"b", "after": b"b"}, [b"b1", b"b2"]),
        ({"prefix": b"b", "after": b"a"}, [b"b", b"b1", b"b2"]),
        ({"prefix": b"b", "after": b"zzz"}, []),
        ({"after": b"b1x"}, [b"b2", b"c", b"\xff", b"\xff\xff"]),
        ({"limit": 3}, [b"\x00", b"a", b"a\x00"]),
        ({"prefix": b"b", "limit": 100}, [b"b", b"b1", b"b2"]),
    ],
)
@pytest.mark.parametrize("page_size", [0, 1, 2])
def test_a_scan_gives_just_the_keys_that_were_asked_for(
    storage: Storage, fields: dict[str, Any], expected: list[bytes], page_size: int
) -> None:
    async def story(served: Served) -> None:
        await fill(served, *KEYS)
        pages = await scan(served, page_size=page_size, **fields)
        assert keys_of(pages) == expected
        assert all(len(page.entries) <= (page_size or 1000) for page in pages)
        assert all((page.site, page.commit, page.session) == ("a", 1, b"") for page in pages)

    run(story, storage)


def test_the_end_of_a_prefix_is_the_first_key_behind_it() -> None:
    ends = {b"a": b"b", b"a\xff": b"b", b"a\xfe": b"a\xff", b"\xff\xff": None, b"": None, b"\x00\xff\xff": b"\x01"}
    assert {prefix: end_of_prefix(prefix) for prefix in ends} == ends


def test_an_empty_scan_has_one_empty_page_that_says_when_it_was_read() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        (page,) = await scan(served, prefix=b"none", after=b"nob")
        assert (list(page.entries), page.last_key, page.commit) == ([], b"nob", 1)

    run(story)


@pytest.mark.parametrize(
    ("fields", "reason", "details"),
    [
        ({"prefix": b"k" * 481}, "KEY_TOO_LONG", {"length": "481", "limit": "480"}),
        ({"after": b"k" * 481}, "KEY_TOO_LONG", {"length": "481", "limit": "480"}),
        ({"range": kv.KeyRange(start=b"k" * 482)}, "KEY_TOO_LONG", {"length": "482", "limit": "481"}),
        ({"range": kv.KeyRange(end=b"k" * 482)}, "KEY_TOO_LONG", {"length": "482", "limit": "481"}),
        (
            {"range": kv.KeyRange(start=b"b", end=b"a")},
            "BAD_RANGE",
            {"start": "b", "stop": "a", "why": "the end is not after the start"},
        ),
        ({"range": kv.KeyRange(start=b"b", end=b"b")}, "BAD_RANGE", {"start": "b", "stop": "b"}),
        ({"session": b"t"}, "BAD_TOKEN", {}),
        (
            {"snapshot": b"s", "freshness": model.Freshness(level=model.Freshness.LEVEL_ANY)},
            "BAD_REQUEST",
            {"field": "freshness"},
        ),
    ],
)
def test_a_scan_that_makes_no_sense_is_refused(fields: dict[str, Any], reason: str, details: dict[str, str]) -> None:
    async def story(served: Served) -> None:
        status, found, facts = await refused_scan(served, **fields)
        assert (status, found) == ("INVALID_ARGUMENT", reason)
        assert details.items() <= facts.items()

    run(story)


# Pages


def test_pages_follow_each_other_without_gap_or_repeat_whatever_their_limits(storage: Storage) -> None:
    chance = random.Random("pages")
    keys = sorted({chance.randbytes(chance.randint(1, 6)) for _ in range(300)})

    async def story(served: Served) -> None:
        await fill(served, *keys)
        gone = chance.sample(keys, 120)
        for key in gone:
            await served.stub.Delete(kv.DeleteRequest(key=key), timeout=10)
        alive = [key for key in keys if key not in gone]
        for page_size, limit in [(0, 0), (1, 0), (7, 0), (50, 13), (3, 90), (100, 1000)]:
            pages = await scan(served, page_size=page_size, limit=limit)
            assert keys_of(pages) == (alive[:limit] if limit else alive)
            lasts = [page.last_key for page in pages]
            assert lasts == sorted(set(lasts))

    run(story, storage, scan_page_max=10)


def test_a_broken_scan_goes_on_from_the_last_key_of_any_page(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await fill(served, *(b"k%02d" % number for number in range(30)))
        for number in (3, 4, 5, 11, 12, 29):
            await served.stub.Delete(kv.DeleteRequest(key=b"k%02d" % number), timeout=10)
        pages = await scan(served, page_size=4)
        for place, page in enumerate(pages):
            rest = await scan(served, page_size=4, after=page.last_key)
            assert keys_of(rest) == keys_of(pages[place + 1 :])

    run(story, storage, scan_page_max=5)


def test_a_page_ends_at_its_bytes_but_has_one_key_at_least() -> None:
    async def story(served: Served) -> None:
        await fill(served, *(b"k%d" % number for number in range(6)), value=b"v" * 400)
        await put(served, b"k3", b"v" * 5000)
        pages = await scan(served)
        assert [len(page.entries) for page in pages] == [2, 1, 1, 2]
        assert keys_of(pages) == [b"k%d" % number for number in range(6)]

    run(story, scan_page_bytes_max=1000)


def test_what_is_gone_makes_empty_pages_that_get_on_with_bounded_work() -> None:
    storage = WatchedStorage()

    async def story(served: Served) -> None:
        await fill(served, *(b"k%03d" % number for number in range(100)), b"z")
        for number in range(100):
            await served.stub.Delete(kv.DeleteRequest(key=b"k%03d" % number), timeout=10)
        storage.looked.clear()
        pages = await scan(served)
        assert keys_of(pages) == [b"z"]
        assert [len(page.entries) for page in pages] == [0] * 10 + [1]
        assert pages[4].last_key == b"k049"
        assert max(storage.looked) <= 10

    run(story, storage, scan_page_max=10)


def test_expired_keys_are_left_out() -> None:
    async def story(served: Served) -> None:
        await put(served, b"a", ttl_ms=10)
        await put(served, b"b")
        served.now_ms = NOW_MS + 10
        assert keys_of(await scan(served)) == [b"b"]

    run(story)


def test_each_page_is_read_at_a_moment_of_its_own_with_its_commit() -> None:
    async def story(served: Served) -> None:
        await fill(served, *(b"k%03d" % number for number in range(100)), value=b"v" * 100_000)
        stream = served.stub.Scan(kv.ScanRequest(page_size=1), timeout=10)
        first = await stream.read()
        await put(served, b"k099", b"new")
        pages = [first, *await all_of(stream)]
        assert (pages[0].commit, pages[-1].commit) == (2, 3)
        assert pages[-1].entries[0].value == b"new"

    run(story)


class WatchedSnapshot:
    """A snapshot of which the test knows how much was read, and whether it is open."""

    def __init__(self, storage: WatchedStorage, inner: Snapshot) -> None:
        self._storage, self._inner = storage, inner
        storage.open += 1
        self._looked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def scan(self, *args: Any, **more: Any) -> Iterator[tuple[bytes, bytes]]:
        for row in self._inner.scan(*args, **more):
            self._looked += 1
            yield row

    def __enter__(self) -> WatchedSnapshot:
        return self

    def __exit__(self, *_: object) -> None:
        self._storage.open -= 1
        self._storage.looked.append(self._looked)
        self._inner.close()


class WatchedStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.open = 0
        self.looked: list[int] = []

    def snapshot(self) -> Any:
        return WatchedSnapshot(self, super().snapshot())


def test_nobody_who_reads_slowly_keeps_a_snapshot_open_or_puts_out() -> None:
    storage = WatchedStorage()

    async def story(served: Served) -> None:
        await fill(served, *(b"k%03d" % number for number in range(100)), value=b"v" * 100_000)
        slow = [served.stub.Scan(kv.ScanRequest(page_size=1)) for _ in range(4)]
        for stream in slow:
            await stream.read()
        await until(lambda: served.service.places["scans"].taken == 4)
        await asyncio.sleep(0.05)
        assert storage.open == 0
        await put(served, b"k")
        status, reason, details = await refused_scan(served)
        assert (status, reason, details) == (
            "RESOURCE_EXHAUSTED",
            "TOO_MANY_WAITING",
            {"limit": "4", "what": "scans"},
        )
        for stream in slow:
            stream.cancel()
        await until(lambda: served.service.places["scans"].taken == 0)
        assert served.metrics.calls.count(("Scan", "CANCELLED")) == 4

    run(story, storage, calls_max=4)


def test_a_corrupt_record_ends_the_scan_after_the_pages_before_it(tmp_path: Path) -> None:
    async def story(served: Served) -> None:
        await fill(served, *(b"k%d" % number for number in range(6)))
        storage: Any = served.storage
        with storage.env.begin(storage.tables["keys"], write=True) as txn:
            txn.put(b"k4", txn.get(b"k4")[:-1] + b"?")
        pages: list[kv.ScanResponse] = []
        stream = served.stub.Scan(kv.ScanRequest(page_size=2), timeout=10)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await collect(stream, pages)
        assert keys_of(pages) == [b"k0", b"k1", b"k2", b"k3"]
        assert refusal_of(raised.value)[:2] == ("DATA_LOSS", "CORRUPT_RECORD")
        await put(served, b"k")

    with open_storage("lmdb", tmp_path) as opened:
        run(story, opened)


# In a leased snapshot


def test_all_pages_of_a_leased_snapshot_show_one_moment(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await fill(served, *(b"k%d" % number for number in range(10)))
        await put(served, b"k7", b"short", ttl_ms=100)
        lease = served.leases.open()
        await put(served, b"k5", b"later")
        await put(served, b"new")
        await served.stub.Delete(kv.DeleteRequest(key=b"k6"), timeout=10)
        served.now_ms = NOW_MS + 100
        pages = await scan(served, snapshot=lease.handle, page_size=3)
        assert keys_of(pages) == [b"k%d" % number for number in range(10)]
        assert {page.commit for page in pages} == {2}
        values = {entry.key: entry.value for page in pages for entry in page.entries}
        assert (values[b"k5"], values[b"k7"]) == (b"v", b"short")
        many = kv.GetManyRequest(keys=[b"k5", b"new", b"k6"], snapshot=lease.handle)
        answer = await served.stub.GetMany(many, timeout=10)
        assert [entry.key for entry in answer.entries] == [b"k5", b"k6"] and answer.commit == 2

    run(story, storage)


def test_a_scan_whose_snapshot_ends_on_the_way_is_told_so() -> None:
    async def story(served: Served) -> None:
        await fill(served, *(b"k%03d" % number for number in range(100)), value=b"v" * 100_000)
        lease = served.leases.open(1000)
        stream = served.stub.Scan(kv.ScanRequest(page_size=1, snapshot=lease.handle), timeout=10)
        await stream.read()
        served.mono_s = 1.0
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await all_of(stream)
        assert refusal_of(raised.value)[:2] == ("NOT_FOUND", "SNAPSHOT_GONE")

    run(story)
