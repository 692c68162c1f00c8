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
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from causal.model import Site
from kvstore.clock import COUNTER_BITS
from kvstore.config import Durability
from kvstore.effects import Arrived, Committed, Envelope, Happened, Input, Moment, Step, Tick, Write, Written
from kvstore.errors import InboxFull, Internal, KvError, Stopping
from kvstore.persist import save
from kvstore.replica import Replica
from kvstore.storage.contract import Storage
from kvstore.sweep import least_promise

UNSAID_MAX = 1024  # commits that peers have not heard of; beyond it: a sync
RECORDS_KEPT = 4 * UNSAID_MAX  # commits whose record can still be found; a read transaction is much shorter

Results = list[Written | KvError]


class Outlet(NamedTuple):
    """Who is told what a commit made true. Each is called on the loop, once it is durable, and must not wait."""

    send: Callable[[Site, list[Envelope]], None]
    ack: Callable[[Site, int], None]
    refuse: Callable[[Site, KvError], None]
    happened: Callable[[Happened], None]


class Asked(NamedTuple):
    """Writes of one caller: each is all or nothing by itself, and they are answered together."""

    writes: Sequence[Write]
    size: int  # bytes
    answer: asyncio.Future[Results]


class Queue:
    """What one peer has brought and nobody has taken yet."""

    __slots__ = ("bytes", "inputs", "room")

    def __init__(self) -> None:
        self.inputs: deque[tuple[Input, int]] = deque()  # each with its bytes
        self.bytes = 0
        self.room = asyncio.Event()  # there may be some again

    def extend(self, inputs: Sequence[Input]) -> None:
        for one in inputs:
            size = one.envelope.size if isinstance(one, Arrived) else 0
            self.inputs.append((one, size))
            self.bytes += size

    def pop(self) -> tuple[Input, int]:
        one, size = self.inputs.popleft()
        self.bytes -= size
        return one, size


class Turn(NamedTuple):
    """One step, from what it took to what may be said of it."""

    step: Step
    asked: list[tuple[int, Asked]]  # with the place of their first write among the inputs
    inputs: int
    stepped: Moment


class Unsaid(NamedTuple):
    """What peers may hear once this commit is durable."""

    number: int
    step: Step
    happened: Happened
    fresh: int


