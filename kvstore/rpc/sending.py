"""One open stream of a link, at the site that sends: frames go out, acknowledgements come back.

A quiet link sends a message in the moment it is handed over. A busy one gathers: while something is not acknowledged
yet, a frame waits a few milliseconds after the one before it, or until it is full, so under load each frame costs the
receiver one commit for many messages. Nothing waits for acknowledgements: over a long distance many frames are under
way, and what holds them back is only the stream itself, when the receiver does not read.

Every so often, when everything that may be said is sent, a heartbeat says how far the clock is: nothing older will
follow. It promises no more than what was handed over, or what the clock on disk allows (SAFETY 2, 16).
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic

import grpc

from causal.model import Site
from kvstore.backlog import Backlog
from kvstore.effects import Acked, Greeted
from kvstore.errors import BadRequest, Unavailable
from kvstore.rpc import frames
from kvstore.rpc.ends import LinkState, Parts, until_first
from kvstore.shape import Line

PAUSE_S_MIN = 0.001  # loops count in milliseconds, and would turn a shorter pause into none at all
LAST_WORDS_S = 5.0  # for the reason why a stream has ended to come in; beyond it: it just ended

Call = grpc.aio.StreamStreamCall[bytes, bytes]


class Sending:
    def __init__(self, parts: Parts, greeted: Greeted, call: Call, backlog: Backlog, state: LinkState) -> None:
        peer: Site = greeted.peer
        self._parts = parts
        self._peer = peer
        self._name = parts.name(peer)
        self._greeted = greeted
        self._call = call
        self._backlog = backlog
        self._state = state
        self._line = Line(parts.shape.delay(peer), self._write)
        self._in_flight: deque[tuple[int, float]] = deque()  # frames not acknowledged: last number, when sent
        self._acked = backlog.next - 1
        self._is_ack_new = asyncio.Event()
        self._wake = asyncio.Event()
        self._is_gathering = False
        self._gather_s = parts.cluster.limits.link_gather_ms / 1000
        self._heartbeat_s = parts.cluster.limits.heartbeat_ms / 1000
        self._framed_at = self._beat_at = float("-inf")

    async def run(self) -> None:
        """Until the stream ends; raises why."""
        await until_first(self._listen(), self._speak(), self._report(), self._line.run())

    def poke(self) -> None:
        """There is more to send."""
        if not self._is_gathering or self._backlog.fills_a_frame:
            self._wake.set()

    # There

    async def _speak(self) -> None:
        while True:
            if self._backlog.is_empty:
                await self._rest()
            else:
                if self._in_flight:
                    await self._gather()
                await self._send()

    async def _rest(self) -> None:
        wait_s = self._beat_at + self._heartbeat_s - monotonic()
        if wait_s > 0:
            await self._sleep(wait_s)
            return
        self._beat_at = monotonic()
        await self._put(frames.heartbeat_frame(self._parts.loop.promised(), self._parts.now_ms()), messages=0)

    async def _gather(self) -> None:
        until = self._framed_at + self._gather_s
        self._is_gathering = True
        while self._in_flight and not self._backlog.fills_a_frame and (wait_s := until - monotonic()) > 0:
            await self._sleep(wait_s)
        self._is_gathering = False

    async def _send(self) -> None:
        envelopes = self._backlog.take()
        last = envelopes[-1].number
        self._framed_at = monotonic()
        self._in_flight.append((last, self._framed_at))
        self._state.passed = max(self._state.passed, last)
        await self._put(frames.batch_frame(envelopes), messages=len(envelopes))

    async def _put(self, frame: bytes, *, messages: int) -> None:
        self._state.frames += 1
        self._state.bytes += len(frame)
        self._parts.metrics.frame_sent(self._name, messages, len(frame))
        await self._line.put(frame)

    async def _write(self, frame: bytes) -> None:
        try:
            await self._call.write(frame)
        except (grpc.RpcError, asyncio.InvalidStateError):
            # The stream has ended, and whoever listens learns why; only if nobody does, this is all we know.
            await asyncio.sleep(LAST_WORDS_S)
            raise Unavailable(site=self._name, why="the stream has ended") from None

    async def _sleep(self, seconds: float) -> None:
        self._wake.clear()
        timer = asyncio.get_running_loop().call_later(max(seconds, PAUSE_S_MIN), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    # And back

    async def _listen(self) -> None:
        while True:
            data = await self._call.read()
            if not isinstance(data, bytes):
                raise Unavailable(site=self._name, why="it has closed the link")
            self._state.heard_mono = monotonic()
            up_to = frames.ack_of(data)
            if up_to >= self._backlog.next:
                # Believed, this would let us forget what the peer never got.
                sent = self._backlog.next - 1
                raise BadRequest(why=f"{self._name} acknowledges message {up_to}, but {sent} is the newest we sent")
            if up_to > self._acked:
                self._take_ack(up_to)

    def _take_ack(self, up_to: int) -> None:
        self._acked = up_to
        self._is_ack_new.set()
        now, in_flight = monotonic(), self._in_flight
        while in_flight and in_flight[0][0] <= up_to:
            waited_s = now - in_flight.popleft()[1]
            self._state.ack_ms = waited_s * 1000
            self._parts.metrics.ack_waited(self._name, waited_s)
        if not in_flight:
            self._wake.set()

    async def _report(self) -> None:
        """The replica hears of the newest acknowledgement when it can; the stream does not wait for that."""
        offer, peer = self._parts.loop.offer, self._peer
        await offer(peer, (self._greeted, Acked(peer, self._acked)))
        while True:
            await self._is_ack_new.wait()
            self._is_ack_new.clear()
            await offer(peer, (Acked(peer, self._acked),))
