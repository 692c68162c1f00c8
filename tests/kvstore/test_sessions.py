"""Sessions over gRPC: the four guarantees at one replica and across two, the waits, and what a token names.

Messages between the replicas are carried by the story, so that it is decided what has come and what has not. Bugs that
were paid for once are planted again where that is cheap: with each, a story must fail.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from causal import PROTOCOLS
from kvstore.config import Durability
from kvstore.effects import Committed
from kvstore.past import Past
from kvstore.seal import Seal, describe
from kvstore.sessions import Lack, Seen, Sessions, Wanted
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from kvstore.v1 import watch_pb2
from tests.kvstore.served import (
    LateStorage,
    RelaxedStorage,
    Served,
    Session,
    SlowStorage,
    get_call,
    put,
    put_call,
    put_operation,
    refusal,
    run,
    run_all,
    until,
)

CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
SHORT_S = 0.25  # a deadline that is to pass
ANY = model.Freshness(level=model.Freshness.LEVEL_ANY)
SESSION = model.Freshness(level=model.Freshness.LEVEL_SESSION)
PLACED = {b"": ("a", "b"), b"a/": ("a",), b"b/": ("b",)}

Tale = Callable[..., Coroutine[Any, Any, None]]

causal = pytest.mark.parametrize("protocol", CAUSAL)


def goes_wrong(story: Tale, count: int = 2, **settings: Any) -> None:
    """With a bug planted, the story must not end well."""
    with pytest.raises(AssertionError):
        run_all(story, count, **settings)


async def missing(call: Any) -> tuple[str, str, str]:
    """Who misses what, as the error tells; and that surely nothing was done."""
    found = await refusal(call)
    assert found[:3] == ("UNAVAILABLE", "PAST_MISSING", True), found
    return found.details["site"], found.details["origin"], found.details["seq"]


# A token comes exactly when it is asked for


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Get", kv.GetRequest(key=b"k")),
        ("Get", kv.GetRequest(key=b"none")),
        ("GetMany", kv.GetManyRequest(keys=[b"k"])),
        ("GetMany", kv.GetManyRequest()),
        ("Put", kv.PutRequest(key=b"k")),
        ("Delete", kv.DeleteRequest(key=b"k")),
        ("Batch", kv.BatchRequest(operations=[put_operation(b"k")])),
        ("Pipeline", kv.PipelineRequest(calls=[put_call(b"k"), get_call(b"k")])),
        ("Pipeline", kv.PipelineRequest()),
        ("Scan", kv.ScanRequest()),
        ("Watch", watch_pb2.WatchRequest()),
    ],
)
def test_a_token_comes_back_exactly_when_the_request_had_one_or_began_a_session(method: str, request_: Any) -> None:
    async def ask(served: Served, **fields: Any) -> bytes:
        whole = type(request_)(**fields)
        whole.MergeFrom(request_)
        call = getattr(served.stub, method)(whole, timeout=10)
        answer = await (call.read() if method in ("Scan", "Watch") else call)
        call.cancel()
        token: bytes = answer.session
        return token

    async def story(served: Served) -> None:
        await put(served, b"k")
        assert await ask(served) == b""
        assert await ask(served, freshness=ANY) == b""
        bounded = model.Freshness(level=model.Freshness.LEVEL_BOUNDED, bound_ms=1000)
        assert await ask(served, freshness=bounded) == b""
        token = await ask(served, freshness=SESSION)
        assert token
        for fields in ({}, {"freshness": SESSION}, {"freshness": ANY}, {"freshness": bounded}):
            assert await ask(served, session=token, **fields)

    run(story)


# The four guarantees


@causal
def test_a_session_reads_its_writes_and_reads_and_writes_in_order_at_one_replica(protocol: str) -> None:
    async def story(served: Served) -> None:
        session = Session()
        versions = []
        for number in range(5):
            assert await session.get(served, b"k") == (b"%d" % (number - 1) if number else None)
            versions.append((await session.put(served, b"k", b"%d" % number)).version)
            assert await session.get(served, b"k") == b"%d" % number
        times = [version.time for version in versions]
        assert times == sorted(set(times))
        await session.ask(served, "Delete", kv.DeleteRequest(key=b"k"))
        assert await session.get(served, b"k") is None

    run(story, sites=2, protocol=protocol)


async def read_your_writes(a: Served, b: Served) -> None:
    session = Session()
    await session.put(a, b"k", b"mine")
    assert await missing(session.copy().get(b, b"k", SHORT_S)) == ("b", "a", "1")
    waiting = asyncio.ensure_future(session.get(b, b"k"))
    await until(lambda: b.sessions.waiting == 1)
    await a.bring(b)
    assert await waiting == b"mine"
    await session.put(b, b"k", b"again")
    assert await session.get(b, b"k") == b"again"
    assert await missing(session.copy().get(a, b"k", SHORT_S)) == ("a", "b", "1")
    await b.bring(a)
    assert await session.get(a, b"k") == b"again"


@causal
def test_a_session_reads_its_writes_wherever_it_goes(protocol: str) -> None:
    run_all(read_your_writes, protocol=protocol)


async def monotonic_reads(a: Served, b: Served) -> None:
    await put(a, b"k", b"others'")
    session = Session()
    assert await session.get(a, b"k") == b"others'"
    assert await missing(session.copy().get(b, b"k", SHORT_S)) == ("b", "a", "1")
    await a.bring(b)
    assert await session.get(b, b"k") == b"others'"


@causal
def test_what_a_session_has_read_does_not_vanish_where_it_goes(protocol: str) -> None:
    run_all(monotonic_reads, protocol=protocol)


async def monotonic_writes(a: Served, b: Served, c: Served) -> None:
    session = Session()
    await session.put(a, b"first")
    assert await missing(session.copy().put(b, b"second", timeout=SHORT_S)) == ("b", "a", "1")
    await a.bring(b)
    await session.put(b, b"second")
    await b.bring(c)
    reader = Session()
    assert await reader.get(c, b"second") is None and len(c.replica.held) == 1
    await a.bring(c)
    assert await reader.get(c, b"second") == b"v" and not c.replica.held


@causal
def test_nobody_sees_the_second_write_of_a_session_before_the_first(protocol: str) -> None:
    run_all(monotonic_writes, 3, protocol=protocol)


async def writes_follow_reads(a: Served, b: Served, c: Served) -> None:
    await put(a, b"question")
    session = Session()
    assert await session.get(a, b"question") == b"v"
    await a.bring(b)
    await session.put(b, b"answer")
    await b.bring(c)
    assert await Session().get(c, b"answer") is None and len(c.replica.held) == 1
    await a.bring(c)
    assert await Session().get(c, b"answer") == b"v"


@causal
def test_nobody_sees_what_a_session_wrote_before_what_it_had_read(protocol: str) -> None:
    run_all(writes_follow_reads, 3, protocol=protocol)


async def later_write_wins(a: Served, b: Served) -> None:
    """The clock of b is ahead. A session reads there and writes at a: its write is the later one (SAFETY 9)."""
    b.now_ms += 1500
    await put(b, b"k", b"from b")
    await b.bring(a)
    session = Session()
    assert await session.get(b, b"k") == b"from b"
    await session.put(a, b"k", b"newer")
    assert await session.get(a, b"k") == b"newer"
    await a.bring(b)
    assert await session.get(b, b"k") == b"newer"


def test_a_write_that_follows_a_read_has_the_greater_version_wherever_it_is_made() -> None:
    run_all(later_write_wins)


async def clock_of_the_session(a: Served, b: Served) -> None:
    """What it saw at b has not come to a in any message: the token alone brings the time."""
    b.now_ms += 1500
    session = Session()
    found = await session.put(b, b"b/k", b"from b")
    written = await session.put(a, b"a/k", b"newer")
    assert written.version.time > found.version.time


def test_the_token_carries_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(clock_of_the_session, placement=PLACED)
    seal = Seal.seal
    monkeypatch.setattr(Seal, "seal", lambda self, past: seal(self, past._replace(time=0)))
    monkeypatch.setattr(Seal, "_keep", lambda self, token, past: None)
    goes_wrong(clock_of_the_session, placement=PLACED)


# Waiting


def calls_of(token: bytes) -> list[tuple[str, Any]]:
    return [
        ("Get", kv.GetRequest(key=b"k", session=token)),
        ("GetMany", kv.GetManyRequest(keys=[b"k"], session=token)),
        ("Scan", kv.ScanRequest(session=token)),
        ("Watch", watch_pb2.WatchRequest(session=token)),
        ("Pipeline", kv.PipelineRequest(calls=[get_call(b"k"), put_call(b"l")], session=token)),
        ("Put", kv.PutRequest(key=b"l", session=token)),
        ("Put", kv.PutRequest(key=b"l", session=token, freshness=ANY)),
        ("Delete", kv.DeleteRequest(key=b"l", session=token)),
        ("Batch", kv.BatchRequest(operations=[put_operation(b"l")], session=token)),
    ]


async def ask(served: Served, method: str, request: Any, timeout: float) -> Any:
    call = getattr(served.stub, method)(request, timeout=timeout)
    try:
        return await (call.read() if method in ("Scan", "Watch") else call)
    finally:
        call.cancel()


def test_each_call_waits_for_the_sessions_past_and_says_in_time_what_is_missing() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        for _ in range(3):
            await session.put(a, b"k", b"new")
        await a.bring(b, 1)
        before, memory = b.dump(), b.replica.ordering.context
        calls = calls_of(session.token)
        started_s = time.monotonic()
        found = await asyncio.gather(*(missing(ask(b, *call, timeout=SHORT_S)) for call in calls))
        assert found == [("b", "a", "3")] * len(calls)
        assert time.monotonic() - started_s < 5
        assert b.dump() == before and b.replica.ordering.context == memory
        assert b.sessions.waiting == 0 and b.feed.watches == 0
        waiting = [asyncio.ensure_future(ask(b, *call, timeout=10)) for call in calls]
        await until(lambda: b.sessions.waiting == len(calls))
        await a.bring(b, 1)
        await until(lambda: b.sessions.waiting == len(calls))
        await a.bring(b, 1)
        answers = await asyncio.gather(*waiting)
        assert all(answer.session for answer in answers)
        assert (answers[0].entry.value, answers[1].entries[0].value, answers[2].entries[0].value) == (b"new",) * 3

    run_all(story)


def test_an_error_that_names_what_is_missing_says_how_long_it_was_waited_for() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k")
        found = await refusal(session.get(b, b"k", SHORT_S))
        assert 100 < int(found.details["waited_ms"]) < 5000
        assert "b misses message 1 of a, which the session has seen" in found.message
        found = await refusal(served_at_once(b, session))
        assert found.reason == "PAST_MISSING" and found.details["waited_ms"] == "0"

    async def served_at_once(b: Served, session: Session) -> Any:
        """A deadline so short that there is no use in waiting."""
        return await b.stub.Get(kv.GetRequest(key=b"k", session=session.token), timeout=0.045)

    run_all(story)


def test_one_request_too_many_that_would_wait_is_refused_at_once_and_keeps_nobody_else_out() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k", b"new")
        await put(a, b"later")
        waiting = [asyncio.ensure_future(session.copy().get(b, b"k")) for _ in range(3)]
        await until(lambda: b.sessions.waiting == 3)
        refused = await refusal(session.copy().put(b, b"l"))
        assert refused[:3] == ("RESOURCE_EXHAUSTED", "TOO_MANY_WAITING", True)
        assert refused.details["limit"] == "3"
        await put(b, b"plain")
        fresh = Session()
        await fresh.put(b, b"own")
        assert await fresh.get(b, b"own") == b"v"
        assert await session.copy().get(b, b"k", freshness=ANY) is None
        assert b.sessions.waiting == 3
        await a.bring(b, 1)
        assert await asyncio.gather(*waiting) == [b"new"] * 3
        assert await session.get(b, b"k") == b"new"

    run_all(story, waits_max=3)


def test_a_request_that_waits_and_whose_client_goes_away_leaves_its_place() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k")
        call = b.stub.Get(kv.GetRequest(key=b"k", session=session.token), timeout=10)
        await until(lambda: b.sessions.waiting == 1)
        call.cancel()
        await until(lambda: b.sessions.waiting == 0 and b.service.places["calls"].taken == 0)

    run_all(story)


# What reads do, and what tokens name


def describe_context(served: Served, token: bytes) -> Any:
    return served.sessions.seal.open(token).context


def test_a_read_takes_nothing_of_its_session_into_the_sites_past(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(a: Served, b: Served, c: Served) -> None:
        session = Session()
        await session.put(c, b"a/k", b"only for a")
        await c.bring(a)
        await put(b, b"k")
        context, before = b.replica.ordering.context, b.dump()
        assert context.merged(describe_context(b, session.token)) != context, "the token is news to b"
        assert await session.get(b, b"k") == b"v"
        await session.ask(b, "GetMany", kv.GetManyRequest(keys=[b"k"]))
        await session.ask(b, "Pipeline", kv.PipelineRequest(calls=[get_call(b"k")]))
        assert b.replica.ordering.context == context and b.dump() == before
        await session.put(b, b"k")
        assert b.replica.ordering.context.highest(2) == 1, "a write takes it over"

    placement = {b"": ("a", "b", "c"), b"a/": ("a",)}
    run_all(story, 3, placement=placement)
    after_read = Sessions.after_read

    def adopting(self: Sessions, past: Past, seen: Seen) -> Past:
        self._replica.ordering.adopt(past.context)
        return after_read(self, past, seen)

    monkeypatch.setattr(Sessions, "after_read", adopting)
    goes_wrong(story, 3, placement=placement)


async def only_what_was_seen(a: Served, b: Served) -> None:
    await put(a, b"old")
    await a.bring(b)
    for _ in range(3):
        await put(a, b"new")
    session = Session()
    assert await session.get(a, b"old") == b"v"
    assert describe(session.token)["newest"] == {"0": 1}
    assert describe(session.token)["seen"] == ["message 1 of site 0"]
    moved = session.copy()
    try:
        assert await moved.get(b, b"old", SHORT_S) == b"v", "b lacks what the session has not seen"
    except Exception as error:
        raise AssertionError("it could not move") from error
    await session.get(a, b"not there")
    assert describe(session.token)["newest"] == {"0": 4}, "what is not there may be due to anything"
    assert describe(session.token)["seen"] == "everything"


@causal
def test_a_session_that_read_an_old_key_goes_on_at_a_replica_that_lacks_newer_things(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all(only_what_was_seen, protocol=protocol)
    after_read = Sessions.after_read
    monkeypatch.setattr(
        Sessions, "after_read", lambda self, past, seen: after_read(self, past, seen._replace(newest=None))
    )
    goes_wrong(only_what_was_seen, protocol=protocol)


def test_after_a_restart_the_oldest_record_stands_for_those_that_are_gone() -> None:
    async def first(served: Served) -> None:
        await put(served, b"old")
        await put(served, b"new")

    async def second(served: Served) -> None:
        session = Session()
        assert await session.get(served, b"old") == b"v"
        assert describe(session.token)["newest"] == {"0": 2}

    run(second, run(first, sites=2).storage, sites=2)


# One committed record (SAFETY 1)


async def token_of_what_was_read(a: Served, b: Served) -> None:
    """The loop has not heard yet that the commit is there, and a session reads it."""
    storage = a.storage
    assert isinstance(storage, LateStorage)
    storage.go.clear()
    writing = asyncio.ensure_future(put(a, b"k", b"new"))
    await until(lambda: storage.number == 1)
    assert a.loop.said.number == 0
    session = Session()
    assert await session.get(a, b"k") == b"new"
    storage.go.set()
    await writing
    assert await missing(session.get(b, b"k", SHORT_S)) == ("b", "a", "1")


def test_the_token_is_of_the_commit_that_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(token_of_what_was_read, storages=[LateStorage(), None])
    after_read = Sessions.after_read

    def of_what_was_said(self: Sessions, past: Past, seen: Seen) -> Past:
        return after_read(self, past, Seen(self._loop.said.number, seen.dots))

    monkeypatch.setattr(Sessions, "after_read", of_what_was_said)
    goes_wrong(token_of_what_was_read, storages=[LateStorage(), None])


async def due_in_what_is_read(a: Served, b: Served) -> None:
    """In memory the message is delivered, on disk it is not: who reads the disk has to wait."""
    storage = b.storage
    assert isinstance(storage, SlowStorage)
    session = Session()
    await session.put(a, b"k", b"mine")
    storage.go.clear()
    bringing = asyncio.ensure_future(a.bring(b))
    await until(lambda: b.replica.ordering.delivered[0] == 1)
    reading = asyncio.ensure_future(session.get(b, b"k"))
    await until(lambda: b.sessions.waiting == 1 or reading.done())
    storage.go.set()
    await bringing
    assert await reading == b"mine"


def test_whether_a_session_may_read_is_judged_by_the_commit_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    run_all(due_in_what_is_read, storages=[None, SlowStorage()])
    lack = Sessions.lack

    def of_memory(self: Sessions, wanted: Wanted, committed: Committed, asked_ms: int) -> Lack | None:
        return lack(self, wanted, committed._replace(delivered=tuple(self._replica.ordering.delivered)), asked_ms)

    monkeypatch.setattr(Sessions, "lack", of_memory)
    goes_wrong(due_in_what_is_read, storages=[None, SlowStorage()])


# Nothing is carried away that a crash could take back (SAFETY 2)

PERIODIC = {"durability": Durability.PERIODIC, "periodic_sync_ms": 1}


async def tokens_wait_for_the_disk(a: Served) -> None:
    storage = a.storage
    assert isinstance(storage, RelaxedStorage)
    await put(a, b"plain", b"answered before it is durable")
    assert storage.synced == 0 and storage.number == 1
    for method, request in (
        ("Get", kv.GetRequest(key=b"plain", freshness=SESSION)),
        ("GetMany", kv.GetManyRequest(keys=[b"plain"], freshness=SESSION)),
        ("Scan", kv.ScanRequest(freshness=SESSION)),
        ("Pipeline", kv.PipelineRequest(calls=[get_call(b"plain")], freshness=SESSION)),
    ):
        found = await refusal(ask(a, method, request, timeout=SHORT_S))
        assert found[:2] == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"), "a token before the sync"


def test_a_token_comes_only_when_what_it_names_is_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(a: Served) -> None:
        await tokens_wait_for_the_disk(a)
        reading = asyncio.ensure_future(Session().get(a, b"plain"))
        await asyncio.sleep(0.05)
        assert not reading.done()
        storage_of(a).go.set()
        assert await reading == b"answered before it is durable"

    run(story, RelaxedStorage(), sites=2, **PERIODIC)

    async def at_once(self: Sessions, commit: int, deadline_s: float) -> None:
        pass

    monkeypatch.setattr(Sessions, "durable", at_once)
    with pytest.raises(AssertionError):
        run(tokens_wait_for_the_disk, RelaxedStorage(), sites=2, **PERIODIC)


def storage_of(served: Served) -> RelaxedStorage:
    assert isinstance(served.storage, RelaxedStorage)
    return served.storage


WRITES = [
    ("Put", kv.PutRequest(key=b"k", request_id=b"one", freshness=SESSION)),
    ("Delete", kv.DeleteRequest(key=b"k", request_id=b"one", freshness=SESSION)),
    ("Batch", kv.BatchRequest(operations=[put_operation(b"k")], request_id=b"one", freshness=SESSION)),
    ("Pipeline", kv.PipelineRequest(calls=[put_call(b"k")], request_id=b"one", freshness=SESSION)),
    (
        "Pipeline",
        kv.PipelineRequest(calls=[get_call(b"k"), put_call(b"k")], request_id=b"one", freshness=SESSION),
    ),
]


@pytest.mark.parametrize(("method", "request_"), WRITES)
def test_a_write_whose_token_does_not_come_in_time_is_not_said_to_be_undone(method: str, request_: Any) -> None:
    async def story(a: Served) -> None:
        found = await refusal(ask(a, method, request_, timeout=SHORT_S))
        assert found[:3] == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", False), "it is done"
        assert a.storage.number == 1
        storage_of(a).go.set()
        answer = await ask(a, method, request_, timeout=10)
        assert answer.session and a.storage.number == 1, "a repeat gets the token of the first"

    run(story, RelaxedStorage(), sites=2, **PERIODIC)


def test_whoever_waits_for_the_disk_takes_no_place_of_those_who_wait_for_messages() -> None:
    async def story(a: Served) -> None:
        writing = [asyncio.ensure_future(Session().put(a, b"k%d" % number)) for number in range(5)]
        await until(lambda: a.storage.number and a.service.places["calls"].taken == 5 and not a.loop.inbox)
        storage_of(a).go.set()
        assert len({answer.version.time for answer in await asyncio.gather(*writing)}) == 5

    run(story, RelaxedStorage(), sites=2, waits_max=1, durability=Durability.PERIODIC, periodic_sync_ms=300)


def test_a_write_whose_token_is_too_large_is_not_said_to_be_undone() -> None:
    async def story(a: Served) -> None:
        found = await refusal(Session().put(a, b"k"))
        assert found[1:3] == ("BAD_TOKEN", False) and a.storage.number == 1

    run(story, sites=2, token_bytes_max=20)


# Expiry


async def expired_stays_expired(a: Served, b: Served, sweeps: int = 0) -> None:
    """a's clock is a second ahead of b's. What a session saw expire at a, it does not see again at b."""
    await put(b, b"k", ttl_ms=500)
    await put(b, b"other")
    await b.bring(a)
    a.now_ms += 1000
    for _ in range(sweeps):
        await b.beat(a)
        a.loop.tick()
        await until(lambda: a.is_idle and not a.loop._is_tick_due)
    session = Session()
    assert await session.get(b, b"k") == b"v"
    assert await session.get(a, b"k") is None
    for level in (SESSION, ANY):
        assert await session.copy().get(b, b"k", freshness=level) is None, "it came back"
    many = await session.copy().ask(b, "GetMany", kv.GetManyRequest(keys=[b"other", b"k"]))
    assert [entry.key for entry in many.entries] == [b"other"]
    assert len((await session.copy().ask(b, "Pipeline", kv.PipelineRequest(calls=[get_call(b"k")]))).results) == 1
    assert await Session().get(b, b"k") == b"v", "for another session it is still there"


@pytest.mark.parametrize("sweeps", [0, 1, 2], ids=["expired", "swept", "collected"])
def test_what_a_session_saw_expire_does_not_come_back_where_the_clock_is_behind(
    sweeps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(a: Served, b: Served) -> None:
        await expired_stays_expired(a, b, sweeps)
        with a.storage.snapshot() as view:
            assert (view.get("keys", b"k") is None) == (sweeps == 2)

    run_all(story)
    after_read = Sessions.after_read
    monkeypatch.setattr(
        Sessions, "after_read", lambda self, past, seen: after_read(self, past, seen._replace(clock_ms=0))
    )
    goes_wrong(story)


# Meaning: what a write is said to depend on, under `false-causality`


def test_a_write_depends_on_what_its_session_saw_or_on_what_it_says() -> None:
    async def story(a: Served, b: Served) -> None:
        def sent() -> tuple[bool, Any]:
            """Of the newest message: whether it depends on anything, and on what it was meant to."""
            event = [event for event in a.events if event.kind == "sent"][-1]
            return event.semantic, event.depends_on

        first = await put(a, b"one")
        assert sent() == (True, None), "without a session nothing is known"
        fresh = Session()
        await fresh.put(a, b"two")
        assert sent() == (False, ()), "a session that has seen nothing"
        await fresh.put(a, b"three")
        assert sent() == (True, ((0, 2),)), "its own write"
        reader = Session()
        await reader.get(a, b"one")
        await reader.get(a, b"two")
        await reader.put(a, b"four")
        assert sent() == (True, ((0, 1), (0, 2)))
        independent = model.Dependencies(independent=True)
        await reader.put(a, b"five", dependencies=independent)
        assert sent() == (False, ())
        assert describe(reader.token)["seen"] == ["message 4 of site 0", "message 5 of site 0"]
        await put(a, b"six", dependencies=model.Dependencies(versions=[first.version]))
        assert sent() == (True, ((0, 1),))
        await reader.put(a, b"seven", dependencies=model.Dependencies(versions=[first.version]))
        assert sent() == (True, ((0, 1),))
        await reader.put(a, b"eight")
        assert sent() == (True, ((0, 4), (0, 5), (0, 7))), "what was left out is still seen"
        version = (await put(a, b"nine", dependencies=independent)).version
        assert sent() == (False, ())
        await Session().put(a, b"nine", expect_version=version)
        assert sent() == (True, ((0, 9),)), "a compare-and-set depends on what it is compared with"
        absent = Session()
        await absent.get(a, b"nothing here")
        await absent.put(a, b"ten")
        assert sent() == (True, None)
        many = Session()
        await many.ask(a, "Pipeline", kv.PipelineRequest(calls=[put_call(b"p"), put_call(b"q")]))
        assert sent() == (False, ())

    run_all(story, protocol="false-causality")


def test_an_independent_write_does_not_wait_for_what_its_session_had_seen() -> None:
    async def story(a: Served, b: Served, c: Served) -> None:
        await put(a, b"question")
        await a.bring(b)
        session = Session()
        await session.get(b, b"question")
        await session.put(b, b"weather", dependencies=model.Dependencies(independent=True))
        await b.bring(c)
        assert await Session().get(c, b"weather") == b"v", "it needs nothing"
        assert await missing(session.copy().get(c, b"weather", SHORT_S)) == ("c", "a", "1")
        await session.put(b, b"answer")
        await b.bring(c)
        assert await Session().get(c, b"answer") is None
        await a.bring(c)
        assert await session.get(c, b"answer") == b"v"

    run_all(story, 3, protocol="false-causality")


# Many keys, pages, snapshots, watches


def test_many_keys_are_seen_together() -> None:
    async def story(a: Served, b: Served) -> None:
        for number in range(3):
            await put(a, b"k%d" % number)
        await a.bring(b, 1)
        session = Session()
        await session.ask(a, "GetMany", kv.GetManyRequest(keys=[b"k0"]))
        assert len((await session.ask(b, "GetMany", kv.GetManyRequest(keys=[b"k0"]))).entries) == 1
        await session.ask(a, "GetMany", kv.GetManyRequest(keys=[b"k0", b"k1"]))
        assert describe(session.token)["newest"] == {"0": 2}
        many = kv.GetManyRequest(keys=[b"k0"])
        assert await missing(session.copy().ask(b, "GetMany", many, SHORT_S)) == ("b", "a", "2")

    run_all(story)


async def scanned(served: Served, token: bytes = b"", **fields: Any) -> list[kv.ScanResponse]:
    request = kv.ScanRequest(session=token, **fields)
    if not token:
        request.freshness.level = model.Freshness.LEVEL_SESSION
    return [page async for page in served.stub.Scan(request, timeout=10)]


def test_each_page_has_the_token_of_what_was_seen_so_far() -> None:
    async def story(a: Served, b: Served) -> None:
        for number in range(4):
            await put(a, b"k%d" % number)
        pages = await scanned(a, page_size=2)
        assert [len(page.entries) for page in pages] == [2, 2, 0], "that nothing follows was seen too"
        newest = [describe(page.session)["newest"]["0"] for page in pages]
        assert newest == sorted(newest) and newest[-1] == 4
        await a.bring(b)
        assert len(await scanned(b, pages[-1].session)) == 1

    run_all(story)


async def end_of_a_scan(a: Served, b: Served) -> None:
    """A key is deleted between the last page with something on it and the end: the session saw that it is gone."""
    for key in (b"1", b"2"):
        await put(a, key)
    await a.bring(b)
    pages = []
    async for page in a.stub.Scan(kv.ScanRequest(page_size=1, freshness=SESSION), timeout=10):
        pages.append(page)
        if len(pages) == 1:
            break
    await a.stub.Delete(kv.DeleteRequest(key=b"2"), timeout=10)
    rest = await scanned(a, pages[-1].session, after=b"1", page_size=1)
    assert [list(page.entries) for page in rest] == [[]]
    assert await missing(Session(rest[-1].session).get(b, b"2", SHORT_S)) == ("b", "a", "3")


def test_a_session_that_scanned_to_the_end_has_seen_that_nothing_follows() -> None:
    async def story(a: Served, b: Served) -> None:
        await end_of_a_scan(a, b)
        pages = await scanned(b, page_size=2)
        assert len(pages[0].entries) == 2 and len(pages) == 2 and pages[1].session
        plain = [page async for page in b.stub.Scan(kv.ScanRequest(page_size=2), timeout=10)]
        assert len(plain) == 1

    run_all(story)


async def lent(served: Served) -> tuple[bytes, bytes]:
    """A snapshot as Admin.Snapshot lends it: its handle, and the token of who has seen all of it."""
    lease = served.leases.open()
    lease.committed = served.loop.committed(lease.number)
    assert lease.committed.past is not None
    return lease.handle, served.sessions.seal.seal(lease.committed.past)


async def moments(a: Served, b: Served) -> None:
    await put(b, b"k", b"1")
    await b.bring(a)
    handle, token = await lent(a)
    await put(b, b"k", b"2")
    await b.bring(a)
    await put(a, b"l")
    await a.bring(b)  # so b knows that a has the second value
    session = Session(token)
    many = await session.ask(a, "GetMany", kv.GetManyRequest(keys=[b"k"], snapshot=handle))
    assert many.entries[0].value == b"1" and not many.HasField("staleness_ms")
    scan = kv.ScanRequest(session=session.token, snapshot=handle)
    page: Any = await a.stub.Scan(scan, timeout=10).read()
    assert page.entries[0].value == b"1" and not page.HasField("staleness_ms"), "it is as old as it is"
    assert await session.get(b, b"k") == b"2"
    started_s = time.monotonic()
    later = kv.GetManyRequest(keys=[b"k"], snapshot=handle)
    assert await session.get(b, b"l") == b"v"
    assert (await missing(session.copy().ask(a, "GetMany", later)))[0] == "a"
    assert time.monotonic() - started_s < 5, "nothing will come to a moment that is over"
    assert await session.copy().get(a, b"k") == b"2"


@causal
def test_a_session_reads_a_snapshot_that_has_all_that_it_saw_and_no_other(protocol: str) -> None:
    run_all(moments, protocol=protocol)


async def own_writes_and_old_moments(a: Served, b: Served) -> None:
    handle, token = await lent(a)
    session = Session(token)
    await session.put(a, b"k")
    many = kv.GetManyRequest(keys=[b"k"], snapshot=handle)
    assert await missing(session.copy().ask(a, "GetMany", many)) == ("a", "a", "1")


@causal
def test_an_old_moment_is_not_judged_like_the_present(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token leaves out what the site that is asked has sent itself, or is known to have; back then it had not."""
    run_all(own_writes_and_old_moments, protocol=protocol)
    monkeypatch.setattr(Sessions, "lack_of_old", lambda self, wanted, committed: None)
    goes_wrong(own_writes_and_old_moments, protocol=protocol)
    if protocol in ("optimal", "pruning"):
        goes_wrong(moments, protocol=protocol)


