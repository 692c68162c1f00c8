"""Replicas that have lost their memory, on real links: found out before they can do harm (SAFETY 3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstore.errors import Amnesia, KvError
from kvstore.hello import Accepted
from kvstore.past import Past
from kvstore.rpc import frames
from kvstore.rpc.links import Links
from kvstore.storage.memory import MemoryStorage
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import kv_pb2_grpc
from kvstore.v1 import model_pb2 as model
from tests.kvstore.running import running
from tests.kvstore.running import until as until_so
from tests.kvstore.town import Resident, listener, speaker, story, town, until

A, B, C = range(3)


async def refused_writes(one: Resident) -> str:
    with pytest.raises(Amnesia) as refused:
        await one.put(b"k")
    return str(refused.value)


def test_a_replica_that_lost_its_data_is_found_out_and_speaks_no_more() -> None:
    async def told() -> None:
        async with town(3) as those:
            a, b, c = those
            await a.put_many(3)
            await those.until_equal()
            await a.stop()
            a.storage = MemoryStorage()
            await a.start()
            await until(lambda: a.replica.fence)
            assert "AMNESIA" in a.standing()
            assert "knows of link message 3 of a, which remembers only 0" in await refused_writes(a)
            await until(lambda: "PEER_REFUSED" in b.standing() or "PEER_REFUSED" in c.standing())
            await until(lambda: not any(a.links.state(peer).connected for peer in (B, C)))
            hellos = [a.links.state(peer).connects for peer in (B, C)]
            await asyncio.sleep(0.3)
            assert [a.links.state(peer).connects for peer in (B, C)] == hellos
            await b.put(b"b")
            await until(lambda: c.value(b"b"))

    story(told)


def test_writes_made_before_the_first_hello_do_not_hide_the_loss() -> None:
    """With as many new messages as were lost, all counters look right: the hello must speak of what was sent."""

    async def told() -> None:
        async with town() as those:
            a, _ = those
            await a.put_many(3)
            await those.until_equal()
            await a.stop()
            a.storage = MemoryStorage()
            await a.start(links=False)
            await a.put_many(5)
            a.run(a.links.run())
            await until(lambda: a.replica.fence)

    story(told)


def test_whoever_dials_a_replica_that_forgot_has_not_forgotten_anything_itself() -> None:
    """What a was told about its own hello, it tells b; b must not take it for its own."""

    async def told() -> None:
        async with town(3, is_started=False) as those:
            a, b, c = those
            await a.start(a.server)
            await c.start(c.server)
            await a.put_many(3)
            await until(lambda: c.replica.links[A].applied == 3)
            await a.stop()
            a.storage = MemoryStorage()
            await a.start()
            await until(lambda: a.replica.fence)
            await b.start(b.server)
            await until(lambda: "refuses the link" in b.links.state(A).trouble)
            assert b.replica.fence is None and "AMNESIA" not in b.standing()
            assert b.standing() == ["LINK_REFUSED"]
            await b.put(b"b")
            await until(lambda: c.value(b"b"))

    story(told)


PLACED = {b"": ("a", "b", "c"), b"c/": ("c",)}


@pytest.mark.parametrize("protocol", ["optimal", "matrix"])
def test_writes_to_others_made_before_the_first_hello_do_not_hide_the_loss(protocol: str) -> None:
    """b never got anything from a; that a has spoken before, it heard from c alone, and c is away now."""

    async def told() -> None:
        async with town(3, protocol=protocol, is_started=False) as those:
            a, b, c = those
            for one in those:
                one.cluster = replace(one.cluster, placement=PLACED)
                await one.start(one.server)
            for _ in range(3):
                await a.put(b"c/from a")
            await until(lambda: c.value(b"c/from a"))
            await until(lambda: c.replica.links[A].applied == 3)
            await c.put(b"from c")
            await until(lambda: b.value(b"from c"))
            assert b.replica.links[A].applied == 0 and b.replica.known_seq(A) == 3
            await c.stop()
            await a.stop()
            a.storage = MemoryStorage()
            await a.start(links=False)
            for _ in range(5):
                await a.put(b"c/from a")
            assert a.replica.ordering.clock == 5
            a.run(a.links.run())
            await until(lambda: a.replica.fence)
            assert "b knows of message 3 of a, which remembers only 0" in await refused_writes(a)

    story(told)


def test_a_clock_that_counts_what_nobody_heard_of_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the peer's word is compared with all that was made, said or not."""
    monkeypatch.setattr(Links, "_spoken", lambda self: self._parts.replica.ordering.clock)
    monkeypatch.setattr("tests.kvstore.test_amnesia.until", lambda condition: until_so(condition, 2))
    with pytest.raises(AssertionError, match="did not happen"):
        test_writes_to_others_made_before_the_first_hello_do_not_hide_the_loss("matrix")


