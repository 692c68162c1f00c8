"""Watches: every durable change once, in an order that respects causality, over broken connections and restarts."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvstore.effects import Arrived
from kvstore.layout import index_key
from kvstore.rpc.watch import Watching
from kvstore.storage.memory import MemoryStorage
from kvstore.update import unpack_change
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from kvstore.v1 import watch_pb2
from tests.kvstore.served import (
    NOW_MS,
    Served,
    delete_operation,
    open_storage,
    put,
    put_operation,
    refusal,
    refusal_of,
    run,
    until,
)
from tests.kvstore.stage import CAUSAL, Stage

PUT, DELETE = watch_pb2.Change.KIND_PUT, watch_pb2.Change.KIND_DELETE


class Watch:
    """One watch, read by hand."""

    def __init__(self, served: Served, prefix: bytes = b"", position: model.Position | None = None) -> None:
        self.stream = served.stub.Watch(watch_pb2.WatchRequest(prefix=prefix, position=position))

    async def next(self) -> watch_pb2.WatchResponse:
        response = await asyncio.wait_for(self.stream.read(), 10)
        assert isinstance(response, watch_pb2.WatchResponse), "the stream has ended"
        return response

    async def changes(self, count: int) -> list[watch_pb2.Change]:
        """So many changes at least, of as many responses as it takes."""
        found: list[watch_pb2.Change] = []
        while len(found) < count:
            found += (await self.next()).changes
        return found

    async def refused(self) -> Any:
        async def end() -> None:
            while True:
                await self.next()

        return await refusal(end())


async def begun(served: Served, prefix: bytes = b"", position: model.Position | None = None) -> Watch:
    """A watch that has had its first response."""
    watch = Watch(served, prefix, position)
    assert not (await watch.next()).changes
    return watch


async def batch(served: Served, *operations: kv.Operation) -> kv.BatchResponse:
    return await served.stub.Batch(kv.BatchRequest(operations=operations), timeout=10)


def here(index: int, *, site: int = 0, incarnation: int = 1) -> model.Position:
    return model.Position(site=site, incarnation=incarnation, index=index)


# What a watcher sees


def test_the_first_response_comes_at_once_and_says_where_the_watch_begins() -> None:
    async def story(served: Served) -> None:
        for number in range(3):
            await put(served, b"k%d" % number)
        first = await Watch(served).next()
        assert first == watch_pb2.WatchResponse(position=here(3), site="a", commit=3)

    run(story)


def test_a_watcher_sees_puts_and_deletes_with_all_that_belongs_to_them() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served)
        written = await put(served, b"k", b"v", ttl_ms=500)
        response = await watch.next()
        dot = model.Dot(site=0, seq=1)
        assert list(response.changes) == [
            watch_pb2.Change(
                kind=PUT, key=b"k", value=b"v", version=written.version, expires_ms=NOW_MS + 500, index=1, dot=dot
            )
        ]
        assert (response.position, response.site, response.commit) == (here(1), "a", 1)
        gone = await served.stub.Delete(kv.DeleteRequest(key=b"k"), timeout=10)
        (change,) = await watch.changes(1)
        assert (change.kind, change.key, change.value, change.version) == (DELETE, b"k", b"", gone.version)
        assert (change.index, change.dot) == (2, model.Dot(site=0, seq=2))

    run(story)


def test_the_changes_of_a_batch_stand_in_one_response_however_large_it_is() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served)
        operations = [put_operation(b"k%02d" % number, b"v" * 1000) for number in range(50)]
        answer = await batch(served, *operations, delete_operation(b"k00"))
        changes = (await watch.next()).changes
        assert sorted(change.key for change in changes) == [b"k%02d" % number for number in range(50)]
        assert [change.key for change in changes if change.kind == DELETE] == [b"k00"], "the later one stays"
        assert all(change.version == version for change in changes for version in answer.versions)
        assert {change.index for change in changes} == {1}
        assert {change.dot.seq for change in changes} == {1}

    run(story, scan_page_max=2, scan_page_bytes_max=100)


def test_only_keys_with_the_prefix_are_shown_and_the_position_counts_all() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served, b"a/")
        await put(served, b"b/1")
        await batch(served, put_operation(b"a/1"), put_operation(b"a"), put_operation(b"b/2"))
        await put(served, b"a/2")
        changes = await watch.changes(2)
        assert [(change.key, change.index) for change in changes] == [(b"a/1", 2), (b"a/2", 3)]

    run(story)


def test_a_write_that_lost_makes_no_change_and_versions_only_rise() -> None:
    async def story(served: Served) -> None:
        stage = Stage(2, "optimal")
        stage.now_ms = NOW_MS - 1000
        stage.write(1, b"k", b"older")
        stage.now_ms = NOW_MS + 1000
        stage.write(1, b"k", b"newer")
        watch = await begun(served)
        await put(served, b"k", b"ours")
        await served.loop.offer(1, [Arrived(1, envelope) for envelope in stage.under_way[1, 0]])
        assert [change.value for change in await watch.changes(2)] == [b"ours", b"newer"]
        assert served.loop.said.changes == 2

    run(story, sites=2)


@pytest.mark.parametrize("protocol", CAUSAL)
def test_no_watcher_sees_an_effect_before_its_cause(protocol: str) -> None:
    async def story(served: Served) -> None:
        stage = Stage(3, protocol)
        question = stage.write(1, b"question")
        stage.carry(1, 2)
        reply = stage.write(2, b"reply")
        watch = await begun(served)
        await served.loop.offer(2, [Arrived(2, envelope) for envelope in stage.under_way[2, 0]])
        await until(lambda: reply in served.replica.held)
        await put(served, b"meanwhile")
        await served.loop.offer(1, [Arrived(1, envelope) for envelope in stage.under_way[1, 0]])
        changes = await watch.changes(3)
        assert [change.key for change in changes] == [b"meanwhile", b"question", b"reply"]
        assert [(change.dot.site, change.dot.seq) for change in changes[1:]] == [tuple(question), tuple(reply)]

    run(story, sites=3, protocol=protocol)


# Going on


class Truth:
    """What a watcher must have seen: the changes as the replica wrote them down."""

    def __init__(self, served: Served, prefix: bytes) -> None:
        self.rows: list[tuple[int, bytes, int]] = []
        with served.storage.snapshot() as view:
            for index in range(1, served.loop.said.changes + 1):
                data = view.get("changes", index_key(index))
                assert data is not None
                _, updates = unpack_change(data)
                self.rows += [(index, one.key, one.version.time) for one in updates if one.key.startswith(prefix)]


async def write_at_random(served: Served, chance: random.Random, count: int) -> None:
    for _ in range(count):
        keys = [chance.choice((b"a/", b"b/")) + b"%d" % chance.randrange(5) for _ in range(chance.randint(1, 4))]
        await batch(served, *(chance.choice((put_operation, delete_operation))(key) for key in keys))
        if chance.random() < 0.3:
            await asyncio.sleep(0)


async def follow_at_random(served: Served, chance: random.Random, seen: list[Any], newest: int) -> model.Position:
    """Read until everything up to `newest` came, breaking off now and then and going on from the last position."""
    position: model.Position = seen.pop()
    while position.index < newest:
        watch = Watch(served, b"a/", position)
        for _ in range(chance.randint(1, 6)):
            response = await watch.next()
            seen += [(change.index, change.key, change.version.time) for change in response.changes]
            position = response.position
            if position.index >= newest:
                break
        watch.stream.cancel()
    return position


def follow_over_restarts(folder: Path, seed: int, **settings: Any) -> tuple[list[Any], list[Any]]:
    """Three lives of a replica, writers and a watcher who breaks off; what was seen, and what was there."""
    chance, seen = random.Random(f"watch {seed}"), [here(0)]
    truth: list[Any] = []

    async def life(served: Served) -> None:
        known = served.loop.said.changes
        writing = asyncio.create_task(write_at_random(served, chance, 40))
        position = await follow_at_random(served, chance, seen, known + 20)
        await writing
        if chance.random() < 0.5:
            seen.append(position)
            position = await follow_at_random(served, chance, seen, served.loop.said.changes)
        truth[:] = [row for row in Truth(served, b"a/").rows if row[0] <= position.index]
        assert len(seen) <= len(truth) + 1000, "a watch that repeats itself without end"
        seen.append(position)

    for _ in range(3):
        with open_storage("lmdb", folder) as opened:
            run(life, opened, progress_s=0.02, **settings)
    seen.pop()
    return seen, truth


@pytest.mark.parametrize("seed", range(6))
def test_a_watch_goes_on_over_breaks_and_restarts_without_gap_or_repeat(tmp_path: Path, seed: int) -> None:
    seen, truth = follow_over_restarts(tmp_path, seed, scan_page_max=7)
    assert seen == truth and len(truth) > 30


@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_watch_that_begins_one_change_off_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off_by: int
) -> None:
    beginning: Callable[..., int] = Watching._beginning

    def wrong(self: Watching, request: watch_pb2.WatchRequest) -> int:
        return min(max(0, beginning(self, request) + off_by), self._loop.said.changes)

    monkeypatch.setattr(Watching, "_beginning", wrong)
    seen, truth = follow_over_restarts(tmp_path, 1, scan_page_max=7)
    assert seen != truth


def test_while_a_watch_catches_up_its_commit_is_not_known() -> None:
    async def story(served: Served) -> None:
        for number in range(5):
            await put(served, b"k%d" % number)
        watch = Watch(served, position=here(0))
        responses = [await watch.next() for _ in range(4)]
        assert [(one.position.index, one.commit) for one in responses] == [(0, 0), (2, 0), (4, 0), (5, 5)]

    run(story, scan_page_max=2)


def test_an_idle_watch_says_now_and_then_how_far_it_is() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served, b"a/")
        second = await watch.next()
        assert (list(second.changes), second.position.index) == ([], 0)
        await put(served, b"b/1")
        while (third := await watch.next()).position.index < 1:
            assert not third.changes
        assert (list(third.changes), third.commit) == ([], 1)

    run(story, progress_s=0.02)


def test_a_busy_neighbour_makes_no_flood_of_progress() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served, b"a/")
        for number in range(50):
            await put(served, b"b/%d" % number)
        await put(served, b"a/1")
        response = await watch.next()
        assert [change.key for change in response.changes] == [b"a/1"] and response.position.index == 51

    run(story)


# Positions that are no good


def test_a_position_that_is_kept_no_more_is_out_of_range_also_after_a_restart(tmp_path: Path) -> None:
    async def write(served: Served) -> None:
        for number in range(20):
            await put(served, b"k%d" % number)
        await check(served)

    async def check(served: Served) -> None:
        for index in (0, 9):
            refused = await Watch(served, position=here(index)).refused()
            assert refused[:2] == ("OUT_OF_RANGE", "POSITION_TOO_OLD")
            assert refused.details == {"position": str(index + 1), "oldest": "11"}
        for index in (10, 15, 20):
            watch = await begun(served, position=here(index))
            assert len(await watch.changes(20 - index)) == 20 - index

    for story in (write, check):
        with open_storage("lmdb", tmp_path) as opened:
            run(story, opened, changes_max=10)


@pytest.mark.parametrize(
    ("position", "status", "reason", "words"),
    [
        (here(1, site=2), "INVALID_ARGUMENT", "BAD_REQUEST", "one of site 2, and means nothing at a, which is site 0"),
        (here(1, incarnation=7), "OUT_OF_RANGE", "POSITION_TOO_OLD", "of incarnation 7, and this is 1"),
        (here(2), "OUT_OF_RANGE", "POSITION_TOO_OLD", "position 2 is behind the newest, 1"),
        (here((1 << 64) - 1), "OUT_OF_RANGE", "POSITION_TOO_OLD", "behind the newest, 1"),
        (model.Position(), "OUT_OF_RANGE", "POSITION_TOO_OLD", "of incarnation 0"),
    ],
)
def test_a_position_that_these_data_never_gave_is_refused_with_a_clear_sentence(
    position: model.Position, status: str, reason: str, words: str
) -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        refused = await Watch(served, position=position).refused()
        assert refused[:2] == (status, reason)
        assert words in refused.message

    run(story)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (watch_pb2.WatchRequest(prefix=b"k" * 481), "KEY_TOO_LONG"),
        (watch_pb2.WatchRequest(session=b"t"), "BAD_TOKEN"),
        (watch_pb2.WatchRequest(freshness=model.Freshness(bound_ms=5)), "BAD_REQUEST"),
    ],
)
def test_a_watch_that_makes_no_sense_is_refused(request_: watch_pb2.WatchRequest, reason: str) -> None:
    async def story(served: Served) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.Watch(request_, timeout=10).read()
        assert refusal_of(raised.value)[:2] == ("INVALID_ARGUMENT", reason)
        assert served.feed.watches == 0

    run(story)


def test_a_change_that_cannot_be_read_is_data_loss(tmp_path: Path) -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        storage: Any = served.storage
        with storage.env.begin(storage.tables["changes"], write=True) as txn:
            txn.put(index_key(1), txn.get(index_key(1))[:-1] + b"?")
        refused = await Watch(served, position=here(0)).refused()
        assert refused[:2] == ("DATA_LOSS", "CORRUPT_RECORD")
        assert refused.details["table"] == "changes"

    with open_storage("lmdb", tmp_path) as opened:
        run(story, opened)


# Slow, many, and late


def test_a_watcher_who_does_not_read_is_waited_for_and_misses_nothing_that_is_kept() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served)
        for number in range(300):
            await put(served, b"k", b"%03d" % number + b"v" * 100_000)
        await asyncio.sleep(0.1)
        assert served.service._watching._page.last < 200, "the rest waits in the table, not in memory"
        values = [change.value[:3] for change in await watch.changes(300)]
        assert values == [b"%03d" % number for number in range(300)]

    run(story, scan_page_bytes_max=200_000)


def test_a_watcher_who_falls_behind_what_is_kept_is_told_so() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served)
        for number in range(300):
            await put(served, b"k", b"%03d" % number + b"v" * 100_000)
        seen: list[int] = []
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await collect(watch, seen)
        assert seen == list(range(1, len(seen) + 1)) and len(seen) < 290
        refused = refusal_of(raised.value)
        assert refused[:2] == ("OUT_OF_RANGE", "POSITION_TOO_OLD")
        assert refused.details == {"position": str(len(seen) + 1), "oldest": "291"}

    async def collect(watch: Watch, seen: list[int]) -> None:
        while True:
            seen += [change.index for change in (await watch.next()).changes]

    run(story, changes_max=10, scan_page_bytes_max=200_000)


class CountingStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.snapshots = 0

    def snapshot(self) -> Any:
        self.snapshots += 1
        return super().snapshot()


def test_watchers_who_are_up_to_date_share_one_look_at_the_table() -> None:
    storage = CountingStorage()

    async def story(served: Served) -> None:
        watches = [await begun(served, b"k") for _ in range(20)]
        before = storage.snapshots
        await put(served, b"k")
        for watch in watches:
            assert len(await watch.changes(1)) == 1
        assert storage.snapshots - before <= 3, "one for the step, one for all watchers, one to spare"

    run(story, storage)


def test_one_watch_too_many_is_refused_and_ended_ones_make_room() -> None:
    async def story(served: Served) -> None:
        watches = [await begun(served) for _ in range(3)]
        assert served.feed.watches == 3
        refused = await Watch(served).refused()
        assert refused[:2] == ("RESOURCE_EXHAUSTED", "TOO_MANY_WAITING")
        assert refused.details == {"limit": "3", "what": "watches"}
        watches[0].stream.cancel()
        await until(lambda: served.feed.watches == 2)
        await begun(served)
        assert ("Watch", "CANCELLED") in served.metrics.calls

    run(story, watches_max=3)


def test_a_replica_that_stops_sends_its_watchers_elsewhere() -> None:
    async def story(served: Served) -> None:
        watch = await begun(served)
        served.feed.close()
        refused = await watch.refused()
        assert refused[:2] == ("UNAVAILABLE", "STOPPING")

    run(story)


class RelaxedStorage(MemoryStorage):
    """A commit is durable only after a sync, and a sync waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0
        self.may_sync = threading.Event()

    @property
    def durable(self) -> int:
        return self.synced

    def sync(self) -> None:
        self.may_sync.wait(10)
        self.synced = self.number


def test_a_change_is_shown_when_it_is_durable_and_not_before() -> None:
    storage = RelaxedStorage()

    async def story(served: Served) -> None:
        watch = await begun(served)
        await put(served, b"k")
        assert await served.stub.Get(kv.GetRequest(key=b"k"), timeout=10), "answered and readable"
        for response in [await watch.next() for _ in range(3)]:
            assert (list(response.changes), response.position.index, response.commit) == ([], 0, 0)
        late = await Watch(served).next()
        assert late.position.index == 0
        storage.may_sync.set()
        assert [change.key for change in await watch.changes(1)] == [b"k"]

    run(story, storage, progress_s=0.02)
