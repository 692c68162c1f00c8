"""Replicas with real links: real gRPC on loopback, all in one event loop, disks in memory unless a test brings others.

A test may take any of them down and up again, without its memory too, or sit down at one end of a link itself and say
what no replica would.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from kvstore.alarms import Alarms
from kvstore.config import Cluster, LinkConfig
from kvstore.effects import Envelope, Event, Happened, Operation, Write, Written
from kvstore.errors import KvError
from kvstore.hello import Accepted, Greeting, Refusal, greeting
from kvstore.layout import outbox_key
from kvstore.limits import MIB, Limits
from kvstore.loop import Loop, Outlet
from kvstore.metrics import Metrics
from kvstore.persist import open_replica
from kvstore.rpc import frames
from kvstore.rpc.links import Links
from kvstore.rpc.peering import Peering
from kvstore.shape import Shape
from kvstore.storage.contract import Batch, Storage
from kvstore.storage.memory import MemoryStorage
from kvstore.update import unpack_record
from tests.simulation.cluster import make_cluster

QUICK = Limits(heartbeat_ms=20)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


async def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


class SlowStorage(MemoryStorage):
    """Commits wait for the test's permission."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()

    def commit(self, batch: Batch) -> None:
        self.go.wait(10)
        super().commit(batch)


class Resident:
    """One replica. `start` and `stop` are a process starting and being killed."""

    def __init__(self, cluster: Cluster, number: int, storage: Storage, network: Path | None = None) -> None:
        self.cluster, self.number, self.storage, self.network = cluster, number, storage, network
        self.site = cluster.sites[number]
        self.events: list[Event] = []
        self.refusals: list[KvError] = []
        self.server: grpc.aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, server: grpc.aio.Server | None = None, *, corridor: bool = True, links: bool = True) -> None:
        self.server = server or bound_server(self.site.peer)[0]
        with self.storage.snapshot() as view:
            self.replica = open_replica(self.cluster, self.number, view)
        self.shape = Shape(self.cluster, self.site, self.network)
        self.alarms = Alarms(wall_ms)
        self.metrics = Metrics(self.site.name, self.cluster.protocol)
        self.loop = Loop(self.replica, self.storage, self._outlet(), wall_ms)
        parts = (self.cluster, self.site, self.replica, self.loop, self.storage, self.shape, self.alarms, self.metrics)
        self.links, self.peering = Links(*parts), Peering(*parts)
        self.peering.join(self.server)
        await self.server.start()
        if corridor:
            self.run(self.loop.run())
        if links:
            self.run(self.links.run())

    def run(self, work: Any) -> None:
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self.server is not None:
            await self.server.stop(None)
            self.server = None

    def _outlet(self) -> Outlet:
        def refuse(peer: int, error: KvError) -> None:
            self.refusals.append(error)
            self.peering.refuse(peer, error)

        def happened(happened: Happened) -> None:
            self.events.extend(happened.events)

        return Outlet(lambda *sent: self.links.send(*sent), lambda *ack: self.peering.ack(*ack), refuse, happened)

    # What it does and has

    async def put(self, key: bytes, value: bytes | None = b"v") -> Written:
        return await self.loop.write(Write((Operation(key, value),)))

    async def put_many(self, count: int, *, size: int = 1, start: int = 0) -> None:
        """So many writes, each in a message of its own."""
        for number in range(start, start + count):
            await self.put(b"%s%06d" % (self.site.name.encode(), number), b"v" * size)

    def value(self, key: bytes) -> bytes | None:
        with self.storage.snapshot() as view:
            data = view.get("keys", key)
        return None if data is None else unpack_record(data).value

    def keys(self) -> list[bytes]:
        with self.storage.snapshot() as view:
            return [key for key, _ in view.scan("keys")]

    def outbox(self, peer: int) -> int:
        with self.storage.snapshot() as view:
            return sum(1 for _ in view.scan("outbox", outbox_key(peer, 0), outbox_key(peer + 1, 0)))

    def delivered(self, peer: int) -> list[int]:
        """The link numbers of what was delivered from a peer, in order."""
        return [event.number for event in self.events if event.kind == "delivered" and event.peer == peer]

    def standing(self) -> list[str]:
        return sorted(one.alarm.reason for one in self.alarms.current())

    # What the test says in its name

    def hello(self, to: int, /, **changes: Any) -> Greeting:
        return greeting(self.replica, to, sent=self.replica.links[to].sent)._replace(**changes)


