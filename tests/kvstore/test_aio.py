"""The asyncio client against real gRPC: the same promises as the blocking one, and calls that travel together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from kvstore import ABSENT, Delete, Entry, Get, Position, Put, Version, Written, lane
from kvstore.aio import Client, connect
from kvstore.errors import (
    BadRequest,
    BatchTooLarge,
    DeadlineExceeded,
    InboxFull,
    KeyEmpty,
    KvError,
    NotHeldHere,
    PositionTooOld,
    SnapshotGone,
    Stopping,
    Unavailable,
    VersionMismatch,
)
from kvstore.v1 import admin_pb2, kv_pb2
from tests.kvstore.script import LOST, REFUSED, SILENT, Script, served
from tests.kvstore.test_client import dead_address, resumed_from, says


def run(
    story: Callable[[Client], Awaitable[Any]], *scripts: Script, receive_bytes_max: int = 4 << 20, **options: Any
) -> None:
    """Play a story with a client of these replicas."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            addresses = [
                await stack.enter_async_context(served(one, receive_bytes_max=receive_bytes_max)) for one in scripts
            ]
            kv = await stack.enter_async_context(connect(addresses, **{"timeout_s": 5.0, **options}))
            await asyncio.wait_for(story(kv), 20)

    asyncio.run(main())


@pytest.fixture
def script() -> Script:
    return Script()


def pipelines(script: Script) -> list[int]:
    """How many calls each request carried."""
    return [len(one.calls) for one in script.asked(kv_pb2.PipelineRequest)]


# The same as the blocking client


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_value_comes_back_with_its_version(script, coalesce):
    async def story(kv: Any) -> None:
        written = await kv.put(b"k", b"v", ttl_ms=500, expect=ABSENT)
        assert written == Written(Version(1, 0), "a", 1)
        assert await kv.get(b"k") == Entry(b"k", b"v", written.version, 1_000_500, ())
        assert (await kv.delete(b"k", expect=written.version)).version == Version(2, 0)
        assert await kv.get(b"k") is None
        with pytest.raises(VersionMismatch):
            await kv.delete(b"k", expect=written.version)

    run(story, script, coalesce=coalesce)
    assert bool(pipelines(script)) == coalesce


def test_many_keys_go_at_once(script):
    async def story(kv: Any) -> None:
        await kv.batch([Put(b"a", b"1"), Put(b"b", b"2"), Delete(b"c")])
        assert [*await kv.get_many([b"b", b"x", b"a"])] == [b"b", b"a"]
        assert [entry.key async for entry in kv.scan()] == [b"a", b"b"]
        found = await kv.pipeline([Get(b"a"), Put(b"a", b"", expect=ABSENT)])
        assert found[0].value == b"1" and isinstance(found[1], VersionMismatch)

    run(story, script)


def test_operators_are_answered(script):
    async def story(kv: Any) -> None:
        assert (await kv.status()).site == "a"
        assert (await kv.explain()).site == "a"
        assert (await kv.backup("somewhere")).directory == "somewhere"
        events = kv.events()
        assert (await anext(events)).events[0].index == 1
        with pytest.raises(Unavailable):
            await anext(events)

    run(story, script)


def test_a_client_can_be_awaited_too(script):
    async def main():
        async with served(script) as address:
            kv = await connect(address)
            await kv.put(b"k", b"v")
            await kv.close()
            for late in (kv.put(b"k", b"v"), kv.get(b"k"), kv.get_many([b"k"])):
                with pytest.raises(Unavailable, match="closed") as found:
                    await late
                assert found.value.definite

    asyncio.run(main())


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_write_whose_answer_was_lost_has_one_effect(script, coalesce):
    script.mishaps["Put"] += [LOST]
    script.mishaps["Pipeline"] += [LOST]

    async def story(kv: Any) -> None:
        assert (await kv.put(b"k", b"v")).version == Version(1, 0)

    run(story, script, coalesce=coalesce)
    assert script.effects == 1 and len(script.requests) == 2
    first, second = script.requests
    assert first == second


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_write_that_may_be_done_is_not_taken_to_another_replica(coalesce):
    first, second = Script("a", 0), Script("b", 1)
    for name in ("Put", "Pipeline"):
        first.mishaps[name] += [REFUSED] * 50

    async def story(kv: Any) -> None:
        with pytest.raises(Unavailable) as found:
            await kv.put(b"k", b"v")
        assert not found.value.definite and not second.requests
        assert (await kv.put(b"k", b"w")).site == "b"

    run(story, first, second, coalesce=coalesce, timeout_s=0.4)


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_read_is_taken_to_another_replica(coalesce):
    first, second = Script("a", 0), Script("b", 1)
    for name in ("Get", "Pipeline"):
        first.mishaps[name] += [REFUSED]
    run(lambda kv: kv.get(b"k"), first, second, coalesce=coalesce)
    assert len(first.requests) == len(second.requests) == 1


