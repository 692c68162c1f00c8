"""How much an answer must contain: whatever is here, all that is older than a bound, all that a session has seen."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from kvstore.config import Durability
from kvstore.sessions import Sessions
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from kvstore.v1 import watch_pb2
from tests.kvstore.served import (
    NOW_MS,
    RelaxedStorage,
    Served,
    Session,
    get_call,
    put,
    put_call,
    put_operation,
    refusal,
    run,
    run_all,
    until,
)

SHORT_S = 0.25  # a deadline that is to pass
ANY = model.Freshness(level=model.Freshness.LEVEL_ANY)


def within(bound_ms: int) -> model.Freshness:
    return model.Freshness(level=model.Freshness.LEVEL_BOUNDED, bound_ms=bound_ms)


async def read(served: Served, key: bytes = b"k", timeout: float = 10, **fields: Any) -> kv.GetResponse:
    return await served.stub.Get(kv.GetRequest(key=key, **fields), timeout=timeout)


def ticked(served: Served) -> bool:
    return served.is_idle and served.storage.number > 0


# Whatever is here


def test_a_read_of_whatever_is_here_does_not_wait_and_keeps_what_its_session_had_seen() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k", b"mine")
        assert await session.get(b, b"k", freshness=ANY) is None
        assert b.sessions.waiting == 0
        refused = await refusal(session.copy().get(b, b"k", SHORT_S))
        assert refused.reason == "PAST_MISSING", "the token still names it"
        refused = await refusal(session.copy().put(b, b"k", timeout=SHORT_S, freshness=ANY))
        assert refused.reason == "PAST_MISSING", "a write needs its session's past in any case"
        await a.bring(b)
        assert await session.get(b, b"k") == b"mine"

    run_all(story)


def test_an_answer_says_how_old_it_may_be_as_soon_as_that_is_known() -> None:
    async def story(a: Served, b: Served, c: Served) -> None:
        many = kv.GetManyRequest(keys=[b"k"])
        pipeline = kv.PipelineRequest(calls=[get_call(b"k"), get_call(b"none")])
        assert not (await read(b)).HasField("staleness_ms")
        await a.beat(b)
        assert not (await read(b)).HasField("staleness_ms"), "of c nothing is known"
        for one in (a, c):
            one.loop.tick()  # an idle site promises what the clock on its disk allows
            await until(partial(ticked, one))
            await one.beat(b)
        assert (await read(b)).staleness_ms == 0
        b.now_ms += 700
        answers: list[Any] = [
            await read(b),
            await read(b, freshness=ANY),
            await b.stub.GetMany(many, timeout=10),
            await b.stub.Scan(kv.ScanRequest(), timeout=10).read(),
            *[one.get for one in (await b.stub.Pipeline(pipeline, timeout=10)).results],
        ]
        assert [(answer.HasField("staleness_ms"), answer.staleness_ms) for answer in answers] == [(True, 700)] * 6
        a.now_ms += 700
        await a.beat(b)
        assert (await read(b)).staleness_ms == 700, "c has been silent since"
        c.now_ms += 300
        await c.beat(b)
        assert (await read(b)).staleness_ms == 400

    run_all(story, 3)


def test_a_heartbeat_does_not_count_before_what_was_sent_before_it() -> None:
    async def story(a: Served, b: Served, c: Served) -> None:
        await put(a, b"cause")
        await a.bring(b)
        await put(b, b"effect")
        b.now_ms += 500
        await b.bring(c)
        await b.beat(c)
        await a.beat(c)
        assert len(c.replica.held) == 1
        c.now_ms += 500
        refused = await refusal(read(c, timeout=SHORT_S, freshness=within(200)))
        assert refused.reason == "TOO_STALE"

    run_all(story, 3)


def test_alone_nothing_is_ever_stale() -> None:
    async def story(served: Served) -> None:
        assert (await read(served)).staleness_ms == 0
        assert (await read(served, freshness=within(0))).staleness_ms == 0

    run(story)


# All that is older than a bound


def test_a_bounded_read_waits_for_heartbeats_and_says_who_is_silent() -> None:
    async def story(a: Served, b: Served, c: Served) -> None:
        for one in (a, c):
            await put(one, b"warm")  # an idle site can promise what the clock on its disk allows
            await one.bring(b)
        a.now_ms = b.now_ms = c.now_ms = NOW_MS + 1000
        await a.beat(b)
        before = b.dump()
        calls: list[Any] = [
            b.stub.Get(kv.GetRequest(key=b"k", freshness=within(400)), timeout=SHORT_S),
            b.stub.GetMany(kv.GetManyRequest(keys=[b"k"], freshness=within(400)), timeout=SHORT_S),
            b.stub.Scan(kv.ScanRequest(freshness=within(400)), timeout=SHORT_S).read(),
            b.stub.Watch(watch_pb2.WatchRequest(freshness=within(400)), timeout=SHORT_S).read(),
            b.stub.Put(kv.PutRequest(key=b"k", freshness=within(400)), timeout=SHORT_S),
            b.stub.Delete(kv.DeleteRequest(key=b"k", freshness=within(400)), timeout=SHORT_S),
            b.stub.Batch(kv.BatchRequest(operations=[put_operation(b"k")], freshness=within(400)), timeout=SHORT_S),
            b.stub.Pipeline(kv.PipelineRequest(calls=[put_call(b"k")], freshness=within(400)), timeout=SHORT_S),
        ]
        started_s = time.monotonic()
        for refused in await asyncio.gather(*map(refusal, calls)):
            assert refused[:3] == ("UNAVAILABLE", "TOO_STALE", True)
            assert refused.details == {"site": "b", "silent": "c", "age_ms": "1000", "bound_ms": "400"}
        assert time.monotonic() - started_s < 5
        assert b.dump() == before
        waiting = asyncio.ensure_future(read(b, freshness=within(400)))
        await until(lambda: b.sessions.waiting == 1)
        await put(c, b"k", b"from c")
        await c.bring(b)
        assert (await waiting).entry.value == b"from c"
        assert (await read(b, freshness=within(1000))).staleness_ms == 0

    run_all(story, 3)


def test_a_bound_is_counted_from_when_the_request_came() -> None:
    async def story(a: Served, b: Served) -> None:
        await put(a, b"warm")
        await a.bring(b)
        a.now_ms = b.now_ms = NOW_MS + 500
        waiting = asyncio.ensure_future(read(b, freshness=within(100)))
        await until(lambda: b.sessions.waiting == 1)
        b.now_ms += 60_000
        a.now_ms = NOW_MS + 400
        await a.beat(b)
        await waiting

    run_all(story)


def test_a_bound_that_was_loosened_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: freshness taken from what is in memory, of messages that no commit has yet."""

    async def story(a: Served, b: Served) -> None:
        await put(a, b"k", b"new")
        await until(lambda: a.is_idle)
        b.now_ms += 10
        bringing = asyncio.ensure_future(a.bring(b))
        await until(lambda: b.replica.links[0].promise > 0)
        answer = asyncio.ensure_future(read(b, freshness=within(1000)))
        await until(lambda: b.sessions.waiting == 1 or answer.done())
        assert not answer.done(), "said before it is durable"
        storage = b.storage
        assert isinstance(storage, RelaxedStorage)
        storage.go.set()
        await bringing
        assert (await answer).entry.value == b"new"

    settings: dict[str, Any] = {"durability": Durability.PERIODIC, "periodic_sync_ms": 1}
    relaxed_a = RelaxedStorage()
    relaxed_a.go.set()
    run_all(story, storages=[relaxed_a, RelaxedStorage()], **settings)
    lack = Sessions.lack

    def of_memory(self: Sessions, wanted: Any, committed: Any, asked_ms: int) -> Any:
        self._loop.fresh = min(link.promise for link in self._replica.links.values())
        return lack(self, wanted, committed, asked_ms)

    monkeypatch.setattr(Sessions, "lack", of_memory)
    relaxed_a = RelaxedStorage()
    relaxed_a.go.set()
    with pytest.raises(AssertionError, match="said before it is durable"):
        run_all(story, storages=[relaxed_a, RelaxedStorage()], **settings)


