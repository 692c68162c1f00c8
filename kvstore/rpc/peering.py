"""The door for peers: links that come in from other replicas.

Nobody gets past it without a hello that fits (hello.py). Each peer has one stream; when it opens another, the one
before is dead, whether we know it yet or not, and ends. A stream that is refused or ends has changed nothing: what was
not acknowledged comes again on the next one.

What we say of a link is what is committed and durable, and the loop tells us that by `ack`: the counters of the replica
in memory are ahead of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import grpc

from causal.model import Site
from kvstore.config import Cluster, SiteConfig
from kvstore.errors import BadRequest, ClusterMismatch, Internal, KvError, Stopping, Unavailable
from kvstore.hello import Accepted, Greeting, is_forgetful, judge, refusal
from kvstore.loop import Loop
from kvstore.replica import Replica
from kvstore.rpc import frames
from kvstore.rpc.ends import HELLO_S_MAX, STEADY_S, Alarming, Counting, LinkState, Parts
from kvstore.rpc.receiving import Receiving
from kvstore.rpc.wire import Context, abort, send
from kvstore.shape import Shape
from kvstore.storage.contract import Storage
from kvstore.wall import wall_ms

log = logging.getLogger("kvstore.peering")


class Peering:
    """To be made before the replica's loop runs: what is on disk then is committed, what comes later is told."""

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
        self._parts = Parts(cluster, site, replica, loop, storage, shape, alarms, metrics, wall_ms)
        self._committed = {peer: link.applied for peer, link in replica.links.items()}
        self._streams: dict[Site, Receiving] = {}
        self._states = {peer: LinkState(trouble="it has not said hello yet") for peer in replica.links}
        self._stopping: KvError | None = None
        self.on_hello: Callable[[Site], None] = lambda peer: None  # who wants to know that a peer is there
        shape.on_change(self._look)

    def join(self, server: grpc.aio.Server) -> None:
        """Stand at this server's port. Frames come as bytes; see frames.py."""
        link: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._link)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(frames.SERVICE, {"Link": link}),))

    # What the loop tells

    def ack(self, peer: Site, up_to: int) -> None:
        """Everything of this peer up to here is applied, committed and durable."""
        if up_to > self._committed[peer]:
            self._committed[peer] = up_to
        stream = self._streams.get(peer)
        if stream is not None and self._parts.replica.fence is None:
            stream.ack(up_to)

    def refuse(self, peer: Site, error: KvError) -> None:
        """A message of this peer could not be taken; whatever follows it cannot either."""
        self._complain(peer, error)
        stream = self._streams.get(peer)
        if stream is not None:
            stream.end(error)

    def state(self, peer: Site) -> LinkState:
        state = self._states[peer]
        state.queue = max(0, state.passed - self._parts.replica.links[peer].applied)
        return state

    def close(self) -> None:
        """End all streams and take no more. Call it before the server stops, which would wait for them."""
        self._stopping = Stopping(site=self._parts.site.name)
        for stream in self._streams.values():
            stream.end(self._stopping)

    # One stream

    async def _link(self, _: object, context: Context) -> None:
        try:
            await self._serve(context)
        except KvError as error:
            await abort(context, error)
        except Exception as error:
            if context.done():
                return  # it was the connection that broke
            log.exception("a link from a peer has stumbled over a mistake of ours")
            await abort(context, Internal(why=repr(error)))

    async def _serve(self, context: Context) -> None:
        hello = await self._read_hello(context)
        accepted = await self._judge(context, hello)
        peer, state = hello.site, self._states[hello.site]
        stream = Receiving(self._parts, context, hello, accepted, state)
        old = self._streams.get(peer)
        if old is not None:
            old.end(Unavailable(site=self._parts.site.name, why="a newer stream has taken the place of this one"))
        self._streams[peer] = stream
        state.connected, state.trouble = True, ""
        state.connects += 1
        self.on_hello(peer)
        steady = asyncio.get_running_loop().call_later(STEADY_S, self._is_steady, peer)
        why = f"the link from {hello.name} is broken"
        try:
            await send(context, frames.accepted_frame(accepted))
            await stream.run()
            why = f"{hello.name} has closed the link"
        except KvError as error:
            why = str(error)
            raise
        finally:
            steady.cancel()
            if self._streams.get(peer) is stream:  # else a newer one has taken its place, and that one is well
                del self._streams[peer]
                state.connected, state.trouble = False, why

    async def _read_hello(self, context: Context) -> Greeting:
        if self._stopping is not None:
            raise self._stopping
        try:
            async with asyncio.timeout(HELLO_S_MAX):
                data = await context.read()
        except TimeoutError:
            raise BadRequest(why=f"a link without a hello for {HELLO_S_MAX:.0f} s", field="hello") from None
        if not isinstance(data, bytes):
            raise _not_a_hello("nothing")
        if len(data) > frames.HELLO_BYTES_MAX:
            raise _not_a_hello(f"a frame of {len(data)} bytes")
        frame = frames.request_of(data)
        if not frame.HasField("hello"):
            raise _not_a_hello(f"a {frame.WhichOneof('frame') or 'frame of an unknown kind'}")
        return frames.greeting_of(frame.hello)

    async def _judge(self, context: Context, hello: Greeting) -> Accepted:
        parts = self._parts
        up_to = self._committed.get(hello.site, 0)
        time_said, wall_ms = parts.loop.said.time, parts.now_ms()
        # Who has lost its memory acknowledges nothing any more: its peers must keep what it will need.
        verdict = parts.replica.fence or judge(parts.replica, hello, up_to=up_to, time=time_said, wall_ms=wall_ms)
        if isinstance(verdict, KvError):
            if hello.site in self._states and hello.site not in self._streams:
                self._complain(hello.site, verdict)
            else:  # nobody we know; or the true peer is here, and this is only somebody else
                log.info("%s is refused: %s", context.peer(), verdict)
            await send(context, frames.refused_frame(refusal(verdict)))
            raise verdict
        if parts.shape.is_cut(hello.site, incoming=True):
            raise Unavailable(site=parts.site.name, why="the link is cut")
        return verdict

    # Trouble

    def _complain(self, peer: Site, error: KvError) -> None:
        state, name = self._states[peer], self._parts.name(peer)
        if state.trouble != str(error):  # it will come again and again
            log.warning("the link from %s: %s", name, error)
        state.trouble = str(error)
        if is_forgetful(error, self._parts.site.name):
            self._parts.loop.fence(error)
            self._parts.alarms.raise_("AMNESIA", str(error), site=self._parts.site.name)
        else:
            self._parts.alarms.raise_("PEER_REFUSED", str(error), peer=name)

    def _is_steady(self, peer: Site) -> None:
        self._parts.alarms.clear("PEER_REFUSED", peer=self._parts.name(peer))

    def _look(self) -> None:
        for peer, stream in self._streams.items():
            if self._parts.shape.is_cut(peer, incoming=True):
                stream.end(Unavailable(site=self._parts.site.name, why="the link is cut"))


def _not_a_hello(found: str) -> ClusterMismatch:
    message = f"a link begins with a hello, not with {found}"
    return ClusterMismatch(message, what="first frame", here="a hello", there=found, field="hello")