@pytest.mark.parametrize("coalesce", [True, False])
def test_a_write_moves_on_from_a_replica_that_cannot_be_reached(script, coalesce):
    async def main():
        async with served(script) as address, connect([dead_address(), address], coalesce=coalesce) as kv:
            assert (await kv.put(b"k", b"v")).site == "a"
        async with connect(dead_address(), coalesce=coalesce, timeout_s=0.2) as kv:
            with pytest.raises(Unavailable) as found:
                await kv.put(b"k", b"v")
            assert found.value.definite

    asyncio.run(main())


@pytest.mark.parametrize("coalesce", [True, False])
def test_silence_ends_with_the_deadline(script, coalesce):
    for name in ("Put", "Pipeline"):
        script.mishaps[name] += [SILENT] * 9

    async def story(kv: Any) -> None:
        before = time.monotonic()
        with pytest.raises(DeadlineExceeded) as found:
            await kv.put(b"k", b"v")
        assert not found.value.definite
        assert 0.25 < time.monotonic() - before < 2.0

    run(story, script, coalesce=coalesce, timeout_s=0.3)


def test_wrong_use_is_said_before_anything_is_sent(script):
    async def story(kv: Any) -> None:
        for wrong, kind in [
            (kv.get("k"), TypeError),
            (kv.put(b"", b"v"), KeyEmpty),
            (kv.put(b"k", "v"), TypeError),
            (kv.put(b"k", b"v", request_id="i"), TypeError),
            (kv.put(b"k", b"v", request_id=b"i" * 65), BadRequest),
            (kv.delete(b"k", expect=ABSENT), BadRequest),
            (kv.get(b"k", timeout_s=-1), BadRequest),
            (kv.get(b"k", freshness="session"), BadRequest),
            (kv.put(b"k", b"v", replaces=[7]), TypeError),
            (kv.put(b"k", b"v", depends_on=[]), BadRequest),
        ]:
            with pytest.raises(kind):
                await wrong
        with pytest.raises(TypeError):
            kv.session("token")
        with pytest.raises(BadRequest, match="tls"):
            connect("a:1", tls=object())  # type: ignore[arg-type]

    run(story, script)
    assert not script.requests


# Calls that travel together


def test_calls_of_the_same_moment_are_one_request_and_each_gets_its_own_result(script):
    async def story(kv: Any) -> None:
        written = await asyncio.gather(*[kv.put(b"k%d" % number, b"v%d" % number) for number in range(100)])
        assert [one.version.time for one in written] == [*range(1, 101)]
        found = await asyncio.gather(*[kv.get(b"k%d" % number) for number in reversed(range(100))])
        assert [one.value for one in found] == [b"v%d" % number for number in reversed(range(100))]

    run(story, script)
    assert pipelines(script) == [100, 100]
    assert len({one.put.request_id for one in script.requests[0].calls}) == 100


def test_reads_and_writes_travel_apart(script):
    """Or a read would wait for the commit of the writes beside it."""

    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.put(b"k", b"v"), kv.get(b"k"), kv.delete(b"k"), kv.get(b"k")])

    run(story, script)
    kinds = [[call.WhichOneof("call") for call in one.calls] for one in script.requests]
    assert sorted(kinds) == [["get", "get"], ["put", "delete"]]


