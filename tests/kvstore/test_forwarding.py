"""Any replica serves any key: what is held elsewhere is asked of a holder, in one hop, with the session's token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import grpc
import pytest

from kvstore.config import LinkConfig
from kvstore.errors import KvError
from kvstore.peer.v1 import peer_pb2
from kvstore.rpc.answering import Answering
from kvstore.rpc.forwarding import Forwarding
from kvstore.rpc.frames import SERVICE
from kvstore.v1 import admin_pb2, kv_pb2_grpc, watch_pb2
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import model_pb2 as model
from tests.kvstore.running import Running, failure, running, told, until
from tests.kvstore.served import all_of, put_operation

A, B, C, D = range(4)
PLACED = {b"x/": ("b", "c"), b"y/": ("c", "d"), b"s/": ("b", "c"), b"b/": ("b",), b"a/": ("a",)}
FORWARD = f"/{SERVICE}/Forward"
Level = model.Freshness


class Sites:
    """The replicas, each with its stub; calls get ten seconds unless told."""

    def __init__(self, those: Running) -> None:
        self.running = those
        self.stubs: dict[str, Any] = {name: kv_pb2_grpc.KeyValueStub(those.channels[name]) for name in those.nodes}

    def __getitem__(self, name: str) -> Any:
        return self.running[name]

    async def put(self, at: str, key: bytes, value: bytes = b"v", *, timeout: float = 10, **more: Any) -> Any:
        return await self.stubs[at].Put(kv.PutRequest(key=key, value=value, **more), timeout=timeout)

    async def get(self, at: str, key: bytes, *, timeout: float = 10, **more: Any) -> Any:
        return await self.stubs[at].Get(kv.GetRequest(key=key, **more), timeout=timeout)

    async def get_many(self, at: str, *keys: bytes, **more: Any) -> Any:
        return await self.stubs[at].GetMany(kv.GetManyRequest(keys=keys, **more), timeout=10)

    async def batch(self, at: str, *operations: kv.Operation, **more: Any) -> Any:
        return await self.stubs[at].Batch(kv.BatchRequest(operations=operations, **more), timeout=10)

    async def forward(self, to: str, /, **fields: Any) -> Any:
        """A forwarded call, as no replica would make it."""
        site = self.running.cluster.site(to)
        whole: Any = {"cluster_id": self.running.cluster.cluster_id, "to": site.number} | fields
        request = peer_pb2.ForwardRequest(**whole)
        async with grpc.aio.insecure_channel(site.peer) as channel:
            call: Any = channel.unary_unary(FORWARD, response_deserializer=peer_pb2.ForwardResponse.FromString)
            return await call(request.SerializeToString(), timeout=10)

    def stored(self, at: str, key: bytes) -> bool:
        with self.running[at].storage.snapshot() as view:
            return view.get("keys", key) is not None

    async def until_stored(self, key: bytes, *names: str) -> None:
        await until(lambda: all(self.stored(name, key) for name in names))

    async def stop(self, name: str) -> None:
        self.running.stops[name].set()
        await until(
            lambda: all(one.links.state(self[name].site.number).connected is False for one in self.others(name))
        )

    def others(self, name: str) -> list[Any]:
        return [node for other, node in self.running.nodes.items() if other != name]

    def cut(self, *pairs: str) -> None:
        """Each `ab` is the link from a to b."""
        self.running.cut(*((pair[0], pair[1]) for pair in pairs))

    async def seen_as_cut(self, *pairs: str) -> None:
        sites = self.running.cluster.sites
        number = {site.name: site.number for site in sites}
        await until(lambda: all(self[pair[0]].shape.is_cut(number[pair[1]]) for pair in pairs))


@asynccontextmanager
async def sites(folder: Path, *, cut: tuple[str, ...] = (), **wishes: Any) -> AsyncIterator[Sites]:
    settings: Any = {"replicas": 4, "placement": PLACED, "merge": {b"s/": "siblings"}} | wishes
    async with running(folder, cut=tuple((pair[0], pair[1]) for pair in cut), **settings) as those:
        await those.until_open()
        yield Sites(those)


def story(folder: Path, play: Callable[[Sites], Awaitable[None]], **wishes: Any) -> None:
    async def whole() -> None:
        async with sites(folder, **wishes) as those:
            await play(those)

    told(whole)


SESSION = Level(level=Level.LEVEL_SESSION)


async def refusal(call: Awaitable[Any]) -> KvError:
    return (await failure(call))[1]


# Reads


def test_a_session_reads_its_write_through_a_replica_that_holds_neither(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        written = await those.put("a", b"x/k", b"mine", freshness=SESSION)
        assert written.site == "a" and written.version.site == A
        for name in "adbc":
            found = await those.get(name, b"x/k", session=written.session)
            assert found.entry.value == b"mine" and found.entry.version == written.version
            assert found.site in ("b", "c") and found.session
        assert not those.stored("a", b"x/k") and not those.stored("d", b"x/k")

    story(tmp_path, play)


def a_session_waits_at_the_holder(folder: Path) -> None:
    """d has written, and its messages reach neither holder: whoever has seen the write waits there, all others read."""

    async def play(those: Sites) -> None:
        written = await those.put("d", b"x/k", b"new", freshness=SESSION)
        assert not (await those.get("a", b"x/k")).HasField("entry"), "who has seen nothing waits for nothing"
        early = await those.get("a", b"x/k", session=written.session, freshness=Level(level=Level.LEVEL_ANY))
        assert not early.HasField("entry")
        waiting = asyncio.create_task(those.get("a", b"x/k", session=written.session))
        await asyncio.sleep(0.2)
        assert not waiting.done(), "it waits at the holder"
        those.cut("dc")
        found = await waiting
        assert found.entry.value == b"new" and found.site == "b"
        reply = await those.put("a", b"y/reply", b"r", session=found.session)
        assert reply.version.time > written.version.time, "a session's clock goes on from what it has read"

    story(folder, play, cut=("db", "dc"))


def test_a_read_waits_at_the_holder_for_what_its_session_has_seen(tmp_path: Path) -> None:
    a_session_waits_at_the_holder(tmp_path)


def test_a_read_that_is_forwarded_without_its_session_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the token stays behind."""
    call = Forwarding._call

    async def forgetful(self: Forwarding, kind: str, request: Any, *rest: Any) -> Any:
        bare = type(request)()
        bare.CopyFrom(request)
        bare.session = b""
        return await call(self, kind, bare, *rest)

    monkeypatch.setattr(Forwarding, "_call", forgetful)
    with pytest.raises(AssertionError, match="waits at the holder"):
        a_session_waits_at_the_holder(tmp_path)


