"""Sessions of both clients against real gRPC: the token that they carry, the moves that they make, one call after
another. Each promise is also shown to be noticed when it is broken.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore import Get, Put, connect, retry, session
from kvstore.errors import DeadlineExceeded, Internal, NoSessions, PastMissing, Stopping, TooStale, Unavailable
from kvstore.session import Memory
from kvstore.terms import Level
from kvstore.v1 import kv_pb2
from tests.kvstore.script import LOST, REFUSED, SILENT, serving
from tests.kvstore.test_client import dead_address
from tests.kvstore.tokens import CLIENTS, TokenScript, play, seen_in, sent, three


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    return request.param


# The token


def test_every_call_carries_the_token_of_the_answer_before(client: str) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        one = kv.session()
        assert await one.token() == b"", "nothing was done yet"
        await one.put(b"k", b"v")
        assert await one.token() == b"a:1"
        assert (await one.get(b"k")).value == b"v"
        await one.delete(b"k")
        await one.batch([Put(b"l", b"v"), Put(b"m", b"v")])
        await one.get_many([b"l", b"m"])
        await one.pipeline([Get(b"l"), Put(b"l", b"w")])
        assert await one.token() == b"a:1,a:2,a:3,a:4,a:5"

    play(story, a, client=client)
    assert [(one.session, one.freshness.level) for one in a.requests] == [
        (b"", Level.SESSION),  # how one begins
        (b"a:1", 0),
        (b"a:1", 0),
        (b"a:1,a:2", 0),
        (b"a:1,a:2,a:4", 0),
        (b"a:1,a:2,a:3,a:4", 0),
    ]


def test_a_session_goes_on_anywhere_with_its_token(client: str) -> None:
    a, b = TokenScript("a", 0), TokenScript("b", 1)

    async def begin(kv: Any) -> None:
        one = kv.session()
        await one.put(b"k", b"v")
        tokens.append(await one.token())

    async def go_on(kv: Any) -> None:
        assert (await kv.session(tokens[0]).get(b"k")).value == b"v"

    tokens: list[bytes] = []
    play(begin, a, client=client)
    b.bring(a)
    play(go_on, b, client=client)
    assert sent(b, kv_pb2.GetRequest) == [(b"a:1", 0)]


def test_a_replica_that_answers_without_a_token_is_not_trusted_silently(client: str) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.put(b"k", b"v")
        a.gives_tokens = False
        with pytest.raises(Internal, match="a answered a session without a token") as found:
            await one.put(b"k", b"w")
        assert not found.value.definite, "it was done"
        with pytest.raises(Internal):
            await one.get(b"k")
        with pytest.raises(Internal):
            await anext(one.scan(b"k"))
        assert await one.token() == b"a:1"

    play(story, a, client=client)


def test_a_protocol_without_sessions_says_so(client: str) -> None:
    a = TokenScript()
    a.mishaps["Get"] += [NoSessions(protocol="fifo")]

    async def story(kv: Any) -> None:
        with pytest.raises(NoSessions, match="fifo keeps no causal past"):
            await kv.session().get(b"k")

    play(story, a, client=client)
    assert len(a.requests) == 1


async def learn_nothing_from_a_failed_call(kv: Any, a: TokenScript) -> None:
    one = kv.session()
    await one.put(b"k", b"v")
    a.mishaps["Pipeline"] += ["short"]
    with pytest.raises(Internal, match="0 results came for 1 calls"):
        await one.pipeline([Get(b"k")])
    assert await one.token() == b"a:1"
    a.mishaps["Put"] += [LOST] * 50
    with pytest.raises(Unavailable) as found:
        await one.put(b"k", b"w", timeout_s=0.3)
    assert not found.value.definite
    assert await one.token() == b"a:1"


class ShortScript(TokenScript):
    """A pipeline may come back without its results, though with a token."""

    def _pipeline(self, request: kv_pb2.PipelineRequest) -> kv_pb2.PipelineResponse:
        answer = super()._pipeline(request)
        answer.ClearField("results")
        return answer

    def _seen_by(self, request: Any) -> set[str]:
        return {"a:1", "x:9"} if isinstance(request, kv_pb2.PipelineRequest) else super()._seen_by(request)


def test_a_failed_call_teaches_nothing(client: str) -> None:
    a = ShortScript()
    play(lambda kv: learn_nothing_from_a_failed_call(kv, a), a, client=client)


# Moving


async def read_own_write_elsewhere(kv: Any, a: TokenScript, b: TokenScript, c: TokenScript) -> None:
    one = kv.session()
    await one.put(b"k", b"v")
    c.bring(a)
    a.mishaps["Get"] += [REFUSED] * 50  # a is gone, and b has not heard of it
    entry = await one.get(b"k")
    assert entry is not None and entry.value == b"v", "it must not read older than it wrote"
    assert len(b.asked(kv_pb2.GetRequest)) == len(c.asked(kv_pb2.GetRequest)) == 1


def test_a_session_moves_to_a_replica_that_has_what_it_has_seen(client: str) -> None:
    a, b, c = three()
    play(lambda kv: read_own_write_elsewhere(kv, a, b, c), a, b, c, client=client)


def test_a_write_moves_too_when_its_past_is_missing_and_is_done_once(client: str) -> None:
    a, b, c = three()

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.put(b"k", b"v")
        c.bring(a)
        a.mishaps["Put"] += [Stopping(site="a")]
        assert (await one.put(b"k", b"w")).site == "c"
        assert (a.effects, b.effects, c.effects) == (1, 0, 1)
        assert (await one.put(b"k", b"x")).site == "c", "it stays where it was answered"
        assert (await kv.put(b"other", b"v")).site == "a", "and takes nobody with it"

    play(story, a, b, c, client=client)


async def stay_when_it_may_be_done(kv: Any, a: TokenScript, b: TokenScript) -> None:
    one = kv.session()
    await one.put(b"k", b"v")
    b.bring(a)
    a.mishaps["Put"] += [LOST] * 50
    with pytest.raises(Unavailable) as found:
        await one.put(b"k", b"w", timeout_s=0.4)
    assert not found.value.definite
    assert b.effects == 0, "that would be a second effect"
    a.mishaps["Put"].clear()
    assert await one.token() == b"a:1"
    await one.put(b"k", b"x")
    assert b.effects + a.effects == 3, "it goes on, here or there"


def test_a_write_that_may_be_done_is_not_taken_to_another_replica_and_the_session_goes_on(client: str) -> None:
    a, b = TokenScript("a", 0), TokenScript("b", 1)
    play(lambda kv: stay_when_it_may_be_done(kv, a, b), a, b, client=client)


def test_what_no_replica_has_is_named_and_who_was_asked(client: str) -> None:
    b, c = TokenScript("b", 1), TokenScript("c", 2)

    async def story(kv: Any) -> None:
        one = kv.session(b"a:7")
        for call in (one.get(b"k"), one.put(b"k", b"v")):
            with pytest.raises(PastMissing, match="no replica that answered has message 7 of a, which the") as found:
                await call
            assert found.value.definite
            details = found.value.details
            assert (details["origin"], details["seq"]) == ("a", "7")
            assert details["tried"].count("127.0.0.1:") == 2
            assert str(found.value).count("127.0.0.1:") == 2
        assert await one.token() == b"a:7"

    play(story, b, c, client=client, timeout_s=0.4)
    assert len(b.requests) > 2 and b.effects == c.effects == 0


def test_replicas_that_miss_different_messages_are_not_said_to_miss_the_same(client: str) -> None:
    b, c = TokenScript("b", 1), TokenScript("c", 2)
    b.has = {"a:8"}
    c.has = {"a:7"}

    async def story(kv: Any) -> None:
        with pytest.raises(PastMissing, match="has all of message 7 of a, message 8 of a, which"):
            await kv.session(b"a:7,a:8").get(b"k")

    play(story, b, c, client=client, timeout_s=0.3)


def test_who_cannot_be_reached_says_less_than_who_misses_something() -> None:
    b = TokenScript("b", 1)
    with serving(b) as [address], connect([address, dead_address()], timeout_s=0.4) as kv:
        with pytest.raises(PastMissing) as found:
            kv.session(b"a:7").get(b"k")
        assert found.value.details["tried"] == address


def test_a_session_waits_for_one_replica_alone_as_long_as_it_has_time(client: str) -> None:
    b = TokenScript("b", 1)

    async def story(kv: Any) -> None:
        asyncio.get_running_loop().call_later(0.2, b.has.add, "a:1")
        assert await kv.session(b"a:1").get(b"k") is None

    play(story, b, client=client)
    assert len(b.requests) > 1


def test_too_stale_moves_on_and_is_raised_when_all_are(client: str) -> None:
    a, b, _ = three()
    stale = TooStale(site="a", silent="b", age_ms=900, bound_ms=50)
    a.mishaps["Get"] += [stale]

    async def story(kv: Any) -> None:
        assert (await kv.read(b"k", max_age_ms=50)).site == "b"
        for one in (a, b):
            one.mishaps["Get"] += [stale] * 99
        with pytest.raises(TooStale, match="has not heard from b for 900 ms"):
            await kv.get(b"k", max_age_ms=50, timeout_s=0.3)

    play(story, a, b, client=client)
    assert {(one.freshness.level, one.freshness.bound_ms) for one in b.requests} == {(Level.BOUNDED, 50)}


# One call after another


def test_calls_of_one_session_queue_up_and_its_token_waits_for_them(client: str) -> None:
    a = TokenScript()
    a.pause_s = 0.02

    async def story(kv: Any) -> None:
        one = kv.session()
        puts = [asyncio.create_task(one.put(b"k%d" % number, b"v")) for number in range(5)]
        while not a.under_way:
            await asyncio.sleep(0.001)
        assert await one.token() != b"", "it was taken when no call was under way"
        await asyncio.gather(*puts)
        assert len(seen_in(await one.token())) == 5
        assert a.most_under_way == 1
        await asyncio.gather(*[kv.session().put(b"k", b"v") for _ in range(5)])
        assert a.most_under_way > 1, "sessions do not wait for each other"

    play(story, a, client=client)


def test_who_waits_in_vain_for_its_turn_was_surely_not_done(client: str) -> None:
    a = TokenScript()
    a.mishaps["Put"] += [SILENT]

    async def story(kv: Any) -> None:
        one = kv.session()
        first = asyncio.create_task(one.put(b"k", b"v", timeout_s=1.0))
        while not a.requests:
            await asyncio.sleep(0.001)
        with pytest.raises(DeadlineExceeded, match="another call of the session was under way") as found:
            await one.put(b"l", b"v", timeout_s=0.1)
        assert found.value.definite
        with pytest.raises(DeadlineExceeded):
            await first
        await one.put(b"m", b"v")
        assert [*a.data] == [b"m"]

    play(story, a, client=client)


def test_a_task_that_is_cancelled_leaves_its_session_usable() -> None:
    a = TokenScript()
    a.mishaps["Put"] += [SILENT]

    async def story(kv: Any) -> None:
        one = kv.session()
        under_way = asyncio.create_task(one.put(b"k", b"v"))
        while not a.requests:
            await asyncio.sleep(0.001)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.put(b"k", b"waits for its turn"), 0.05)
        under_way.cancel()
        await one.put(b"k", b"w")
        assert await one.token() == b"a:1"

    play(story, a, client="asyncio")


# Broken on purpose


def without_token(request: Any, token: bytes) -> None:
    """A session that begins anew with every call."""
    request.freshness.level = Level.SESSION


def token_first(self: Memory, call: Any, answer: Any) -> Any:
    self.take_token(answer)
    return call.read(answer)


def test_a_token_that_is_dropped_is_noticed(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "carry", without_token)
    a, b, c = three()
    with pytest.raises(AssertionError, match="it must not read older than it wrote"):
        play(lambda kv: read_own_write_elsewhere(kv, a, b, c), a, b, c, client=client)


def test_a_token_that_is_taken_from_a_failed_call_is_noticed(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "learn", token_first)
    a = ShortScript()
    with pytest.raises(AssertionError, match="x:9"):
        play(lambda kv: learn_nothing_from_a_failed_call(kv, a), a, client=client)


def test_a_write_that_is_taken_elsewhere_when_it_may_be_done_is_noticed(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(retry.Course, "may_be_done", never, raising=False)
    a, b = TokenScript("a", 0), TokenScript("b", 1)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        play(lambda kv: stay_when_it_may_be_done(kv, a, b), a, b, client=client)
    assert a.effects == 2 and b.effects == 1, "the same write twice"
