"""Replicas in simulated time: everything of the product between its doors and its disk, on links that are slow.

A *life* of a replica goes from one start to the next crash. In it run the real corridor, sessions, reads and answers;
what is simulated is around them: clocks that disagree, disks, and links that take 0 to 200 ms (connection.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from typing import Any, NamedTuple

from causal.model import Mask, Site, sites_of
from kvstore.backlog import Backlog
from kvstore.clock import time_ms
from kvstore.config import Cluster, Durability
from kvstore.effects import Envelope, Happened
from kvstore.errors import KvError, Unavailable
from kvstore.leases import Leases
from kvstore.loop import Loop, Outlet
from kvstore.node import TICK_S
from kvstore.persist import open_replica
from kvstore.rpc.answering import Answering
from kvstore.rpc.forwarding import READS
from kvstore.sessions import Lack, Sessions
from kvstore.storage.memory import MemoryStorage
from kvstore.update import Record, unpack_record
from tests.simulation.clockwork import LaggingStorage, Writer
from tests.simulation.connection import Connection

EPOCH_MS = 1_700_000_000_000


class Weather(NamedTuple):
    """How bad it is. All times are drawn evenly from nothing to these."""

    link_ms: float = 200.0
    commit_ms: float = 10.0
    call_ms: float = 4.0  # between a client and a replica, each way
    skew_ms: float = 400.0  # of a site's wall clock, to either side
    crash_every_ms: float = 800.0  # on average, somewhere
    down_ms: float = 1_500.0


class CountingSessions(Sessions):
    """Counts the calls that had to wait."""

    def count_in(self, counts: dict[str, int]) -> None:
        self._counts = counts
        self.waited: set[asyncio.Task[Any] | None] = set()

    async def until(self, lack: Lack, *, asked_s: float, deadline_s: float) -> None:
        task = asyncio.current_task()
        self._counts["waits"] += task not in self.waited
        self.waited.add(task)
        await super().until(lack, asked_s=asked_s, deadline_s=deadline_s)


class Life:
    """One replica from a start to its crash."""

    def __init__(self, world: Replicas, number: Site) -> None:
        cluster, self.storage = world.cluster, world.disks[number]
        self.world = world
        self.site = cluster.sites[number]
        with self.storage.snapshot() as view:
            self.replica = open_replica(cluster, number, view)
        outlet = Outlet(send=self._send, ack=self._ack, refuse=self._refuse, happened=self._happened)
        self.loop = Loop(self.replica, self.storage, outlet, self.now_ms)
        self.writer = Writer(world.rng, takes_s=world.weather.commit_ms / 1000)
        self.loop._writer = self.writer  # type: ignore[assignment]  # all that it needs of a pool of threads
        self.sessions = CountingSessions(
            cluster, self.site, self.replica, self.loop, self.storage, self.now_ms, self._lost_memory
        )
        self.sessions.count_in(world.counts)
        leases = Leases(self.storage, cluster.limits, self.clock_ms)
        parts = (cluster, self.site, self.loop, self.storage, leases, self.sessions, self)
        self.answering = Answering(*parts, self.clock_ms, self.now_ms)
        self.committed = {peer: link.applied for peer, link in self.replica.links.items()}
        self.said_at_start = {peer: link.sent for peer, link in self.replica.links.items()}
        self.backlogs = {
            peer: Backlog(peer, self.storage, cluster.limits, said=said) for peer, said in self.said_at_start.items()
        }
        self.outgoing: dict[Site, Connection] = {}
        self.incoming: dict[Site, Connection] = {}
        self.calls: dict[asyncio.Task[Any], None] = {}  # a set would cancel them in any order
        self.is_over = False
        self.tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self._ticks())]

    def now_ms(self) -> int:
        return EPOCH_MS + int(asyncio.get_running_loop().time() * 1000 + self.world.skews[self.site.number])

    def clock_ms(self) -> int:
        return max(self.now_ms(), time_ms(self.replica.clock.latest))

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.loop.tick()

    # What a commit made true

    def _send(self, peer: Site, envelopes: list[Envelope]) -> None:
        self.backlogs[peer].add(envelopes)
        if peer in self.outgoing:
            self.outgoing[peer].wake.set()

    def _ack(self, peer: Site, up_to: int) -> None:
        self.committed[peer] = max(self.committed[peer], up_to)
        if peer in self.incoming:
            self.incoming[peer].ack(up_to)

    def _refuse(self, peer: Site, error: KvError) -> None:
        self.world.complain(f"{self.site.name} refuses a message of site {peer}: {error}")

    def _happened(self, happened: Happened) -> None:
        self.sessions.moved()
        self.world.counts["commits"] += 1
        self.world.counts["held"] += sum(event.kind == "held" for event in happened.events)
        self.world.counts["extras"] += sum(event.kind == "sent" and event.is_extra for event in happened.events)

    def _lost_memory(self, error: KvError) -> None:
        self.world.complain(str(error))

    # Clients and forwarded calls

    async def call(self, kind: str, request: Any, deadline_s: float, *, is_forwarded: bool = False) -> Any:
        """Ask and get the answer, unless the replica dies in between: then nobody knows."""

        async def answered() -> Any:
            await self.world.pause(self.world.weather.call_ms)
            answer = await getattr(self.answering, kind)(request, deadline_s, is_forwarded=is_forwarded)
            await self.world.pause(self.world.weather.call_ms)
            return answer

        assert not self.is_over
        task = asyncio.create_task(answered())
        self.calls[task] = None
        try:
            return await task
        except asyncio.CancelledError:
            if not self.is_over:
                raise
            raise Unavailable(site=self.site.name, why="it died") from None
        finally:
            del self.calls[task]
            self.sessions.waited.discard(task)

    async def ask(self, kind: str, request: Any, holders: Mask, deadline_s: float) -> Any:
        """Forwarding: asks a holder that lives, over a link as slow as any."""
        world = self.world
        world.counts["forwarded"] += 1
        await world.pause(world.weather.link_ms)
        asked = list(sites_of(holders))
        if kind in READS:
            asked = [site for site in asked if site in world.lives]
        else:  # a retry must come where the first try may have been done
            asked = [asked[sum(request.request_id) % len(asked)]]
        there = world.lives.get(world.rng.choice(asked)) if asked else None
        if there is None:
            raise Unavailable(site=self.site.name, why="no holder lives")
        answer = await there.call(kind, request, deadline_s, is_forwarded=True)
        await self.world.pause(self.world.weather.link_ms)
        return answer

    def crash(self) -> None:
        self.is_over = True
        for connection in (*self.outgoing.values(), *self.incoming.values()):
            connection.end()
        for call in tuple(self.calls):
            call.cancel()
        for task in self.tasks:
            task.cancel()
        self.writer.crash()
        if isinstance(self.storage, LaggingStorage):
            self.storage.lose_power()


class Replicas:
    """All sites of a cluster, the dead ones too. To be made within simulated time."""

    def __init__(self, cluster: Cluster, seed: int, weather: Weather) -> None:
        self.cluster = cluster
        self.weather = weather
        self.rng = random.Random(f"replicas {seed}")
        lags = cluster.durability is Durability.PERIODIC
        self.disks = [LaggingStorage() if lags else MemoryStorage() for _ in cluster.sites]
        self.skews = [self.rng.uniform(-weather.skew_ms, weather.skew_ms) for _ in cluster.sites]
        self.lives: dict[Site, Life] = {}
        self.trouble: list[str] = []  # what must never be said
        self.is_broken = asyncio.Event()  # something was
        self.counts = dict.fromkeys(("waits", "commits", "crashes", "held", "extras", "forwarded"), 0)
        for site in range(len(cluster.sites)):
            self.start(site)

    def pause(self, most_ms: float) -> Awaitable[None]:
        return asyncio.sleep(self.rng.uniform(0, most_ms) / 1000)

    def complain(self, sentence: str) -> None:
        self.trouble.append(sentence)
        self.is_broken.set()

    def start(self, site: Site) -> None:
        life = Life(self, site)
        for peer in self.lives.values():
            Connection(life, peer)
            Connection(peer, life)
        self.lives[site] = life

    def crash(self, site: Site) -> None:
        self.counts["crashes"] += 1
        self.lives.pop(site).crash()

    async def die_now_and_then(self) -> None:
        """Somebody dies, stays away for a while, and comes back. Sometimes several are away at once."""
        comebacks: list[asyncio.TimerHandle] = []
        try:
            while True:
                await asyncio.sleep(self.rng.expovariate(1000 / self.weather.crash_every_ms))
                site = self.rng.choice(sorted(self.lives)) if self.lives else None
                if site is not None:
                    self.crash(site)
                    down_s = self.rng.uniform(0, self.weather.down_ms) / 1000
                    comebacks.append(asyncio.get_running_loop().call_later(down_s, self.start, site))
        finally:
            for comeback in comebacks:
                comeback.cancel()

    async def settle(self) -> None:
        """Everybody comes back, and everything arrives; then what has a deadline passes it everywhere."""
        for site in range(len(self.cluster.sites)):
            if site not in self.lives:
                self.start(site)
        for _ in range(60):
            await asyncio.sleep(1.0)
            if self._is_quiet():
                break
        await asyncio.sleep(5.0)

    def _is_quiet(self) -> bool:
        links = (link for life in self.lives.values() for link in life.replica.links.values())
        return all(link.sent == link.acked for link in links)

    def complaints(self) -> list[str]:
        """What is wrong with replicas at rest."""
        found = [f"{life.site.name} has died by itself" for life in self.lives.values() if life.tasks[0].done()]
        if not self._is_quiet():
            found.append("messages are still under way after a minute")
        held = [life.site.name for life in self.lives.values() if life.replica.held]
        found += [f"{name} still holds messages" for name in held]
        states = [self._visible(site) for site in sorted(self.lives)]
        for key in sorted({key for state in states for key in state}):
            holders = list(sites_of(self.lives[0].replica.placement.sites_of(key)))
            if len({states[site].get(key) for site in holders}) > 1:
                found.append(f"the replicas differ in {key!r}")
            if any(key in state for site, state in enumerate(states) if site not in holders):
                found.append(f"{key!r} is where it should not be")
        return found

    def _visible(self, site: Site) -> dict[bytes, tuple[object, ...]]:
        with self.disks[site].snapshot() as view:
            records = {key: unpack_record(data) for key, data in view.scan("keys")}
        now_ms = self.lives[site].now_ms()
        return {key: _shown(record) for key, record in records.items() if record.is_alive(now_ms)}

    async def close(self) -> None:
        tasks = []
        for site in sorted(self.lives):
            life = self.lives.pop(site)
            life.crash()
            tasks += life.tasks
        await asyncio.gather(*tasks, return_exceptions=True)


def _shown(record: Record) -> tuple[object, ...]:
    """What all replicas must agree on. The applying commit is local; so is the place in a message that is filtered."""
    return record.version, record.value, record.expires_ms, record.dot