def test_a_reader_that_goes_on_elsewhere_never_reads_less(tmp_path: Path) -> None:
    """What it read through a came from b; c is behind, and says so in time; once c has it, it goes on there."""

    async def play(those: Sites) -> None:
        await those.put("d", b"x/k", b"new")
        await those.until_stored(b"x/k", "b")
        seen = await those.get("b", b"x/k", freshness=SESSION)
        error = await refusal(those.get("c", b"x/k", session=seen.session, timeout=0.5))
        assert (error.reason, error.details["site"], error.details["origin"]) == ("PAST_MISSING", "c", "d")
        through = await those.get("a", b"x/k", session=seen.session)
        assert through.entry.value == b"new" and through.site == "b", "a asks who has it, if the first has not"
        those.cut()
        assert (await those.get("c", b"x/k", session=through.session)).entry.value == b"new"

    story(tmp_path, play, cut=("dc",))


def test_when_no_holder_has_it_the_error_names_what_is_missing_in_time(tmp_path: Path) -> None:
    """The way there and back takes a while, and the client still hears it from the holder."""

    async def play(those: Sites) -> None:
        written = await those.put("d", b"x/k", b"new", freshness=SESSION)
        error = await refusal(those.get("a", b"x/k", session=written.session, timeout=1.5))
        assert error.reason == "PAST_MISSING" and error.definite
        assert (error.details["origin"], error.details["seq"]) == ("d", "1")
        stale = Level(level=Level.LEVEL_BOUNDED, bound_ms=1)
        await asyncio.sleep(0.05)
        error = await refusal(those.get("a", b"x/k", freshness=stale, timeout=1.5))
        assert error.reason == "TOO_STALE" and error.details["silent"] == "d"

    delays = tuple(LinkConfig(pair[0], pair[1], 100) for pair in ("ab", "ba", "ac", "ca"))
    story(tmp_path, play, cut=("db", "dc"), links=delays)


