"""Three replicas in one process, for the stories that need no kill -9: real gRPC, real LMDB, a tenth of the time.

All nodes share one event loop on a thread of its own; the tests use the blocking client from the main thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

from kvstore.config import load_cluster
from kvstore.node import Node
from kvstore.plan import plan
from kvstore.shape import write_cuts

WAIT_S = 20.0


class InProcessCluster:
    """The part of LocalCluster that the stories use, with nodes instead of processes."""

    def __init__(self, directory: Path, *, trace: bool = False, **wishes: Any) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "data").mkdir(exist_ok=True)
        file = directory / "cluster.toml"
        file.write_text(plan(**wishes).to_toml())
        self.directory = directory
        self.cluster = load_cluster(file)
        self._trace = trace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._running: dict[str, tuple[Node, asyncio.Event, asyncio.Task[None]]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        for name in self.names:
            self.start(name)
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._running):
            self.kill(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    @property
    def names(self) -> list[str]:
        return [site.name for site in self.cluster.sites]

    def endpoint(self, name: str) -> str:
        return self.cluster.site(name).client

    def node(self, name: str) -> Node:
        return self._running[name][0]

    def start(self, name: str) -> None:
        self._call(self._start(name))

    def kill(self, name: str) -> None:
        """As near as a process can come to killing a part of itself: it stops."""
        self._call(self._stop(name))

    def restart(self, name: str) -> None:
        if name in self._running:
            self.kill(name)
        self.start(name)

    def partition(self, *groups: list[str]) -> None:
        side = {name: number for number, group in enumerate(groups) for name in group}
        write_cuts(self._network, [(a, b) for a in side for b in side if side[a] != side[b]])

    def heal(self) -> None:
        write_cuts(self._network, [])

    @property
    def _network(self) -> Path:
        return self.directory / "network.json"

    async def _start(self, name: str) -> None:
        trace = self.directory / "trace" if self._trace else None
        node = Node(self.cluster, name, trace=trace, network=self._network)
        stop = asyncio.Event()
        task = asyncio.create_task(node.run(stop), name=f"replica {name}")
        self._running[name] = node, stop, task

    async def _stop(self, name: str) -> None:
        _, stop, task = self._running.pop(name)
        stop.set()
        await task

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)
