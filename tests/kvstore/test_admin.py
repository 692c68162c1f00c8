"""The service for operators, asked as they ask it: over gRPC, of whole replicas."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]

from causal import make_site
from causal.model import Dot
from kvstore.effects import Event, Happened, Moment
from kvstore.errors import Amnesia
from kvstore.past import Past
from kvstore.rpc import admin
from kvstore.rpc.admin import ADMIN, EVENTS_MAX, KEY_VALUE, AdminService, Health
from kvstore.v1 import event_pb2, kv_pb2, kv_pb2_grpc, model_pb2, status_pb2
from tests.kvstore.running import Running, failure, running, told, until

Kind = event_pb2.Event
A, B, C = range(3)


async def overtaken(cluster: Running) -> None:
    """a asks, b replies, and c, which hears nothing from a, holds the reply."""
    await cluster.until_open()
    await cluster.put("a", b"question")
    await until(lambda: cluster["b"].replica.ordering.delivered[A] == 1)
    await cluster.put("b", b"reply")
    await until(lambda: cluster["c"].replica.held)


# Explain


def test_explain_tells_what_is_missing_since_when_and_through_which_chain(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, cut=(("a", "c"),)) as cluster:
            await overtaken(cluster)
            answer = await cluster.admin("c").Explain(event_pb2.ExplainRequest())
            assert (answer.site, answer.held_total, len(answer.held)) == ("c", 1, 1)
            held = answer.held[0]
            assert (held.dot, held.origin, held.updates) == (model_pb2.Dot(site=B, seq=1), "b", 1)
            assert (held.missing, held.missing_origin) == (model_pb2.Dot(site=A, seq=1), "a")
            assert not held.by_link and held.cause == event_pb2.HOLD_CAUSE_UNKNOWN
            assert 0 <= time.time_ns() // 1_000_000 - held.since_ms < 10_000 and held.held_ms < 10_000
            assert [(step.origin, step.why, step.sentence) for step in held.chain] == [
                ("a", event_pb2.ChainStep.WHY_MISSING, "message 1 of a has not come here"),
                ("b", *DELIVERED, "b had delivered message 1 of a before it sent message 1"),
            ]
            assert [step.dot for step in held.chain] == [held.missing, held.dot]

    told(story)


DELIVERED = (event_pb2.ChainStep.WHY_DELIVERED_BEFORE,)


def test_explain_takes_a_name_and_a_limit(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, cut=(("a", "c"),)) as cluster:
            await overtaken(cluster)
            await cluster.put("b", b"another")
            await until(lambda: len(cluster["c"].replica.held) == 2)
            ask = cluster.admin("c").Explain
            second = model_pb2.Dot(site=B, seq=2)
            assert [one.dot for one in (await ask(event_pb2.ExplainRequest(dot=second))).held] == [second]
            gone = model_pb2.Dot(site=A, seq=1)
            assert not (await ask(event_pb2.ExplainRequest(dot=gone))).held
            first = await ask(event_pb2.ExplainRequest(limit=1))
            assert ([one.dot.seq for one in first.held], first.held_total) == ([1], 2)
            for wrong in (model_pb2.Dot(site=3, seq=1), model_pb2.Dot(site=0, seq=0)):
                code, error = await failure(ask(event_pb2.ExplainRequest(dot=wrong)))
                assert (code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")

    told(story)


# Events


async def read(stream: Any, wanted: Callable[[event_pb2.Event], bool]) -> list[event_pb2.Event]:
    """Events up to the first one that is wanted."""
    found: list[event_pb2.Event] = []
    while True:
        response = await asyncio.wait_for(stream.read(), 15)
        assert isinstance(response, event_pb2.EventsResponse), response
        assert (response.site, response.lost) == ("c", 0)
        for event in response.events:
            found.append(event)
            if wanted(event):
                return found


def test_events_tell_the_life_of_a_message_from_the_link_to_the_disk(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, cut=(("a", "c"),)) as cluster:
            await cluster.until_open()
            stream = cluster.admin("c").Events(event_pb2.EventsRequest())
            opening = await stream.read()
            assert isinstance(opening, event_pb2.EventsResponse) and not opening.events  # it listens from now on
            await overtaken(cluster)
            cluster.cut()
            events = await read(stream, lambda one: one.kind == Kind.KIND_COMMITTED and one.dot.site == B)
            reply = [one for one in events if one.dot == model_pb2.Dot(site=B, seq=1)]
            assert [one.kind for one in reply] == [
                *(Kind.KIND_RECEIVED, Kind.KIND_HELD, Kind.KIND_RELEASED, Kind.KIND_DELIVERED, Kind.KIND_APPLIED),
                Kind.KIND_COMMITTED,
            ]
            received, held, released, delivered, applied, committed = reply
            assert all((one.site, one.incarnation) == (C, 1) for one in events)
            assert (received.link, received.link_number, list(received.destinations)) == (B, 1, [A, C])
            assert received.control_bytes > 0 and received.payload_bytes > 0 and received.updates == 1
            assert (held.missing, held.hold_cause) == (model_pb2.Dot(site=A, seq=1), event_pb2.HOLD_CAUSE_UNKNOWN)
            assert released.held_ns == released.time_mono_ns - held.time_mono_ns > 0
            assert delivered.hold_cause == event_pb2.HOLD_CAUSE_UNSPECIFIED and applied.updates == 1
            assert not committed.HasField("link") and committed.time_mono_ns > applied.time_mono_ns
            assert abs(committed.time_wall_ns - time.time_ns()) < 60e9
            assert [one.index for one in events] == sorted({one.index for one in events})

    told(story)


def test_events_of_some_kinds_are_those_alone_and_other_kinds_do_not_exist(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, cut=(("a", "c"),)) as cluster:
            await cluster.until_open()
            kinds = (Kind.KIND_HELD, Kind.KIND_DELIVERED)
            stream = cluster.admin("c").Events(event_pb2.EventsRequest(kinds=kinds))
            await stream.read()
            await overtaken(cluster)
            cluster.cut()
            events = await read(stream, lambda one: one.kind == Kind.KIND_DELIVERED and one.dot.site == B)
            assert {one.kind for one in events} == set(kinds)
            for wrong in (Kind.KIND_UNSPECIFIED, 99):
                request = event_pb2.EventsRequest(kinds=[wrong])  # type: ignore[list-item]
                code, error = await failure(cluster.admin("c").Events(request).read())
                assert (code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "BAD_REQUEST")

    told(story)


def test_a_reader_who_comes_while_a_message_is_held_hears_how_long_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, cut=(("a", "c"),)) as cluster:
            await overtaken(cluster)
            await asyncio.sleep(0.05)
            stream = cluster.admin("c").Events(event_pb2.EventsRequest(kinds=[Kind.KIND_RELEASED]))
            await stream.read()
            cluster.cut()
            (released,) = await read(stream, lambda one: True)
            assert released.held_ns >= 50e6 and released.hold_cause == event_pb2.HOLD_CAUSE_UNKNOWN

    told(story)


def turn(number: int, count: int) -> Happened:
    events = [Event("received", Dot(B, number * count + place + 1), B) for place in range(count)]
    return Happened(number, events, Moment(1, 1), Moment(2, 2), count, 0)


def test_a_reader_too_slow_is_told_how_many_it_lost(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1, limits={"event_backlog_max": 100}) as cluster:
            stream: AsyncIterator[Any] = AdminService(cluster["a"])._events(event_pb2.EventsRequest())
            await anext(stream)
            for number in range(25):
                cluster["a"].events.publish(turn(number, 10))
            response = await anext(stream)
            assert (response.lost, len(response.events)) == (150, 100)
            assert [event.index for event in response.events] == list(range(151, 251))
            cluster["a"].events.publish(turn(30, 1))
            assert (await anext(stream)).lost == 0

    told(story)


def test_many_events_come_in_responses_of_a_bounded_size(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            stream: AsyncIterator[Any] = AdminService(cluster["a"])._events(event_pb2.EventsRequest())
            await anext(stream)
            cluster["a"].events.publish(turn(0, EVENTS_MAX + 1))
            assert [len((await anext(stream)).events) for _ in range(2)] == [EVENTS_MAX, 1]

    told(story)


def test_a_replica_that_stops_ends_its_streams_of_events_with_a_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            stream = cluster.admin("a").Events(event_pb2.EventsRequest())
            await stream.read()
            assert len(cluster["a"].events) == 1
            cluster.stops["a"].set()
            code, error = await failure(stream.read())
            assert (code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STOPPING")

    told(story)


# Health and reflection


async def healths(channel: grpc.aio.Channel) -> list[str]:
    stub = health_pb2_grpc.HealthStub(channel)
    states = health_pb2.HealthCheckResponse.ServingStatus
    asked = [health_pb2.HealthCheckRequest(service=name) for name in ("", KEY_VALUE, ADMIN)]
    return [states.Name((await stub.Check(one)).status) for one in asked]


def test_a_replica_is_healthy_until_it_loses_its_memory_and_then_serves_operators_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            channel = cluster.channels["a"]
            assert await healths(channel) == ["SERVING"] * 3
            code, _ = await failure(
                health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service="x"))
            )
            assert code is grpc.StatusCode.NOT_FOUND
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            cluster["a"].loop.fence(Amnesia(peer="b", what="message", there=7, site="a", here=5))
            assert (await asyncio.wait_for(watch.read(), 5)).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await healths(channel) == ["NOT_SERVING", "NOT_SERVING", "SERVING"]
            status = await cluster.admin("a").Status(status_pb2.StatusRequest())
            assert [alarm.reason for alarm in status.alarms] == ["AMNESIA"]

    told(story)


def test_a_replica_that_stops_says_that_nobody_should_come(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            watch = health_pb2_grpc.HealthStub(cluster.channels["a"]).Watch(health_pb2.HealthCheckRequest())
            await watch.read()
            cluster.stops["a"].set()
            assert (await asyncio.wait_for(watch.read(), 5)).status == health_pb2.HealthCheckResponse.NOT_SERVING

    told(story)


def test_whoever_watches_our_health_without_reading_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admin, "HEALTH_S_MAX", 0.02)

    async def story() -> None:
        health = Health()

        async def forever(*_: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(health._servicer, "set", forever)
        monkeypatch.setattr(health._servicer, "enter_graceful_shutdown", forever)
        await health.show(is_serving=True)
        await health.stop()

    told(story)
    assert len(caplog.records) == 2


async def services(channel: grpc.aio.Channel) -> set[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    return {service.name for service in (await call.read()).list_services_response.service}


def test_reflection_tells_what_can_be_asked_unless_it_is_switched_off(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "on").mkdir()
        async with running(tmp_path / "on", replicas=1) as cluster:
            assert {KEY_VALUE, ADMIN, "grpc.health.v1.Health"} <= await services(cluster.channels["a"])
        (tmp_path / "off").mkdir()
        async with running(tmp_path / "off", replicas=1, reflection=False) as cluster:
            code, _ = await failure(services(cluster.channels["a"]))
            assert code is grpc.StatusCode.UNIMPLEMENTED

    told(story)


# Mistakes


def test_a_mistake_of_ours_is_logged_and_said_and_the_replica_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError("planted")

    async def story() -> None:
        async with running(tmp_path, replicas=1) as cluster:
            with monkeypatch.context() as patched:
                patched.setattr(admin, "status_of", broken)
                code, error = await failure(cluster.admin("a").Status(status_pb2.StatusRequest()))
                assert (code, error.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
                assert "planted" in str(error)
            assert (await cluster.admin("a").Status(status_pb2.StatusRequest())).site == "a"
            assert cluster["a"].metrics.snapshot()['kvstore_calls_total{method="Status",reason="INTERNAL"}'] == 1

    with caplog.at_level(logging.ERROR, "kvstore.admin"):
        told(story)
    assert [record.exc_info is not None for record in caplog.records] == [True]


# Sessions


def test_a_session_that_shows_a_loss_of_memory_fences_the_replica_and_raises_the_alarm(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path, replicas=2) as cluster:
            await cluster.until_open()
            node = cluster["a"]
            elsewhere = make_site(node.cluster.protocol, A, 2)
            for _ in range(5):
                elsewhere.send(0b10)
            token = node.sessions.seal.seal(Past(elsewhere.token(), 0, ()))
            stub = kv_pb2_grpc.KeyValueStub(cluster.channels["a"])
            code, error = await failure(stub.Get(kv_pb2.GetRequest(key=b"k", session=token), timeout=5))
            assert (code, error.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "AMNESIA")
            assert "a session knows of message 5 of a, which remembers only 0" in str(error)
            status = await cluster.admin("a").Status(status_pb2.StatusRequest())
            assert "AMNESIA" in [alarm.reason for alarm in status.alarms]
            _, error = await failure(stub.Put(kv_pb2.PutRequest(key=b"k"), timeout=5))
            assert error.reason == "AMNESIA" and error.definite
            await cluster.put("b", b"k")
            code, error = await failure(
                kv_pb2_grpc.KeyValueStub(cluster.channels["b"]).Get(
                    kv_pb2.GetRequest(key=b"k", session=token), timeout=0.3
                )
            )
            assert error.reason == "PAST_MISSING", "elsewhere nobody can tell"

    told(story)