def test_a_read_takes_the_time_of_the_links_there_and_back(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        start = monotonic()
        await those.get("a", b"x/k")
        assert monotonic() - start >= 0.16

    story(tmp_path, play, link_delay_ms=80)


def test_many_keys_are_read_at_one_site_and_one_moment(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        written = await those.batch("a", put_operation(b"x/1"), put_operation(b"y/1"), freshness=SESSION)
        found = await those.get_many("a", b"x/1", b"y/1", b"k", session=written.session)
        assert found.site == "c" and [entry.key for entry in found.entries] == [b"x/1", b"y/1"] and found.session
        error = await refusal(those.get_many("a", b"b/1", b"y/1"))
        assert error.reason == "KEYS_APART" and error.definite
        local = await those.get_many("c", b"x/1", b"y/1")
        assert local.commit >= found.commit and len(local.entries) == 2

    story(tmp_path, play)


def test_scans_and_watches_of_keys_held_elsewhere_say_where_they_are(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        for key in (b"x/1", b"k", b"a/1"):
            await those.put("a", key)
        for request in (kv.ScanRequest(prefix=b"x/"), kv.ScanRequest(range=kv.KeyRange(start=b"x", end=b"x/1"))):
            error = await refusal(all_of(those.stubs["a"].Scan(request, timeout=10)))
            assert (error.reason, error.details["holders"]) == ("NOT_HELD_HERE", "b, c")
        error = await refusal(all_of(those.stubs["a"].Scan(kv.ScanRequest(), timeout=10)))
        assert (error.reason, error.details["holders"]) == ("NOT_HELD_HERE", "no single site")
        pages = await all_of(those.stubs["a"].Scan(kv.ScanRequest(only_held=True), timeout=10))
        assert [entry.key for page in pages for entry in page.entries] == [b"a/1", b"k"]
        error = await refusal(all_of(those.stubs["a"].Watch(watch_pb2.WatchRequest(prefix=b"x/"), timeout=10)))
        assert (error.reason, error.details["holders"]) == ("NOT_HELD_HERE", "b, c")

    story(tmp_path, play)


def test_a_snapshot_shows_only_what_its_site_holds(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        lease = await those.running.admin("a").Snapshot(admin_pb2.SnapshotRequest(lease_ms=10_000), timeout=10)
        assert not (await those.get_many("a", b"k", snapshot=lease.snapshot)).entries
        for keys in ((b"x/1",), (b"k", b"x/1"), (b"x/1", b"k")):
            error = await refusal(those.get_many("a", *keys, snapshot=lease.snapshot))
            assert error.reason == "NOT_HELD_HERE" and "x/1" in str(error), "also when the first key is held"

    story(tmp_path, play)


# Writes


def test_a_write_goes_out_without_being_held(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        written = await those.put("a", b"x/k")
        assert written.site == "a" and written.version.site == A
        await those.until_stored(b"x/k", "b", "c")
        assert not those.stored("a", b"x/k") and not those.stored("d", b"x/k")
        assert those["a"].replica.links[D].sent == 0

    story(tmp_path, play)


def test_a_write_with_a_condition_is_made_where_its_keys_are(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        first = await those.put("a", b"x/k", b"1", expect_absent=True, freshness=SESSION)
        assert first.site == "b" and first.version.site == B and first.session
        error = await refusal(those.put("a", b"x/k", b"2", expect_absent=True))
        assert error.reason == "VERSION_MISMATCH" and error.definite
        second = await those.put("d", b"x/k", b"2", expect_version=first.version, session=first.session)
        assert second.version.time > first.version.time
        assert (await those.get("a", b"x/k", session=second.session)).entry.value == b"2"
        request = kv.DeleteRequest(key=b"x/k", expect_version=second.version, session=second.session)
        gone = await those.stubs["a"].Delete(request, timeout=10)
        assert not (await those.get("d", b"x/k", session=gone.session)).HasField("entry")

    story(tmp_path, play)


def test_a_batch_with_conditions_goes_to_who_holds_all_that_is_compared(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        both = [put_operation(key, expect_absent=True) for key in (b"x/1", b"y/1")]
        assert (await those.batch("a", *both)).site == "c"
        rest = await those.batch("a", put_operation(b"y/2"), put_operation(b"x/2", expect_absent=True))
        assert rest.site == "b", "what is not compared needs no holder"
        await those.until_stored(b"y/2", "c", "d")
        error = await refusal(
            those.batch("a", put_operation(b"b/1", expect_absent=True), put_operation(b"y/1", expect_absent=True))
        )
        assert error.reason == "KEYS_APART" and error.definite

    story(tmp_path, play)


def values_of(answer: Any) -> set[bytes]:
    return {answer.entry.value, *(one.value for one in answer.entry.siblings)} if answer.HasField("entry") else set()


def test_siblings_are_written_by_holders_and_replaced_from_anywhere(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        one = await those.put("a", b"s/k", b"one", freshness=SESSION)
        two = await those.put("d", b"s/k", b"two", freshness=SESSION)
        assert {one.version.site, two.version.site} <= {B, C}
        for holder, other in ((one, two), (two, one)):
            if holder.version.site != other.version.site:
                link = those[holder.site].replica.links[other.version.site]
                await until(partial(getattr, link, "applied"))
        merged = await those.get_many("a", b"s/k", session=two.session)
        both = merged.entries[0]
        assert {both.value, *(sibling.value for sibling in both.siblings)} == {b"one", b"two"}
        seen = [both.version, *(sibling.version for sibling in both.siblings)]
        last = await those.put("a", b"s/k", b"both", replaces=seen, session=merged.session)
        assert values_of(await those.get("d", b"s/k", session=last.session)) == {b"both"}

    story(tmp_path, play)


# A write is done once


async def an_answer_is_lost(those: Sites, name: str) -> None:
    """From now on this holder does what it is asked and never answers."""
    forwarding = those[name].forwarding
    answer = forwarding._answer

    async def mute(*call: Any) -> None:
        await answer(*call)
        await asyncio.Event().wait()

    forwarding._answer = mute


def a_retry_has_one_effect(folder: Path) -> None:
    async def play(those: Sites) -> None:
        answer = those["b"].forwarding._answer
        await an_answer_is_lost(those, "b")
        error = await refusal(those.put("a", b"s/k", request_id=b"r", timeout=0.5))
        assert not error.definite
        those["b"].forwarding._answer = answer
        those.cut("ab", "ba")
        await those.seen_as_cut("ab")
        for _ in range(2):
            error = await refusal(those.put("a", b"s/k", request_id=b"r"))
            assert error.reason == "UNAVAILABLE" and not error.definite, "it may have been done, and only b knows"
        those.cut()
        await until(lambda: not those["a"].shape.is_cut(B))
        again = await those.put("a", b"s/k", request_id=b"r", freshness=SESSION)
        assert again.site == "b"
        assert len(values_of(await those.get("c", b"s/k", session=again.session))) == 1
        assert len((await those.get("c", b"s/k", session=again.session)).entry.siblings) == 0

    story(folder, play)


def test_a_retry_after_an_unknown_outcome_goes_to_the_same_holder(tmp_path: Path) -> None:
    a_retry_has_one_effect(tmp_path)


def test_a_retry_that_goes_to_another_holder_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: who was asked is not remembered."""
    monkeypatch.setattr(Forwarding, "_remember", lambda self, request_id, peer: False)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        a_retry_has_one_effect(tmp_path)


def test_a_retry_of_what_was_answered_goes_to_the_same_holder_too(tmp_path: Path) -> None:
    """The holder's answer came, and was lost between us and the client."""

    async def play(those: Sites) -> None:
        first = await those.put("a", b"s/k", request_id=b"r")
        those.cut("ab", "ba")
        await those.seen_as_cut("ab")
        assert not (await refusal(those.put("a", b"s/k", request_id=b"r"))).definite
        other = await those.put("a", b"s/k", b"other", request_id=b"another")
        assert other.site == "c", "what was never asked goes where it can"
        those.cut()
        await until(lambda: not those["a"].shape.is_cut(B))
        assert (await those.put("a", b"s/k", request_id=b"r")).version == first.version
        those["a"].forwarding._asked.clear()  # as a process does that starts again
        assert (await those.put("a", b"s/k", request_id=b"r")).version == first.version

    story(tmp_path, play)


def test_a_client_that_goes_away_leaves_a_write_that_its_retry_finds(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        await an_answer_is_lost(those, "b")
        call = those.stubs["a"].Put(kv.PutRequest(key=b"s/k", value=b"v", request_id=b"r"), timeout=10)
        await those.until_stored(b"s/k", "b")
        call.cancel()
        await until(lambda: those["a"].forwarding._under_way == 0)
        assert those["a"].forwarding._asked == {b"r": B}
        await until(lambda: those["b"].forwarding._served == 0)

    story(tmp_path, play)


# One hop


def test_a_forwarded_call_goes_no_further(tmp_path: Path) -> None:
    calls = {
        "get": kv.GetRequest(key=b"x/k"),
        "get_many": kv.GetManyRequest(keys=[b"k", b"x/k"]),
        "put": kv.PutRequest(key=b"x/k", expect_absent=True),
        "delete": kv.DeleteRequest(key=b"s/k"),
        "batch": kv.BatchRequest(operations=[put_operation(b"k"), put_operation(b"s/k")]),
    }

    async def play(those: Sites) -> None:
        for kind, call in calls.items():
            error = await refusal(those.forward("a", **{kind: call}))
            assert error.reason == "NOT_HELD_HERE" and error.definite, kind
            assert error.details["holders"] == "b, c", kind
        answer = await those.forward("b", get=calls["get"])
        assert answer.WhichOneof("answer") == "get" and answer.get.site == "b"

    story(tmp_path, play)


def test_a_forwarded_call_for_somebody_else_is_refused(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        get = kv.GetRequest(key=b"x/k")
        for wrong in ({"cluster_id": "another"}, {"to": C}, {"to": 99}, {"cluster_id": ""}):
            error = await refusal(those.forward("b", get=get, **wrong))
            assert error.reason == "CLUSTER_MISMATCH" and error.definite
        assert (await refusal(those.forward("b"))).reason == "BAD_REQUEST"
        assert (await refusal(those.forward("b", get=kv.GetRequest(key=b"")))).reason == "KEY_EMPTY"
        error = await refusal(those.forward("b", get=kv.GetRequest(key=b"x/k", session=b"forged" * 9)))
        assert error.reason == "BAD_TOKEN"
        error = await refusal(those.get("a", b"x/k", session=b"forged" * 9))
        assert error.reason == "BAD_TOKEN" and not those["a"].forwarding._channels, "it is not even forwarded"

    story(tmp_path, play)


def test_a_mistake_in_a_forwarded_call_ends_the_call_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(those: Sites) -> None:
        async def stumble(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(Answering, "get", stumble)
        error = await refusal(those.forward("b", get=kv.GetRequest(key=b"x/k")))
        monkeypatch.undo()
        assert error.reason == "INTERNAL" and "ZeroDivisionError" in str(error)
        assert (await those.get("a", b"x/k")).site in ("b", "c")

    story(tmp_path, play)


# Limits


def test_forwarded_calls_have_a_bound_at_both_ends(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        written = await those.put("c", b"b/k", freshness=SESSION)
        waiting = [asyncio.create_task(those.get("a", b"b/k", session=written.session)) for _ in range(2)]
        await until(lambda: those["b"].forwarding._served == 2)
        error = await refusal(those.get("a", b"b/k", session=written.session))
        assert error.reason == "TOO_MANY_WAITING" and error.definite and those["a"].forwarding._under_way == 2
        error = await refusal(those.get("d", b"b/k", session=written.session))
        assert error.reason == "TOO_MANY_WAITING" and those["d"].forwarding._under_way == 0
        assert (await those.get("a", b"k")).site == "a", "who asks nobody else is not kept out"
        assert not (await those.get("b", b"b/k")).HasField("entry")
        those.cut()
        assert {(await one).site for one in waiting} == {"b"}
        assert those["a"].forwarding._under_way == those["b"].forwarding._served == 0

    story(tmp_path, play, cut=("cb",), limits={"forwards_max": 2})


def waiting_reads_keep_no_message_out(folder: Path, plant: Callable[[Any], None] = lambda node: None) -> None:
    async def play(those: Sites) -> None:
        plant(those["b"])
        written = await those.put("c", b"b/k", freshness=SESSION)
        reads = [those.get(name, b"b/k", session=written.session, timeout=4) for name in "ad" for _ in range(4)]
        waiting = asyncio.gather(*reads, return_exceptions=True)
        await until(lambda: those["b"].forwarding._served == 8)
        those.cut()
        answers = await waiting
        assert all(isinstance(one, kv.GetResponse) and one.entry.value == b"v" for one in answers), answers

    story(folder, play, cut=("cb",), limits={"forwards_max": 8, "waits_max": 8})


def test_reads_that_wait_keep_out_no_message_that_they_wait_for(tmp_path: Path) -> None:
    waiting_reads_keep_no_message_out(tmp_path)


def test_messages_that_share_a_place_with_forwarded_reads_are_caught(tmp_path: Path) -> None:
    """The planted bug: while the pool is full, what peers bring waits too (SAFETY 7)."""

    def plant(node: Any) -> None:
        offer = node.loop.offer

        async def shared(*brought: Any) -> None:
            while node.forwarding._served >= 8:
                await asyncio.sleep(0.01)
            await offer(*brought)

        node.loop.offer = shared

    with pytest.raises(AssertionError, match="misses message 1 of c"):
        waiting_reads_keep_no_message_out(tmp_path, plant)


# Holders that are not there


def test_when_a_holder_is_dead_the_other_is_asked(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        first = await those.put("a", b"x/k", expect_absent=True, freshness=SESSION)
        assert first.site == "b"
        await those.until_stored(b"x/k", "c")
        await those.stop("b")
        assert (await those.get("a", b"x/k", session=first.session)).site == "c"
        second = await those.put("a", b"x/k", b"2", expect_version=first.version)
        assert second.site == "c" and second.version.site == C

    story(tmp_path, play)


def test_when_all_holders_are_dead_the_error_comes_in_time_and_is_definite(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        await those.stop("b")
        await those.stop("c")
        start = monotonic()
        for call in (
            those.get("a", b"x/k"),
            those.get_many("a", b"x/1", b"s/2"),
            those.put("a", b"x/k", expect_absent=True, request_id=b"r"),
        ):
            error = await refusal(call)
            assert error.reason == "UNAVAILABLE" and error.definite
        assert monotonic() - start < 5 and not those["a"].forwarding._asked
        assert (await those.put("a", b"x/k")).site == "a", "a plain write needs nobody"

    story(tmp_path, play)


def test_a_silent_holder_does_not_use_up_the_time_for_the_other(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        for name, other in ("bc", "cb"):
            answer = those[name].forwarding._answer
            await an_answer_is_lost(those, name)
            assert (await those.get("a", b"x/k", timeout=2)).site == other
            those[name].forwarding._answer = answer
        for name in "bc":
            await an_answer_is_lost(those, name)
        error = await refusal(those.get("a", b"x/k", timeout=1))
        assert error.reason == "DEADLINE_EXCEEDED" and error.definite, "nothing was written"

    story(tmp_path, play)


def test_cut_links_carry_no_forwarded_call(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        those.cut("ba")
        await until(lambda: those["a"].shape.is_cut(B, incoming=True))
        assert (await those.get("a", b"x/k")).site == "c", "an answer would not come back"
        assert (await those.put("a", b"x/k", expect_absent=True)).site == "c"
        those.cut("ba", "ac")
        await those.seen_as_cut("ac")
        error = await refusal(those.get("a", b"x/k"))
        assert error.reason == "UNAVAILABLE" and error.definite and "cut" in str(error)
        error = await refusal(those.put("a", b"x/k", expect_absent=True))
        assert error.reason == "UNAVAILABLE" and error.definite

    story(tmp_path, play)


def test_a_cut_ends_what_is_under_way(tmp_path: Path) -> None:
    async def play(those: Sites) -> None:
        written = await those.put("c", b"b/k", freshness=SESSION)
        waiting = asyncio.create_task(those.get("a", b"b/k", session=written.session))
        await until(lambda: those["b"].forwarding._served == 1)
        those.cut("cb", "ab")
        error = await asyncio.wait_for(refusal(waiting), 3)
        assert error.reason == "UNAVAILABLE" and "cut" in str(error)
        await until(lambda: those["b"].forwarding._served == 0)
        await an_answer_is_lost(those, "b")
        those.cut("cb")
        await until(lambda: not those["a"].shape.is_cut(B))
        write = asyncio.create_task(those.put("a", b"b/k", expect_absent=True))
        await until(lambda: those["b"].forwarding._served == 1)
        those.cut("cb", "ab")
        error = await asyncio.wait_for(refusal(write), 3)
        assert error.reason == "UNAVAILABLE" and not error.definite, "it was sent"

    story(tmp_path, play, cut=("cb",))