def bound_server(address: str = "127.0.0.1:0") -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server(
        options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 9 * MIB)),
    )
    return server, server.add_insecure_port(address)


class Town:
    def __init__(self, residents: list[Resident]) -> None:
        self.residents = residents

    def __getitem__(self, number: int) -> Resident:
        return self.residents[number]

    def __iter__(self) -> Any:
        return iter(self.residents)

    async def until_open(self) -> None:
        """Every link that can be is open."""
        pairs = [(one, other.number) for one in self for other in self if one is not other]
        await until(lambda: all(one.links.state(peer).connected for one, peer in pairs))

    async def until_equal(self, seconds: float = 15.0) -> None:
        """Everybody has everything, and knows it of everybody."""

        def is_equal() -> bool:
            links = [(one.replica.links, one.number) for one in self]
            arrived = all(
                here[two].sent == there[one].applied for here, one in links for there, two in links if one != two
            )
            return arrived and all(link.acked == link.sent for here, _ in links for link in here.values())

        await until(is_equal, seconds)
        assert len({tuple(one.keys()) for one in self}) == 1


@asynccontextmanager
async def town(
    sites: int = 2,
    *,
    protocol: str = "optimal",
    limits: Limits = QUICK,
    links: tuple[LinkConfig, ...] = (),
    network: Path | None = None,
    storages: list[Storage] | None = None,
    is_started: bool = True,
) -> AsyncIterator[Town]:
    servers = [bound_server() for _ in range(sites)]
    cluster = make_cluster(sites, protocol, limits=limits, links=links)
    configs = tuple(
        replace(site, peer=f"127.0.0.1:{port}") for site, (_, port) in zip(cluster.sites, servers, strict=True)
    )
    cluster = replace(cluster, sites=configs)
    storages = storages or [MemoryStorage() for _ in range(sites)]
    residents = [Resident(cluster, number, storage, network) for number, storage in enumerate(storages)]
    try:
        for resident, (server, _) in zip(residents, servers, strict=True):
            resident.server = server
            if is_started:
                await resident.start(server)
        yield Town(residents)
    finally:
        for resident in residents:
            await resident.stop()


def story(told: Callable[[], Awaitable[None]], seconds: float = 60.0) -> None:
    asyncio.run(asyncio.wait_for(told(), seconds))


# A seat at one end of a link


class Speaker:
    """A stream to a replica, opened by the test."""

    hello: Greeting  # what it said, for a test that says it again

    def __init__(self, call: Any) -> None:
        self.call = call

    async def say(self, frame: bytes) -> None:
        await self.call.write(frame)

    async def greet(self, hello: Greeting) -> Accepted | Refusal:
        await self.say(frames.hello_frame(hello))
        return frames.reply_of(await self.read())

    async def read(self) -> bytes:
        data = await asyncio.wait_for(self.call.read(), 10)
        assert isinstance(data, bytes), "the stream has ended"
        return data

    async def end(self) -> grpc.aio.AioRpcError:
        """How the other side ends the stream."""
        try:
            while await asyncio.wait_for(self.call.read(), 10) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError("the stream ended without an error")


@asynccontextmanager
async def speaker(resident: Resident) -> AsyncIterator[Speaker]:
    async with grpc.aio.insecure_channel(resident.site.peer) as channel:
        call: Any = channel.stream_stream(frames.LINK)()
        yield Speaker(call)
        call.cancel()


Answering = Callable[[Greeting, Any], Awaitable[None]]


@asynccontextmanager
async def listener(resident: Resident, answering: Answering) -> AsyncIterator[list[Greeting]]:
    """The test in the place of a replica: it answers hellos itself. Gives the hellos that came."""
    came: list[Greeting] = []

    async def link(_: object, context: Any) -> None:
        hello = frames.greeting_of(frames.request_of(await context.read()).hello)
        came.append(hello)
        await answering(hello, context)

    server = resident.server or bound_server(resident.site.peer)[0]
    method: Any = grpc.stream_stream_rpc_method_handler(link)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(frames.SERVICE, {"Link": method}),))
    await server.start()
    try:
        yield came
    finally:
        await server.stop(None)
        resident.server = None


def envelope(number: int, **changes: Any) -> Envelope:
    return Envelope(number, number, b"", b"")._replace(**changes)
