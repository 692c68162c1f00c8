"""One open stream of a link, at the site that receives: frames come in, acknowledgements go back.

Whatever comes is checked before it goes into the corridor: it must be a frame, its numbers must go on where the last
ones ended. One that does not pass ends the stream, and nothing has changed. One that does waits for its place in the
peer's queue, and while it waits nothing more is read: that is all the back-pressure there is.

A heartbeat promises that nothing older than its time follows. That holds *behind the messages before it*, so it goes in
only when the replica has taken those: it could still refuse one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic

from causal.model import Site
from kvstore.effects import Arrived, Envelope, Greeted, Heard, Input
from kvstore.errors import BadRequest, ClusterMismatch, KvError, LinkGap
from kvstore.hello import Accepted, Greeting
from kvstore.rpc import frames
from kvstore.rpc.ends import LinkState, Parts, until_first
from kvstore.rpc.wire import Context, send
from kvstore.shape import Line


class Receiving:
    def __init__(self, parts: Parts, context: Context, hello: Greeting, accepted: Accepted, state: LinkState) -> None:
        self._parts = parts
        self._peer: Site = hello.site
        self._name = hello.name
        self._context = context
        self._state = state
        self._passed = accepted.up_to
        self._greeted: Greeted | None = Greeted(hello.site, hello.incarnation)
        self._heard: tuple[int, Heard] | None = None  # a heartbeat, and the message before it
        self._line = Line(parts.shape.delay(hello.site), partial(send, context))
        self._to_ack = accepted.up_to
        self._acked_at = float("-inf")
        self._is_ack_wanted = asyncio.Event()
        self._gather_s = parts.cluster.limits.link_gather_ms / 1000
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Until the peer closes the stream; raises what else ends it."""
        await until_first(self._ended, self._listen(), self._acknowledge(), self._line.run())

    def ack(self, up_to: int) -> None:
        """So much is committed."""
        if up_to > self._to_ack:
            self._to_ack = up_to
            self._is_ack_wanted.set()

    def end(self, error: KvError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    # What comes

    async def _listen(self) -> None:
        context, offer, peer = self._context, self._parts.loop.offer, self._peer
        while True:
            data = await context.read()
            if not isinstance(data, bytes):
                return
            self._state.heard_mono = monotonic()
            for inputs in self._inputs(data):
                if inputs:
                    await offer(peer, inputs)

    def _inputs(self, data: bytes) -> tuple[Sequence[Input], Sequence[Input]]:
        """What a frame brings: its messages last and by themselves, since they may have to wait for the rest."""
        frame = frames.request_of(data)
        envelopes: Sequence[Envelope] = ()
        match frame.WhichOneof("frame"):
            case "batch":
                envelopes = frames.envelopes_of(frame.batch)
                self._check_numbers(envelopes)
            case "heartbeat":
                beat = frame.heartbeat
                self._heard = (self._passed, Heard(self._peer, beat.time, beat.wall_ms))
            case "hello":
                raise ClusterMismatch(
                    f"{self._name} says hello twice", what="number of hellos", here="1", there="2", field="hello"
                )
            case _:
                raise BadRequest(why=f"a frame of {len(data)} bytes of a kind that is not known here")
        self._count(len(envelopes), len(data))
        first = self._first_inputs()
        if envelopes:
            self._passed = self._state.passed = envelopes[-1].number
        return first, [Arrived(self._peer, envelope) for envelope in envelopes]

    def _check_numbers(self, envelopes: Sequence[Envelope]) -> None:
        for expected, envelope in enumerate(envelopes, start=self._passed + 1):
            if envelope.number != expected:
                raise LinkGap(peer=self._name, found=envelope.number, expected=expected)

    def _first_inputs(self) -> list[Input]:
        """What goes in before the messages of a frame."""
        inputs: list[Input] = []
        if self._greeted is not None:
            # Only now: the peer goes on, so it has judged our answer and found its memory sound.
            inputs.append(self._greeted)
            self._greeted = None
        if self._heard is not None and self._parts.replica.links[self._peer].received >= self._heard[0]:
            inputs.append(self._heard[1])
            self._heard = None
        return inputs

    def _count(self, messages: int, size: int) -> None:
        self._state.frames += 1
        self._state.bytes += size
        self._parts.metrics.frame_received(self._name, messages, size)

    # What goes back

    async def _acknowledge(self) -> None:
        """The newest at once, if the last one was a while ago; else after a little, for many together."""
        while True:
            await self._is_ack_wanted.wait()
            wait_s = self._acked_at + self._gather_s - monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            self._is_ack_wanted.clear()
            self._acked_at = monotonic()
            await self._line.put(frames.ack_frame(self._to_ack, self._parts.loop.said.time, self._parts.now_ms()))
