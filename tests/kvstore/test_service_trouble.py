"""The same door when things are wrong: bad requests, late and crowded ones, a disk that fails. Nothing is half done."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from traceback import walk_tb
from typing import Any

import grpc
import pytest

from kvstore.errors import Amnesia, NotHeldHere
from kvstore.rpc import wire
from kvstore.storage.lmdb import LmdbStorage
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from tests.kvstore.served import (
    Served,
    SlowStorage,
    get,
    get_call,
    open_storage,
    put,
    put_call,
    put_operation,
    refusal,
    run,
    run_all,
    until,
)

Level = model.Freshness


# Bad input: a typed error with status and facts, and nothing is done

VERSION = model.Version(time=5 << 16, site=0)
BAD_WRITES: list[tuple[str, dict[str, Any], str, dict[str, str]]] = [
    ("empty key", {"key": b""}, "KEY_EMPTY", {}),
    ("long key", {"key": b"k" * 481}, "KEY_TOO_LONG", {"length": "481", "limit": "480"}),
    ("large value", {"value": b"v" * 1001}, "VALUE_TOO_LARGE", {"length": "1001", "limit": "1000"}),
    ("long life", {"ttl_ms": 5001}, "BAD_TTL", {"ttl_ms": "5001", "limit": "5000"}),
    ("longest life", {"ttl_ms": (1 << 64) - 1}, "BAD_TTL", {}),
    ("not absent", {"expect_absent": False}, "BAD_REQUEST", {"field": "expect_absent"}),
    ("no version", {"expect_version": model.Version()}, "BAD_VERSION", {}),
    ("no such site", {"expect_version": model.Version(time=1, site=1 << 16)}, "BAD_VERSION", {}),
    ("many replaced", {"key": b"many/k", "replaces": [VERSION] * 1001}, "BAD_REQUEST", {"field": "replaces"}),
    ("replaced is none", {"key": b"many/k", "replaces": [model.Version()]}, "BAD_VERSION", {}),
    ("long id", {"request_id": b"r" * 65}, "BAD_REQUEST", {"field": "request_id"}),
    ("session", {"session": b"token"}, "BAD_TOKEN", {"why": "it is cut short, or of another format"}),
    (
        "session with a bound",
        {"freshness": model.Freshness(level=Level.LEVEL_SESSION, bound_ms=5)},
        "BAD_REQUEST",
        {"field": "freshness"},
    ),
    ("no level", {"freshness": model.Freshness(level=9)}, "BAD_REQUEST", {"field": "freshness"}),  # type: ignore[arg-type]
    (
        "bound alone",
        {"freshness": model.Freshness(level=Level.LEVEL_ANY, bound_ms=5)},
        "BAD_REQUEST",
        {"field": "freshness"},
    ),
    (
        "independent of versions",
        {"dependencies": model.Dependencies(independent=True, versions=[VERSION])},
        "BAD_REQUEST",
        {"field": "dependencies"},
    ),
    (
        "independent with a condition",
        {"dependencies": model.Dependencies(independent=True), "expect_absent": True},
        "BAD_REQUEST",
        {"field": "dependencies"},
    ),
    (
        "independent and replacing",
        {"key": b"many/k", "dependencies": model.Dependencies(independent=True), "replaces": [VERSION]},
        "BAD_REQUEST",
        {"field": "dependencies"},
    ),
    ("bad dependency", {"dependencies": model.Dependencies(versions=[model.Version()])}, "BAD_VERSION", {}),
]


@pytest.mark.parametrize(
    ("fields", "reason", "details"), [row[1:] for row in BAD_WRITES], ids=[r[0] for r in BAD_WRITES]
)
def test_a_bad_put_is_refused_alone_in_a_batch_and_in_a_pipeline(
    fields: dict[str, Any], reason: str, details: dict[str, str]
) -> None:
    async def story(served: Served) -> None:
        request = kv.PutRequest(**{"key": b"k", "value": b"v", **fields})
        found = await refusal(served.stub.Put(request, timeout=10))
        assert found[:3] == ("INVALID_ARGUMENT", reason, True)
        assert details.items() <= found.details.items()
        await pipeline_refuses(served, request, reason)
        await batch_refuses(served, fields, reason)
        assert await get(served, b"k") is None
        await put(served, b"k", b"good")

    async def pipeline_refuses(served: Served, request: kv.PutRequest, reason: str) -> None:
        calls = [put_call(b"before"), kv.PipelineCall(put=request), put_call(b"after")]
        results = (await served.stub.Pipeline(kv.PipelineRequest(calls=calls), timeout=10)).results
        assert [one.WhichOneof("result") for one in results] == ["put", "error", "put"]
        assert (results[1].error.reason, results[1].error.definite) == (reason, True)
        assert details.items() <= dict(results[1].error.details).items()

    async def batch_refuses(served: Served, fields: dict[str, Any], reason: str) -> None:
        own = {name: value for name, value in fields.items() if name in kv.Operation.Put.DESCRIPTOR.fields_by_name}
        shared = {name: value for name, value in fields.items() if name not in own}
        batch = kv.BatchRequest(
            operations=[put_operation(b"b1"), put_operation(**{"key": b"b2", **own}), put_operation(b"b3")], **shared
        )
        number = served.storage.number
        found = await refusal(served.stub.Batch(batch, timeout=10))
        assert found[:3] == ("INVALID_ARGUMENT", reason, True)
        assert served.storage.number == number and await get(served, b"b1") is None

    run(story, value_max=1000, ttl_max_ms=5000, merge={b"": "lww", b"many/": "siblings"})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"key": b""}, "KEY_EMPTY"),
        ({"key": b"k" * 481}, "KEY_TOO_LONG"),
        ({"expect_version": model.Version()}, "BAD_VERSION"),
        ({"key": b"many/k", "replaces": [VERSION] * 1001}, "BAD_REQUEST"),
        ({"request_id": b"r" * 65}, "BAD_REQUEST"),
        ({"session": b"token"}, "BAD_TOKEN"),
        ({"dependencies": model.Dependencies(independent=True), "expect_version": VERSION}, "BAD_REQUEST"),
    ],
)
def test_a_bad_delete_is_refused(fields: dict[str, Any], reason: str) -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        found = await refusal(served.stub.Delete(kv.DeleteRequest(**{"key": b"k", **fields}), timeout=10))
        assert found[:3] == ("INVALID_ARGUMENT", reason, True)
        assert await get(served, b"k") is not None and served.storage.number == 1

    run(story, merge={b"": "lww", b"many/": "siblings"})


def test_where_the_greater_version_wins_it_does_not_matter_what_a_write_is_said_to_replace() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k", b"old")
        await put(served, b"k", b"new", replaces=[VERSION] * 1001)
        entry = await get(served, b"k")
        assert entry is not None and (entry.value, list(entry.siblings)) == (b"new", [])
        await served.stub.Delete(kv.DeleteRequest(key=b"k", replaces=[VERSION]), timeout=10)
        assert await get(served, b"k") is None

    run(story)


@pytest.mark.parametrize(
    ("method", "request_", "reason", "details"),
    [
        ("Get", kv.GetRequest(), "KEY_EMPTY", {}),
        ("Get", kv.GetRequest(key=b"k" * 481), "KEY_TOO_LONG", {"length": "481"}),
        ("Get", kv.GetRequest(key=b"k", session=b"t"), "BAD_TOKEN", {}),
        (
            "Get",
            kv.GetRequest(key=b"k", freshness=model.Freshness(bound_ms=5)),
            "BAD_REQUEST",
            {"field": "freshness"},
        ),
        ("GetMany", kv.GetManyRequest(keys=[b"k", b""]), "KEY_EMPTY", {}),
        (
            "GetMany",
            kv.GetManyRequest(keys=[b"k"] * 11),
            "BATCH_TOO_LARGE",
            {"size": "11", "unit": "keys", "limit": "10"},
        ),
        ("GetMany", kv.GetManyRequest(keys=[b"k"], session=b"t"), "BAD_TOKEN", {}),
        (
            "GetMany",
            kv.GetManyRequest(keys=[b"k"], snapshot=b"s", freshness=model.Freshness(level=Level.LEVEL_ANY)),
            "BAD_REQUEST",
            {"field": "freshness"},
        ),
        ("Batch", kv.BatchRequest(), "BAD_REQUEST", {"field": "operations"}),
        ("Batch", kv.BatchRequest(operations=[kv.Operation()]), "BAD_REQUEST", {"field": "operation"}),
        (
            "Batch",
            kv.BatchRequest(operations=[put_operation(b"k")] * 11),
            "BATCH_TOO_LARGE",
            {"size": "11", "unit": "operations", "limit": "10"},
        ),
        (
            "Batch",
            kv.BatchRequest(operations=[put_operation(b"k", b"v" * 1000)] * 3),
            "BATCH_TOO_LARGE",
            {"size": "3003", "unit": "bytes", "limit": "3000"},
        ),
        (
            "Pipeline",
            kv.PipelineRequest(calls=[kv.PipelineCall()] * 11),
            "BATCH_TOO_LARGE",
            {"size": "11", "unit": "calls", "limit": "10"},
        ),
        ("Pipeline", kv.PipelineRequest(request_id=b"r" * 57), "BAD_REQUEST", {"field": "request_id"}),
        ("Pipeline", kv.PipelineRequest(session=b"t"), "BAD_TOKEN", {}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_whole(
    method: str, request_: Any, reason: str, details: dict[str, str]
) -> None:
    async def story(served: Served) -> None:
        found = await refusal(getattr(served.stub, method)(request_, timeout=10))
        assert found[:3] == ("INVALID_ARGUMENT", reason, True)
        assert details.items() <= found.details.items()
        assert served.storage.number == 0
        assert served.metrics.calls == [(method, reason)]

    run(story, batch_max=10, message_bytes_max=3000, value_max=2000, outbox_bytes_max=1 << 20)


def test_fields_that_this_version_does_not_know_are_ignored() -> None:
    async def story(served: Served) -> None:
        newer = kv.PutRequest.FromString(kv.PutRequest(key=b"k", value=b"v").SerializeToString() + b"\xc2\x3e\x01x")
        assert len(newer.SerializeToString()) > len(kv.PutRequest(key=b"k", value=b"v").SerializeToString())
        await served.stub.Put(newer, timeout=10)
        assert await get(served, b"k") is not None

    run(story)


def test_bytes_that_are_no_request_do_no_harm() -> None:
    async def story(served: Served) -> None:
        call: Any = served.channel.unary_unary("/kvstore.v1.KeyValue/Put")
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"\x0a\xff\xff\xff", timeout=10)
        await put(served, b"k")
        assert served.storage.number == 1

    run(story)


def test_a_request_beyond_all_limits_is_stopped_by_grpc_and_nothing_is_done() -> None:
    async def story(served: Served) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await put(served, b"k", b"v" * (17 << 20))
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not wire.error_of_rpc(raised.value, site="a", timeout_ms=10).definite
        assert served.storage.number == 0

    run(story)


def test_what_a_write_says_to_depend_on_is_accepted() -> None:
    async def story(served: Served) -> None:
        first = await put(served, b"k")
        await put(served, b"l", dependencies=model.Dependencies(versions=[first.version]))
        await put(served, b"m", dependencies=model.Dependencies(independent=True))
        await put(served, b"n", freshness=model.Freshness(level=Level.LEVEL_ANY))

    run(story)


# Time and crowds


def test_a_call_without_a_deadline_gets_the_servers_and_nobody_knows_what_became_of_it() -> None:
    storage = SlowStorage()

    async def story(served: Served) -> None:
        storage.go.clear()
        refused = await refusal(served.stub.Put(kv.PutRequest(key=b"k", value=b"v")))
        assert refused[:3] == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", False)
        assert refused.details["timeout_ms"] == "50"
        storage.go.set()
        await until(lambda: served.storage.number == 1)
        assert await get(served, b"k") is not None, "it was handed over, and was done after all"

    run(story, storage, deadline_default_ms=50)


def test_no_deadline_is_longer_than_the_servers_longest() -> None:
    storage = SlowStorage()

    async def story(served: Served) -> None:
        storage.go.clear()
        refused = await refusal(served.stub.Put(kv.PutRequest(key=b"k"), timeout=3600))
        assert refused[:3] == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", False)

    run(story, storage, deadline_max_ms=50)


def test_a_write_whose_client_went_away_before_it_was_taken_is_not_done() -> None:
    storage = SlowStorage()

    async def story(served: Served) -> None:
        storage.go.clear()
        first = asyncio.ensure_future(served.stub.Put(kv.PutRequest(key=b"first"), timeout=10))
        await until(lambda: served.loop.inbox == 0 and served.service.places["calls"].taken == 1)
        second = served.stub.Put(kv.PutRequest(key=b"second"), timeout=10)
        await until(lambda: served.loop.inbox == 1)
        second.cancel()
        await until(lambda: ("Put", "CANCELLED") in served.metrics.calls)
        storage.go.set()
        await first
        await put(served, b"third")
        assert await get(served, b"second") is None
        assert served.service.places["calls"].taken == 0

    run(story, storage)


def test_one_call_too_many_is_refused_at_once_and_definitely() -> None:
    storage = SlowStorage()

    async def story(served: Served) -> None:
        storage.go.clear()
        waiting = [asyncio.ensure_future(put(served, b"k%d" % number)) for number in range(3)]
        await until(lambda: served.service.places["calls"].taken == 3)
        refused = await refusal(put(served, b"one too many"))
        assert refused[:3] == ("RESOURCE_EXHAUSTED", "TOO_MANY_WAITING", True)
        assert refused.details == {"limit": "3", "what": "calls"}
        refused = await refusal(served.stub.Get(kv.GetRequest(key=b"k"), timeout=10))
        assert refused.reason == "TOO_MANY_WAITING"
        storage.go.set()
        await asyncio.gather(*waiting)
        assert await get(served, b"one too many") is None
        await put(served, b"now there is room")

    run(story, storage, calls_max=3)


def test_a_full_inbox_refuses_at_once_and_definitely() -> None:
    storage = SlowStorage()

    async def story(served: Served) -> None:
        storage.go.clear()
        waiting = [asyncio.ensure_future(put(served, b"taken"))]
        await until(lambda: served.service.places["calls"].taken == 1 and served.loop.inbox == 0)
        waiting += [asyncio.ensure_future(put(served, b"k%d" % number)) for number in range(2)]
        await until(lambda: served.loop.inbox == 2)
        refused = await refusal(put(served, b"one too many"))
        assert refused[:3] == ("RESOURCE_EXHAUSTED", "INBOX_FULL", True)
        storage.go.set()
        await asyncio.gather(*waiting)
        assert await get(served, b"one too many") is None

    run(story, storage, inbox_max=2)


# What goes wrong behind the door


def _lose_the_secret(request: kv.PutRequest) -> None:
    raise KeyError("the secret")


def test_a_mistake_of_ours_is_logged_once_told_as_internal_and_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(served: Served) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(served.answering.decode, "put", _lose_the_secret)
            refused = await refusal(put(served, b"k"))
        assert refused[:3] == ("INTERNAL", "INTERNAL", False)
        assert "secret" not in str(refused)
        await put(served, b"k")

    with caplog.at_level(logging.WARNING):
        run(story)
    (record,) = caplog.records
    assert record.exc_info and record.exc_info[0] is KeyError


def test_a_corrupt_record_is_data_loss_and_the_replica_goes_on(tmp_path: Path) -> None:
    async def story(served: Served) -> None:
        await put(served, b"bad")
        await put(served, b"good")
        assert isinstance(served.storage, LmdbStorage)
        with served.storage.env.begin(served.storage.tables["keys"], write=True) as txn:
            sealed = txn.get(b"bad")
            assert sealed is not None
            txn.put(b"bad", bytes([sealed[0] ^ 1]) + sealed[1:])
        for call in (
            served.stub.Get(kv.GetRequest(key=b"bad"), timeout=10),
            served.stub.GetMany(kv.GetManyRequest(keys=[b"good", b"bad"]), timeout=10),
        ):
            refused = await refusal(call)
            assert refused[:2] == ("DATA_LOSS", "CORRUPT_RECORD")
            assert refused.details["key"] == "bad" and refused.details["table"] == "keys"
        results = (await served.stub.Pipeline(kv.PipelineRequest(calls=[get_call(b"bad"), get_call(b"good")]))).results
        assert results[0].error.reason == "CORRUPT_RECORD" and results[1].get.entry.key == b"good"
        await put(served, b"bad", b"written anew")
        assert await get(served, b"bad") is not None

    with open_storage("lmdb", tmp_path) as opened:
        run(story, opened)


def test_when_the_disk_fails_the_client_hears_that_nobody_knows() -> None:
    storage = SlowStorage()

    async def story(served: Served) -> None:
        storage.is_broken = True
        refused = await refusal(put(served, b"k"))
        assert refused[:3] == ("UNAVAILABLE", "STORAGE_FAILED", False)
        refused = await refusal(put(served, b"k"))
        assert refused[:3] == ("UNAVAILABLE", "STOPPING", True)

    run(story, storage)


def test_behind_a_fence_nobody_writes_and_everybody_reads() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        fence = Amnesia(peer="b", what="message", there=9, site="a", here=1)
        served.loop.fence(fence)
        for _ in range(20):
            refused = await refusal(put(served, b"k", b"x"))
            assert refused[:3] == ("FAILED_PRECONDITION", "AMNESIA", True)
        assert len(list(walk_tb(fence.__traceback__))) < 10, "one error for many calls does not gather their frames"
        results = (await served.stub.Pipeline(kv.PipelineRequest(calls=[put_call(b"k", b"x"), get_call(b"k")]))).results
        assert results[0].error.reason == "AMNESIA" and results[1].get.entry.value == b"v"

    run(story)


PLACED = {b"": ("a", "b", "c"), b"far/": ("b", "c"), b"near/": ("a",)}


def test_a_key_that_lives_elsewhere_is_written_here_and_read_and_compared_there() -> None:
    async def story(a: Served, b: Served) -> None:
        a.holders.there[1] = b
        first = await put(a, b"far/k", b"1")
        assert a.holders.asked == [] and first.site == "a"
        assert list(a.dump()["keys"]) == [], "it goes out without being held"
        await a.bring(b)
        answer = await a.stub.Get(kv.GetRequest(key=b"far/k"), timeout=10)
        assert (answer.entry.value, answer.site) == (b"1", "b")
        second = await put(a, b"far/k", b"2", expect_version=first.version)
        assert (second.site, second.version.site) == ("b", 1), "compared there, so written there"
        refused = await refusal(put(a, b"far/k", expect_version=first.version))
        assert refused[:3] == ("FAILED_PRECONDITION", "VERSION_MISMATCH", True)
        assert [(kind, holders) for kind, _, holders in a.holders.asked] == [("get", 0b110), *[("put", 0b110)] * 2]
        await put(a, b"near/k", expect_absent=True)
        assert len(a.holders.asked) == 3

    run_all(story, sites=3, placement=PLACED)


def test_what_nobody_can_be_asked_for_is_refused_by_name() -> None:
    async def story(served: Served) -> None:
        refused = await refusal(served.stub.Get(kv.GetRequest(key=b"far/k"), timeout=10))
        assert refused[:2] == ("UNAVAILABLE", "UNAVAILABLE")
        refused = await refusal(served.stub.Get(kv.GetRequest(key=b"far/k", session=b"bad"), timeout=10))
        assert refused.reason == "BAD_TOKEN" and len(served.holders.asked) == 1, "it goes no further"
        await put(served, b"near/k")
        assert await get(served, b"near/k") is not None

    run(story, sites=3, placement=PLACED)


@pytest.mark.parametrize("keys", [[b"far/k"], [b"near/k", b"far/k"], [b"far/k", b"near/k"]])
def test_a_call_that_was_forwarded_once_is_not_forwarded_again(keys: list[bytes]) -> None:
    async def story(served: Served) -> None:
        deadline_s = time.monotonic() + 5
        with pytest.raises(NotHeldHere, match=r"far/k is not held at a but at b, c"):
            await served.answering.get_many(kv.GetManyRequest(keys=keys), deadline_s, is_forwarded=True)
        operations = [put_operation(key, expect_absent=True) for key in keys]
        with pytest.raises(NotHeldHere, match=r"far/k is not held at a but at b, c"):
            await served.answering.batch(kv.BatchRequest(operations=operations), deadline_s, is_forwarded=True)
        lease = served.leases.open()
        many = kv.GetManyRequest(keys=keys, snapshot=lease.handle)
        refused = await refusal(served.stub.GetMany(many, timeout=10))
        assert refused[:2] == ("FAILED_PRECONDITION", "NOT_HELD_HERE"), "no other site can read that snapshot"
        assert served.holders.asked == [] and served.storage.number == 0

    run(story, sites=3, placement=PLACED)


def test_of_three_replicas_one_alone_takes_writes_and_puts_them_on_their_way() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        assert sorted(served.sent) == [1, 2]

    run(story, sites=3)