def test_a_bound_and_a_session_are_both_waited_for() -> None:
    async def story(a: Served, b: Served, c: Served) -> None:
        session = Session()
        await session.put(a, b"k", b"mine")
        await put(c, b"warm")
        await c.bring(b)
        refused = await refusal(session.copy().get(b, b"k", SHORT_S, freshness=within(500)))
        assert refused.reason == "PAST_MISSING"
        await a.bring(b)
        assert await session.copy().get(b, b"k", freshness=within(500)) == b"mine"
        b.now_ms += 1000
        refused = await refusal(session.copy().get(b, b"k", SHORT_S, freshness=within(500)))
        assert refused.reason == "TOO_STALE"
        assert await session.get(b, b"k") == b"mine"

    run_all(story, 3)


def test_a_wait_for_freshness_has_a_place_like_any_other_wait() -> None:
    async def story(a: Served, b: Served) -> None:
        waiting = asyncio.ensure_future(refusal(read(b, timeout=1, freshness=within(0))))
        await until(lambda: b.sessions.waiting == 1)
        refused = await refusal(read(b, freshness=within(0)))
        assert refused[:3] == ("RESOURCE_EXHAUSTED", "TOO_MANY_WAITING", True)
        assert (await waiting).reason == "TOO_STALE"

    run_all(story, waits_max=1)
