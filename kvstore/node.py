"""A replica that runs: the parts, put together, started in order and stopped in order.

Starting: the disk first, because it says who we are; then the corridor; then both doors; last the links, which make
others talk to us. Stopping goes the other way, so that whoever was let in still gets an answer. There is no state here:
what a restart needs is on the disk, and what people want to see is asked of the parts.

When the corridor ends with an error, the process ends with it (see loop.py).
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvstore.alarms import Alarms
from kvstore.clock import time_ms
from kvstore.config import Cluster
from kvstore.effects import Happened
from kvstore.errors import KvError
from kvstore.feed import EventFeed, Feed
from kvstore.leases import Leases
from kvstore.loop import Loop, Outlet, moment
from kvstore.metrics import Metrics
from kvstore.persist import open_replica
from kvstore.rpc.doors import Doors
from kvstore.rpc.forwarding import Forwarding
from kvstore.rpc.links import Links
from kvstore.rpc.peering import Peering
from kvstore.sessions import Sessions
from kvstore.shape import Shape
from kvstore.storage import Storage
from kvstore.storage.contract import SnapshotEnded
from kvstore.storage.lmdb import LmdbStorage
from kvstore.trace import Trace
from kvstore.wall import wall_ms

TICK_S = 0.2  # between two looks at what time has changed: expiry, leases, alarms
GRACE_S = 2.0  # that calls under way get when the replica stops; beyond it: they are cancelled

log = logging.getLogger("kvstore")


class Node:
    """One replica in this process."""

    def __init__(
        self,
        cluster: Cluster,
        site: str,
        *,
        trace: Path | None = None,
        network: Path | None = None,
        reflection: bool = True,
        storage: Storage | None = None,
    ) -> None:
        self.cluster = cluster
        self.site = cluster.site(site)
        self.started_ms = self.now_ms()
        self.storage = storage or _open_storage(cluster, cluster.data_of(self.site))
        self._event_loop = asyncio.get_running_loop()
        try:
            with self.storage.snapshot() as view:
                self.replica = open_replica(cluster, self.site.number, view, str(cluster.data_of(self.site)))
            self._wire(network, reflection)
            self.trace = self._start_trace(trace) if trace is not None else None
        except BaseException:
            self.storage.close()
            raise

    def _start_trace(self, folder: Path) -> Trace:
        ordering = self.replica.ordering
        self.replica.notes.start_witness(delivered=ordering.delivered, clock=ordering.clock)
        trace = Trace(
            folder,
            cluster=self.cluster,
            site=self.site,
            incarnation=self.replica.incarnation,
            alarm=self._trace_stopped,
        )
        if self.storage.number:
            trace.happened(self.replica.notes.restarted(ordering.clock, self.storage.number, moment()))
        return trace

    def _lost_memory(self, error: KvError) -> None:
        """A session shows that this replica once said what it does not know any more (SAFETY 3)."""
        self.loop.fence(error)
        self.alarms.raise_("AMNESIA", str(error), site=self.site.name)

    def _trace_stopped(self, sentence: str) -> None:
        """Called by the thread that writes the trace."""
        self._event_loop.call_soon_threadsafe(self.alarms.raise_, "TRACE_STOPPED", sentence)

    def _wire(self, network: Path | None, reflection: bool) -> None:
        self.metrics = Metrics(
            self.site.name,
            self.cluster.protocol,
            sites=[site.name for site in self.cluster.sites],
            commit=self.storage.number,
        )
        self.alarms = Alarms(self.now_ms)
        self.feed, self.events = Feed(), EventFeed(self.cluster.limits)
        self.leases = Leases(self.storage, self.cluster.limits, self.clock_ms)
        self.shape = Shape(self.cluster, self.site, network)
        outlet = Outlet(
            send=lambda peer, envelopes: self.links.send(peer, envelopes),
            ack=lambda peer, up_to: self.peering.ack(peer, up_to),
            refuse=lambda peer, error: self.peering.refuse(peer, error),
            happened=self._happened,
        )
        self.loop = Loop(self.replica, self.storage, outlet, self.now_ms)
        parts = (self.cluster, self.site, self.replica, self.loop, self.storage, self.shape, self.alarms, self.metrics)
        self.links = Links(*parts)
        self.peering = Peering(*parts)
        self.peering.on_hello = self.links.call
        self.sessions = Sessions(
            self.cluster, self.site, self.replica, self.loop, self.storage, self.now_ms, self._lost_memory
        )
        self.sessions.seal.on_seal = self.links.told
        self.forwarding = Forwarding(self.cluster, self.site, self.links, self.shape)
        self.doors = Doors(self, reflection=reflection)
        self._show_gauges()

    def _show_gauges(self) -> None:
        """What is so now, read when somebody looks."""
        gauge, replica, links = self.metrics.gauge, self.replica, self.replica.links
        names = {peer: self.cluster.sites[peer].name for peer in links}
        gauge("kvstore_inbox_writes", "Writes that wait for the corridor.", lambda: self.loop.inbox)
        gauge("kvstore_held_messages", "Messages held back now.", lambda: len(replica.held))
        gauge(
            "kvstore_outbox_bytes",
            "Bytes kept for a peer that has not acknowledged them.",
            lambda: {name: links[peer].outbox_bytes for peer, name in names.items()},
            label="peer",
        )
        gauge("kvstore_log_units", "What the protocol remembers, in its own measure.", replica.ordering_units)
        gauge("kvstore_storage_bytes", "Size of the data on disk.", self.storage.size_bytes)
        gauge("kvstore_waiting_requests", "Requests that wait for what their session has seen.", self._waiting)
        gauge("kvstore_staleness_seconds", "Everything written longer ago is here.", self._staleness_s)
        gauge("kvstore_snapshots", "Snapshots that are leased.", lambda: len(self.leases))
        gauge("kvstore_clock_ahead_seconds", "Hybrid clock before the wall clock.", self._clock_ahead_s)
        gauge(
            "kvstore_links_connected",
            "Links to a peer that are open.",
            lambda: {name: float(self.links.state(peer).connected) for peer, name in names.items()},
            label="peer",
        )

    def _clock_ahead_s(self) -> float:
        return self.replica.clock.ahead_ms(self.now_ms()) / 1000

    def _waiting(self) -> int:
        return self.sessions.waiting

    def _staleness_s(self) -> float:
        staleness_ms = self.sessions.staleness_ms()
        return -1.0 if staleness_ms is None else staleness_ms / 1000

    # Time

    now_ms = staticmethod(wall_ms)

    def clock_ms(self) -> int:
        """What expiry is judged by: the wall clock, but never behind what this site has already seen."""
        return max(self.now_ms(), time_ms(self.replica.clock.latest))

    # Life

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set; raises what ended the corridor, if anything did."""
        await self.doors.open()
        log.info("%s serves clients at %s, peers at %s", self.site.name, self.site.client, self.site.peer)
        tasks = [_named("stop", _wait(stop)), _named("corridor", self.loop.run()), _named("clockwork", self._ticks())]
        tasks.append(_named("links", self.links.run()))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await self._close(*tasks[1:])

    async def _close(self, corridor: asyncio.Task[Any], *others: asyncio.Task[Any]) -> None:
        await self.doors.close(GRACE_S)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.loop.stop()
        with suppress(Exception):  # it was reported already, or is about to be
            await corridor
        await self.links.close()
        await self.forwarding.close()
        self.leases.close()
        if self.trace is not None:
            self.trace.close()
        self.storage.close()
        log.info("%s has stopped", self.site.name)

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.loop.tick()
            self.leases.sweep()
            try:
                self.alarms.check(self)
            except (KvError, SnapshotEnded):  # a look at the disk that failed; whoever reads there is told
                log.warning("the alarms could not be looked after", exc_info=True)
            await self.doors.show_health()

    def _happened(self, happened: Happened) -> None:
        """What is true now, for everybody who looks on."""
        self.metrics.happened(happened)
        self.sessions.moved()
        self.feed.wake(self.loop.said.changes)
        self.events.publish(happened)
        if self.trace is not None:
            self.trace.happened(happened)


def _open_storage(cluster: Cluster, folder: Path) -> LmdbStorage:
    return LmdbStorage(folder, durability=cluster.durability, create=True, map_bytes_max=cluster.limits.map_bytes_max)


def _named(name: str, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(coroutine, name=name)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def serve(
    cluster: Cluster,
    site: str,
    *,
    trace: Path | None = None,
    network: Path | None = None,
    reflection: bool = True,
) -> None:
    """Run a replica in this process until SIGINT or SIGTERM."""

    async def main() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await Node(cluster, site, trace=trace, network=network, reflection=reflection).run(stop)

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(main())


def fast_loop() -> Any:
    """uvloop where it is installed: it halves the price of a call."""
    with suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
