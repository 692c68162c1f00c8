"""Sessions that move with every operation, between real processes, over slow links, while replicas are killed.

One process plays all clients. It has one client for each replica, and nothing of a session goes from one client to the
next but its token. What the sessions did and saw is written down by the product's own history, and judged by
`pipeline.audit`, which shares nothing with the store.

There are three ways to travel. A token that is *carried* along is what sessions are for. One that is *dropped* at each
move is the mistake that the audit must find. And *none* is for protocols that refuse sessions: plain calls, written
down as if they were a session.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from kvstore import aio
from kvstore.aio_verbs import Verbs
from kvstore.answers import Item
from kvstore.cluster import LocalCluster
from kvstore.config import LinkConfig
from kvstore.errors import KvError
from kvstore.history import History
from kvstore.values import Delete, Get, Put, Written
from pipeline.audit import Verdict, judge, load

TIMEOUT_S = 8.0  # of an operation: longer than a replica is dead, unless the machine is very busy
HASTY_S, HASTY_SHARE = 0.1, 0.05  # of a few that wait less than slow links take: they may fail, or never be answered
DEAD_S = 0.3  # between a kill and the start after it
ROOMS = 25  # in which a few sessions each talk about a few keys. Of keys that all write, one sees only the newest
LASTING, FLEETING = 4, 1  # keys of a room: that are never deleted; that are
ELSEWHERE_SHARE = 0.1  # of operations in another room, which ties the rooms together
DELAYS_MS = {"ab": (0, 20), "ba": (10, 40), "ac": (150, 50), "ca": (100, 100), "bc": (20, 30), "cb": (60, 140)}

Task = tuple[Get, ...] | tuple[Put | Delete, ...]


def links(*, most_ms: int) -> tuple[LinkConfig, ...]:
    """Between three sites, no two alike: none takes longer than this, its jitter included."""
    scale = most_ms / 200
    return tuple(
        LinkConfig(pair[0], pair[1], delay * scale, jitter * scale) for pair, (delay, jitter) in DELAYS_MS.items()
    )


class Tokens(Enum):
    CARRIED = "carried"
    DROPPED = "dropped"
    NONE = "none"


class Report(NamedTuple):
    """What came of a run."""

    verdict: Verdict
    outcomes: Mapping[str, int]  # of operations on one key, as the history has them
    errors: Mapping[str, int]  # of calls, by their reasons
    seconds: Sequence[float]  # that each call took, ascending
    took_s: float
    judged_s: float

    @property
    def ok_share(self) -> float:
        return self.outcomes["ok"] / sum(self.outcomes.values())

    def __str__(self) -> str:
        calls = len(self.seconds)
        waits = [round(self.seconds[int(share * (calls - 1))] * 1000) for share in (0.5, 0.9, 0.99, 1)]
        return (
            f"{calls} operations in {self.took_s:.1f} s, {calls / self.took_s:.0f}/s; {dict(self.outcomes)}, "
            f"{self.ok_share:.1%} ok; errors {dict(self.errors)}; ms at 50, 90, 99, 100 %: {waits}; "
            f"judged in {self.judged_s:.1f} s"
        )


class Travels:
    """One run: so many sessions at once, each with so many operations."""

    def __init__(
        self,
        cluster: LocalCluster,
        *,
        sessions: int = 100,
        operations: int = 100,
        kills: int = 2,
        seed: int = 0,
        tokens: Tokens = Tokens.CARRIED,
    ) -> None:
        self.cluster = cluster
        self.sessions, self.operations, self.kills = sessions, operations, kills
        self.seed = seed
        self.tokens = tokens
        self.seconds: list[float] = []
        self.errors: Counter[str] = Counter()
        self.clients: dict[str, aio.Client] = {}

    def go(self, path: Path) -> Report:
        """Travel, write it down in this file of lines, and judge it."""
        history = History(path, run="travels", values="none")
        started_s = time.monotonic()
        asyncio.run(self._travel(history))
        took_s = time.monotonic() - started_s
        history.close()
        recorded = load(path.read_bytes(), "jsonl")
        started_s = time.monotonic()
        verdict = judge(recorded)
        outcomes = Counter(str(one.outcome) for one in recorded.operations)
        judged_s = time.monotonic() - started_s
        return Report(verdict, outcomes, self.errors, sorted(self.seconds), took_s, judged_s)

    async def _travel(self, history: History) -> None:
        async with AsyncExitStack() as stack:
            for name in self.cluster.names:
                client = aio.connect(
                    self.cluster.endpoint(name), timeout_s=TIMEOUT_S, coalesce=False, history=self._told(history)
                )
                self.clients[name] = await stack.enter_async_context(client)
            trouble = asyncio.create_task(self._kill_now_and_then())
            try:
                await asyncio.gather(*(Traveller(self, number, history).go() for number in range(self.sessions)))
                assert trouble.done() or not self.kills, "the kills came too late to mean anything"
                await trouble
            finally:
                trouble.cancel()
                await asyncio.gather(trouble, return_exceptions=True)

    def _told(self, history: History) -> History | None:
        return None if self.tokens is Tokens.NONE else history  # plain calls are written down by their traveller

    async def _kill_now_and_then(self) -> None:
        """At the same places of the run, however fast it is."""
        rng = random.Random(f"kills {self.seed}")
        for number in range(self.kills):
            place = self.sessions * self.operations * (number + 1) // (self.kills + 2)
            while len(self.seconds) < place:
                await asyncio.sleep(0.02)
            victim = rng.choice(self.cluster.names)
            await asyncio.to_thread(self.cluster.kill, victim)
            await asyncio.sleep(DEAD_S)
            await asyncio.to_thread(self.cluster.start, victim)


class Traveller:
    """One session."""

    def __init__(self, travels: Travels, number: int, history: History) -> None:
        self.travels = travels
        self.rng = random.Random(f"traveller {travels.seed} {number}")
        self.diary = history.session()  # of the session, wherever it is
        self.home = number % ROOMS
        self.token = b""
        self.site = ""

    async def go(self) -> None:
        for _ in range(self.travels.operations):
            self.site = self.rng.choice([name for name in self.travels.cluster.names if name != self.site])
            timeout_s = HASTY_S if self.rng.random() < HASTY_SHARE else TIMEOUT_S
            act = self._act_plainly if self.travels.tokens is Tokens.NONE else self._act
            started_s = time.monotonic()
            try:
                await act(self._task(), timeout_s)
            except KvError as error:
                self.travels.errors[error.reason] += 1
            self.travels.seconds.append(time.monotonic() - started_s)

    async def _act(self, task: Task, timeout_s: float) -> None:
        session = self.travels.clients[self.site].session(self.token)
        session.diary = self.diary
        await do(session, task, timeout_s)
        if self.travels.tokens is Tokens.CARRIED:
            self.token = await session.token()

    async def _act_plainly(self, task: Task, timeout_s: float) -> None:
        started_ns = time.monotonic_ns()
        try:
            done = await do(self.travels.clients[self.site], task, timeout_s)
        except KvError as error:
            self.diary.note([(one, error) for one in task], site=self.site, started_ns=started_ns)
            raise
        self.diary.note(done, site=self.site, started_ns=started_ns)

    def _task(self) -> Task:
        rng = self.rng
        room = rng.randrange(ROOMS) if rng.random() < ELSEWHERE_SHARE else self.home
        lasting = [b"%d/lasting/%d" % (room, number) for number in range(LASTING)]
        fleeting = [b"%d/fleeting/%d" % (room, number) for number in range(FLEETING)]
        match rng.choices(("get", "look around", "put", "delete", "batch"), (25, 25, 30, 5, 15))[0]:
            case "get":
                return (Get(rng.choice(lasting + fleeting)),)
            case "look around":
                return tuple(Get(key) for key in lasting + fleeting)
            case "put":
                return (Put(rng.choice(lasting + fleeting), b"v"),)
            case "delete":
                return (Delete(rng.choice(fleeting)),)
        keys = rng.sample(lasting + fleeting, rng.randint(2, 3))
        return tuple(Delete(key) if key in fleeting and rng.random() < 0.5 else Put(key, b"v") for key in keys)


async def do(store: Verbs, task: Task, timeout_s: float) -> list[tuple[Get | Put | Delete, Item]]:
    """One call, whatever it is, and what it did or saw with each of its keys."""
    match task:
        case (Get(key) as get,):
            return [(get, await store.get(key, timeout_s=timeout_s))]
        case (Get(), *_):
            entries = await store.get_many([one.key for one in task], timeout_s=timeout_s)
            return [(one, entries.get(one.key)) for one in task]
        case (Put(key, value) as put,):
            return [(put, await store.put(key, value, timeout_s=timeout_s))]
        case (Delete(key) as delete,):
            return [(delete, await store.delete(key, timeout_s=timeout_s))]
    batch = await store.batch([one for one in task if not isinstance(one, Get)], timeout_s=timeout_s)
    return [
        (one, Written(version, batch.site, batch.commit)) for one, version in zip(task, batch.versions, strict=True)
    ]