def test_a_call_alone_goes_out_at_once(script):
    async def story(kv: Any) -> None:
        await kv.put(b"k", b"v")
        before = time.monotonic()
        await kv.put(b"k", b"v")
        assert time.monotonic() - before < 0.1

    run(story, script)
    assert pipelines(script) == [1, 1]


def test_while_requests_are_under_way_calls_gather(script):
    script._delay_s = 0.1

    async def story(kv: Any) -> None:
        puts = []
        for number in range(50):
            puts.append(asyncio.create_task(kv.put(b"k%d" % number, b"v")))
            await asyncio.sleep(0.001)
        await asyncio.gather(*puts)

    run(story, script)
    assert sum(pipelines(script)) == 50
    assert len(pipelines(script)) <= 6, "the first two alone, the others gathered"


def test_a_request_has_its_limits(script, monkeypatch):
    monkeypatch.setattr(lane, "CALLS_MAX", 10)
    monkeypatch.setattr(lane, "BYTES_MAX", 100)

    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.get(b"k") for _ in range(25)])
        assert pipelines(script) == [10, 10, 5]
        script.requests.clear()
        await asyncio.gather(*[kv.put(b"%d" % number, b"v" * 30) for number in range(4)], kv.put(b"4", b"v" * 200))
        assert pipelines(script) == [3, 1, 1]

    run(story, script)


def test_a_failing_call_raises_only_at_its_caller(script):
    async def story(kv: Any) -> None:
        await kv.put(b"k1", b"v")
        puts = [kv.put(b"k%d" % number, b"v", expect=ABSENT) for number in range(3)]
        found = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in found] == [Written, VersionMismatch, Written]
        assert isinstance(found[1], KvError) and found[1].definite

    run(story, script)
    assert pipelines(script) == [1, 3]


def test_a_cancelled_call_does_not_disturb_the_others(script):
    script._delay_s = 0.05

    async def story(kv: Any) -> None:
        puts = [asyncio.create_task(kv.put(b"k%d" % number, b"v")) for number in range(3)]
        await asyncio.sleep(0.02)  # they are under way
        puts[1].cancel()
        found = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in found] == [Written, asyncio.CancelledError, Written]

    run(story, script)


def test_a_call_that_is_cancelled_before_it_went_is_never_sent(script):
    async def story(kv: Any) -> None:
        puts = [asyncio.create_task(kv.put(b"k%d" % number, b"v")) for number in range(3)]
        asyncio.get_running_loop().call_soon(puts[1].cancel)
        found = await asyncio.gather(*puts, return_exceptions=True)
        assert [type(one) for one in found] == [Written, asyncio.CancelledError, Written]

    run(story, script)
    assert [*script.data] == [b"k0", b"k2"]


def test_a_call_with_a_time_of_its_own_goes_alone(script):
    run(lambda kv: kv.put(b"k", b"v", timeout_s=1.0), script)
    assert len(script.asked(kv_pb2.PutRequest)) == 1


def test_a_write_without_a_request_id_goes_alone_and_once(script):
    script.mishaps["Put"] += [LOST]

    async def story(kv: Any) -> None:
        with pytest.raises(Unavailable):
            await kv.put(b"k", b"v", request_id=b"")

    run(story, script)
    assert len(script.requests) == 1


def test_calls_that_were_refused_for_a_moment_are_sent_again_and_nothing_else(script):
    script.mishaps["Item"] += [None, InboxFull(limit=1, unit="writes"), None, Stopping(site="a")]

    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.put(b"k%d" % number, b"v") for number in range(4)])

    run(story, script)
    first, second = script.requests
    assert [call.put.key for call in second.calls] == [b"k1", b"k3"]
    assert second.calls[0] == first.calls[1], "with the same request id"
    assert script.effects == 4