def a_session_tells_of_a_message_that_is_on_no_link_yet(folder: Path) -> None:
    async def told() -> None:
        placement = {b"c/": ("c",)}
        async with running(folder, protocol="matrix", placement=placement, cut=(("a", "c"),)) as those:
            a, b = (kv_pb2_grpc.KeyValueStub(those.channels[name]) for name in "ab")
            await until_so(lambda: those["a"].links.state(B).connected)
            session = model.Freshness(level=model.Freshness.LEVEL_SESSION)
            written = await a.Put(kv.PutRequest(key=b"c/k", value=b"v", freshness=session), timeout=10)
            await b.Put(kv.PutRequest(key=b"k", value=b"v", session=written.session), timeout=10)
            assert those["b"].replica.known_seq(A) == 1 and those["a"].links.state(C).passed == 0
            those.cut(("a", "c"), ("a", "b"))
            await until_so(lambda: not those["a"].links.state(B).connected)
            those.cut(("a", "c"))
            await until_so(lambda: those["a"].links.state(B).connected or those["a"].replica.fence)
            assert those["a"].replica.fence is None, "it has forgotten nothing"

    story(told)


def test_what_a_session_tells_before_it_is_on_a_link_is_no_amnesia(tmp_path: Path) -> None:
    a_session_tells_of_a_message_that_is_on_no_link_yet(tmp_path)


def test_links_that_do_not_heed_what_sessions_tell_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: only messages on links count as said."""

    def deaf(self: Links, past: Past) -> None: ...

    monkeypatch.setattr(Links, "told", deaf)
    with pytest.raises(AssertionError, match="forgotten nothing"):
        a_session_tells_of_a_message_that_is_on_no_link_yet(tmp_path)


def test_a_receiver_that_lost_its_data_is_found_out_by_what_was_trimmed() -> None:
    async def told() -> None:
        async with town() as those:
            a, b = those
            await a.put_many(3)
            await those.until_equal()
            await b.stop()
            b.storage = MemoryStorage()
            await b.start()
            await until(lambda: "LINK_REFUSED" in a.standing())
            assert "a knows of the acknowledgement of link message 3 of b" in a.links.state(B).trouble
            await until(lambda: "AMNESIA" in b.standing())
            assert "which remembers only 0" in await refused_writes(b)
            assert a.replica.fence is None
            await a.put(b"a still works")

    story(told)


def answer(**changes: Any) -> Callable[[Any, Any], Awaitable[None]]:
    async def answering(_: Any, context: Any) -> None:
        accepted = Accepted(up_to=0, incarnation=1, known_seq=0, time=0, wall_ms=0)._replace(**changes)
        await context.write(frames.accepted_frame(accepted))
        await context.read()
        await asyncio.sleep(60)

    return answering


def test_somebody_who_knows_a_dot_that_we_never_used_tells_us_that_we_forgot() -> None:
    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            async with listener(b, answer(known_seq=9)) as hellos:
                await a.start(a.server)
                await until(lambda: a.replica.fence)
                assert "b knows of message 9 of a, which remembers only 0" in await refused_writes(a)
                await asyncio.sleep(0.2)
                assert len(hellos) == 1, "nothing more is said"

    story(told)


def test_a_replica_that_forgot_ends_its_other_links_too() -> None:
    async def told() -> None:
        async with town(3, is_started=False) as those:
            a, b, c = those
            async with listener(b, answer()):
                await a.start(a.server)
                await until(lambda: a.links.state(B).connected)
                async with listener(c, answer(known_seq=9)):
                    await until(lambda: a.replica.fence)
                    await until(lambda: not a.links.state(B).connected)
                    assert "c knows of message 9 of a" in a.links.state(B).trouble

    story(told)


def test_an_old_copy_of_a_restored_replica_is_kept_out() -> None:
    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server, links=False)
            await a.start(a.server, links=False)
            async with speaker(b) as restored:
                assert isinstance(await restored.greet(a.hello(B, incarnation=2)), Accepted)
                await asyncio.sleep(0.05)
                assert b.replica.links[A].incarnation == 0, "it may still find that it has forgotten something"
                await restored.say(frames.heartbeat_frame(1, 1))
                await until(lambda: b.replica.links[A].incarnation == 2)
            a.run(a.links.run())
            await until(lambda: a.replica.fence)
            assert "b knows of incarnation 2 of a, which remembers only 1" in str(a.replica.fence)

    story(told)


def test_a_restored_replica_may_write_again_when_every_peer_has_accepted_it() -> None:
    async def told() -> None:
        async with town(3, is_started=False) as those:
            a, b, c = those
            await a.start(a.server, links=False)
            a.replica.unproven = {B, C}
            a.run(a.links.run())
            await b.start(b.server)
            await until(lambda: a.replica.unproven == {C})
            with pytest.raises(KvError, match="restored"):
                await a.put(b"k")
            await c.start(c.server)
            await until(lambda: not a.replica.unproven)
            await a.put(b"k")
            await those.until_equal()

    story(told)


def test_a_restored_replica_takes_no_message_that_could_make_it_write_before_its_peers_spoke() -> None:
    async def told() -> None:
        async with town(3, protocol="extra-message", is_started=False) as those:
            a, b, c = those
            await a.start(a.server, links=False)
            a.replica.unproven = {B, C}
            a.run(a.links.run())
            await b.start(b.server)
            await b.put(b"k")
            await until(lambda: a.replica.unproven == {C})
            assert not a.delivered(B), "a delivery may make an extra message, and its number may be used already"
            await c.start(c.server)
            await until(lambda: a.delivered(B) == [1])
            await those.until_equal()

    story(told)
