"""What the calls of a session, and those without one, ask for and say: how fresh an answer must be, which versions a
write replaces, and what it depends on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore import ABSENT, Delete, Entry, Get, Put, Version
from kvstore.errors import KvError
from kvstore.session import KEYS_MAX, Memory
from kvstore.terms import Level
from kvstore.v1 import kv_pb2, model_pb2
from tests.kvstore.script import SILENT
from tests.kvstore.test_client import says
from tests.kvstore.tokens import CLIENTS, TokenScript, play, replaced, sent


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_the_levels_of_freshness_are_those_of_the_wire() -> None:
    for level in Level:
        assert int(model_pb2.Freshness.Level.Value(f"LEVEL_{level.name}")) == level.value


# Freshness


def test_freshness_is_asked_for_and_answers_say_how_old_they_may_be(client: str) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        found = await kv.read(b"k", freshness="any")
        assert (found.entry, found.site, found.staleness_ms) == (None, "a", 77)
        assert (await kv.read(b"k")).staleness_ms is None
        await kv.put(b"k", b"v")
        many = await kv.read_many([b"k", b"l"], max_age_ms=9)
        assert [*many.entries] == [b"k"] and many.staleness_ms is None
        one = kv.session()
        await one.get(b"k", freshness="any")
        await one.get(b"k", freshness="any")
        await one.get(b"k", freshness="session")

    play(story, a, client=client)
    assert sent(a, kv_pb2.GetRequest)[-3:] == [(b"", Level.SESSION), (b"a:1", Level.ANY), (b"a:1", 0)]
    (many,) = a.asked(kv_pb2.GetManyRequest)
    assert (many.freshness.level, many.freshness.bound_ms, many.session) == (Level.BOUNDED, 9, b"")


def test_any_does_not_wait_for_what_the_session_has_seen_and_forgets_nothing(client: str) -> None:
    b = TokenScript("b", 1)

    async def story(kv: Any) -> None:
        one = kv.session(b"a:7")
        assert await one.get(b"k", freshness="any") is None
        assert await one.token() == b"a:7"

    play(story, b, client=client)


@pytest.mark.parametrize("method", ["get", "get_many", "scan", "watch"])
def test_a_session_that_begins_with_a_bound_asks_for_a_token_first(client: str, method: str) -> None:
    a = TokenScript()
    a.watches += [[says(1), SILENT]]

    async def story(kv: Any) -> None:
        one = kv.session()
        if method == "scan":
            _ = [entry async for entry in one.scan(max_age_ms=9)]
        elif method == "watch":
            async with one.watch(max_age_ms=9):
                pass
        else:
            await getattr(one, method)(b"k" if method == "get" else [b"k"], max_age_ms=9)
        assert await one.token() == b"nothing"

    play(story, a, client=client)
    first, second = a.requests
    assert (first.session, first.freshness.level, [*first.keys]) == (b"", Level.SESSION, [])
    assert (second.session, second.freshness.level, second.freshness.bound_ms) == (b"nothing", Level.BOUNDED, 9)


# What a write replaces, and what it depends on


def versions(*times: int) -> list[Version]:
    return [Version(time, 0) for time in times]


def with_siblings(script: TokenScript, key: bytes, *times: int) -> None:
    first, *others = [model_pb2.Version(time=time) for time in times]
    siblings = [model_pb2.Sibling(value=b"w", version=one) for one in others]
    script.data[key] = model_pb2.Entry(key=key, value=b"v", version=first, siblings=siblings)


def test_a_session_replaces_what_it_has_seen_of_a_key(client: str) -> None:
    a = TokenScript()
    with_siblings(a, b"k", 90, 80)

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.put(b"l", b"never seen")
        entry = await one.get(b"k")
        assert entry.versions == (Version(90, 0), Version(80, 0))
        await one.put(b"k", b"v")
        await one.put(b"k", b"v")
        await one.put(b"k", b"beside", replaces=())
        await one.put(b"k", b"knows nothing of it", independent=True)
        await one.delete(b"k")
        await one.put(b"k", b"after a delete")

    play(story, a, client=client)
    puts = [replaced(one) for one in a.asked(kv_pb2.PutRequest)]
    assert puts == [[], [90, 80], [2], [], [], []]
    assert [sorted(replaced(one)) for one in a.asked(kv_pb2.DeleteRequest)] == [[3, 4, 5]]


def test_what_a_write_says_itself_counts(client: str) -> None:
    a = TokenScript()
    with_siblings(a, b"k", 90, 80)

    async def story(kv: Any) -> None:
        one = kv.session()
        entry = await one.get(b"k")
        await one.put(b"k", b"v", expect=entry.version)  # compare-and-set replaces all that is there
        await one.put(b"k", b"v", replaces=versions(7))
        await one.put(b"k", b"v")
        await kv.put(b"k", b"v", replaces=entry)
        await kv.put(b"k", b"v")
        await kv.delete(b"k", replaces=iter(versions(5)))

    play(story, a, client=client, **({"coalesce": False} if client == "asyncio" else {}))
    assert [replaced(one) for one in a.asked(kv_pb2.PutRequest)] == [[], [7], [2, 1], [90, 80], []]
    assert [replaced(one) for one in a.asked(kv_pb2.DeleteRequest)] == [[5]]


def test_batches_and_pipelines_of_a_session_replace_too(client: str) -> None:
    a = TokenScript()
    with_siblings(a, b"k", 90, 80)
    with_siblings(a, b"l", 70)

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.get_many([b"k", b"l"])
        await one.batch([Put(b"k", b"v"), Delete(b"l"), Put(b"m", b"v"), Put(b"k", b"w", replaces=())])
        await one.pipeline([Put(b"k", b"v"), Get(b"m"), Delete(b"m")])
        await one.get(b"l")

    play(story, a, client=client)
    (batch,) = a.asked(kv_pb2.BatchRequest)
    operations = [one.put if one.HasField("put") else one.delete for one in batch.operations]
    assert [replaced(one) for one in operations] == [[90, 80], [70], [], []]
    (pipeline,) = a.asked(kv_pb2.PipelineRequest)
    assert [replaced(one) for one in (pipeline.calls[0].put, pipeline.calls[2].delete)] == [[4, 1], [3]]
    assert pipeline.session and not pipeline.calls[0].put.session


def test_the_calls_of_a_session_travel_alone() -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        one = kv.session()
        await asyncio.gather(one.put(b"k", b"v"), kv.put(b"l", b"v"), one.get(b"k"))

    play(story, a, client="asyncio")
    assert (
        len(a.asked(kv_pb2.PutRequest)) == len(a.asked(kv_pb2.GetRequest)) == len(a.asked(kv_pb2.PipelineRequest)) == 1
    )


def test_a_failed_write_replaces_nothing_in_memory(client: str) -> None:
    a = TokenScript()
    with_siblings(a, b"k", 90)

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.get(b"k")
        with pytest.raises(KvError):
            await one.put(b"k", b"v", expect=ABSENT)
        await one.put(b"k", b"v")

    play(story, a, client=client)
    assert [replaced(one) for one in a.asked(kv_pb2.PutRequest)] == [[], [90]]


def test_a_session_remembers_so_many_keys_and_those_that_it_saw_last() -> None:
    memory = Memory(b"")
    for number in range(KEYS_MAX):
        memory.see(Entry(b"%d" % number, b"v", Version(number + 1, 0)))
    memory.see(Entry(b"0", b"v", Version(5000, 0)))
    memory.see(Entry(b"new", b"v", Version(6000, 0)))
    assert memory.versions(b"0") == (Version(5000, 0),)
    assert memory.versions(b"1") == () and memory.versions(b"2") == (Version(3, 0),)


def test_dependencies_travel(client: str) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        for one in (kv, kv.session()):
            await one.put(b"k", b"v", depends_on=versions(7, 8))
            await one.batch([Put(b"k", b"v")], independent=True)
            await one.delete(b"k", independent=True)

    play(story, a, client=client)
    for put in a.asked(kv_pb2.PutRequest):
        assert [one.time for one in put.dependencies.versions] == [7, 8] and not put.dependencies.independent
    assert [one.dependencies.independent for one in a.asked(kv_pb2.BatchRequest)] == [True, True]
    assert [one.dependencies.independent for one in a.asked(kv_pb2.DeleteRequest)] == [True, True]
    assert not a.asked(kv_pb2.PipelineRequest), "what depends on something of its own travels alone"
