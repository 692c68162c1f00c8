"""Tokens are input: forged, cut, foreign, old or huge ones get a named error, and nothing changes (SAFETY 10)."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from causal import PROTOCOLS
from causal.blocks import pack_numbers
from causal.model import Dot
from kvstore.clock import TIME_BELIEVED
from kvstore.config import Cluster
from kvstore.errors import BadToken, KvError, NoSessions
from kvstore.limits import Limits
from kvstore.past import Past
from kvstore.seal import CACHED, DIGEST_BYTES, Seal, describe
from kvstore.storage.contract import Storage
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from kvstore.v1 import watch_pb2
from tests.kvstore.served import Served, Session, all_of, get_call, put, put_call, put_operation, refusal, run, run_all
from tests.simulation.cluster import make_cluster

CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
OTHERS = [name for name, protocol in PROTOCOLS.items() if not protocol.is_causal]
PLACEMENT = {b"": ("a", "b", "c"), b"x/": ("a", "b")}
KEYS = (b"1" * 32, b"2" * 32, b"3" * 32)


def some_past(protocol: str, sites: int = 3, **more: Any) -> Past:
    ordering = Seal(make_cluster(sites, protocol))._ordering
    for _ in range(5):
        ordering.send((1 << sites) - 2)
    fields = {"time": 77 << 16, "seen": (Dot(1, 4), Dot(0, 5)), "witness": pack_numbers([5] + [0] * (sites - 1))}
    return Past(ordering.token(), **{**fields, **more})


def reason(seal: Seal, token: bytes) -> str:
    with pytest.raises(KvError) as raised:
        seal.open(token)
    return raised.value.reason


# A seal by itself


@pytest.mark.parametrize("protocol", CAUSAL)
def test_what_is_sealed_at_one_site_opens_at_another(protocol: str) -> None:
    past = some_past(protocol)
    cluster = make_cluster(3, protocol)
    token = Seal(cluster).seal(past)
    opened = Seal(cluster).open(token)
    assert opened._replace(name="") == past
    assert opened.name == token[1 : 1 + DIGEST_BYTES].hex()
    assert Seal(cluster).seal(opened) == token, "the name is no part of it"


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_token_cut_anywhere_or_with_any_bit_changed_is_refused(protocol: str) -> None:
    seal = Seal(make_cluster(3, protocol))
    token = seal.seal(some_past(protocol))
    for length in range(len(token)):
        assert reason(seal, token[:length]) == "BAD_TOKEN"
    assert reason(seal, token + b"\0") == "BAD_TOKEN"
    for place in range(len(token)):
        for bit in range(8):
            changed = token[:place] + bytes((token[place] ^ 1 << bit,)) + token[place + 1 :]
            assert reason(seal, changed) == "BAD_TOKEN"
    assert seal.open(token)


def test_without_the_digest_a_changed_token_would_open(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal(make_cluster(3, "matrix"))
    token = seal.seal(some_past("matrix"))
    time_at = 1 + DIGEST_BYTES
    forged = token[:time_at] + bytes((token[time_at] ^ 1,)) + token[time_at + 1 :]
    assert reason(seal, forged) == "BAD_TOKEN"
    monkeypatch.setattr("kvstore.seal.compare_digest", lambda *_: True)
    assert seal.open(forged).time == seal.open(token).time + 1


@given(st.binary(max_size=200))
def test_random_bytes_are_no_token(data: bytes) -> None:
    assert reason(Seal(make_cluster(3, "optimal")), data) == "BAD_TOKEN"
    assert reason(Seal(make_cluster(3, "optimal")), b"\x01" + data) == "BAD_TOKEN"


@settings(deadline=2000)
@given(st.binary(max_size=120), st.sampled_from(CAUSAL), st.integers(0, 200))
def test_whoever_has_the_key_and_seals_rubbish_still_gets_a_named_error(data: bytes, protocol: str, keep: int) -> None:
    seal = Seal(make_cluster(3, protocol))
    content = seal.seal(some_past(protocol))[1 + DIGEST_BYTES :][:keep] + data
    token = b"\x01" + seal._digest(0, content) + content
    with suppress(BadToken):
        seal.open(token)


def other_clusters() -> list[Cluster]:
    cluster = replace(make_cluster(3, "optimal"), placement=PLACEMENT)
    return [
        replace(cluster, cluster_id="another"),
        replace(cluster, protocol="matrix"),
        replace(cluster, placement={b"": ("a", "b", "c"), b"x/": ("a", "c")}),
        replace(cluster, session_keys=KEYS[:1]),
        replace(make_cluster(4, "optimal"), cluster_id=cluster.cluster_id),
    ]


@pytest.mark.parametrize("other", other_clusters(), ids=["id", "protocol", "placement", "key", "sites"])
def test_a_token_of_another_cluster_protocol_placement_or_key_is_refused_both_ways(other: Cluster) -> None:
    cluster = replace(make_cluster(3, "optimal"), placement=PLACEMENT)
    mine, theirs = Seal(cluster), Seal(other)
    assert reason(mine, theirs.seal(theirs.beginning())) == "BAD_TOKEN"
    assert reason(theirs, mine.seal(mine.beginning())) == "BAD_TOKEN"


def test_options_of_the_protocol_belong_to_the_seal() -> None:
    cluster = make_cluster(3, "extra-message")
    name, value = next(iter(Seal(cluster)._ordering.options.items()))
    one, other = Seal(cluster), Seal(replace(cluster, options={name: value + 1}))
    assert reason(one, other.seal(other.beginning())) == "BAD_TOKEN"


def test_addresses_and_limits_do_not() -> None:
    cluster = make_cluster(3, "optimal")
    first = replace(cluster.sites[0], client="127.0.0.1:1")
    moved = replace(cluster, limits=Limits(calls_max=5), sites=(first, *cluster.sites[1:]))
    assert Seal(moved).open(Seal(cluster).seal(some_past("optimal")))


def test_keys_are_exchanged_one_restart_at_a_time() -> None:
    cluster, past = make_cluster(3, "optimal"), some_past("optimal")
    old, both, turned, new = (
        Seal(replace(cluster, session_keys=keys)) for keys in (KEYS[:1], KEYS[:2], KEYS[1::-1], KEYS[1:2])
    )
    assert both.seal(past) == old.seal(past) and turned.seal(past) == new.seal(past) != old.seal(past)
    for sealing, opening in [(old, both), (both, old), (both, turned), (turned, both), (turned, new), (new, turned)]:
        assert opening.open(sealing.seal(past))._replace(name="") == past
    assert reason(new, old.seal(past)) == reason(old, new.seal(past)) == "BAD_TOKEN"
    assert reason(Seal(cluster), old.seal(past)) == "BAD_TOKEN", "the key of the cluster's id is no second key"


def test_without_a_key_file_the_seal_keeps_clusters_apart() -> None:
    assert Seal(make_cluster(3, "optimal")).seal(some_past("optimal")) != Seal(
        replace(make_cluster(3, "optimal"), cluster_id="b")
    ).seal(some_past("optimal"))


def test_a_token_too_large_is_an_error_and_never_cut_short() -> None:
    seal = Seal(make_cluster(3, "optimal", limits=Limits(token_bytes_max=60)))
    with pytest.raises(BadToken, match=r"it would take \d+ bytes; at most 60 are possible"):
        seal.seal(some_past("optimal", seen=tuple(Dot(0, n) for n in range(1, 17))))
    assert reason(seal, b"\x01" * 61) == "BAD_TOKEN"
    with pytest.raises(BadToken, match="61 bytes; at most 60"):
        seal.open(b"\x01" * 61)


def test_a_time_beyond_all_belief_is_not_taken_over() -> None:
    seal = Seal(make_cluster(3, "optimal"))
    token = seal.seal(some_past("optimal", time=(1 << 64) - 1))
    assert Seal(make_cluster(3, "optimal")).open(token).time == TIME_BELIEVED


def test_what_is_remembered_of_opened_tokens_is_bounded() -> None:
    seal = Seal(make_cluster(3, "optimal"))
    for number in range(CACHED + 50):
        seal.open(seal.seal(some_past("optimal", time=number)))
    assert len(seal._pasts) == CACHED


@pytest.mark.parametrize("protocol", OTHERS)
def test_without_causal_order_there_are_no_tokens(protocol: str) -> None:
    seal = Seal(make_cluster(3, protocol))
    assert reason(seal, b"\x01" * 50) == "NO_SESSIONS"
    with pytest.raises(NoSessions, match=f"{protocol} keeps no causal past"):
        seal.beginning()


# For people


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_token_can_be_read_without_the_key(protocol: str) -> None:
    token = Seal(replace(make_cluster(3, protocol), session_keys=KEYS)).seal(some_past(protocol))
    told = describe(token)
    assert (told["protocol"], told["sites"], told["bytes"], told["time_ms"]) == (protocol, 3, len(token), 77)
    assert told["newest"] == {"0": 5}
    assert told["seen"] == ["message 4 of site 1", "message 5 of site 0"]


@settings(deadline=2000)
@given(st.binary(max_size=120), st.sampled_from(CAUSAL), st.integers(0, 200))
def test_describing_rubbish_is_a_named_error(data: bytes, protocol: str, keep: int) -> None:
    token = Seal(make_cluster(3, protocol)).seal(some_past(protocol))[:keep] + data
    with suppress(BadToken):
        describe(token)


# At the door: named errors, and nothing changed


def requests_with(token: bytes) -> list[tuple[str, Any]]:
    """Every call that a token can come with."""
    return [
        ("Get", kv.GetRequest(key=b"k", session=token)),
        ("GetMany", kv.GetManyRequest(keys=[b"k"], session=token)),
        ("Put", kv.PutRequest(key=b"k", value=b"x", session=token)),
        ("Delete", kv.DeleteRequest(key=b"k", session=token)),
        ("Batch", kv.BatchRequest(operations=[put_operation(b"k", b"x")], session=token)),
        ("Pipeline", kv.PipelineRequest(calls=[put_call(b"k", b"x"), get_call(b"k")], session=token)),
        ("Scan", kv.ScanRequest(session=token)),
        ("Watch", watch_pb2.WatchRequest(session=token)),
    ]


async def reasons(served: Served, token: bytes) -> set[tuple[str, str, bool]]:
    found = set()
    for method, request in requests_with(token):
        call = getattr(served.stub, method)(request, timeout=10)
        found.add((await refusal(all_of(call) if method in ("Scan", "Watch") else call))[:3])
    return found


BAD = {("INVALID_ARGUMENT", "BAD_TOKEN", True)}


def test_no_call_takes_a_token_that_is_none_and_nothing_changes() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        token = served.sessions.seal.seal(some_past("optimal"))
        chance = random.Random("rubbish")
        place = chance.randrange(1 + DIGEST_BYTES, len(token))
        foreign = Seal(replace(served.cluster, cluster_id="another"))
        bad = [
            token[:-1],
            token + b"x",
            token[:place] + bytes((token[place] ^ 1,)) + token[place + 1 :],
            chance.randbytes(100),
            b"\x01" + bytes(99),
            b"\x01" * (3 << 20),
            foreign.seal(foreign.beginning()),
        ]
        before, memory = served.dump(), served.replica.committed(1)
        for one in bad:
            assert await reasons(served, one) == BAD
        assert served.dump() == before and served.replica.committed(1) == memory
        assert served.sessions.waiting == 0 and served.service.places["calls"].taken == 0
        assert served.lost_memory == []

    run(story, sites=3)


@pytest.mark.parametrize("protocol", OTHERS)
def test_where_there_are_no_sessions_each_call_that_wants_one_says_so(protocol: str) -> None:
    async def story(served: Served) -> None:
        assert await reasons(served, b"\x01" * 50) == {("FAILED_PRECONDITION", "NO_SESSIONS", True)}
        level = model.Freshness(level=model.Freshness.LEVEL_SESSION)
        refused = await refusal(served.stub.Get(kv.GetRequest(key=b"k", freshness=level), timeout=10))
        assert refused.reason == "NO_SESSIONS" and refused.details["protocol"] == protocol
        assert served.storage.number == 0
        answer = await put(served, b"k")
        assert answer.session == b""
        level = model.Freshness(level=model.Freshness.LEVEL_BOUNDED, bound_ms=10_000)
        assert (await served.stub.Get(kv.GetRequest(key=b"k", freshness=level), timeout=10)).entry.value == b"v"

    run(story, protocol=protocol)


@pytest.mark.parametrize("protocol", CAUSAL)
def test_an_old_token_is_as_good_as_ever(protocol: str) -> None:
    async def story(served: Served) -> None:
        session = Session()
        await session.put(served, b"k", b"1")
        old = session.copy()
        await session.put(served, b"k", b"2")
        for _ in range(3):
            replayed = old.copy()
            assert await replayed.get(served, b"k") == b"2"
            assert await replayed.get(served, b"k") == b"2"
        replayed = old.copy()
        await replayed.put(served, b"k", b"3")
        assert await session.get(served, b"k") == b"3"

    run(story, protocol=protocol)


def test_a_token_that_names_our_own_message_which_we_do_not_know_fences_us_and_changes_nothing() -> None:
    async def story(a: Served, b: Served) -> None:
        session = Session()
        await session.put(a, b"k")
        empty = Served(sites=2, at=0)
        async with empty:
            assert await reasons(empty, session.token) == {("FAILED_PRECONDITION", "AMNESIA", True)}
            assert {error.reason for error in empty.lost_memory} == {"AMNESIA"}
            assert empty.lost_memory[0].details == {
                "peer": "a session",
                "what": "message",
                "there": "1",
                "site": "a",
                "here": "0",
            }
            assert empty.storage.number == 0 and empty.replica.clock.latest == 0
        refused = await refusal(session.copy().get(b, b"k", timeout=0.2))
        assert refused.reason == "PAST_MISSING", "of another's message nobody can say so"
        assert b.lost_memory == []

    run_all(story)


def test_keys_can_be_exchanged_while_sessions_go_on() -> None:
    session = Session()
    storage: Storage | None = None

    async def story(served: Served) -> None:
        await session.get(served, b"k")
        await session.put(served, b"k")

    for keys in (KEYS[:1], KEYS[:2], KEYS[1::-1], KEYS[1:2]):
        storage = run(story, storage, sites=2, session_keys=keys).storage
    assert describe(session.token)["newest"] == {"0": 4}


def test_pipelines_open_a_bad_token_of_one_call_for_that_call_alone() -> None:
    async def story(served: Served) -> None:
        calls = [put_call(b"k"), put_call(b"l", session=b"bad"), get_call(b"k")]
        answer = await served.stub.Pipeline(kv.PipelineRequest(calls=calls), timeout=10)
        assert [one.WhichOneof("result") for one in answer.results] == ["put", "error", "get"]
        assert answer.results[1].error.reason == "BAD_TOKEN" and answer.results[1].error.definite

    run(story)
