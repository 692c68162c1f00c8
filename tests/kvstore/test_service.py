"""The door for clients, over real gRPC: what each call does, and that a call that fails did nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvstore.rpc import wire
from kvstore.storage.contract import Storage
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import kv_pb2_grpc
from kvstore.v1 import model_pb2 as model
from tests.kvstore.served import (
    NOW_MS,
    Served,
    delete_operation,
    get,
    get_call,
    open_storage,
    put,
    put_call,
    put_operation,
    refusal,
    run,
)


@pytest.fixture(params=["memory", "lmdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with open_storage(request.param, tmp_path) as opened:
        yield opened


# One key


def test_what_is_put_can_be_got_and_what_is_deleted_not(storage: Storage) -> None:
    async def story(served: Served) -> None:
        assert await get(served, b"k") is None
        first = await put(served, b"k", b"one")
        assert (first.site, first.commit, first.version.site) == ("a", 1, 0)
        second = await put(served, b"k", b"two")
        assert second.version.time > first.version.time and second.commit == 2
        answer = await served.stub.Get(kv.GetRequest(key=b"k"), timeout=10)
        assert answer.entry == model.Entry(key=b"k", value=b"two", version=second.version)
        assert (answer.site, answer.commit, answer.session) == ("a", 2, b"")
        gone = await served.stub.Delete(kv.DeleteRequest(key=b"k"), timeout=10)
        assert gone.version.time > second.version.time and (gone.site, gone.commit) == ("a", 3)
        assert await get(served, b"k") is None

    run(story, storage)


def test_deleting_what_is_not_there_succeeds() -> None:
    async def story(served: Served) -> None:
        gone = await served.stub.Delete(kv.DeleteRequest(key=b"never"), timeout=10)
        assert gone.version.time > 0

    run(story)


def test_an_empty_value_is_not_an_absent_one() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k", b"")
        found = await get(served, b"k")
        assert found is not None and found.value == b""

    run(story)


def test_the_largest_key_and_value_pass(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await put(served, b"\xff" * 480, b"v" * (1 << 20))
        found = await get(served, b"\xff" * 480)
        assert found is not None and len(found.value) == 1 << 20

    run(story, storage)


def test_a_value_expires_when_the_clock_reaches_its_deadline(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await put(served, b"k", b"v", ttl_ms=1000)
        found = await get(served, b"k")
        assert found is not None and found.expires_ms == NOW_MS + 1000
        served.now_ms = NOW_MS + 999
        assert await get(served, b"k") is not None
        served.now_ms = NOW_MS + 1000
        assert await get(served, b"k") is None
        many = await served.stub.GetMany(kv.GetManyRequest(keys=[b"k"]), timeout=10)
        assert list(many.entries) == []
        await put(served, b"k", b"again", expect_absent=True)

    run(story, storage)


# Compare and set


def test_compare_and_set_compares_with_the_version_that_is_here(storage: Storage) -> None:
    async def story(served: Served) -> None:
        first = await put(served, b"k", b"one", expect_absent=True)
        refused = await refusal(put(served, b"k", b"x", expect_absent=True))
        assert refused[:3] == ("FAILED_PRECONDITION", "VERSION_MISMATCH", True)
        shown = f"{first.version.time:016x}-0"
        assert refused.details == {"key": "k", "found": shown, "expected": "none"}
        second = await put(served, b"k", b"two", expect_version=first.version)
        refused = await refusal(put(served, b"k", b"x", expect_version=first.version))
        assert refused.details["expected"] == shown
        refused = await refusal(served.stub.Delete(kv.DeleteRequest(key=b"k", expect_version=first.version)))
        assert refused.reason == "VERSION_MISMATCH"
        found = await get(served, b"k")
        assert found is not None and found.value == b"two"
        await served.stub.Delete(kv.DeleteRequest(key=b"k", expect_version=second.version), timeout=10)
        refused = await refusal(put(served, b"k", b"x", expect_version=second.version))
        assert refused.details["found"] == "none"

    run(story, storage)


def test_of_many_who_expect_the_same_at_the_same_time_one_wins() -> None:
    async def story(served: Served) -> None:
        tries = [put(served, b"k", b"%d" % number, expect_absent=True) for number in range(30)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        won = [one for one in results if isinstance(one, kv.PutResponse)]
        assert len(won) == 1
        found = await get(served, b"k")
        assert found is not None and found.version == won[0].version

    run(story)


# Retries


def test_a_retry_with_the_same_request_id_has_one_effect_also_after_a_restart(tmp_path: Path) -> None:
    async def first(served: Served) -> None:
        answers = [await put(served, b"k", b"mine", request_id=b"r1", expect_absent=True) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        batch = kv.BatchRequest(operations=[put_operation(b"x"), delete_operation(b"y")], request_id=b"r2")
        assert await served.stub.Batch(batch) == await served.stub.Batch(batch)
        await put(served, b"k", b"another's")
        told.append(answers[0])

    async def second(served: Served) -> None:
        assert await put(served, b"k", b"mine", request_id=b"r1") == told[0]
        found = await get(served, b"k")
        assert found is not None and found.value == b"another's"

    told: list[kv.PutResponse] = []
    for story in (first, second):
        with open_storage("lmdb", tmp_path) as opened:
            run(story, opened)


def test_without_a_request_id_every_call_acts() -> None:
    async def story(served: Served) -> None:
        assert (await put(served, b"k")).version != (await put(served, b"k")).version

    run(story)


# Batches


def test_a_batch_is_one_commit_and_its_later_operation_on_a_key_stays(storage: Storage) -> None:
    async def story(served: Served) -> None:
        operations = [
            put_operation(b"x", b"1"),
            put_operation(b"y", b"2"),
            delete_operation(b"x"),
            put_operation(b"y", b"3", ttl_ms=50),
        ]
        answer = await served.stub.Batch(kv.BatchRequest(operations=operations), timeout=10)
        assert len(answer.versions) == 4 and all(version == answer.versions[0] for version in answer.versions)
        assert (answer.site, answer.commit, served.storage.number) == ("a", 1, 1)
        assert await get(served, b"x") is None
        found = await get(served, b"y")
        assert found is not None and found.value == b"3" and found.version == answer.versions[3]
        assert found.expires_ms == NOW_MS + 50

    run(story, storage)


def test_a_batch_with_one_failing_condition_does_nothing_at_all(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await put(served, b"there")
        before = served.storage.number
        operations = [
            put_operation(b"new"),
            delete_operation(b"there"),
            put_operation(b"there", b"x", expect_absent=True),
        ]
        refused = await refusal(served.stub.Batch(kv.BatchRequest(operations=operations)))
        assert refused[:3] == ("FAILED_PRECONDITION", "VERSION_MISMATCH", True)
        assert served.storage.number == before
        assert await get(served, b"new") is None and await get(served, b"there") is not None

    run(story, storage)


def test_the_conditions_of_a_batch_are_compared_with_the_state_before_it() -> None:
    async def story(served: Served) -> None:
        operations = [put_operation(b"k", b"1", expect_absent=True), put_operation(b"k", b"2", expect_absent=True)]
        await served.stub.Batch(kv.BatchRequest(operations=operations), timeout=10)
        found = await get(served, b"k")
        assert found is not None and found.value == b"2"

    run(story)


# Pipelines


def test_a_pipeline_gives_each_call_its_own_result_in_order(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await put(served, b"old", b"o")
        calls = [
            put_call(b"x", b"1"),
            get_call(b"old"),
            put_call(b"old", b"n", expect_absent=True),
            kv.PipelineCall(delete=kv.DeleteRequest(key=b"gone")),
            kv.PipelineCall(),
            put_call(b"x", b"2"),
            get_call(b"missing"),
            get_call(b""),
        ]
        answer = await served.stub.Pipeline(kv.PipelineRequest(calls=calls), timeout=10)
        kinds = [one.WhichOneof("result") for one in answer.results]
        assert kinds == ["put", "get", "error", "delete", "error", "put", "get", "error"]
        assert answer.results[1].get.entry.value == b"o" and not answer.results[6].get.HasField("entry")
        reasons = [answer.results[place].error.reason for place in (2, 4, 7)]
        assert reasons == ["VERSION_MISMATCH", "BAD_REQUEST", "KEY_EMPTY"]
        assert answer.results[2].error.details["expected"] == "none"
        assert answer.results[0].put.version.time < answer.results[5].put.version.time
        assert (answer.site, answer.commit, answer.results[0].put.commit) == ("a", 2, 2)
        assert answer.results[0].put.site == "", "the pipeline's own answer has it"
        found = await get(served, b"x")
        assert found is not None and found.version == answer.results[5].put.version

    run(story, storage)


def test_the_writes_of_a_pipeline_take_effect_in_order_and_share_one_commit() -> None:
    async def story(served: Served) -> None:
        calls = [put_call(b"k", b"%d" % number) for number in range(1000)]
        answer = await served.stub.Pipeline(kv.PipelineRequest(calls=calls), timeout=10)
        times = [one.put.version.time for one in answer.results]
        assert times == sorted(set(times)) and served.storage.number == 1
        found = await get(served, b"k")
        assert found is not None and found.value == b"999"

    run(story)


def test_an_empty_pipeline_has_no_results() -> None:
    async def story(served: Served) -> None:
        answer = await served.stub.Pipeline(kv.PipelineRequest(), timeout=10)
        assert len(answer.results) == 0 and answer.site == "a"

    run(story)


def test_each_call_of_a_pipeline_is_named_by_its_place_so_a_retry_has_one_effect() -> None:
    async def story(served: Served) -> None:
        request = kv.PipelineRequest(
            calls=[put_call(b"x"), get_call(b"x"), put_call(b"y", request_id=b"own"), put_call(b"x")],
            request_id=b"p" * 56,
        )
        first = await served.stub.Pipeline(request, timeout=10)
        again = await served.stub.Pipeline(request, timeout=10)
        assert again == first and served.storage.number == 1
        alone = await put(served, b"y", request_id=b"own")
        assert alone.version == first.results[2].put.version
        third = await put(served, b"x", request_id=b"p" * 56 + (3).to_bytes(8))
        assert third.version == first.results[3].put.version

    run(story)


def test_what_a_call_of_a_pipeline_leaves_out_it_takes_from_the_pipeline() -> None:
    async def story(served: Served) -> None:
        independent = model.Dependencies(independent=True)
        calls = [
            put_call(b"x"),
            put_call(b"y", expect_absent=True),
            put_call(b"z", expect_absent=True, dependencies=model.Dependencies()),
            kv.PipelineCall(get=kv.GetRequest(key=b"x", session=b"own")),
        ]
        request = kv.PipelineRequest(calls=calls, dependencies=independent)
        results = (await served.stub.Pipeline(request, timeout=10)).results
        assert [one.WhichOneof("result") for one in results] == ["put", "error", "put", "error"]
        assert results[1].error.details["field"] == "dependencies"
        assert results[3].error.reason == "BAD_TOKEN"

    run(story)


def test_gets_that_do_not_fit_into_a_pipelines_answer_fail_by_themselves() -> None:
    async def story(served: Served) -> None:
        for number in range(4):
            await put(served, b"k%d" % number, b"v" * 1000)
        calls = [get_call(b"k%d" % number) for number in range(4)]
        results = (await served.stub.Pipeline(kv.PipelineRequest(calls=calls), timeout=10)).results
        assert [one.WhichOneof("result") for one in results] == ["get", "get", "error", "error"]
        assert results[2].error.reason == "BATCH_TOO_LARGE"

    run(story, message_bytes_max=2600, value_max=2000)


# Many keys


def test_many_keys_come_in_the_order_they_were_asked_for_without_those_that_are_not_there(storage: Storage) -> None:
    async def story(served: Served) -> None:
        await asyncio.gather(*(put(served, b"k%d" % number, b"%d" % number) for number in range(5)))
        await served.stub.Delete(kv.DeleteRequest(key=b"k3"), timeout=10)
        keys = [b"k4", b"none", b"k3", b"k0", b"k4"]
        answer = await served.stub.GetMany(kv.GetManyRequest(keys=keys), timeout=10)
        assert [(entry.key, entry.value) for entry in answer.entries] == [(b"k4", b"4"), (b"k0", b"0"), (b"k4", b"4")]
        assert (answer.site, answer.commit) == ("a", served.storage.number)

    run(story, storage)


def test_many_keys_are_read_at_one_moment_while_batches_change_them() -> None:
    async def story(served: Served) -> None:
        keys = [b"k%d" % number for number in range(20)]

        async def write() -> None:
            for round_ in range(30):
                operations = [put_operation(key, b"%d" % round_) for key in keys]
                await served.stub.Batch(kv.BatchRequest(operations=operations), timeout=10)

        writing = asyncio.create_task(write())
        while not writing.done():
            answer = await served.stub.GetMany(kv.GetManyRequest(keys=keys), timeout=10)
            assert len({entry.value for entry in answer.entries}) <= 1
        await writing

    run(story)


def test_an_answer_that_would_be_too_large_is_refused() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k", b"v" * 1000)
        refused = await refusal(served.stub.GetMany(kv.GetManyRequest(keys=[b"k"] * 3), timeout=10))
        assert refused[:2] == ("INVALID_ARGUMENT", "BATCH_TOO_LARGE")
        assert refused.details == {"size": "3003", "unit": "bytes", "limit": "2600"}

    run(story, message_bytes_max=2600, value_max=2000)


def test_a_snapshot_that_nobody_has_is_gone() -> None:
    async def story(served: Served) -> None:
        refused = await refusal(served.stub.GetMany(kv.GetManyRequest(keys=[b"k"], snapshot=b"?"), timeout=10))
        assert refused[:2] == ("NOT_FOUND", "SNAPSHOT_GONE")

    run(story)


# Around the calls


def test_every_call_is_counted_with_its_method_and_how_it_ended() -> None:
    async def story(served: Served) -> None:
        await put(served, b"k")
        await get(served, b"k")
        await refusal(put(served, b""))
        assert [one async for one in served.stub.Scan(kv.ScanRequest(), timeout=10)]
        assert served.metrics.calls == [("Put", ""), ("Get", ""), ("Put", "KEY_EMPTY"), ("Scan", "")]

    run(story)


def test_a_blocking_client_reads_the_same_errors() -> None:
    def ask(address: str) -> grpc.RpcError:
        with grpc.insecure_channel(address) as channel:
            with pytest.raises(grpc.RpcError) as raised:
                kv_pb2_grpc.KeyValueStub(channel).Put(kv.PutRequest(key=b"k" * 481), timeout=10)
            return raised.value

    async def story(served: Served) -> None:
        error = wire.error_of_rpc(await asyncio.to_thread(ask, served.address), site="a", timeout_ms=10_000)
        assert (error.reason, error.definite) == ("KEY_TOO_LONG", True)

    run(story)
