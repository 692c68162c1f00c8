"""`make bench-sessions`: what sessions cost. Bytes of a token, microseconds of a request, and gets with and without.

The first table is made in one process, without a network: sites of a protocol exchange random broadcasts of which some
are still under way, as in a busy store; then a request's work with a token is timed, part by part, as a replica does it
that has not met the token before. The second asks real replicas, in turns with and without a session, so that both meet
the same noise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from causal import PROTOCOLS, Message, make_site
from causal.provenance import provenance
from kvstore import aio
from kvstore.cluster import LocalCluster
from kvstore.config import Cluster, SiteConfig
from kvstore.past import Past
from kvstore.seal import Seal

SITES = (3, 10, 40)
MESSAGES = 12  # that each site sends before the measurement
UNDER_WAY = 0.3  # share of copies that have not arrived then
REPEATS = 200
GETS = 6_000
ROUNDS = 6
SEED = 7


class Tokens(NamedTuple):
    protocol: str
    sites: int
    bytes: int
    open_us: float  # check the seal, read the content
    due_us: float  # is everything that it names here?
    merge_us: float  # with what the request has seen
    seal_us: float  # write and seal the new one

    @property
    def request_us(self) -> float:
        return self.open_us + self.due_us + self.merge_us + self.seal_us


class Gets(NamedTuple):
    flying: int
    plain_ms: float  # median of a get
    session_ms: float
    plain_cpu_us: float  # of the replica, for a get
    session_cpu_us: float


def tokens(protocol: str, sites: int) -> Tokens:
    """A session that comes from one site to another, both busy."""
    network = [make_site(protocol, site, sites) for site in range(sites)]
    _exchange(network, random.Random(f"{protocol} {sites} {SEED}"))
    brought, here = Past(network[0].token(), 1 << 60, ()), network[1]
    met = Past(here.token(), 1 << 60, ())
    seal = Seal(_cluster(protocol, sites))
    token = seal.seal(brought)

    def cold(work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            seal._pasts.clear()
            return work()

        return run

    both = brought.merged(met)
    return Tokens(
        protocol,
        sites,
        len(token),
        _us(cold(lambda: seal.open(token))),
        _us(lambda: brought.context.first_missing(here.site, here.delivered)),
        _us(lambda: brought.merged(met)),
        _us(cold(lambda: seal.seal(both))),
    )


def _exchange(network: list[Any], rng: random.Random) -> None:
    links: dict[tuple[int, int], deque[Message]] = {}
    everyone = (1 << len(network)) - 1

    def arrive(pair: tuple[int, int]) -> None:
        for effect in network[pair[1]].receive(links[pair].popleft()):
            if hasattr(effect, "copies"):
                post(effect)

    def post(outgoing: Any) -> None:
        for site, copy in outgoing.copies():
            links.setdefault((outgoing.dot.site, site), deque()).append(copy)

    for _ in range(MESSAGES):
        for site in network:
            for outgoing in site.send(everyone & ~(1 << site.site)):
                post(outgoing)
            for pair in rng.sample(sorted(links), round(len(links) * (1 - UNDER_WAY))):
                if links[pair]:
                    arrive(pair)


def _cluster(protocol: str, sites: int) -> Cluster:
    names = [f"s{number}" for number in range(sites)]
    ports = range(1, 2 * sites, 2)
    configs = tuple(
        SiteConfig(name, at, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}", name)
        for at, (name, port) in enumerate(zip(names, ports, strict=True))
    )
    return Cluster("bench", configs, {b"": tuple(names)}, protocol=protocol)


def _us(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


async def gets(cluster: LocalCluster, flying: int) -> Gets:
    """In turns: a round without sessions, a round with one session for each call in flight."""
    endpoint = cluster.endpoint(cluster.names[0])
    process = cluster.process(cluster.names[0])
    assert process is not None
    latencies: dict[bool, list[float]] = {False: [], True: []}
    cpu_s = {False: 0.0, True: 0.0}
    async with aio.connect(endpoint, coalesce=False) as kv:
        for place in range(100):
            await kv.put(b"bench/%02d" % place, b"v" * 100)
        sessions = [kv.session() for _ in range(flying)]
        for number in range(2 * ROUNDS):
            with_session = bool(number % 2)
            before = _cpu_s(process.pid)
            readers: list[Any] = list(sessions) if with_session else [kv] * flying
            found = await asyncio.gather(*(_read(reader, GETS // ROUNDS // flying) for reader in readers))
            latencies[with_session] += [one for each in found for one in each]
            cpu_s[with_session] += _cpu_s(process.pid) - before
    count = len(latencies[False])
    medians = [1e3 * statistics.median(latencies[way]) for way in (False, True)]
    cpus = [1e6 * cpu_s[way] / count for way in (False, True)]
    return Gets(flying, medians[0], medians[1], cpus[0], cpus[1])


async def _read(reader: Any, count: int) -> list[float]:
    latencies = []
    for place in range(count):
        start = time.perf_counter()
        await reader.get(b"bench/%02d" % (place % 100))
        latencies.append(time.perf_counter() - start)
    return latencies


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the numbers to this file, as JSON")
    parser.add_argument("--protocol", default="optimal", help="of the replicas that answer gets")
    options = parser.parse_args()
    made = [tokens(name, sites) for name, kind in PROTOCOLS.items() if kind.is_causal for sites in SITES]
    print(f"{'protocol':16} sites  token B   open us    due us  merge us   seal us  request us")
    for one in made:
        parts = f"{one.open_us:9.1f} {one.due_us:9.1f} {one.merge_us:9.1f} {one.seal_us:9.1f} {one.request_us:11.1f}"
        print(f"{one.protocol:16} {one.sites:5} {one.bytes:8} {parts}")
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        LocalCluster.create(folder, replicas=3, protocol=options.protocol) as cluster,
    ):
        asked = [asyncio.run(gets(cluster, flying)) for flying in (1, 32)]
    print(f"\n{'in flight':>9}  get ms  in a session    ratio   replica's CPU us  in a session    ratio")
    for got in asked:
        ratio, cpu = got.session_ms / got.plain_ms, got.session_cpu_us / got.plain_cpu_us
        first = f"{got.flying:9}  {got.plain_ms:6.3f}  {got.session_ms:12.3f} {ratio:8.2f}"
        print(f"{first}  {got.plain_cpu_us:17.0f}  {got.session_cpu_us:12.0f} {cpu:8.2f}")
    if options.out is not None:
        tables = {"tokens": [one._asdict() for one in made], "gets": [one._asdict() for one in asked]}
        chosen = {"protocol": options.protocol, "seed": SEED, "gets": GETS}
        options.out.write_text(json.dumps({**provenance(), "options": chosen, **tables}, indent=2) + "\n")


if __name__ == "__main__":
    main()
