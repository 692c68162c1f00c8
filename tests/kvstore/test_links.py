"""Links between real replicas: nothing lost, nothing twice, whatever breaks."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from kvstore.backlog import Backlog
from kvstore.config import LinkConfig
from kvstore.effects import Envelope
from kvstore.errors import Unavailable
from kvstore.hello import Accepted
from kvstore.limits import Limits
from kvstore.rpc import frames, links
from kvstore.shape import write_cuts
from kvstore.storage.lmdb import LmdbStorage
from tests.kvstore.town import QUICK, Town, listener, story, town, until

A, B, C = range(3)


def numbers(count: int) -> list[int]:
    return list(range(1, count + 1))


def test_what_is_written_anywhere_comes_everywhere_once() -> None:
    async def told() -> None:
        async with town(3) as those:
            await asyncio.gather(*(one.put_many(20) for one in those))
            await those.until_equal()
            for one in those:
                for peer, link in one.replica.links.items():
                    assert one.delivered(peer) == numbers(link.applied)
                assert not [event for event in one.events if event.kind == "duplicate"]
                assert len(one.keys()) == 60

    story(told)


def test_what_waits_before_the_first_connection_is_sent_first() -> None:
    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server, links=False)
            await b.stop()
            await a.start(a.server)
            await a.put_many(5)
            await until(lambda: a.links.state(B).trouble not in ("", "it was not dialed yet"))
            assert "cannot be reached" in a.links.state(B).trouble
            await b.start()
            await those.until_equal()
            assert a.links.state(B).trouble == ""

    story(told)


async def break_streams(those: Town, count: int, chance: random.Random) -> None:
    """Break so many streams, at either end, while writers write."""
    for _ in range(count):
        await those.until_open()
        await asyncio.sleep(chance.uniform(0, 0.02))
        one = those[chance.randrange(2)]
        attempt = one.links._links[1 - one.number]._attempt
        stream = one.peering._streams.get(1 - one.number)
        if chance.random() < 0.5 and attempt is not None:
            attempt.cancel()
        elif stream is not None:
            stream.end(Unavailable(site=one.site.name, why="the test broke it"))


@pytest.mark.parametrize("seed", range(3))
def test_broken_streams_lose_nothing_and_repeat_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "STEADY_S", 0)

    async def told() -> None:
        async with town(limits=Limits(heartbeat_ms=20, link_batch_max=3, link_cache_max=5)) as those:
            breaking = break_streams(those, 20, random.Random(seed))
            await asyncio.gather(breaking, *(one.put_many(300) for one in those))
            await those.until_equal()
            for one in those:
                assert one.delivered(1 - one.number) == numbers(300)
            assert sum(one.links.state(1 - one.number).connects for one in those) > 15

    story(told)


def test_a_killed_replica_comes_back_and_gets_the_rest(tmp_path: Path) -> None:
    async def told() -> None:
        disks = [LmdbStorage(tmp_path / name, create=True) for name in "ab"]
        async with town(storages=list(disks)) as those:
            a, b = those
            await a.put_many(10)
            await those.until_equal()
            await b.stop()
            await a.put_many(10, start=10)
            b.events.clear()
            await b.start()
            await b.put_many(3)
            await those.until_equal()
            assert b.delivered(A) == list(range(11, 21))
            assert a.delivered(B) == numbers(3)
        for disk in disks:
            disk.close()

    story(told)


def test_a_peer_that_was_away_costs_no_memory_and_gets_everything() -> None:
    limits = Limits(heartbeat_ms=20, link_cache_max=16, link_batch_max=8, link_queue_max=8)

    async def told() -> None:
        async with town(limits=limits, is_started=False) as those:
            a, b = those
            await a.start(a.server)
            await a.put_many(1500)
            assert a.links.state(B).queue == 0, "nobody is there to take it"
            await b.start(b.server)
            most, count = 0, 0
            while b.replica.links[A].applied < 1500:
                await a.put(b"meanwhile")
                most, count = max(most, a.links.state(B).queue), count + 1
                assert len(b.loop._peers[A].inputs) <= 8 + 8
            assert 0 < most <= 16 and count > 10
            await those.until_equal()
            assert b.delivered(A) == numbers(a.replica.links[B].sent)

    story(told)


def test_a_cache_without_a_bound_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: memory keeps what nobody takes."""

    def keep_all(self: Backlog, envelopes: list[Envelope]) -> None:
        self.said = envelopes[-1].number
        self._fresh.extend(envelopes)

    monkeypatch.setattr(Backlog, "add", keep_all)
    with pytest.raises(AssertionError, match="nobody is there"):
        test_a_peer_that_was_away_costs_no_memory_and_gets_everything()