def test_a_refusal_after_a_lost_answer_is_not_definite(script):
    script.mishaps["Pipeline"] += [LOST]
    script.mishaps["Item"] += [None, None, VersionMismatch(key="k", found="1", expected="none"), None]

    async def story(kv: Any) -> None:
        puts = [kv.put(b"k", b"v", expect=ABSENT), kv.put(b"other", b"v")]
        found = await asyncio.gather(*puts, return_exceptions=True)
        assert isinstance(found[0], VersionMismatch) and not found[0].definite
        assert isinstance(found[1], Written)

    run(story, script)


def test_every_caller_gets_an_error_of_its_own(script):
    script.mishaps["Pipeline"] += [NotHeldHere(key="a", site="a", holders="b")]

    async def story(kv: Any) -> None:
        found = await asyncio.gather(kv.get(b"a"), kv.get(b"b"), return_exceptions=True)
        assert [type(one) for one in found] == [NotHeldHere] * 2
        assert found[0] is not found[1] and str(found[0]) == str(found[1])

    run(story, script)


def test_requests_that_retry_do_not_keep_others_from_going_elsewhere(monkeypatch):
    monkeypatch.setattr(lane, "CALLS_MAX", 1)
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Pipeline"] += [REFUSED] * 50

    async def story(kv: Any) -> None:
        stuck = [asyncio.create_task(kv.put(b"k", b"v")) for _ in range(lane.REQUESTS_MAX)]
        while len(first.requests) < len(stuck):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)  # they have failed, and wait to be tried again
        written = await asyncio.gather(*[kv.put(b"k%d" % number, b"w") for number in range(5)])
        assert {one.site for one in written} == {"b"}
        assert not any(one.done() for one in stuck)
        first.mishaps["Pipeline"].clear()
        assert {one.site for one in await asyncio.gather(*stuck)} == {"a"}

    run(story, first, second)


def test_a_call_that_never_went_out_was_surely_not_done(script, monkeypatch):
    monkeypatch.setattr(lane, "CALLS_MAX", 1)
    script.mishaps["Pipeline"] += [SILENT] * 9

    async def story(kv: Any) -> None:
        found = await asyncio.gather(*[kv.put(b"k", b"v") for _ in range(6)], return_exceptions=True)
        assert [type(one) for one in found] == [DeadlineExceeded] * 6
        assert [one.definite for one in found if isinstance(one, KvError)] == [False, False, True, True, True, True]
        assert "never sent" in str(found[5])

    run(story, script, timeout_s=0.3)
    assert pipelines(script) == [1, 1]


def test_what_is_too_large_together_goes_in_parts(script):
    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.put(b"k%d" % number, b"v" * 300) for number in range(8)])
        found = await asyncio.gather(*[kv.get(b"k%d" % number) for number in range(8)])
        assert [one.value for one in found] == [b"v" * 300] * 8
        with pytest.raises(BatchTooLarge, match="a request of") as error:
            await kv.put(b"k", b"v" * 2000)
        assert error.value.definite

    run(story, script, receive_bytes_max=1500, timeout_s=5.0)
    assert script.effects == 8


def test_an_answer_that_is_too_large_together_comes_in_parts(script):
    async def main():
        async with served(script) as address, connect(address, receive_bytes_max=1000) as kv:
            await asyncio.gather(*[kv.put(b"k%d" % number, b"v" * 300) for number in range(8)])
            found = await asyncio.gather(*[kv.get(b"k%d" % number) for number in range(8)])
            assert [one.value for one in found if one] == [b"v" * 300] * 8

    asyncio.run(main())


def test_a_cluster_may_take_fewer_calls_at_once(script):
    script.mishaps["Pipeline"] += [BatchTooLarge(size=4, unit="calls", limit=2)]

    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.put(b"k%d" % number, b"v") for number in range(4)])

    run(story, script)
    assert pipelines(script) == [4, 2, 2] and script.effects == 4


def test_a_read_that_had_no_room_in_the_answer_is_asked_again(script):
    no_room = BatchTooLarge(size=9, unit="bytes", limit=8)
    script.mishaps["Item"] += [None, no_room, no_room, None, no_room, None, no_room]

    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.get(b"k%d" % number) for number in range(3)])
        with pytest.raises(BatchTooLarge):
            await kv.get(b"k")

    run(story, script)
    assert pipelines(script) == [3, 2, 1, 1]


