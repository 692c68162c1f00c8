"""A link in simulated time: slow, in order, and broken when either end dies.

It begins with the real hello, and goes on from what the receiver says to have. What goes over it is what the product
sends: messages from the real backlog, heartbeats when there are none, and acknowledgements back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from kvstore.effects import Acked, Arrived, Greeted, Heard, Input
from kvstore.hello import Accepted, greeting, judge, judge_reply

if TYPE_CHECKING:
    from tests.simulation.replicas import Life


class Connection:
    """One stream of a link, while both ends live: messages and heartbeats there, acknowledgements back."""

    def __init__(self, sender: Life, receiver: Life) -> None:
        self.sender, self.receiver = sender, receiver
        self.world = sender.world
        self.wake = asyncio.Event()
        self._wire: deque[tuple[float, Sequence[Input]]] = deque()
        self._is_carrying = asyncio.Event()
        self._free_s = 0.0
        self._to_ack = 0
        self._is_ack_new = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._begin(self._open())
        sender.outgoing[receiver.site.number] = receiver.incoming[sender.site.number] = self

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        task.add_done_callback(self._look_at)
        self._tasks.append(task)

    def _look_at(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self.world.complain(f"the link from {self.sender.site.name} broke: {task.exception()!r}")

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.sender.backlogs[self.receiver.site.number].close()
        self.sender.outgoing.pop(self.receiver.site.number, None)
        self.receiver.incoming.pop(self.sender.site.number, None)

    async def _open(self) -> None:
        sender, receiver = self.sender, self.receiver
        here, there = sender.site.number, receiver.site.number
        await self.world.pause(self.world.weather.link_ms)
        backlog = sender.backlogs[there]
        hello = greeting(sender.replica, there, sent=max(sender.said_at_start[there], backlog.said))
        time, wall_ms = receiver.loop.said.time, receiver.now_ms()
        reply = judge(receiver.replica, hello, up_to=receiver.committed[here], time=time, wall_ms=wall_ms)
        if isinstance(reply, Accepted):
            await self.world.pause(self.world.weather.link_ms)
            error = judge_reply(sender.replica, hello, reply, clock=sender.replica.ordering.clock)
            if error is None:
                self._start(reply)
                return
            reply = error
        self.world.complain(f"{sender.site.name} and {receiver.site.name} do not talk: {reply}")

    def _start(self, accepted: Accepted) -> None:
        sender, receiver = self.sender, self.receiver
        here, there = sender.site.number, receiver.site.number
        sender.backlogs[there].open(accepted.up_to)
        self._put((Greeted(here, sender.replica.incarnation),))
        self.ack(accepted.up_to)
        self._begin(sender.loop.offer(there, (Greeted(there, accepted.incarnation, True, accepted.time),)))
        self._begin(self._speak())
        self._begin(self._carry())
        self._begin(self._acknowledge())

    def _put(self, inputs: Sequence[Input]) -> None:
        """On the wire, behind what is there already."""
        now_s = asyncio.get_running_loop().time()
        self._free_s = max(self._free_s, now_s + self.world.rng.uniform(0, self.world.weather.link_ms) / 1000)
        self._wire.append((self._free_s, inputs))
        self._is_carrying.set()

    async def _speak(self) -> None:
        sender, backlog = self.sender, self.sender.backlogs[self.receiver.site.number]
        here, heartbeat_s = sender.site.number, self.world.cluster.limits.heartbeat_ms / 1000
        beat_s = 0.0
        while True:
            now_s = asyncio.get_running_loop().time()
            if not backlog.is_empty:
                self._put([Arrived(here, envelope) for envelope in backlog.take()])
            elif now_s >= beat_s:
                beat_s = now_s + heartbeat_s
                self._put((Heard(here, sender.loop.promised(), sender.now_ms()),))
            else:
                self.wake.clear()
                timer = asyncio.get_running_loop().call_at(beat_s, self.wake.set)
                await self.wake.wait()
                timer.cancel()

    async def _carry(self) -> None:
        loop, here = asyncio.get_running_loop(), self.sender.site.number
        while True:
            if not self._wire:
                self._is_carrying.clear()
                await self._is_carrying.wait()
            at_s, inputs = self._wire.popleft()
            await asyncio.sleep(at_s - loop.time())
            await self.receiver.loop.offer(here, inputs)

    def ack(self, up_to: int) -> None:
        self._to_ack = max(self._to_ack, up_to)
        self._is_ack_new.set()

    async def _acknowledge(self) -> None:
        there = self.receiver.site.number
        while True:
            await self._is_ack_new.wait()
            self._is_ack_new.clear()
            up_to = self._to_ack
            await self.world.pause(self.world.weather.link_ms)
            await self.sender.loop.offer(there, (Acked(there, up_to),))
