"""Sessions that move with every operation, between replicas that die, over slow links; and the audit of what they saw.

Each session does one thing after another, each at another replica than the one before, through the same requests and
answers as any client. What it did and saw is written down and judged by `pipeline.audit`, which shares nothing with the
store. A session whose past is not where it came waits, then goes elsewhere; a write of which nobody knows what became is
asked again where it was asked first, or left in doubt.

    python -m tests.simulation.sessions --protocol optimal --seed 1 --operations 10000
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from causal.protocols import PROTOCOLS
from kvstore.config import Cluster, Durability
from kvstore.errors import KvError, VersionMismatch
from kvstore.update import Version
from kvstore.v1 import kv_pb2, model_pb2
from pipeline.audit import History, Operation, Outcome, Verdict, judge
from pipeline.audit.history import Kind
from tests.simulation.clockwork import run_in_simulated_time
from tests.simulation.cluster import make_cluster
from tests.simulation.replicas import EPOCH_MS, Life, Replicas, Weather

CAUSAL = tuple(name for name, protocol in PROTOCOLS.items() if protocol.is_causal)
PATIENCE_S = 2.0  # that a session waits at one replica for its past
GROUPS = {b"": "abcde", b"x": "abc", b"y": "bcd", b"z": "dea"}  # who holds which keys, where not everybody holds all
LASTING, FLEETING = 12, 6  # keys of each prefix: never deleted; deleted, and with a time to live
TTL_MS = 1_500
SESSION_WORDS = model_pb2.Freshness(level=model_pb2.Freshness.LEVEL_SESSION)


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
    weather: Weather = Weather()
    options: Mapping[str, int] = field(default_factory=dict)
    has_tokens: bool = True

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
        await asyncio.gather(*(self._clients(place) for place in range(self.sessions)))
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)
        self.took_s = asyncio.get_running_loop().time()
        await self.replicas.settle()
        self.complaints += self.replicas.complaints()
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


class Task(NamedTuple):
    """One operation of a session: a call, and the rows that it will be."""

    call: str
    request: Any
    keys: tuple[bytes, ...]
    kinds: tuple[Kind, ...]
    expires: tuple[bool, ...]

    @property
    def is_write(self) -> bool:
        return self.call not in ("get", "get_many")


class Session:
    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.token = b""
        self.rng = run.rng
        self.index = self.transaction = 0
        self.last_site = -1
        self.seen: dict[bytes, Version] = {}  # the newest that it saw of a key

    async def act(self) -> None:
        run = self.run
        await asyncio.sleep(self.rng.uniform(0, 0.02))
        task = self._task()
        run.counts["operations"] += 1
        self.transaction += 1
        start_ns = _now_ns()
        answer = await self._do(task)
        if answer is None:
            observed: list[str | None] = [None] * len(task.keys)
        elif isinstance(answer, VersionMismatch):
            run.counts["mismatches"] += 1
            self._note(task, [None] * len(task.keys), Outcome.FAIL, start_ns)
            return
        elif task.is_write:
            versions = answer.versions if task.call == "batch" else [answer.version]
            observed = [str(Version(one.time, one.site)) for one in versions]
        else:
            entries = answer.entries if task.call == "get_many" else [answer.entry] if answer.HasField("entry") else []
            found = {one.key: Version(one.version.time, one.version.site) for one in entries}
            self.seen |= found
            observed = [str(found[key]) if key in found else None for key in task.keys]
        self._note(task, observed, Outcome.UNKNOWN if answer is None else Outcome.OK, start_ns)
        if answer is not None:
            self.token = answer.session

    def _note(self, task: Task, versions: list[str | None], outcome: Outcome, start_ns: int) -> None:
        for key, kind, expires, version in zip(task.keys, task.kinds, task.expires, versions, strict=True):
            self.index += 1
            is_read = kind is Kind.READ
            self.run.rows.append(
                Operation(
                    self.name,
                    self.index,
                    self.transaction,
                    kind,
                    key,
                    version=None if is_read else version,
                    observed=(version,) if is_read and version else (),
                    outcome=outcome,
                    expires=expires,
                    replica=str(self.last_site),
                    start_ns=start_ns,
                    end_ns=_now_ns(),
                )
            )

    # Asking, until something is known

    async def _do(self, task: Task) -> Any:
        """The answer; None when nobody knows what became of a write, and a VersionMismatch when it is one."""
        counts = self.run.counts
        self._seal(task)
        life = await self._somewhere()
        while True:
            counts["moves"] += life.site.number != self.last_site
            self.last_site = life.site.number
            now_s = asyncio.get_running_loop().time()
            try:
                answer = await life.call(task.call, task.request, now_s + PATIENCE_S)
            except VersionMismatch as error:
                return error
            except KvError as error:
                if error.definite or not task.is_write:
                    counts["in_vain"] += error.reason == "PAST_MISSING"
                    life = await self._somewhere()
                    continue
                counts["lost"] += 1
                if self.rng.random() < 0.5:
                    counts["doubts"] += 1
                    return None
                counts["repeats"] += 1
                life = await self._again_at(self.last_site)
                continue
            return answer

    async def _somewhere(self) -> Life:
        """Any replica that lives, but not the same again."""
        while True:
            lives = self.run.replicas.lives
            others = [site for site in sorted(lives) if site != self.last_site or len(lives) == 1]
            if others:
                return lives[self.rng.choice(others)]
            await asyncio.sleep(0.05)

    async def _again_at(self, site: int) -> Life:
        while site not in self.run.replicas.lives:
            await asyncio.sleep(0.05)
        return self.run.replicas.lives[site]

    def _seal(self, task: Task) -> None:
        if self.run.has_tokens:
            task.request.session = self.token
            task.request.freshness.CopyFrom(SESSION_WORDS)

    # What to do next

    def _task(self) -> Task:
        prefix = self.rng.choice(self.run.prefixes)
        match self.rng.choices(("get", "get_many", "put", "delete", "batch"), (40, 10, 30, 5, 15))[0]:
            case "get":
                key = self._key(prefix)
                return Task("get", kv_pb2.GetRequest(key=key), (key,), (Kind.READ,), (False,))
            case "get_many":
                keys = tuple({self._key(prefix): None for _ in range(self.rng.randint(2, 6))})
                request = kv_pb2.GetManyRequest(keys=keys)
                return Task("get_many", request, keys, (Kind.READ,) * len(keys), (False,) * len(keys))
            case "put":
                return self._put(self._key(prefix))
            case "delete":
                key = self._fleeting(prefix)
                request_id = self._request_id()
                return Task(
                    "delete", kv_pb2.DeleteRequest(key=key, request_id=request_id), (key,), (Kind.DELETE,), (False,)
                )
        return self._batch()

    def _put(self, key: bytes) -> Task:
        request = kv_pb2.PutRequest(key=key, value=self._value(), request_id=self._request_id())
        if key[1:2] == b"f" and self.rng.random() < 0.5:
            request.ttl_ms = self.rng.randint(1, TTL_MS)
        elif key in self.seen and self.rng.random() < 0.1:
            request.expect_version.time, request.expect_version.site = self.seen[key]
        return Task("put", request, (key,), (Kind.WRITE,), (bool(request.ttl_ms),))

    def _batch(self) -> Task:
        keys = tuple({self._key(self.rng.choice(self.run.prefixes)): None for _ in range(self.rng.randint(2, 4))})
        request = kv_pb2.BatchRequest(request_id=self._request_id())
        kinds = []
        for key in keys:
            if key[1:2] == b"f" and self.rng.random() < 0.3:
                request.operations.add().delete.key = key
                kinds.append(Kind.DELETE)
            else:
                put = request.operations.add().put
                put.key, put.value = key, self._value()
                kinds.append(Kind.WRITE)
        return Task("batch", request, keys, tuple(kinds), (False,) * len(keys))

    def _key(self, prefix: bytes) -> bytes:
        if self.rng.random() < FLEETING / (LASTING + FLEETING):
            return self._fleeting(prefix)
        return b"%sl%d" % (prefix, self.rng.randrange(LASTING))

    def _fleeting(self, prefix: bytes) -> bytes:
        return b"%sf%d" % (prefix, self.rng.randrange(FLEETING))

    def _value(self) -> bytes:
        return b"%s/%d" % (self.name.encode(), self.transaction)

    def _request_id(self) -> bytes:
        return b"%s/%d" % (self.name.encode(), self.transaction)


def _now_ns() -> int:
    return EPOCH_MS * 1_000_000 + int(asyncio.get_running_loop().time() * 1e9)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sessions that move, in simulated time; what they saw is audited.")
    parser.add_argument("--protocol", choices=tuple(PROTOCOLS), default="optimal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--sites", type=int, default=4)
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
