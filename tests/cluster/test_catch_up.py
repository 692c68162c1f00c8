"""A replica that was away for 100,000 updates comes back while the others keep writing; memory stays bounded."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from kvstore import aio
from kvstore.client import Client
from kvstore.cluster import LocalCluster
from kvstore.values import Put
from tests.cluster.stories import clients_of, until, until_equal

UPDATES = 100_000
VALUE = b"v" * 2000  # so that all of them together would be seen in any process that kept them
GROWTH_BYTES_MAX = 160 << 20  # less than what was missed; mostly what is under way, and what is held meanwhile of b


class Memory(threading.Thread):
    """The most that each process has had in memory while we looked, LMDB's map of its file apart."""

    def __init__(self, pids: dict[str, int]) -> None:
        super().__init__(name="memory", daemon=True)
        self.pids = pids
        self.first = {name: _anonymous_bytes(pid) for name, pid in pids.items()}
        self.most = dict(self.first)
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.wait(0.05):
            for name, pid in self.pids.items():
                self.most[name] = max(self.most[name], _anonymous_bytes(pid))

    def growth(self, name: str) -> int:
        return self.most[name] - self.first[name]


def _anonymous_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no RssAnon in /proc")


async def _write(endpoint: str, prefix: bytes, updates: int) -> None:
    async with aio.connect(endpoint, timeout_s=30) as kv:
        batches = iter(range(0, updates, 50))

        async def worker() -> None:
            for first in batches:
                await kv.batch([Put(prefix + b"%06d" % number, VALUE) for number in range(first, first + 50)])

        await asyncio.gather(*(worker() for _ in range(8)))


def _kept(kv: Client) -> int:
    """How many messages a replica keeps because somebody has not acknowledged them."""
    status = kv.status()
    return sum(link.outbox_messages for link in status.links if link.sender == status.site)


def _pids(cluster: LocalCluster) -> dict[str, int]:
    return {name: process.pid for name in cluster.names if (process := cluster.process(name)) is not None}


def test_a_replica_that_missed_100_000_updates_catches_up_in_bounded_memory(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path) as cluster, clients_of(cluster) as clients:
        asyncio.run(_write(cluster.endpoint("a"), b"warm/", 2000))
        cluster.kill("c")
        memory = Memory({name: pid for name, pid in _pids(cluster).items() if name != "c"})
        memory.start()
        asyncio.run(_write(cluster.endpoint("a"), b"missed/", UPDATES))
        outbox = {link.receiver: link.outbox_bytes for link in clients["a"].status().links if link.sender == "a"}
        assert outbox["c"] > UPDATES * len(VALUE), "the updates wait on disk"

        cluster.start("c")
        memory.pids["c"] = _pids(cluster)["c"]
        memory.first["c"] = memory.most["c"] = _anonymous_bytes(memory.pids["c"])
        start = time.monotonic()
        asyncio.run(_write(cluster.endpoint("b"), b"meanwhile/", 5000))
        for name in ("a", "b"):
            until(lambda name=name: _kept(clients[name]), lambda kept: kept == 0, f"{name}'s outbox is empty", 120)  # type: ignore[misc]
        took = time.monotonic() - start
        memory.stopping.set()
        memory.join()
        assert len(until_equal(clients, 60)) == 2000 + UPDATES + 5000
        growth = {name: memory.growth(name) / (1 << 20) for name in memory.pids}
        print(f"caught up in {took:.1f} s; growth in MiB: {growth}; most: {memory.most}")
        for name in ("a", "c"):
            assert memory.growth(name) < GROWTH_BYTES_MAX, f"{name} grew by {growth[name]:.0f} MiB"