def test_calls_that_wait_when_the_client_is_closed_fail(script):
    script.mishaps["Pipeline"] += [SILENT] * 2
    script.mishaps["Get"] += [SILENT]

    async def story(kv: Any) -> None:
        waiting = []
        for _ in range(3):  # two under way, one gathered
            waiting.append(asyncio.create_task(kv.put(b"k", b"v")))
            await asyncio.sleep(0.05)
        alone = asyncio.create_task(kv.get(b"k", timeout_s=4.0))
        await asyncio.sleep(0.05)
        await kv.close()
        found = await asyncio.gather(*waiting, alone, return_exceptions=True)
        assert all(isinstance(one, KvError) for one in found), found
        assert [one.definite for one in found if isinstance(one, KvError)] == [False, False, True, False]

    run(story, script)


# Scans, watches and snapshots


def test_a_scan_goes_on_after_the_last_key(script):
    script.mishaps["Scan"] += [REFUSED, REFUSED]

    async def story(kv: Any) -> None:
        await asyncio.gather(*[kv.put(b"k%d" % number, b"v") for number in range(6)])
        assert [entry.key async for entry in kv.scan(b"k", limit=5)] == [b"k%d" % number for number in range(5)]

    run(story, script)
    assert [one.after for one in script.asked(kv_pb2.ScanRequest)] == [b"", b"k1", b"k3"]


def test_a_watch_goes_on_by_itself_from_where_it_broke(script):
    script.watches += [[says(7), says(8, b"a"), REFUSED], [says(8), says(9, b"b")], [says(9), says(10, b"c"), SILENT]]

    async def story(kv: Any) -> None:
        async with kv.watch() as watch:
            assert watch.position == Position(0, 1, 7) and watch.site == "a"
            keys = []
            async for change in watch:
                keys.append(change.key)
                if len(keys) == 3:
                    break
            assert keys == [b"a", b"b", b"c"] and watch.position == Position(0, 1, 10)

    run(story, script)
    assert resumed_from(script) == [None, 8, 9]


def test_a_watch_whose_reader_gave_up_waiting_can_be_read_again(script):
    script.watches += [[says(7), SILENT], [says(7), says(8, b"a"), SILENT]]

    async def story(kv: Any) -> None:
        watch = await kv.watch()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(watch), 0.05)
        assert (await anext(watch)).key == b"a"
        watch.close()

    run(story, script)
    assert resumed_from(script) == [None, 7]


def test_a_watch_can_be_ended_by_another_task(script):
    script.watches += [[says(7), SILENT]]

    async def story(kv: Any) -> None:
        watch = await kv.watch()
        asyncio.get_running_loop().call_later(0.05, watch.close)
        assert [change async for change in watch] == []

    run(story, script)


def test_a_position_that_is_too_old_is_raised(script):
    script.watches += [[PositionTooOld(position=3, oldest=9)]]

    async def story(kv: Any) -> None:
        with pytest.raises(PositionTooOld):
            await kv.watch(position=Position(0, 1, 3))

    run(story, script)


def test_a_snapshot_reads_with_its_handle_and_is_given_back(script):
    script.lease_ms = 0

    async def story(kv: Any) -> None:
        await kv.put(b"k", b"v")
        async with kv.snapshot() as then:
            assert (then.site, then.commit) == ("a", 7)
            assert [*await then.get_many([b"k"])] == [b"k"]
            assert [entry.key async for entry in then.scan()] == [b"k"]
        with pytest.raises(SnapshotGone, match="awaited or entered"):
            await kv.snapshot().get_many([b"k"])

    run(story, script)
    assert script.asked(kv_pb2.GetManyRequest)[0].snapshot == b"handle"
    assert script.asked(kv_pb2.ScanRequest)[0].snapshot == b"handle"
    assert script.asked(admin_pb2.RenewSnapshotRequest) and script.asked(admin_pb2.ReleaseSnapshotRequest)
