"""The corridor: every change of a replica walks through here, in one order, in batches.

Take what waits; step; commit on the one writer thread; then answer, send and acknowledge. While a commit syncs, the
next batch gathers: the busier the replica, the more writes share one sync, and an idle one waits for nobody.

Two doors lead in. Clients wait in one bounded inbox; when it is full they are refused at once, and surely nothing was
done. Each peer has a short queue of its own, which is never refused, only not read (SAFETY 7): a full one makes the
link wait, and what a waiting client waits for can always come in.

A commit that fails ends the loop with the error: the process must end with it, because the disk is the only honest
state.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from causal.model import Site
from kvstore.effects import Committed, Envelope, Event, Input, Step, Write, Written
from kvstore.errors import InboxFull, KvError, Stopping
from kvstore.persist import save
from kvstore.replica import Replica
from kvstore.storage.contract import Storage

UNSAID_MAX = 64  # commits that peers have not heard of; beyond it: a sync
RECORDS_KEPT = 1024  # commits whose record a reader can still find; a read transaction is much shorter than that


class Outlet(NamedTuple):
    """Who is told what a commit made true. Each is called on the loop, after the commit, and must not wait."""

    send: Callable[[Site, list[Envelope]], None]
    ack: Callable[[Site, int], None]
    refuse: Callable[[Site, KvError], None]
    events: Callable[[int, list[Event]], None]


class Loop:
    def __init__(self, replica: Replica, storage: Storage, outlet: Outlet, now_ms: Callable[[], int]) -> None:
        self.replica = replica
        self._storage = storage
        self._outlet = outlet
        self._now_ms = now_ms
        self._limits = replica.cluster.limits
        self._clients: deque[tuple[Write, asyncio.Future[Written]]] = deque()
        self._peers: dict[Site, deque[Input]] = {peer: deque() for peer in replica.links}
        self._room: dict[Site, asyncio.Event] = {peer: asyncio.Event() for peer in replica.links}
        self._work = asyncio.Event()
        self._stopping = False
        self._unsaid: deque[tuple[int, Step]] = deque()  # what peers may hear once this commit is durable
        self._writer = ThreadPoolExecutor(1, "writer")
        self._records: OrderedDict[int, Committed] = OrderedDict()
        self._register(replica.committed(storage.number))

    # The doors

    def write(self, write: Write) -> asyncio.Future[Written]:
        """Ask for a write. The future has its answer once it is committed."""
        if self._stopping:
            raise Stopping(site=self.replica.cluster.sites[self.replica.site].name)
        if len(self._clients) >= self._limits.inbox_max:
            raise InboxFull(limit=self._limits.inbox_max)
        answer: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._clients.append((write, answer))
        self._work.set()
        return answer

    async def offer(self, peer: Site, one: Input) -> None:
        """Bring something from a peer; waits while its queue is full."""
        queue, room = self._peers[peer], self._room[peer]
        while len(queue) >= self._limits.link_queue_max:
            room.clear()
            await room.wait()
        queue.append(one)
        self._work.set()

    def committed(self, number: int) -> Committed:
        """The record of a commit, for a reader that sees just this commit (SAFETY 1)."""
        return self._records[number]

    # The corridor

    async def run(self) -> None:
        """Until `stop`; raises what a commit raises, and then nothing more can be done here."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                await self._turn()
                if self._stopping and not self._waiting():
                    return
        finally:
            self._writer.shutdown(wait=True)
            self._abandon()

    def stop(self) -> None:
        """Take no more writes, finish what waits, then end."""
        self._stopping = True
        self._work.set()

    async def _turn(self) -> None:
        inputs, answers = self._take()
        if not inputs:
            return
        with self._storage.snapshot() as view:
            step = self.replica.step(inputs, self._now_ms(), view)
        try:
            if step.changed:
                await self._commit(step)
        except BaseException as error:
            for answer in answers:
                if answer is not None and not answer.done():
                    answer.set_exception(error if isinstance(error, KvError) else Stopping(site="this replica"))
            raise
        self._answer(step, answers)
        self._unsaid.append((step.batch.number if step.changed else step.batch.number - 1, step))
        await self._say_what_is_durable()
        if self._waiting():
            self._work.set()

    async def _say_what_is_durable(self) -> None:
        """Relaxed durability relaxes the client's answer alone (SAFETY 2): peers hear of a commit when it is durable.

        The next commit may make it so anyway; when none is in sight, or too much is unsaid, we sync ourselves.
        """
        self._say()
        if self._unsaid and (len(self._unsaid) > UNSAID_MAX or not self._waiting()):
            await asyncio.get_running_loop().run_in_executor(self._writer, self._storage.sync)
            self._say()

    def _take(self) -> tuple[list[Input], list[asyncio.Future[Written] | None]]:
        """What waits, up to a limit; peers first, so that a flood of clients never keeps them out."""
        inputs: list[Input] = []
        answers: list[asyncio.Future[Written] | None] = []
        for peer, queue in self._peers.items():
            while queue and len(inputs) < self._limits.commit_max:
                inputs.append(queue.popleft())
                answers.append(None)
            self._room[peer].set()
        while self._clients and len(inputs) < self._limits.commit_max:
            write, answer = self._clients.popleft()
            if not answer.cancelled():  # nobody waits for it any more, and nothing was done
                inputs.append(write)
                answers.append(answer)
        return inputs, answers

    async def _commit(self, step: Step) -> None:
        save(self.replica, step.batch)
        self._register(self.replica.committed(step.batch.number))  # before anybody can read the commit
        await asyncio.get_running_loop().run_in_executor(self._writer, self._storage.commit, step.batch)

    def _answer(self, step: Step, answers: list[asyncio.Future[Written] | None]) -> None:
        for place, result in step.answers.items():
            answer = answers[place]
            if answer is None or answer.done():
                continue
            if isinstance(result, Written):
                answer.set_result(result)
            else:
                answer.set_exception(result)

    def _say(self) -> None:
        while self._unsaid and self._unsaid[0][0] <= self._storage.durable:
            _, step = self._unsaid.popleft()
            for peer, envelopes in step.sends.items():
                self._outlet.send(peer, envelopes)
            for peer, up_to in step.acks.items():
                self._outlet.ack(peer, up_to)
            for peer, error in step.refused.items():
                self._outlet.refuse(peer, error)
            if step.events:
                self._outlet.events(step.batch.number, step.events)

    def _waiting(self) -> bool:
        return bool(self._clients) or any(self._peers.values())

    def _register(self, committed: Committed) -> None:
        self._records[committed.number] = committed
        while len(self._records) > RECORDS_KEPT:
            self._records.popitem(last=False)

    def _abandon(self) -> None:
        """Whoever still waits hears that nothing was done."""
        for _, answer in self._clients:
            if not answer.done():
                answer.set_exception(Stopping(site=self.replica.cluster.sites[self.replica.site].name))
        self._clients.clear()
