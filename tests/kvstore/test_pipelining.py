"""Many calls in one request, with one session for all, one for each, both, or none; here and at a holder."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore.past import Past
from kvstore.rpc import pipelining
from kvstore.rpc.pipelining import Pipelining
from kvstore.seal import describe
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from tests.kvstore.served import Served, Session, get_call, put, put_call, refusal, run, run_all, until

SHORT_S = 0.25  # a deadline that is to pass
SESSION = model.Freshness(level=model.Freshness.LEVEL_SESSION)
ANY = model.Freshness(level=model.Freshness.LEVEL_ANY)
PLACED = {b"": ("a", "b"), b"b/": ("b",)}


def get_with(key: bytes, **more: Any) -> kv.PipelineCall:
    return kv.PipelineCall(get=kv.GetRequest(key=key, **more))


def delete_call(key: bytes, **more: Any) -> kv.PipelineCall:
    return kv.PipelineCall(delete=kv.DeleteRequest(key=key, **more))


async def pipeline(served: Served, *calls: kv.PipelineCall, timeout: float = 10, **more: Any) -> kv.PipelineResponse:
    return await served.stub.Pipeline(kv.PipelineRequest(calls=calls, **more), timeout=timeout)


def kinds(answer: kv.PipelineResponse) -> list[str | None]:
    return [one.WhichOneof("result") for one in answer.results]


def own_tokens(answer: kv.PipelineResponse) -> list[bytes]:
    """Of each result; an error has none."""
    return [one.get.session or one.put.session or one.delete.session for one in answer.results]


# One session for all


def test_one_session_for_all_includes_all_of_it() -> None:
    async def story(a: Served, b: Served) -> None:
        await put(a, b"old", b"o")
        answer = await pipeline(
            a, get_call(b"old"), put_call(b"k", b"1"), delete_call(b"old"), get_call(b"k"), freshness=SESSION
        )
        assert kinds(answer) == ["get", "put", "delete", "get"]
        assert own_tokens(answer) == [b""] * 4 and answer.session
        assert answer.results[3].get.entry.value == b"1", "reads come after the writes where all stand together"
        assert all(not getattr(one, one.WhichOneof("result") or "").site for one in answer.results)
        moved = Session(answer.session)
        refused = await refusal(moved.copy().get(b, b"k", SHORT_S))
        assert refused.reason == "PAST_MISSING"
        await a.bring(b)
        assert await moved.get(b, b"k") == b"1"
        assert await moved.get(b, b"old") is None

    run_all(story)


def test_a_write_that_failed_is_no_part_of_the_session() -> None:
    async def story(a: Served, b: Served) -> None:
        await put(a, b"k")
        answer = await pipeline(a, put_call(b"k", expect_absent=True), put_call(b""), freshness=SESSION)
        assert kinds(answer) == ["error", "error"]
        assert answer.session and describe(answer.session)["newest"] == {}
        assert (await pipeline(a, freshness=SESSION)).session

    run_all(story)


def test_all_wait_for_the_one_session_and_nothing_is_done_when_it_does_not_come() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k", b"mine")
        refused = await refusal(pipeline(b, put_call(b"l"), get_call(b"k"), timeout=SHORT_S, session=session.token))
        assert refused[:3] == ("UNAVAILABLE", "PAST_MISSING", True) and b.storage.number == 0
        answer = await pipeline(b, get_call(b"k"), session=session.token, freshness=ANY)
        assert kinds(answer) == ["get"] and not answer.results[0].get.HasField("entry")
        refused = await refusal(Session(answer.session).get(b, b"k", SHORT_S))
        assert refused.reason == "PAST_MISSING", "the token of an answer includes the one that was sent"
        waiting = asyncio.ensure_future(pipeline(b, put_call(b"l"), get_call(b"k"), session=session.token))
        await until(lambda: b.sessions.waiting == 1)
        await a.bring(b)
        assert (await waiting).results[1].get.entry.value == b"mine"

    run_all(story)


def test_the_token_after_many_writes_is_sealed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(served: Served) -> None:
        sealed: list[Past] = []
        seal = served.sessions.seal.seal

        def counted(past: Past) -> bytes:
            sealed.append(past)
            return seal(past)

        monkeypatch.setattr(served.sessions.seal, "seal", counted)
        answer = await pipeline(served, *(put_call(b"k%d" % n) for n in range(100)), get_call(b"k1"), freshness=SESSION)
        assert len(sealed) == 1 and describe(answer.session)["newest"] == {"0": 1}

    run(story, sites=2)


# A session for each, and mixed


def test_calls_with_sessions_of_their_own_get_tokens_of_their_own_and_the_rest_shares_one() -> None:
    async def story(a: Served, b: Served) -> None:
        await put(b, b"x", b"1")
        await b.bring(a)
        one, other = Session(), Session()
        await one.put(b, b"y")
        await other.get(a, b"x")
        answer = await pipeline(
            a,
            put_call(b"p", session=other.token),
            put_call(b"q"),
            get_call(b"x"),
            get_with(b"x", session=other.token),
            freshness=SESSION,
        )
        assert kinds(answer) == ["put", "put", "get", "get"]
        assert [bool(token) for token in own_tokens(answer)] == [True, False, False, True]
        newest = [describe(token)["newest"] for token in own_tokens(answer) if token]
        assert newest == [{"0": 1, "1": 1}, {"1": 1}]
        assert describe(answer.session)["newest"] == {"0": 2, "1": 1}
        assert (answer.site, answer.commit) == ("a", a.storage.number)

    run_all(story)


def test_one_call_that_waits_in_vain_fails_alone() -> None:
    async def story(a: Served, b: Served) -> None:
        ahead = Session()
        await ahead.put(a, b"k")
        answer = await pipeline(
            b,
            get_with(b"k", session=ahead.token),
            put_call(b"l"),
            get_with(b"k", session=ahead.token, freshness=ANY),
            timeout=SHORT_S,
        )
        assert kinds(answer) == ["error", "put", "get"]
        error = answer.results[0].error
        assert (error.reason, error.definite, error.details["origin"]) == ("PAST_MISSING", True, "a")
        assert answer.session == b"" and own_tokens(answer)[2]

    run_all(story)


def test_a_call_can_begin_a_session_of_its_own() -> None:
    async def story(served: Served) -> None:
        answer = await pipeline(
            served, put_call(b"k", freshness=SESSION), put_call(b"l"), get_with(b"k", freshness=ANY)
        )
        assert [bool(token) for token in own_tokens(answer)] == [True, False, False]
        assert answer.session == b""
        assert describe(own_tokens(answer)[0])["newest"] == {"0": 1}

    run(story, sites=2)


def test_what_stands_alone_keeps_request_ids_and_dependencies() -> None:
    async def story(served: Served) -> None:
        calls = [put_call(b"k", freshness=ANY), put_call(b"l", expect_absent=True)]
        first = await pipeline(served, *calls, request_id=b"once")
        again = await pipeline(served, *calls, request_id=b"once")
        assert [one.put.version for one in first.results] == [one.put.version for one in again.results]
        refused = await pipeline(served, *calls, dependencies=model.Dependencies(independent=True))
        assert kinds(refused) == ["put", "error"]
        assert refused.results[1].error.details["field"] == "dependencies"

    run(story)


def test_gets_that_stand_alone_and_do_not_fit_into_the_answer_fail_by_themselves() -> None:
    async def story(served: Served) -> None:
        for number in range(4):
            await put(served, b"k%d" % number, b"v" * 1000)
        answer = await pipeline(served, *(get_with(b"k%d" % number, freshness=ANY) for number in range(4)))
        assert sorted(kinds(answer), key=str) == ["error", "error", "get", "get"]
        assert {one.error.reason for one in answer.results if one.HasField("error")} == {"BATCH_TOO_LARGE"}
        assert kinds(await pipeline(served, get_with(b"none", freshness=ANY))) == ["get"]

    run(story, message_bytes_max=2600, value_max=2000)


# At a holder


def test_calls_about_keys_that_are_held_elsewhere_are_done_there() -> None:
    async def story(a: Served, b: Served) -> None:
        a.holders.there[1] = b
        await put(b, b"b/k", b"there")
        answer = await pipeline(a, get_call(b"b/k"), put_call(b"k"), get_call(b"none"), freshness=SESSION)
        assert kinds(answer) == ["get", "put", "get"]
        assert answer.results[0].get.entry.value == b"there"
        assert (answer.site, answer.commit) == ("a", 1), "commits of another site do not count"
        assert own_tokens(answer) == [b""] * 3 and answer.session

    run_all(story, placement=PLACED)


async def each_write_follows_the_one_before(a: Served, b: Served) -> None:
    a.holders.there[1] = b
    answering = asyncio.ensure_future(
        pipeline(a, put_call(b"k", b"first"), put_call(b"b/k", b"second", expect_absent=True), freshness=SESSION)
    )
    await until(lambda: b.sessions.waiting == 1 or answering.done())
    assert not answering.done(), "the second has overtaken the first"
    await a.bring(b)
    assert kinds(await answering) == ["put", "put"]
    assert [event.depends_on for event in b.events if event.kind == "sent"] == []


def test_the_next_write_of_a_session_follows_the_one_before_wherever_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_all(each_write_follows_the_one_before, placement=PLACED)
    completed = Pipelining._completed

    def forgetful(self: Pipelining, request: Any, body: Any, session: bytes, write: Any = None) -> Any:
        return completed(self, request, body, request.session, write)

    monkeypatch.setattr(Pipelining, "_completed", forgetful)
    with pytest.raises(AssertionError, match="overtaken"):
        run_all(each_write_follows_the_one_before, placement=PLACED)


def test_a_pipeline_asks_a_holder_for_so_much_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(a: Served) -> None:
        under_way, most = 0, 0

        async def ask(kind: str, request: Any, holders: int, deadline_s: float) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.001)
            under_way -= 1
            return kv.GetResponse(site="b")

        monkeypatch.setattr(a.holders, "ask", ask)
        answer = await pipeline(a, *(get_call(b"b/%d" % number) for number in range(200)))
        assert kinds(answer) == ["get"] * 200 and most == pipelining.READS_AT_ONCE

    run(story, sites=2, placement=PLACED)
