"""One replica behind a real gRPC server on loopback, with a clock that the test sets and a disk that it can stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from kvstore.clock import time_ms
from kvstore.effects import Arrived, Envelope, Event, Happened, Heard
from kvstore.errors import KvError, StorageFailed, Unavailable
from kvstore.feed import Feed
from kvstore.leases import Leases
from kvstore.limits import Limits
from kvstore.loop import Loop, Outlet
from kvstore.persist import open_replica
from kvstore.rpc.answering import Answering
from kvstore.rpc.service import KeyValueService
from kvstore.rpc.watch import Watching
from kvstore.sessions import Sessions
from kvstore.storage.contract import TABLES, Batch, Storage
from kvstore.storage.lmdb import LmdbStorage
from kvstore.storage.memory import MemoryStorage
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import kv_pb2_grpc
from kvstore.v1 import model_pb2 as model
from tests.simulation.cluster import make_cluster

NOW_MS = 1_700_000_000_000
STORY_S = 30  # that a story may take; beyond it: it hangs


class SlowStorage(MemoryStorage):
    """Commits wait for the test's permission, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.is_broken = False

    def commit(self, batch: Batch) -> None:
        self.go.wait(10)
        if self.is_broken:
            raise StorageFailed(path="memory", why="the test broke it")
        super().commit(batch)


class LateStorage(SlowStorage):
    """A commit is there, for everybody to read, before the loop hears of it: that waits for the test's permission."""

    def commit(self, batch: Batch) -> None:
        MemoryStorage.commit(self, batch)
        self.go.wait(10)


class RelaxedStorage(MemoryStorage):
    """A commit is durable only after a sync, which waits for the test's permission."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0
        self.go = threading.Event()

    @property
    def durable(self) -> int:
        return self.synced

    def sync(self) -> None:
        self.go.wait(10)
        self.synced = self.number


class CallLog:
    """Where metrics would be."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def call(self, method: str, seconds: float, reason: str = "") -> None:
        assert 0 <= seconds < 60
        self.calls.append((method, reason))


class Holders:
    """Other sites to ask: those that the test has put here, each by its number. Without any, nobody is there."""

    def __init__(self) -> None:
        self.there: dict[int, Served] = {}
        self.asked: list[tuple[str, Any, int]] = []

    async def ask(self, kind: str, request: Any, holders: int, deadline_s: float) -> Any:
        self.asked.append((kind, request, holders))
        for number, served in self.there.items():
            if holders >> number & 1:
                return await getattr(served.answering, kind)(request, deadline_s, is_forwarded=True)
        raise Unavailable(site="everybody", why=f"nobody is asked for a {kind}")


