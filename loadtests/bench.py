"""`make bench`: how fast three replicas on this machine take puts, and what each put costs.

Real processes, fsync on, values of 100 bytes, a single client process. Each load is measured until its last put is
applied and committed at all three replicas, so nothing is left over for afterwards. The CPU time that the client and
each replica spent is read from the system before and after; on two cores that is what bounds everything.

The numbers of one run compare with each other. Those of two runs compare only on a quiet machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from causal.provenance import provenance
from kvstore import aio, connect
from kvstore.cluster import LocalCluster
from kvstore.values import Put

VALUE = b"v" * 100
KEYS = 10_000  # different keys; puts go round them
TICKS = os.sysconf("SC_CLK_TCK")
SETTLE_S = 60.0  # for the last put to be applied everywhere


class Load(NamedTuple):
    """One kind of load: what to do with how many puts."""

    name: str
    puts: int
    aim: str
    run: Callable[[Bench, int], Awaitable[list[float]]]


class Result(NamedTuple):
    load: str
    puts: int
    answered_per_s: float
    applied_per_s: float  # at all three replicas
    p50_ms: float
    p99_ms: float
    cpu_us: dict[str, float]  # a put, by process
    aim: str


class Bench:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.first = cluster.names[0]
        self._keys = count()

    def key(self) -> bytes:
        return b"bench/%05d" % (next(self._keys) % KEYS)

    @asynccontextmanager
    async def client(self, *, coalesce: bool) -> AsyncIterator[aio.Client]:
        async with aio.connect(self.cluster.endpoint(self.first), coalesce=coalesce) as kv:
            yield kv

    async def measure(self, load: Load) -> Result:
        before, start = self._cpu_s(), time.perf_counter()
        latencies = await load.run(self, load.puts)
        answered = time.perf_counter() - start
        await self.settle()
        applied = time.perf_counter() - start
        cpu_us = {name: (now - before[name]) / load.puts * 1e6 for name, now in self._cpu_s().items()}
        p50, p99 = (1e3 * _quantile(latencies, share) for share in (0.5, 0.99))
        return Result(load.name, load.puts, load.puts / answered, load.puts / applied, p50, p99, cpu_us, load.aim)

    async def settle(self) -> None:
        """Until every message of the first replica is committed at all others."""
        deadline = time.perf_counter() + SETTLE_S
        async with self.client(coalesce=False) as kv:
            while True:
                status = await kv.status()
                links = [link for link in status.links if link.sender == status.site]
                if all(link.acked == link.made for link in links):
                    return
                if time.perf_counter() > deadline:
                    raise TimeoutError(f"not applied everywhere after {SETTLE_S:.0f} s")
                await asyncio.sleep(0.002)

    def _cpu_s(self) -> dict[str, float]:
        used = os.times()
        found = {"client": used.user + used.system}
        for name in self.cluster.names:
            process = self.cluster.process(name)
            assert process is not None
            found[name] = _cpu_of(process.pid)
        return found


async def _in_flight(puts: int, flying: int, put: Callable[[], Awaitable[object]]) -> list[float]:
    """So many at once, each of them one after another; the latency of each."""
    latencies: list[float] = []
    left = iter(range(puts))

    async def worker() -> None:
        for _ in left:
            start = time.perf_counter()
            await put()
            latencies.append(time.perf_counter() - start)

    await asyncio.gather(*(worker() for _ in range(flying)))
    return latencies


async def unary_puts(bench: Bench, puts: int) -> list[float]:
    async with bench.client(coalesce=False) as kv:
        return await _in_flight(puts, 32, lambda: kv.put(bench.key(), VALUE))


async def one_at_a_time(bench: Bench, puts: int) -> list[float]:
    """With the blocking client: what a simple program feels."""

    def run() -> list[float]:
        latencies = []
        with connect(bench.cluster.endpoint(bench.first)) as kv:
            for _ in range(puts):
                start = time.perf_counter()
                kv.put(bench.key(), VALUE)
                latencies.append(time.perf_counter() - start)
        return latencies

    return await asyncio.to_thread(run)


async def batches(bench: Bench, puts: int) -> list[float]:
    async with bench.client(coalesce=False) as kv:
        return await _in_flight(puts // 100, 8, lambda: kv.batch([Put(bench.key(), VALUE) for _ in range(100)]))


async def coalesced(bench: Bench, puts: int) -> list[float]:
    async with bench.client(coalesce=True) as kv:
        return await _in_flight(puts, 128, lambda: kv.put(bench.key(), VALUE))


async def gets(bench: Bench, calls: int) -> list[float]:
    async with bench.client(coalesce=False) as kv:
        return await _in_flight(calls, 32, lambda: kv.get(bench.key()))


LOADS = (
    Load("unary puts, 32 in flight, no coalescing", 20_000, "5,000/s", unary_puts),
    Load("unary puts, one at a time", 2_000, "p50 0.8 ms", one_at_a_time),
    Load("puts in batches of 100, 8 in flight", 300_000, "120,000/s", batches),
    Load("single puts, 128 in flight, coalescing", 100_000, "40,000/s", coalesced),
    Load("unary gets, 32 in flight, no coalescing", 20_000, "", gets),
)


async def visibility(bench: Bench, *, puts: int, every_s: float) -> dict[str, list[float]]:
    """From the answer to a put at the first replica until a watcher sees it at another: seconds, by replica."""
    answered: dict[bytes, float] = {}
    seen: dict[str, list[float]] = {}

    async def follow(name: str, begun: asyncio.Event) -> None:
        latencies = seen.setdefault(name, [])
        async with aio.connect(bench.cluster.endpoint(name)) as kv, kv.watch(b"visible/") as watch:
            begun.set()
            async for change in watch:
                latencies.append(time.perf_counter() - answered.get(change.value or b"", time.perf_counter()))
                if len(latencies) == puts:
                    return

    followers = []
    for name in bench.cluster.names[1:]:
        begun = asyncio.Event()
        followers.append(asyncio.create_task(follow(name, begun)))
        await begun.wait()
    async with bench.client(coalesce=False) as kv:
        for number in range(puts):
            value = b"%d" % number
            await kv.put(b"visible/key", value)
            answered[value] = time.perf_counter()
            await asyncio.sleep(every_s)
    await asyncio.wait_for(asyncio.gather(*followers), SETTLE_S)
    return seen


async def calibrate(calls: int) -> dict[str, float]:
    """What gRPC itself costs here, without a store: an empty unary call, 32 in flight, both ends in processes."""
    with subprocess.Popen([sys.executable, "-m", "loadtests.empty"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            async with aio.connect(address, coalesce=False) as kv:
                await _in_flight(500, 32, lambda: kv.get(b"k"))
                before, start = _cpu_of(server.pid), time.perf_counter()
                await _in_flight(calls, 32, lambda: kv.get(b"k"))
                took = time.perf_counter() - start
                return {"calls_per_s": calls / took, "server_cpu_us": (_cpu_of(server.pid) - before) / calls * 1e6}
        finally:
            server.kill()


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _print(result: Result) -> None:
    rates = f"{result.answered_per_s:>9,.0f} {result.applied_per_s:>9,.0f}"
    cpu = "  ".join(f"{name} {us:.1f}" for name, us in result.cpu_us.items())
    print(f"{result.load:<42}{rates} {result.p50_ms:>8.2f} {result.p99_ms:>8.2f}   {cpu}   {result.aim}", flush=True)


async def run(cluster: LocalCluster, loads: Sequence[Load], scale: float) -> dict[str, Any]:
    bench = Bench(cluster)
    empty = await calibrate(max(500, int(5_000 * scale)))
    print(
        f"gRPC alone on this machine: {empty['calls_per_s']:,.0f} empty unary calls/s with 32 in flight,"
        f" {empty['server_cpu_us']:.0f} us of CPU at the server for each\n"
    )
    await unary_puts(bench, 500)  # warm up
    await bench.settle()
    print(f"{'':<42}{'answered':>9} {'applied':>9} {'p50':>8} {'p99':>8}   CPU a call, us, by process", flush=True)
    print(f"{'':<42}{'/s':>9} {'all 3, /s':>9} {'ms':>8} {'ms':>8}", flush=True)
    results = []
    for load in loads:
        results.append(await bench.measure(load._replace(puts=max(100, int(load.puts * scale)))))
        _print(results[-1])
    seen = await visibility(bench, puts=max(20, int(200 * scale)), every_s=0.02)
    quiet = {
        name: {"p50_ms": 1e3 * statistics.median(one), "p99_ms": 1e3 * _quantile(one, 0.99)}
        for name, one in seen.items()
    }
    for name, one in quiet.items():
        print(f"visible at {name} after the answer, 50 puts/s: p50 {one['p50_ms']:.2f} ms, p99 {one['p99_ms']:.2f} ms")
    return {"calibration": empty, "results": [result._asdict() for result in results], "visibility": quiet}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--protocol", default="optimal")
    parser.add_argument("--durability", default="sync")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of puts")
    parser.add_argument("--only", default="", help="loads whose name has this word")
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=NUMBER", help="another limit")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    loads = [load for load in LOADS if options.only in load.name]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        cluster = LocalCluster.create(
            folder,
            replicas=options.replicas,
            protocol=options.protocol,
            durability=options.durability,
            limits={name: int(value) for name, _, value in (one.partition("=") for one in options.limit)},
        )
        with cluster:
            found = asyncio.run(run(cluster, loads, options.scale))
    if options.out:
        chosen = {name: value for name, value in vars(options).items() if name != "out"}
        options.out.write_text(json.dumps({**provenance(), "options": chosen, **found}, indent=2) + "\n")
        print(f"written to {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