def test_a_replica_that_takes_nothing_is_not_flooded_and_gets_everything_later() -> None:
    limits = Limits(heartbeat_ms=20, link_queue_max=4, link_batch_max=4, link_cache_max=64)

    async def told() -> None:
        async with town(limits=limits, is_started=False) as those:
            a, b = those
            await a.start(a.server)
            await b.start(b.server, corridor=False)
            await until(lambda: a.links.state(B).connected)
            await a.put_many(200, size=100_000)
            await asyncio.sleep(0.1)
            assert len(b.loop._peers[A].inputs) <= 4 + 4
            assert b.peering.state(A).passed <= 12
            assert a.links.state(B).passed < 200, "the stream itself holds it back"
            assert a.links.state(B).queue <= 64
            b.run(b.loop.run())
            await those.until_equal()
            assert b.delivered(A) == numbers(200)

    story(told)


def test_a_link_speaks_although_its_replica_takes_nothing_from_that_peer() -> None:
    """What a peer sent and we cannot take yet must not keep us from sending to it, or two could wait for each other."""

    async def told() -> None:
        async with town(is_started=False) as those:
            a, b = those
            await b.start(b.server)
            await a.start(a.server, links=False)

            async def never(*_: object) -> None:
                await asyncio.Event().wait()

            a.loop.offer = never
            a.run(a.links.run())
            await a.put_many(5)
            await until(lambda: b.replica.links[A].applied == 5)

    story(told)


# Batches


def test_a_quiet_link_sends_at_once_and_a_busy_one_gathers() -> None:
    limits = Limits(heartbeat_ms=60_000, link_gather_ms=300)

    async def told() -> None:
        async with town(limits=limits) as those:
            a, b = those
            await those.until_open()
            await until(lambda: a.links.state(B).frames == 1)
            start = monotonic()
            await a.put(b"first")
            await until(lambda: b.value(b"first"))
            assert monotonic() - start < 0.25, "nothing was under way"
            await a.put_many(20)
            await until(lambda: a.replica.links[B].acked == 21)
            assert a.links.state(B).frames <= 5, "twenty messages in a few frames"
            assert a.links.state(B).ack_ms > 0

    story(told)


def test_a_frame_is_full_at_its_limits_and_does_not_wait_then() -> None:
    limits = Limits(heartbeat_ms=60_000, link_gather_ms=1000, link_batch_max=5)

    async def told() -> None:
        async with town(limits=limits) as those:
            a, b = those
            await those.until_open()
            b.storage.commit = lambda batch: None  # nothing is acknowledged
            start = monotonic()
            await a.put_many(21)
            await until(lambda: b.peering.state(A).passed == 21)
            assert monotonic() - start < 0.9
            snapshot = a.metrics.snapshot()
            assert snapshot['kvstore_frame_messages_sent_total{peer="b"}'] == 21
            assert snapshot['kvstore_frames_sent_total{peer="b"}'] <= 7

    story(told)


# Distance


def test_a_round_trip_takes_the_delay_there_and_the_delay_back() -> None:
    async def told() -> None:
        async with town(links=(LinkConfig("a", "b", 60), LinkConfig("b", "a", 40))) as those:
            a, b = those
            await those.until_open()
            start = monotonic()
            await a.put(b"k")
            await until(lambda: b.value(b"k"))
            assert monotonic() - start >= 0.06
            await until(lambda: a.replica.links[B].acked == 1)
            assert monotonic() - start >= 0.1
            assert 100 <= a.links.state(B).ack_ms < 1000
            start = monotonic()
            await b.put(b"l")
            await until(lambda: a.value(b"l"))
            assert monotonic() - start >= 0.04

    story(told)


def test_distance_does_not_limit_how_much_is_under_way() -> None:
    async def told() -> None:
        async with town(limits=Limits(link_batch_max=1), links=(LinkConfig("a", "b", 200, 20),)) as those:
            a, b = those
            await those.until_open()
            start = monotonic()
            await a.put_many(40)
            await those.until_equal()
            assert monotonic() - start < 3, "forty frames, one after the other, would take eight seconds"
            assert b.delivered(A) == numbers(40)

    story(told)


# Cuts


