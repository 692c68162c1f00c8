"""All links that go out from one replica: each dialed, greeted, kept busy, and dialed again when it breaks.

A link is one long stream to one peer. It starts with a hello (hello.py); the answer says what the peer has, and sending
goes on behind it (backlog.py, sending.py). Whatever ends a stream, nothing is lost: what is not acknowledged is in
the outbox.

How soon to dial again depends on why it ended. A good link that breaks is dialed at once, a peer that cannot be reached
after a tenth of a second, then more and more slowly up to two seconds, or as soon as it says hello to us. A refusal
needs somebody to change something: it is an alarm, and asked again every two seconds. And if *we* are the one who lost
its memory, there is nothing to ask: clients are kept out, and nothing is said to anybody any more (SAFETY 3).

In a dev cluster a link may be cut (shape.py). A cut ends the stream at once, with everything that was under way on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import grpc

from causal.blocks import Reader
from causal.model import Site
from kvstore.backlog import Backlog
from kvstore.config import Cluster, SiteConfig
from kvstore.effects import Envelope, Greeted
from kvstore.errors import ClusterMismatch, Internal, KvError, Unavailable
from kvstore.hello import Accepted, Refusal, fence_of, greeting, is_forgetful, judge_reply, refused
from kvstore.loop import Loop
from kvstore.past import Past
from kvstore.replica import Replica
from kvstore.rpc import frames
from kvstore.rpc.ends import HELLO_S_MAX, STEADY_S, Alarming, Counting, LinkState, Parts
from kvstore.rpc.sending import Call, Sending
from kvstore.rpc.wire import error_of_rpc
from kvstore.shape import REFRESH_MS, Shape
from kvstore.storage.contract import Storage
from kvstore.version import software_version
from kvstore.wall import wall_ms

RETRY_S_MIN = 0.1  # before a peer that could not be reached is dialed again; doubled each time
RETRY_S_MAX = 2.0  # and after a refusal
PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL")  # statuses that time may heal; any other is a refusal
CANNOT_TAKE = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)  # a frame too large, no such call
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # a new channel starts afresh, without the old one's back-off
    ("grpc.keepalive_time_ms", 10_000),  # servers send away whoever pings faster than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", frames.HELLO_BYTES_MAX),  # a receiver has only short answers
    ("grpc.max_send_message_length", -1),  # what we send is bounded where frames are made
    ("grpc.enable_retries", 0),  # a link is resumed, not retried
)

log = logging.getLogger("kvstore.links")


class OutLink:
    """The link to one peer, for as long as the replica runs."""

    def __init__(self, parts: Parts, peer: Site, spoken: Callable[[], int]) -> None:
        self.state = LinkState(trouble="it was not dialed yet")
        self._parts = parts
        self._peer = peer
        self._name = parts.name(peer)
        self._spoken = spoken
        # All that was on disk when we started may have been sent before.
        self._said_at_start = parts.replica.links[peer].sent
        self.backlog = Backlog(peer, parts.storage, parts.cluster.limits, said=self._said_at_start)
        self._sending: Sending | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._healed = asyncio.Event()
        self._is_called = asyncio.Event()
        self._failures = 0  # in a row, without a good link between them
        self._logged = ""  # the last unexpected error, so that the same one is not logged for ever

    def send(self, envelopes: list[Envelope]) -> None:
        self.backlog.add(envelopes)
        if self._sending is not None:
            self._sending.poke()

    def look(self) -> None:
        """Links were cut or healed, or this replica may not speak any more."""
        if not self._parts.shape.is_cut(self._peer):
            self._healed.set()
        if self._attempt is not None and (self._parts.shape.is_cut(self._peer) or self._parts.replica.fence):
            self._attempt.cancel()

    def call(self) -> None:
        """The peer has just spoken to us, so it is there: dial now."""
        self._is_called.set()

    async def run(self) -> None:
        while self._parts.replica.fence is None:
            await self._until_healed()
            self._attempt = asyncio.create_task(self._connect(), name=f"link to {self._name}")
            try:
                await asyncio.wait((self._attempt,))
            finally:
                self._attempt.cancel()
                await asyncio.gather(self._attempt, return_exceptions=True)
            wait_s = self._judge_end(self._attempt)
            if wait_s:
                self._is_called.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_called.wait(), wait_s)
                    await asyncio.sleep(RETRY_S_MIN)  # two that accept and then refuse each other must not spin
        self.state.trouble = str(self._parts.replica.fence)

    async def _until_healed(self) -> None:
        while self._parts.shape.is_cut(self._peer):
            self.state.trouble = f"the link to {self._name} is cut"
            self._healed.clear()
            await self._healed.wait()

    # One stream

    async def _connect(self) -> None:
        address = self._parts.cluster.sites[self._peer].peer
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            call: Call = channel.stream_stream(frames.LINK)()
            try:
                accepted = await self._greet(call)
                await self._converse(call, accepted)
            finally:
                call.cancel()

    async def _greet(self, call: Call) -> Accepted:
        replica, name = self._parts.replica, self._parts.site.name
        sent = max(self._said_at_start, self.state.passed)
        hello = greeting(replica, self._peer, sent=sent, software=software_version())
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                await call.write(frames.hello_frame(hello))
                data = await call.read()
        except TimeoutError:
            raise Unavailable(site=self._name, why=f"no answer to a hello within {HELLO_S_MAX:.0f} s") from None
        except asyncio.InvalidStateError:
            data = await call.read()  # raises what ended the stream
        if not isinstance(data, bytes):
            raise Unavailable(site=self._name, why="it closed the link without a word")
        reply = frames.reply_of(data)
        if isinstance(reply, Refusal):
            raise refused(reply, name=name, peer=self._name)
        error = judge_reply(replica, hello, reply, clock=self._spoken())
        if error is not None:
            raise error
        return reply

    async def _converse(self, call: Call, accepted: Accepted) -> None:
        state = self.state
        self.backlog.open(accepted.up_to)
        greeted = Greeted(self._peer, accepted.incarnation, is_accepted_by_peer=True, time=accepted.time)
        self._sending = Sending(self._parts, greeted, call, self.backlog, state)
        state.connected, state.trouble, state.heard_mono = True, "", monotonic()
        state.connects += 1
        self._parts.metrics.link_opened(self._name)
        log.info("the link to %s is open; it has up to %d", self._name, accepted.up_to)
        steady = asyncio.get_running_loop().call_later(STEADY_S, self._is_steady)
        try:
            await self._sending.run()
        finally:
            steady.cancel()
            self._sending = None
            self.backlog.close()
            state.connected = False

    def _is_steady(self) -> None:
        self._failures = 0
        self._parts.alarms.clear("LINK_REFUSED", peer=self._name)

    # And its end

    def _judge_end(self, attempt: asyncio.Task[None]) -> float:
        """How long to wait before the next one."""
        if attempt.cancelled():
            return 0.0  # by a cut or a fence, and whoever made it says when to go on
        error = self._error_of(attempt.exception())
        if self.state.trouble != str(error):
            log.warning("the link to %s: %s", self._name, error)
        self.state.trouble = str(error)
        if is_forgetful(error, self._parts.site.name):
            self._parts.loop.fence(fence_of(error))
            self._parts.alarms.raise_("AMNESIA", str(error), site=self._parts.site.name)
            return 0.0
        if error.status not in PASSING:
            self._parts.alarms.raise_("LINK_REFUSED", str(error), peer=self._name)
            return RETRY_S_MAX
        return self._back_off()

    def _back_off(self) -> float:
        wait_s = min(RETRY_S_MIN * 2 ** min(self._failures - 1, 10), RETRY_S_MAX) if self._failures else 0.0
        self._failures += 1
        return wait_s

    def _error_of(self, error: BaseException | None) -> KvError:
        if isinstance(error, KvError):
            return error
        if isinstance(error, grpc.aio.AioRpcError):
            if error.code() in CANNOT_TAKE:
                message = f"{self._name} cannot take what we send: {error.details()}"
                return ClusterMismatch(message, what="limits", here="-", there=error.code().name)
            return error_of_rpc(error, site=self._name, timeout_ms=round(HELLO_S_MAX * 1000))
        if repr(error) != self._logged:
            self._logged = repr(error)
            log.error("the link to %s ended for no good reason", self._name, exc_info=error)
        return Internal(why=f"the link to {self._name} ended with {error!r}")


class Links:
    """To be made before the replica's loop runs: what is on disk then may have been said, what comes later is told."""

    def __init__(
        self,
        cluster: Cluster,
        site: SiteConfig,
        replica: Replica,
        loop: Loop,
        storage: Storage,
        shape: Shape,
        alarms: Alarming,
        metrics: Counting,
    ) -> None:
        parts = Parts(cluster, site, replica, loop, storage, shape, alarms, metrics, wall_ms)
        self._parts = parts
        self._newest = replica.ordering.clock  # of our messages, that was on disk when we started or in a token since
        self._links = {peer: OutLink(parts, peer, self._spoken) for peer in replica.links}
        self._tasks: list[asyncio.Task[None]] = []
        shape.on_change(self._look)

    def send(self, peer: Site, envelopes: list[Envelope]) -> None:
        """These are durable and may be sent. They are in the outbox, so that we need not keep them."""
        self._links[peer].send(envelopes)

    def call(self, peer: Site) -> None:
        """A peer has said hello: whoever waits to dial it need not wait any longer."""
        self._links[peer].call()

    def _spoken(self) -> int:
        """The newest message of ours that anybody can have heard of.

        Any of those on disk when we started; those put on a link since; and those that sessions carry about. What we
        only made since then nobody knows: counted here, it would hide that an older message of that number was lost.
        """
        put = [link.backlog.newest[1] for link in self._links.values()]
        dots = [Reader(control).head(len(self._parts.cluster.sites))[1] for control in put if control]
        return max([self._newest, *(dot.seq for dot in dots)])

    def told(self, past: Past) -> None:
        """A session carries this away, and may tell any replica of it."""
        self._newest = max(self._newest, past.context.highest(self._parts.site.number))

    def state(self, peer: Site) -> LinkState:
        link = self._links[peer]
        link.state.queue = len(link.backlog)
        return link.state

    async def run(self) -> None:
        """For as long as the replica runs, also when it may not speak any more."""
        self._tasks = [asyncio.create_task(self._keep_up(link)) for link in self._links.values()]
        try:
            while True:
                await asyncio.sleep(REFRESH_MS / 1000)
                self._parts.shape.refresh()
                if self._parts.replica.fence is not None:
                    self._look()
        finally:
            await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _keep_up(self, link: OutLink) -> None:
        while True:
            try:
                await link.run()
                return
            except Exception:
                log.exception("a link has stumbled over a mistake of ours")
                await asyncio.sleep(RETRY_S_MAX)

    def _look(self) -> None:
        for link in self._links.values():
            link.look()
