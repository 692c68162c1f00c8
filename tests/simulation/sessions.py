"""Sessions that move with every operation, between replicas that die, over slow links; and the audit of what they saw.

Each session does one thing after another, each at another replica than the one before, through the same requests and
answers as any client (moving.py). What it did and saw is judged by `pipeline.audit`, which shares nothing with the
store.

    python -m tests.simulation.sessions --protocol optimal --seed 1 --operations 10000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from causal.protocols import PROTOCOLS
from kvstore.config import Cluster, Durability
from pipeline.audit import History, Operation, Outcome, Verdict, judge
from pipeline.audit.history import Kind
from tests.simulation.clockwork import run_in_simulated_time
from tests.simulation.cluster import make_cluster
from tests.simulation.moving import Session
from tests.simulation.replicas import Replicas, Weather

CAUSAL = tuple(name for name, protocol in PROTOCOLS.items() if protocol.is_causal)
GROUPS = {b"": "abcde", b"x": "abc", b"y": "bcd", b"z": "dea"}  # who holds which keys, where not everybody holds all


@dataclass
class Run:
    """One simulated run, and what came of it."""

    protocol: str
    seed: int
    operations: int = 2_000
    sessions: int = 20  # at once; one that ends is followed by another
    sites: int = 4
    is_partial: bool = False
    is_periodic: bool = False
    weather: Weather = field(default_factory=Weather)
    options: Mapping[str, int] = field(default_factory=dict)
    shares: tuple[int, ...] = (40, 10, 30, 5, 15)  # of get, get_many, put, delete, batch
    stays: float = 0.0  # share of the operations that a session does where it did the one before
    keys: int = 6  # of each prefix that are deleted and expire; twice as many are only written

    def __post_init__(self) -> None:
        self.rows: list[Operation] = []
        self.counts = dict.fromkeys(("operations", "moves", "in_vain", "lost", "repeats", "doubts", "mismatches"), 0)
        self.complaints: list[str] = []

    def cluster(self) -> Cluster:
        durability = Durability.PERIODIC if self.is_periodic else Durability.SYNC
        sites = 5 if self.is_partial else self.sites
        cluster = make_cluster(sites, self.protocol, durability=durability, options=dict(self.options))
        if not self.is_partial:
            return cluster
        placement = {prefix: tuple(names) for prefix, names in GROUPS.items()}
        return Cluster(cluster.cluster_id, cluster.sites, placement, self.protocol, self.options, durability)

    @property
    def prefixes(self) -> tuple[bytes, ...]:
        return tuple(filter(None, GROUPS)) if self.is_partial else (b"k",)

    def go(self) -> Run:
        run_in_simulated_time(self._main)
        return self

    async def _main(self) -> None:
        self.rng = random.Random(f"sessions {self.seed}")
        self.replicas = Replicas(self.cluster(), self.seed, self.weather)
        trouble = asyncio.create_task(self.replicas.die_now_and_then())
        clients = asyncio.gather(*(self._clients(place) for place in range(self.sessions)))
        broken = asyncio.create_task(self.replicas.is_broken.wait())
        await asyncio.wait((clients, broken), return_when=asyncio.FIRST_COMPLETED)
        for task in (clients, broken, trouble):
            task.cancel()
        ends = await asyncio.gather(clients, broken, trouble, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end
        self.took_s = asyncio.get_running_loop().time()
        if not self.replicas.trouble:
            await self.replicas.settle()
            self.complaints += self.replicas.complaints()
        self.complaints += self.replicas.trouble[:1]
        self.counts |= self.replicas.counts
        await self.replicas.close()

    async def _clients(self, place: int) -> None:
        number = 0
        while self.counts["operations"] < self.operations:
            number += 1
            session = Session(self, f"s{place}-{number}")
            for _ in range(self.rng.randint(3, 60)):
                if self.counts["operations"] < self.operations:
                    await session.act()

    # The judgement

    def verdict(self) -> Verdict:
        return judge(History.of(self.rows, is_ordered=True))

    def judged(self) -> list[str]:
        """Everything that is wrong."""
        verdict = self.verdict()
        return [*map(str, verdict.violations()), *_back_from_the_dead(self.rows), *self.complaints]

    @property
    def command(self) -> str:
        words = [f"--protocol {self.protocol} --seed {self.seed} --operations {self.operations}"]
        words += [f"--sites {self.sites}"] if self.sites != 4 else []
        words += [f"--keys {self.keys}"] if self.keys != 6 else []
        words += [f"--stays {self.stays}"] if self.stays else []
        words += ["--partial"] if self.is_partial else []
        words += ["--periodic"] if self.is_periodic else []
        words += [f"--option {name}={value}" for name, value in self.options.items()]
        return "python -m tests.simulation.sessions " + " ".join(words)


def _back_from_the_dead(rows: list[Operation]) -> list[str]:
    """Values that a session saw, then saw gone, and then saw again: the audit does not know when values expire."""
    known: dict[tuple[str, bytes], set[str]] = {}
    gone: dict[tuple[str, bytes], set[str]] = {}
    found = []
    for row in rows:
        place = row.session, row.key
        if row.kind is Kind.READ:
            found += [f"ExpiredCameBack: {row}" for version in row.observed if version in gone.get(place, ())]
            known.setdefault(place, set()).update(row.observed)
            if not row.observed:
                gone.setdefault(place, set()).update(known[place])
        elif row.version is not None and row.outcome is Outcome.OK:
            known.setdefault(place, set()).add(row.version)
    return found[:1]


def main() -> int:
    parser = argparse.ArgumentParser(description="Sessions that move, in simulated time; what they saw is audited.")
    parser.add_argument("--protocol", choices=tuple(PROTOCOLS), default="optimal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--keys", type=int, default=6)
    parser.add_argument("--stays", type=float, default=0.0)
    parser.add_argument("--partial", action="store_true")
    parser.add_argument("--periodic", action="store_true")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    options = {name: int(value) for name, _, value in (one.partition("=") for one in given.option)}
    run = Run(
        given.protocol,
        given.seed,
        given.operations,
        sites=given.sites,
        keys=given.keys,
        stays=given.stays,
        is_partial=given.partial,
        is_periodic=given.periodic,
        options=options,
    ).go()
    found = run.judged()
    print(f"{given.protocol}: {run.took_s:.0f} s, {len(run.rows)} rows, {run.counts}")
    print("\n".join(found) or "all promises are kept")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
