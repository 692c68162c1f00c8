"""Scans and watches in a session: what they bring, the session has seen; what the session did meanwhile, they know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvstore import streams
from kvstore.v1 import kv_pb2, watch_pb2
from tests.kvstore.script import REFUSED, SILENT
from tests.kvstore.test_client import says
from tests.kvstore.tokens import CLIENTS, TokenScript, play, replaced, seen_in, sent, three


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    return request.param


def filled(script: TokenScript, keys: int) -> TokenScript:
    for number in range(keys):
        script._apply(kv_pb2.PutRequest(key=b"k%d" % number), b"v")
    return script


async def scan_and_write(kv: Any, a: TokenScript) -> None:
    one = kv.session()
    keys = []
    async for entry in one.scan(b"k", page_size=2):
        keys.append(entry.key)
        if entry.key == b"k1":
            await one.put(b"k2a", b"v")
            await one.put(b"x", b"not scanned")
    assert keys == [b"k0", b"k1", b"k2", b"k2a", b"k3"], "a scan reads what its session wrote meanwhile"
    assert seen_in(await one.token()) == {f"a:{number}" for number in range(1, 7)}


def test_a_scan_of_a_session_that_goes_on_meanwhile_reads_what_it_wrote(client: str) -> None:
    a = filled(TokenScript(), 4)
    play(lambda kv: scan_and_write(kv, a), a, client=client)
    tokens = [one.session for one in a.asked(kv_pb2.ScanRequest)]
    assert tokens == [b"", b"a:1,a:2,a:5,a:6"], "one stream as long as nothing else happens"


def test_each_page_of_a_scan_is_seen_when_it_is_there_and_its_entries_are_remembered(client: str) -> None:
    a = filled(TokenScript(), 4)

    async def story(kv: Any) -> None:
        one = kv.session()
        entries = one.scan(b"k", page_size=2)
        await anext(entries)
        assert await one.token() == b"a:1,a:2"
        await entries.aclose()
        await one.put(b"k1", b"v")

    play(story, a, client=client)
    assert replaced(a.asked(kv_pb2.PutRequest)[0]) == [2]


def test_a_scan_of_a_session_moves_with_the_token_of_its_last_page(client: str) -> None:
    a, b, c = filled(TokenScript("a", 0), 6), TokenScript("b", 1), TokenScript("c", 2)
    c.bring(a)
    a.mishaps["Scan"] += [REFUSED] * 50

    async def story(kv: Any) -> None:
        one = kv.session()
        assert [entry.key async for entry in one.scan(page_size=2)] == [b"k%d" % number for number in range(6)]
        assert (await one.read(b"k0")).site == "c"

    play(story, a, b, c, client=client)
    assert [(one.session, one.after) for one in b.asked(kv_pb2.ScanRequest)] == [(b"a:1,a:2", b"k1")]


async def watch_and_write(kv: Any, a: TokenScript) -> None:
    one = kv.session()
    await one.put(b"k", b"v")
    async with one.watch() as watch:
        keys = [(await anext(watch)).key]
        assert await one.token() == b"a:1,w:8", "it has seen the change"
        await one.put(b"k", b"w")
        keys.append((await anext(watch)).key)
        assert seen_in(await one.token()) == {"a:1", "a:2", "w:8", "w:9"}, "nothing is forgotten on either side"
        keys.append((await anext(watch)).key)
    assert keys == [b"a", b"b", b"c"], "each once"


def two_streams() -> list[Any]:
    return [[says(7), says(8, b"a"), says(9, b"b"), SILENT], [says(8), says(9, b"b"), says(10, b"c"), SILENT]]


def test_a_session_has_seen_what_its_watch_brings_and_the_watch_what_it_did(client: str) -> None:
    a = TokenScript()
    a.watches += two_streams()
    play(lambda kv: watch_and_write(kv, a), a, client=client)
    requests = a.asked(watch_pb2.WatchRequest)
    assert [(one.session, one.position.index) for one in requests] == [(b"a:1", 0), (b"a:1,a:2,w:8", 8)]


def test_a_watch_begins_where_the_past_of_its_session_is(client: str) -> None:
    a, b, _ = three()
    b.has.add("x:1")
    b.watches += [[says(7), SILENT]]

    async def story(kv: Any) -> None:
        async with kv.session(b"x:1").watch() as watch:
            assert watch.position.index == 7

    play(story, a, b, client=client)
    assert sent(a, watch_pb2.WatchRequest) == sent(b, watch_pb2.WatchRequest) == [(b"x:1", 0)]


def test_a_quiet_watch_keeps_no_call_of_its_session_waiting(client: str) -> None:
    a = TokenScript()
    a.watches += [[says(7), SILENT]]

    async def story(kv: Any) -> None:
        one = kv.session()
        async with one.watch() as watch:
            waiting = asyncio.create_task(anext(watch))
            await asyncio.sleep(0.05)
            await asyncio.wait_for(one.put(b"k", b"v"), 2)
        with pytest.raises(StopAsyncIteration):
            await waiting

    play(story, a, client=client)


def test_a_watch_whose_reader_is_cancelled_while_it_waits_for_its_turn_loses_no_change() -> None:
    a = TokenScript()
    a.watches += [[says(7), says(8, b"a"), says(9, b"b"), SILENT], [says(7), says(8, b"a"), says(9, b"b"), SILENT]]

    async def story(kv: Any) -> None:
        one = kv.session()
        async with one.watch() as watch:
            async with one.lock:  # a call is under way
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(watch), 0.1)
            assert [(await anext(watch)).key for _ in range(2)] == [b"a", b"b"]

    play(story, a, client="asyncio")


# Broken on purpose


def test_a_scan_that_does_not_notice_its_session_going_on_is_noticed(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams.Strand, "is_overtaken", False)
    a = filled(TokenScript(), 4)
    with pytest.raises(AssertionError, match="a scan reads what its session wrote meanwhile"):
        play(lambda kv: scan_and_write(kv, a), a, client=client)


def test_a_watch_that_makes_its_session_forget_is_noticed(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams.Strand, "is_overtaken", False)
    a = TokenScript()
    a.watches += two_streams()
    with pytest.raises(AssertionError, match="nothing is forgotten"):
        play(lambda kv: watch_and_write(kv, a), a, client=client)