class Served:
    """`async with Served() as served:` and then `served.stub`. The storage outlives it: start another one on it.

    With several sites, this one is site `at`; what it has to say to the others lies in `sent` until `bring` takes it.
    """

    def __init__(self, storage: Storage | None = None, *, sites: int = 1, at: int = 0, **settings: Any) -> None:
        limits = {name: settings.pop(name) for name in list(settings) if hasattr(Limits, name)}
        self.progress_s = settings.pop("progress_s", 2.0)
        cluster = make_cluster(sites, settings.pop("protocol", "optimal"), limits=Limits(**limits))
        self.cluster = replace(cluster, **settings)
        self.site = self.cluster.sites[at]
        self.storage = storage or MemoryStorage()
        self.now_ms = NOW_MS
        self.mono_s = 0.0
        self.metrics = CallLog()
        self.sent: dict[int, list[Envelope]] = {}
        self.brought: dict[int, int] = {}  # how many of them, by peer
        self.events: list[Event] = []
        self.holders = Holders()

    async def __aenter__(self) -> Served:
        with self.storage.snapshot() as view:
            self.replica = open_replica(self.cluster, self.site.number, view)
        self.feed = Feed()
        self.leases = Leases(self.storage, self.cluster.limits, self.clock_ms, monotonic_s=lambda: self.mono_s)
        self.loop = Loop(self.replica, self.storage, self._outlet(), lambda: self.now_ms)
        parts = (self.cluster, self.site, self.replica, self.loop, self.storage)
        self.lost_memory: list[KvError] = []
        self.sessions = Sessions(*parts, lambda: self.now_ms, self.lost_memory.append)
        self.answering = Answering(
            self.cluster,
            self.site,
            self.loop,
            self.storage,
            self.leases,
            self.sessions,
            self.holders,
            self.clock_ms,
            lambda: self.now_ms,
        )
        watching = Watching(*parts, self.feed, self.answering.decode, self.sessions, progress_s=self.progress_s)
        self.service = KeyValueService(self.cluster, self.site, self.answering, watching, self.metrics)
        self.server = grpc.aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)))
        kv_pb2_grpc.add_KeyValueServicer_to_server(self.service, self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        await self.server.start()
        self.running = asyncio.create_task(self.loop.run())
        self.channel = grpc.aio.insecure_channel(
            self.address, options=(("grpc.max_receive_message_length", 16 << 20), ("grpc.use_local_subchannel_pool", 1))
        )
        self.stub = kv_pb2_grpc.KeyValueStub(self.channel)
        return self

    async def __aexit__(self, *_: object) -> None:
        if isinstance(self.storage, SlowStorage | RelaxedStorage):
            self.storage.go.set()
        self.feed.close()
        await self.channel.close()
        await self.server.stop(None)
        self.loop.stop()
        with suppress(StorageFailed):
            await asyncio.wait_for(self.running, 10)
        self.leases.close()

    async def bring(self, other: Served, most: int = 1 << 30) -> None:
        """Carry what this replica has said to another one, at most so many messages, and wait until it is taken."""
        here, there = self.site.number, other.site.number
        first = self.brought.get(there, 0)
        envelopes = self.sent.get(there, [])[first : first + most]
        self.brought[there] = first + len(envelopes)
        await other.loop.offer(here, [Arrived(here, envelope) for envelope in envelopes])
        await until(lambda: other.replica.links[here].received >= first + len(envelopes) and other.is_idle)

    async def beat(self, other: Served) -> None:
        """A heartbeat to another one, behind everything that was brought."""
        here = self.site.number
        time = self.loop.promised()
        await other.loop.offer(here, [Heard(here, time, self.now_ms)])
        await until(lambda: other.replica.links[here].heard[1] == time and other.is_idle)

    @property
    def is_idle(self) -> bool:
        """Nothing is under way: all that it has decided is durable and said."""
        loop = self.loop
        return not (loop._is_turning or loop._unsaid or loop._waiting())

    def dump(self) -> dict[str, list[tuple[bytes, bytes]]]:
        """Everything that is on its disk."""
        with self.storage.snapshot() as view:
            return {table: list(view.scan(table)) for table in TABLES}

    def clock_ms(self) -> int:
        return max(self.now_ms, time_ms(self.replica.clock.latest))

    def _outlet(self) -> Outlet:
        def happened(happened: Happened) -> None:
            self.events.extend(happened.events)
            self.sessions.moved()
            self.feed.wake(self.loop.said.changes)

        return Outlet(
            send=lambda peer, envelopes: self.sent.setdefault(peer, []).extend(envelopes),
            ack=lambda peer, up_to: None,
            refuse=lambda peer, error: None,
            happened=happened,
        )


Story = Callable[[Served], Coroutine[Any, Any, None]]


class Refusal(NamedTuple):
    """How a call failed, read as any client of gRPC can read it."""

    status: str
    reason: str
    definite: bool
    details: dict[str, str]
    message: str


async def refusal(call: Awaitable[Any]) -> Refusal:
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal_of(error)
    raise AssertionError(f"it was not refused: {answer}")


def refusal_of(error: grpc.aio.AioRpcError) -> Refusal:
    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error}"
    (packed,) = status.details
    info = error_details_pb2.ErrorInfo()
    assert packed.Unpack(info) and info.domain == "kvstore"
    details = dict(info.metadata)
    definite = {"true": True, "false": False}[details.pop("definite")]
    return Refusal(error.code().name, info.reason, definite, details, error.details() or "")