def test_a_cut_link_is_dead_until_it_is_healed(tmp_path: Path) -> None:
    network = tmp_path / "network.json"

    async def told() -> None:
        async with town(3, network=network) as those:
            a, b, c = those
            await those.until_open()
            write_cuts(network, [("a", "b"), ("b", "a")])
            await until(lambda: not any(one.state(two).connected for one, two in ((a.links, B), (b.peering, A))))
            assert a.links.state(B).trouble == "the link to b is cut"
            connects = a.links.state(B).connects
            await a.put(b"k", b"across")
            await until(lambda: c.value(b"k"))
            await asyncio.sleep(0.3)
            assert b.value(b"k") is None
            assert a.links.state(B).connects == connects
            write_cuts(network, [])
            start = monotonic()
            await those.until_equal()
            assert monotonic() - start < 1.5, "dialed at once"
            assert b.value(b"k") == b"across"

    story(told)


def test_a_cut_takes_what_is_under_way_and_it_comes_again(tmp_path: Path) -> None:
    network = tmp_path / "network.json"

    async def told() -> None:
        async with town(network=network, links=(LinkConfig("a", "b", 300),)) as those:
            a, b = those
            await those.until_open()
            await a.put_many(5)
            await until(lambda: a.links.state(B).passed == 5)
            write_cuts(network, [("a", "b")])
            await until(lambda: not a.links.state(B).connected)
            await asyncio.sleep(0.4)
            assert b.peering.state(A).passed == 0
            write_cuts(network, [])
            await those.until_equal()
            assert b.delivered(A) == numbers(5)

    story(told)


def test_a_cut_of_one_direction_leaves_the_other(tmp_path: Path) -> None:
    network = tmp_path / "network.json"

    async def told() -> None:
        write_cuts(network, [("a", "b")])
        async with town(network=network) as those:
            a, b = those
            await until(lambda: b.links.state(A).connected)
            await b.put(b"k")
            await until(lambda: a.value(b"k"))
            assert not a.links.state(B).connected and a.links.state(B).connects == 0

    story(told)


def test_a_cut_needs_only_the_sender(tmp_path: Path) -> None:
    network, ended = tmp_path / "network.json", []

    async def accepting(_: Any, context: Any) -> None:
        await context.write(frames.accepted_frame(Accepted(0, 1, 0, 0, 0)))
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(monotonic())

    async def told() -> None:
        async with town(network=network, is_started=False) as those:
            a, b = those
            async with listener(b, accepting) as hellos:
                await a.start(a.server)
                await until(lambda: a.links.state(B).connected)
                write_cuts(network, [("a", "b")])
                await until(lambda: ended)
                await asyncio.sleep(0.2)
                assert len(hellos) == 1

    story(told)


# What an idle link says


def test_heartbeats_move_promises_so_that_tombstones_go() -> None:
    async def told() -> None:
        async with town(3) as those:
            a, b, c = those
            await a.put(b"k")
            await those.until_equal()
            await a.put(b"k", None)
            await those.until_equal()

            def is_forgotten() -> bool:
                for one in those:
                    one.loop.tick()
                return all(one.keys() == [] for one in those)

            await until(is_forgotten)
            assert all(link.promise > 0 for one in those for link in one.replica.links.values())
            assert all(abs(link.wall_ahead_ms or 0) < 1000 for link in b.replica.links.values())
            assert c.replica.links[B].wall_ahead_ms is not None

    story(told)


def test_acknowledgements_trim_the_outbox() -> None:
    async def told() -> None:
        async with town() as those:
            a, _ = those
            await a.put_many(50)
            await those.until_equal()
            a.loop.tick()
            await until(lambda: a.outbox(B) == 0)
            assert a.replica.links[B].outbox_bytes == 0

    story(told)


def test_a_mistake_of_ours_is_logged_and_the_link_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def told() -> None:
        async with town() as those:
            a, _ = those
            await those.until_open()
            waited, left = a.metrics.ack_waited, [1]

            def stumble(*args: object) -> None:
                if left:
                    left.pop()
                    raise ZeroDivisionError("planted")
                waited(*args)

            monkeypatch.setattr(a.metrics, "ack_waited", stumble)
            await a.put_many(3)
            await those.until_equal()

    story(told)
    assert "ZeroDivisionError: planted" in caplog.text


def test_a_stopped_peering_ends_its_streams() -> None:
    async def told() -> None:
        async with town(limits=QUICK) as those:
            a, b = those
            await those.until_open()
            b.peering.close()
            await until(lambda: "b is stopping" in a.links.state(B).trouble)
            assert not b.peering.state(A).connected

    story(told)