class Loop:
    def __init__(self, replica: Replica, storage: Storage, outlet: Outlet, now_ms: Callable[[], int]) -> None:
        self.replica = replica
        self.inbox = 0  # writes waiting
        self._storage = storage
        self._outlet = outlet
        self._now_ms = now_ms
        self._limits = replica.cluster.limits
        self._clients: deque[Asked] = deque()
        self._inbox_bytes = 0
        self._peers = {peer: Queue() for peer in replica.links}
        self._work = asyncio.Event()
        self._is_tick_due = False
        self._stopping = False
        self._is_turning = False
        self._sync_timer: asyncio.TimerHandle | None = None
        self._unsaid: deque[Unsaid] = deque()
        self._writer = ThreadPoolExecutor(1, "writer")
        self._records: OrderedDict[int, Committed] = OrderedDict()
        self._register(replica.committed(storage.number))
        self.said = self.committed(storage.number)  # the newest that is durable and was handed to the links
        self.fresh = least_promise(replica.links.values())  # everything older than this hybrid time is in it

    # The doors

    def ask(self, writes: Sequence[Write]) -> asyncio.Future[Results]:
        """Ask for writes, each all or nothing by itself. The future has their answers once all are committed."""
        if self._stopping:
            raise Stopping(site=self.replica.cluster.sites[self.replica.site].name)
        size = sum([write.size for write in writes])
        if self.inbox and self.inbox + len(writes) > self._limits.inbox_max:
            raise InboxFull(limit=self._limits.inbox_max, unit="writes")
        if self.inbox and self._inbox_bytes + size > self._limits.inbox_bytes_max:
            raise InboxFull(limit=self._limits.inbox_bytes_max, unit="bytes")
        answer: asyncio.Future[Results] = asyncio.get_running_loop().create_future()
        self._clients.append(Asked(writes, size, answer))
        self.inbox += len(writes)
        self._inbox_bytes += size
        self._work.set()
        return answer

    async def write(self, write: Write) -> Written:
        """One write, committed; or the error for which nothing was done."""
        (result,) = await self.ask((write,))
        if isinstance(result, KvError):
            raise result
        return result

    async def offer(self, peer: Site, inputs: Sequence[Input]) -> None:
        """Bring something from a peer; waits while its queue is full, or too much of it is held back already.

        What a held message waits for comes over another link, whose queue is another: of all messages that are missing,
        the causally first is the next one of its link, and nothing of that link is held.
        """
        queue = self._peers[peer]
        has_messages = any(isinstance(one, Arrived) for one in inputs)  # whatever else a peer says never waits for them
        while self._is_full(queue) or (has_messages and (self._holds_too_much(peer) or self._waits_for_proof())):
            queue.room.clear()
            await queue.room.wait()
        queue.extend(inputs)
        self._work.set()

    def _is_full(self, queue: Queue) -> bool:
        is_long = len(queue.inputs) >= self._limits.link_queue_max
        return is_long or queue.bytes >= self._limits.link_queue_bytes_max

    def _holds_too_much(self, peer: Site) -> bool:
        link = self.replica.links[peer]
        is_many = link.received - link.applied >= self._limits.link_held_max
        return is_many or link.held_bytes >= self._limits.link_held_bytes_max

    def _waits_for_proof(self) -> bool:
        """A restored replica must make no message before it is sure to remember all it made; a delivery might."""
        return bool(self.replica.unproven) and self.replica.ordering.makes_extras

    def tick(self) -> None:
        """Time passed: sweep, with the next turn."""
        self._is_tick_due = True
        self._work.set()

    def fence(self, error: KvError) -> None:
        """No client may write here from now on."""
        self.replica.fence = error

    def committed(self, number: int) -> Committed:
        """The record of a commit, for a reader that sees just this commit (SAFETY 1)."""
        return self._records[number]

    def committed_by(self, number: int) -> Committed:
        """The record of this commit, or of the oldest one kept, if that is later: all that the other says is in it."""
        found = self._records.get(number)
        return found if found is not None else next(iter(self._records.values()))

    def promised(self) -> int:
        """The hybrid time that a heartbeat may tell: nothing older will be sent behind it, also after a crash.

        While something is under way, that is the time of what was said last. Otherwise it is now, as far as the clock
        on disk runs ahead: a restart begins behind it.
        """
        if self._is_turning or self._unsaid:
            return self.said.time
        clock, reserved = self.replica.clock, self.replica.reserved
        clock.merge(min(self._now_ms() << COUNTER_BITS, reserved))
        return min(clock.latest, reserved)

    # The corridor

    async def run(self) -> None:
        """Until `stop`; raises what a commit raises, and then nothing more can be done here."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                self._is_turning = True
                await self._turn()
                self._is_turning = False
                await self._say_what_is_durable()
                if self._waiting():
                    self._work.set()
                elif self._stopping:
                    return
        finally:
            self._stopping = True
            if self._sync_timer is not None:
                self._sync_timer.cancel()
            self._writer.shutdown(wait=True)
            self._abandon()

    def stop(self) -> None:
        """Take no more writes, finish what waits, then end."""
        self._stopping = True
        self._work.set()

    async def _turn(self) -> None:
        inputs, asked_here = self._take()
        if not inputs:
            return
        try:
            turn = self._step(inputs, asked_here)
            step = turn.step
            if step.changed:
                await self._commit(step)
        except BaseException as error:
            for _, asked in asked_here:
                if not asked.answer.done():
                    asked.answer.set_exception(error if isinstance(error, KvError) else Internal(why=repr(error)))
            raise
        self._answer(turn)
        number = step.batch.number if step.changed else step.batch.number - 1
        happened = Happened(number, step.events, turn.stepped, moment(), turn.inputs, step.updates)
        fresh = least_promise(self.replica.links.values())
        self._unsaid.append(Unsaid(number, step, happened, fresh))
        for queue in self._peers.values():
            queue.room.set()

    def _step(self, inputs: list[Input], asked: list[tuple[int, Asked]]) -> Turn:
        stepped = moment()
        with self._storage.snapshot() as view:
            step = self.replica.step(inputs, self._now_ms(), view)
        return Turn(step, asked, len(inputs), stepped)

    async def _say_what_is_durable(self) -> None:
        """Relaxed durability relaxes the client's answer alone (SAFETY 2): peers hear of a commit when it is durable.

        The next commit may make it so anyway; when none is in sight, or too much is unsaid, we sync ourselves. In mode
        periodic no commit ever does, and we sync when peers have waited long enough.
        """
        self._say()
        if not self._unsaid:
            return
        wait_s = self._sync_wait_s()
        if wait_s > 0:
            if self._sync_timer is None:
                self._sync_timer = asyncio.get_running_loop().call_later(wait_s, self._sync_is_due)
            return
        await asyncio.get_running_loop().run_in_executor(self._writer, self._storage.sync)
        self._say()

    def _sync_is_due(self) -> None:
        self._sync_timer = None
        self._work.set()

    def _sync_wait_s(self) -> float:
        """How long the sync may wait that makes the oldest unsaid commit durable."""
        if len(self._unsaid) > UNSAID_MAX or self._stopping:
            return 0.0
        if self.replica.cluster.durability is Durability.PERIODIC:
            since_ns = time.monotonic_ns() - self._unsaid[0].happened.committed.mono_ns
            return self._limits.periodic_sync_ms / 1e3 - since_ns / 1e9
        return 1.0 if self._waiting() else 0.0

    def _take(self) -> tuple[list[Input], list[tuple[int, Asked]]]:
        """What waits, up to a limit; peers first, so that a flood of clients never keeps them out."""
        inputs: list[Input] = []
        count, room = self._limits.commit_max, self._limits.commit_bytes_max
        if self._is_tick_due:
            self._is_tick_due = False
            inputs.append(Tick())
        for queue in self._peers.values():
            while queue.inputs and len(inputs) < count and room > 0:
                one, size = queue.pop()
                inputs.append(one)
                room -= size
        asked: list[tuple[int, Asked]] = []
        while self._clients and len(inputs) < count and room > 0:
            waiting = self._clients.popleft()
            self.inbox -= len(waiting.writes)
            self._inbox_bytes -= waiting.size
            if not waiting.answer.cancelled():  # nobody waits for it any more, and nothing was done
                asked.append((len(inputs), waiting))
                inputs.extend(waiting.writes)
                room -= waiting.size
        return inputs, asked

    async def _commit(self, step: Step) -> None:
        save(self.replica, step.batch)
        self._register(self.replica.committed(step.batch.number))  # before anybody can read the commit
        await asyncio.get_running_loop().run_in_executor(self._writer, self._storage.commit, step.batch)

    def _answer(self, turn: Turn) -> None:
        answers = turn.step.answers
        for first, asked in turn.asked:
            if not asked.answer.done():
                asked.answer.set_result([answers[place] for place in range(first, first + len(asked.writes))])

    def _say(self) -> None:
        while self._unsaid and self._unsaid[0].number <= self._storage.durable:
            number, step, happened, fresh = self._unsaid.popleft()
            for peer, envelopes in step.sends.items():
                self._outlet.send(peer, envelopes)
            for peer, up_to in step.acks.items():
                self._outlet.ack(peer, up_to)
            for peer, error in step.refused.items():
                self._outlet.refuse(peer, error)
            self.said, self.fresh = self._records[number], fresh
            self._outlet.happened(happened)

    def _waiting(self) -> bool:
        return bool(self._clients) or any(queue.inputs for queue in self._peers.values())

    def _register(self, committed: Committed) -> None:
        self._records[committed.number] = committed
        while len(self._records) > RECORDS_KEPT:
            self._records.popitem(last=False)

    def _abandon(self) -> None:
        """Whoever still waits hears that nothing was done."""
        for asked in self._clients:
            if not asked.answer.done():
                asked.answer.set_exception(Stopping(site=self.replica.cluster.sites[self.replica.site].name))
        self._clients.clear()
        self.inbox = self._inbox_bytes = 0


def moment() -> Moment:
    return Moment(time.time_ns(), time.monotonic_ns())