def test_a_watch_begins_when_the_sessions_past_is_here_and_carries_it_on() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k", b"mine")
        stream: Any = b.stub.Watch(watch_pb2.WatchRequest(session=session.token), timeout=10)
        await until(lambda: b.sessions.waiting == 1)
        await a.bring(b)
        first = await stream.read()
        assert (list(first.changes), first.position.index) == ([], 1), "it begins behind what the session has seen"
        assert describe(first.session)["newest"] == {"0": 1}
        await put(b, b"k", b"later")
        second = await stream.read()
        assert [change.value for change in second.changes] == [b"later"]
        stream.cancel()
        moved = Session(second.session)
        assert await missing(moved.get(a, b"k", SHORT_S)) == ("a", "b", "1")
        await b.bring(a)
        assert await moved.get(a, b"k") == b"later"

    run_all(story)


def test_a_watch_shows_and_names_only_what_is_durable() -> None:
    async def story(a: Served) -> None:
        stream: Any = a.stub.Watch(watch_pb2.WatchRequest(freshness=SESSION), timeout=10)
        first = await stream.read()
        await put(a, b"k")
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0.05)
        assert not reading.done() and describe(first.session)["newest"] == {}
        storage_of(a).go.set()
        assert describe((await reading).session)["newest"] == {"0": 1}
        stream.cancel()

    run(story, RelaxedStorage(), sites=2, **PERIODIC)


# Keys that are held elsewhere


def test_a_session_goes_along_to_the_holder_of_a_key() -> None:
    async def story(a: Served, b: Served) -> None:
        a.holders.there[1] = b
        session = Session()
        await session.put(a, b"b/k", b"mine")
        assert await missing(session.copy().get(a, b"b/k", SHORT_S)) == ("b", "a", "1")
        await a.bring(b)
        assert await session.get(a, b"b/k") == b"mine"
        await session.put(a, b"b/k", b"newer", expect_version=await version_at(b, b"b/k"))
        assert await session.get(a, b"b/k") == b"newer"
        await session.put(b, b"k", b"at b")
        assert await missing(session.copy().get(a, b"k", SHORT_S)) == ("a", "b", "2")

    async def version_at(served: Served, key: bytes) -> model.Version:
        return (await served.stub.Get(kv.GetRequest(key=key), timeout=10)).entry.version

    run_all(story, placement=PLACED)
