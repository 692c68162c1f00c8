"""One replica behind a real gRPC server on loopback, with a clock that the test sets and a disk that it can stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status  # type: ignore[import-untyped]

from kvstore.clock import time_ms
from kvstore.effects import Happened
from kvstore.errors import StorageFailed
from kvstore.feed import Feed
from kvstore.leases import Leases
from kvstore.limits import Limits
from kvstore.loop import Loop, Outlet
from kvstore.persist import open_replica
from kvstore.rpc.service import KeyValueService
from kvstore.storage.contract import Batch, Storage
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


class CallLog:
    """Where metrics would be."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def call(self, method: str, seconds: float, reason: str = "") -> None:
        assert 0 <= seconds < 60
        self.calls.append((method, reason))


class Served:
    """`async with Served() as served:` and then `served.stub`. The storage outlives it: start another one on it."""

    def __init__(self, storage: Storage | None = None, *, sites: int = 1, **settings: Any) -> None:
        limits = {name: settings.pop(name) for name in list(settings) if hasattr(Limits, name)}
        self.progress_s = settings.pop("progress_s", 2.0)
        cluster = make_cluster(sites, settings.pop("protocol", "optimal"), limits=Limits(**limits))
        self.cluster = replace(cluster, **settings)
        self.site = self.cluster.sites[0]
        self.storage = storage or MemoryStorage()
        self.now_ms = NOW_MS
        self.mono_s = 0.0
        self.metrics = CallLog()
        self.sent: dict[int, list[Any]] = {}

    async def __aenter__(self) -> Served:
        with self.storage.snapshot() as view:
            self.replica = open_replica(self.cluster, 0, view)
        self.feed = Feed()
        self.leases = Leases(self.storage, self.cluster.limits, self.clock_ms, monotonic_s=lambda: self.mono_s)
        self.loop = Loop(self.replica, self.storage, self._outlet(), lambda: self.now_ms)
        self.service = KeyValueService(
            self.cluster,
            self.site,
            self.replica,
            self.loop,
            self.storage,
            self.feed,
            self.leases,
            self.metrics,
            self.clock_ms,
            progress_s=self.progress_s,
        )
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
        if isinstance(self.storage, SlowStorage):
            self.storage.go.set()
        self.feed.close()
        await self.channel.close()
        await self.server.stop(None)
        self.loop.stop()
        with suppress(StorageFailed):
            await asyncio.wait_for(self.running, 10)
        self.leases.close()

    def clock_ms(self) -> int:
        return max(self.now_ms, time_ms(self.replica.clock.latest))

    def _outlet(self) -> Outlet:
        def happened(happened: Happened) -> None:
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
