"""Peers that do not belong here, make no sense or lie: refused, and the true ones go on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest

from kvstore.clock import COUNTER_BITS
from kvstore.effects import Arrived, Heard
from kvstore.errors import KvError
from kvstore.hello import ENVELOPES_MAX, Accepted, Refusal
from kvstore.loop import Loop
from kvstore.peer.v1 import peer_pb2
from kvstore.rpc import frames, links, peering
from kvstore.rpc.wire import error_of_rpc
from kvstore.storage.memory import MemoryStorage
from tests.kvstore.town import SlowStorage, Speaker, envelope, listener, speaker, story, town, until

A, B, C = range(3)
Say = Callable[[Speaker], Awaitable[None]]


def error_of(ended: grpc.aio.AioRpcError) -> KvError:
    return error_of_rpc(ended, site="b", timeout_ms=0)


WRONG_HELLOS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"wire_version": 9}, "wire_version", "9", "1"),
    ({"cluster_id": "other"}, "cluster_id", "other", "simulated"),
    ({"to": 2}, "to", "2", "1"),
    ({"site": 7}, "site", "7", "one of 0, 2"),
    ({"name": "c"}, "name", "c", "a"),
    ({"protocol_hash": "0", "protocol": "matrix"}, "protocol_hash", "matrix", "optimal"),
    ({"placement_hash": "0"}, "placement_hash", "0", ""),
    ({"merge_hash": "0"}, "merge_hash", "0", ""),
]


def test_whoever_does_not_belong_here_is_refused_with_both_values_and_the_true_peer_goes_on() -> None:
    async def told() -> None:
        async with town(3) as those:
            a, b, _ = those
            await those.until_open()
            for changes, field, yours, ours in WRONG_HELLOS:
                async with speaker(b) as stranger:
                    reply = await stranger.greet(a.hello(B, **changes))
                    assert isinstance(reply, Refusal), changes
                    assert (reply.reason, reply.field, reply.yours) == ("CLUSTER_MISMATCH", field, yours)
                    assert reply.ours == ours or not ours
                    assert yours in reply.message and reply.ours in reply.message
                    ended = await stranger.end()
                    assert ended.code() is grpc.StatusCode.FAILED_PRECONDITION
                    assert error_of(ended).details["field"] == field
            assert b.peering.state(A).connected and b.peering.state(A).connects == 1
            assert b.standing() == [], "the true peer is here"
            await a.put(b"k")
            await those.until_equal()

    story(told)


def test_a_refused_replica_says_why_raises_an_alarm_and_comes_in_when_it_is_set_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "RETRY_S_MAX", 0.05)
    monkeypatch.setattr(links, "STEADY_S", 0)
    monkeypatch.setattr(peering, "STEADY_S", 0)

    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server)
            await a.start(a.server, links=False)
            true = a.replica.hashes
            a.replica.hashes = true._replace(placement="wrong")
            a.run(a.links.run())
            await until(lambda: "LINK_REFUSED" in a.standing())
            assert "b refuses the link: the digest of the placement is" in a.links.state(B).trouble
            assert "wrong" in a.links.state(B).trouble and true.placement in a.links.state(B).trouble
            assert "PEER_REFUSED" in b.standing() and "wrong" in b.peering.state(A).trouble
            a.replica.hashes = true
            await those.until_open()
            await until(lambda: a.standing() == b.standing() == [])

    story(told)


# Frames that make no sense


def batch(*numbers: int) -> bytes:
    return frames.batch_frame([envelope(number) for number in numbers])


async def say_hello_twice(one: Speaker) -> None:
    await one.say(frames.hello_frame(one.hello))


def say(*given: bytes) -> Say:
    async def saying(one: Speaker) -> None:
        for frame in given:
            await one.say(frame)

    return saying


BAD_FRAMES: dict[str, tuple[Say, str, str]] = {
    "a second hello": (say_hello_twice, "FAILED_PRECONDITION", "CLUSTER_MISMATCH"),
    "a number too far": (say(batch(2)), "FAILED_PRECONDITION", "LINK_GAP"),
    "a number again": (say(frames.heartbeat_frame(1, 1), batch(0)), "FAILED_PRECONDITION", "LINK_GAP"),
    "a gap in a frame": (say(batch(1, 3)), "FAILED_PRECONDITION", "LINK_GAP"),
    "no message": (say(batch()), "INVALID_ARGUMENT", "BAD_REQUEST"),
    "an empty batch": (say(b"\x12\x00"), "INVALID_ARGUMENT", "BAD_REQUEST"),
    "too many messages": (say(batch(*range(1, ENVELOPES_MAX + 2))), "INVALID_ARGUMENT", "BAD_REQUEST"),
    "no frame": (say(b""), "INVALID_ARGUMENT", "BAD_REQUEST"),
    "an unknown frame": (say(b"\x7a\x02ab"), "INVALID_ARGUMENT", "BAD_REQUEST"),
    "no protobuf": (say(b"\xff\xff\xff"), "INVALID_ARGUMENT", "BAD_REQUEST"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_a_frame_that_makes_no_sense_ends_the_stream_and_changes_nothing(name: str) -> None:
    saying, status, reason = BAD_FRAMES[name]

    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server)
            await a.start(a.server, links=False)
            async with speaker(b) as one:
                one.hello = a.hello(B)
                assert isinstance(await one.greet(one.hello), Accepted)
                await saying(one)
                ended = await one.end()
            assert (ended.code().name, error_of(ended).reason) == (status, reason)
            assert b.replica.links[A].received == 0 and b.keys() == []
            a.run(a.links.run())
            await a.put(b"k")
            await those.until_equal()

    story(told)


@pytest.mark.parametrize("first", [batch(1), frames.heartbeat_frame(1, 1), b"\x0a" + b"x" * 20_000, b"", b"\xff"])
def test_whoever_does_not_say_hello_first_is_sent_away(first: bytes) -> None:
    async def told() -> None:
        async with town(is_started=False) as those:
            b = those[B]
            await b.start(b.server)
            async with speaker(b) as one:
                await one.say(first)
                ended = await one.end()
            assert ended.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT)
            assert error_of(ended).reason in ("CLUSTER_MISMATCH", "BAD_REQUEST")

    story(told)


def test_a_frame_larger_than_the_server_takes_is_an_alarm_at_the_sender() -> None:
    async def told() -> None:
        async with town() as those:
            a, _ = those
            await those.until_open()
            await a.put(b"k", b"x" * 10_000_000)
            await until(lambda: a.standing() == ["LINK_REFUSED"])
            assert "b cannot take what we send" in a.links.state(B).trouble

    story(told)


def test_a_message_that_the_replica_refuses_ends_the_stream_and_its_heartbeat_does_not_count() -> None:
    """The heartbeat behind a refused message promises what never came."""

    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server, corridor=False)
            await a.start(a.server, links=False)
            async with speaker(b) as one:
                assert isinstance(await one.greet(a.hello(B, sent=1)), Accepted)
                await one.say(frames.batch_frame([envelope(1, control=b"no stamp")]))
                await one.say(frames.heartbeat_frame(1 << 60, 1))
                await until(lambda: b.peering.state(A).frames == 2)
                b.run(b.loop.run())
                ended = await one.end()
            assert ended.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert b.replica.links[A].promise == 0 and b.replica.links[A].received == 0
            assert b.standing() == ["PEER_REFUSED"] and len(b.refusals) == 1
            with b.storage.snapshot() as view:
                step = b.replica.step([Arrived(A, envelope(1)), Heard(A, 1 << 60, 1)], 1, view)
            assert step.refused and b.replica.links[A].promise == 1 << 60, "unguarded, it would have counted"

    story(told)


def test_a_newer_stream_of_a_peer_ends_the_older_one() -> None:
    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server, links=False)
            await a.start(a.server, links=False)
            async with speaker(b) as old, speaker(b) as new:
                await old.greet(a.hello(B))
                await new.greet(a.hello(B))
                ended = await old.end()
                assert "a newer stream has taken the place" in (ended.details() or "")
                await new.say(frames.heartbeat_frame(77, 1))
                await until(lambda: b.replica.links[A].promise == 77)
                state = b.peering.state(A)
                assert state.connected and state.trouble == "" and state.connects == 2

    story(told)


# What is not committed


def test_a_hello_is_told_only_what_is_committed() -> None:
    async def told() -> None:
        slow = SlowStorage()
        async with town(storages=[MemoryStorage(), slow]) as those:
            a, b = those
            await those.until_open()
            slow.go.clear()
            await a.put(b"k")
            await until(lambda: b.replica.links[A].applied == 1)
            async with speaker(b) as again:
                reply = await again.greet(a.hello(B))
                assert isinstance(reply, Accepted) and reply.up_to == 0, "in memory it is applied, on disk it is not"
            slow.go.set()
            await those.until_equal()
            async with speaker(b) as again:
                reply = await again.greet(a.hello(B))
                assert isinstance(reply, Accepted) and reply.up_to == 1

    story(told)


def test_a_heartbeat_promises_nothing_that_what_follows_it_could_break(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> None:
        heard = await promises_around_a_write()
        message = heard.index(("message", max(time for kind, time in heard if kind == "message")))
        before, after = heard[:message], heard[message:]
        assert max(time for _, time in before) < heard[message][1] <= min(time for _, time in after)

    story(told)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "promised", promised_too_soon)
        with pytest.raises(AssertionError, match="nothing else is committed"):
            story(told)


def promised_too_soon(loop: Loop) -> int:
    """As if nothing were ever under way."""
    clock, reserved = loop.replica.clock, loop.replica.reserved
    clock.merge(min(loop._now_ms() << COUNTER_BITS, reserved))
    return min(clock.latest, reserved)


async def promises_around_a_write() -> list[tuple[str, int]]:
    """What a peer hears, in order, while a write waits for the disk: heartbeats and the message, each with its time."""
    heard: list[tuple[str, int]] = []

    async def listening(_: Any, context: Any) -> None:
        await context.write(frames.accepted_frame(Accepted(0, 1, 0, 0, 0)))
        while (data := await context.read()) is not grpc.aio.EOF:
            frame = frames.request_of(data)
            heard.extend([("heartbeat", frame.heartbeat.time)] if frame.HasField("heartbeat") else [])
            heard.extend(("message", envelope.time) for envelope in frame.batch.envelopes)

    slow = SlowStorage()
    async with town(storages=[slow, MemoryStorage()], is_started=False) as those:
        a, b = those
        async with listener(b, listening):
            await a.start(a.server)
            await until(lambda: len({time for _, time in heard}) > 3)  # an idle site promises what its clock shows
            assert all(time <= a.replica.reserved for _, time in heard), "a restart begins behind all of it"
            slow.go.clear()
            writing = asyncio.create_task(a.put(b"k"))
            await until(lambda: a.loop.inbox == 0 and a.loop._is_turning)
            seen = len(heard) + 1  # one may be under way
            await until(lambda: len(heard) > seen + 2)
            meanwhile, committed = {time for _, time in heard[seen:]}, {a.loop.said.time}
            slow.go.set()
            await writing
            assert meanwhile == committed, "nothing else is committed"
            await until(lambda: ("message", a.loop.said.time) in heard and heard[-1][1] > a.loop.said.time)
            return heard


# Receivers that lie


def test_a_peer_that_acknowledges_what_it_was_never_sent_is_not_believed() -> None:
    async def lying(_: Any, context: Any) -> None:
        await context.write(frames.accepted_frame(Accepted(0, 1, 0, 0, 0)))
        await context.write(frames.ack_frame(5, 0, 0))
        await asyncio.sleep(60)

    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            async with listener(b, lying):
                await a.start(a.server)
                await a.put(b"k")
                await until(lambda: a.standing() == ["LINK_REFUSED"])
                assert "b acknowledges message 5, but " in a.links.state(B).trouble
                a.loop.tick()
                await asyncio.sleep(0.05)
                assert a.outbox(B) == 1 and a.replica.links[B].acked == 0

    story(told)


@pytest.mark.parametrize("reply", [b"", b"\xff", frames.ack_frame(1, 1, 1)])
def test_an_answer_that_is_none_is_no_reason_to_stop(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "RETRY_S_MAX", 0.05)

    async def babbling(_: Any, context: Any) -> None:
        await context.write(reply)
        await asyncio.sleep(60)

    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            async with listener(b, babbling):
                await a.start(a.server)
                await until(lambda: a.standing() == ["LINK_REFUSED"])
            await b.start()
            await those.until_open()

    story(told)


def test_every_field_of_a_hello_travels() -> None:
    fields = {field.name for field in peer_pb2.Hello.DESCRIPTOR.fields}

    async def told() -> None:
        async with town(is_started=False) as those:
            a, _ = those
            await a.start(a.server, links=False)
            hello = a.hello(B, sent=7, oldest=3, software="1.2.3", protocol="x")
            assert frames.greeting_of(frames.request_of(frames.hello_frame(hello)).hello) == hello
            assert fields == set(hello._fields)

    story(told)
