"""Whole replicas in the event loop of a test: real gRPC on loopback, real LMDB, and the links cut or healed at will."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from kvstore.effects import Operation, Write, Written
from kvstore.errors import KvError
from kvstore.node import Node
from kvstore.plan import plan
from kvstore.rpc.wire import error_of_rpc
from kvstore.shape import write_cuts
from kvstore.v1.admin_pb2_grpc import AdminStub

if TYPE_CHECKING:
    from kvstore.v1.admin_pb2_grpc import AdminAsyncStub


class Running:
    """The replicas of one cluster, by name."""

    def __init__(self, folder: Path, **wishes: Any) -> None:
        (folder / "data").mkdir()
        self.cluster = plan(folder=folder, **wishes)
        self.network = folder / "network.json"
        self.nodes: dict[str, Node] = {}
        self.channels: dict[str, grpc.aio.Channel] = {}
        self.stops: dict[str, asyncio.Event] = {}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def admin(self, name: str) -> AdminAsyncStub:
        return AdminStub(self.channels[name])

    def cut(self, *pairs: tuple[str, str]) -> None:
        write_cuts(self.network, pairs)

    async def put(self, name: str, key: bytes, value: bytes | None = b"v", ttl_ms: int = 0) -> Written:
        return await self[name].loop.write(Write((Operation(key, value, ttl_ms),)))

    async def until_open(self) -> None:
        """Every link is open that is not cut."""

        def is_open() -> bool:
            pairs = ((node, peer) for node in self.nodes.values() for peer in node.replica.links)
            return all(node.links.state(peer).connected or node.shape.is_cut(peer) for node, peer in pairs)

        await until(is_open)


@asynccontextmanager
async def running(
    folder: Path, *, cut: tuple[tuple[str, str], ...] = (), reflection: bool = True, **wishes: Any
) -> AsyncIterator[Running]:
    cluster = Running(folder, **wishes)
    cluster.cut(*cut)
    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as channels:
        try:
            for site in cluster.cluster.sites:
                node = Node(cluster.cluster, site.name, network=cluster.network, reflection=reflection)
                stop = asyncio.Event()
                tasks.append(asyncio.create_task(node.run(stop), name=f"replica {site.name}"))
                cluster.nodes[site.name], cluster.stops[site.name] = node, stop
                channel = grpc.aio.insecure_channel(site.client)
                cluster.channels[site.name] = await channels.enter_async_context(channel)
            yield cluster
        finally:
            for stop in cluster.stops.values():
                stop.set()
            await asyncio.gather(*tasks)


async def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)


def told(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


async def failure(call: Awaitable[Any]) -> tuple[grpc.StatusCode, KvError]:
    """How a call ends that must not go well."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), error_of_rpc(caught.value, site="a", timeout_ms=0)