async def all_of(stream: Any) -> list[Any]:
    """What a stream still has; raises what it ends with."""
    found = []
    while (one := await stream.read()) is not grpc.aio.EOF:
        found.append(one)
    return found


async def until(condition: Callable[[], object], seconds: float = 10) -> None:
    for _ in range(int(seconds / 0.002)):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


def run(story: Story, storage: Storage | None = None, **settings: Any) -> Served:
    """One story with one replica, on memory unless told."""
    served = Served(storage, **settings)

    async def whole() -> None:
        async with served:
            await asyncio.wait_for(story(served), STORY_S)

    asyncio.run(whole())
    return served


def run_all(story: Callable[..., Coroutine[Any, Any, None]], count: int = 2, **settings: Any) -> None:
    """One story with several replicas of one cluster, on memory. What lies between them, the story carries."""
    storages = settings.pop("storages", [None] * count)
    sites = settings.pop("sites", count)

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            several = [Served(storages[at], sites=sites, at=at, **settings) for at in range(count)]
            for one in several:
                await stack.enter_async_context(one)
            await asyncio.wait_for(story(*several), STORY_S)

    asyncio.run(whole())


async def put(served: Served, key: bytes, value: bytes = b"v", **more: Any) -> kv.PutResponse:
    return await served.stub.Put(kv.PutRequest(key=key, value=value, **more), timeout=10)


async def get(served: Served, key: bytes) -> model.Entry | None:
    response = await served.stub.Get(kv.GetRequest(key=key), timeout=10)
    return response.entry if response.HasField("entry") else None


def put_operation(key: bytes, value: bytes = b"v", **more: Any) -> kv.Operation:
    return kv.Operation(put=kv.Operation.Put(key=key, value=value, **more))


def delete_operation(key: bytes, **more: Any) -> kv.Operation:
    return kv.Operation(delete=kv.Operation.Delete(key=key, **more))


def put_call(key: bytes, value: bytes = b"v", **more: Any) -> kv.PipelineCall:
    return kv.PipelineCall(put=kv.PutRequest(key=key, value=value, **more))


def get_call(key: bytes) -> kv.PipelineCall:
    return kv.PipelineCall(get=kv.GetRequest(key=key))


def open_storage(kind: str, folder: Path) -> Storage:
    return MemoryStorage() if kind == "memory" else LmdbStorage(folder / "data", create=True, map_bytes=1 << 24)


class Session:
    """A session as the simplest client has it: the token of its last answer."""

    def __init__(self, token: bytes = b"") -> None:
        self.token = token

    async def ask(self, served: Served, method: str, request: Any, timeout: float = 10) -> Any:
        """One call with the token; without one yet, a session begins."""
        request.session = self.token
        if not self.token and not request.HasField("freshness"):
            request.freshness.level = model.Freshness.LEVEL_SESSION
        answer = await getattr(served.stub, method)(request, timeout=timeout)
        self.token = answer.session
        return answer

    async def put(self, served: Served, key: bytes, value: bytes = b"v", timeout: float = 10, **more: Any) -> Any:
        return await self.ask(served, "Put", kv.PutRequest(key=key, value=value, **more), timeout)

    async def get(self, served: Served, key: bytes, timeout: float = 10, **more: Any) -> bytes | None:
        answer = await self.ask(served, "Get", kv.GetRequest(key=key, **more), timeout)
        return answer.entry.value if answer.HasField("entry") else None

    def copy(self) -> Session:
        return Session(self.token)
