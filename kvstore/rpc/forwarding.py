"""Calls about keys that are held elsewhere: asked of a holder, in one hop, and answered for holders' keys.

A forwarded call is a call of its own beside the links, with a pool of its own at both ends, so that it waits behind no
message and no message behind it (SAFETY 7). It carries the client's request unchanged; the holder opens the token,
waits for what the session has seen, and gives the new token. So causality holds although nothing here was looked at.

A read is asked of the holder that answers fastest, then of the others. A write may have happened where it was asked and
nobody heard the answer, neither we nor, behind us, the client. So a holder that was asked is remembered under the
request id, also when it answered, and a retry goes to it alone: it knows what became of it. Should we forget, because
this process was started again, holders of a write are asked in an order that never changes, so that the same one comes
first again; only if that one could not be reached the first time and can the second time, a write may be done twice.

In a dev cluster, delays and cuts of links hold for forwarded calls too (shape.py): a cut ends those that are under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import grpc

from causal.model import Mask, Site, sites_of
from kvstore.config import Cluster, SiteConfig
from kvstore.errors import (
    BadRequest,
    ClusterMismatch,
    Internal,
    KeysApart,
    KvError,
    PastMissing,
    TooManyWaiting,
    TooStale,
    Unavailable,
)
from kvstore.peer.v1 import peer_pb2
from kvstore.rpc.ends import LinkState
from kvstore.rpc.frames import SERVICE
from kvstore.rpc.wire import Context, abort, error_of_rpc
from kvstore.shape import Shape
from kvstore.storage.contract import SnapshotEnded

if TYPE_CHECKING:
    from kvstore.rpc.answering import Answering

READS = ("get", "get_many")
MARGIN_S = 0.05  # of a call's time that we keep, so that the client hears how it ended
NEVER_SENT = ("failed to connect to all addresses", "errors resolving ", "DNS resolution failed")
ELSEWHERE = frozenset(  # what another holder may not say
    (
        *("UNAVAILABLE", "DEADLINE_EXCEEDED", "STOPPING", "TOO_MANY_WAITING", "INBOX_FULL", "PAST_MISSING"),
        *("TOO_STALE", "OUTBOX_FULL", "CLOCK_SKEW", "RESTORED", "AMNESIA", "STORAGE_FAILED", "INTERNAL"),
    )
)
CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),  # servers send away whoever pings faster than every 5 s
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_send_message_length", -1),  # what a client may send is bounded at its door
    ("grpc.enable_retries", 0),
)

log = logging.getLogger("kvstore.forwarding")


class Reaching(Protocol):
    """Which peers are there, and how far away."""

    def state(self, peer: Site) -> LinkState: ...


class Forwarding:
    def __init__(self, cluster: Cluster, site: SiteConfig, links: Reaching, shape: Shape) -> None:
        self._cluster = cluster
        self._site = site
        self._links = links
        self._shape = shape
        self._most = cluster.limits.forwards_max
        self._under_way = 0  # asked of others
        self._served = 0  # asked by others
        self._asked: OrderedDict[bytes, Site] = OrderedDict()  # request ids of writes, the oldest first: their holders
        self._channels: dict[Site, grpc.aio.Channel] = {}
        self._calls: dict[Any, Site] = {}  # of gRPC, that wait for their answer
        self._answering: Answering
        shape.on_change(self._look)

    # Asking

    async def ask(self, kind: str, request: Any, holders: Mask, deadline_s: float) -> Any:
        """The answer of one of these sites."""
        peers = self._order(kind, request, holders)
        if self._under_way >= self._most:
            raise TooManyWaiting(limit=self._most, what="forwarded calls")
        self._under_way += 1
        try:
            if kind in READS:
                return await self._read(kind, request, peers, deadline_s - MARGIN_S)
            return await self._write(kind, request, peers, deadline_s - MARGIN_S)
        finally:
            self._under_way -= 1

    async def _read(self, kind: str, request: Any, peers: list[Site], deadline_s: float) -> Any:
        failures: list[KvError] = []
        for place, peer in enumerate(peers):
            left_s = deadline_s - monotonic()
            try:
                return await self._call(kind, request, peer, left_s / (len(peers) - place))
            except KvError as error:
                error.definite = True  # nothing was written
                failures.append(error)
                if error.reason not in ELSEWHERE:
                    break
        # Who only could not be reached says less than who lacks something.
        lacking = [error for error in failures if isinstance(error, PastMissing | TooStale)]
        raise (lacking if failures[-1].reason in ELSEWHERE and lacking else failures)[-1]

    async def _write(self, kind: str, request: Any, peers: list[Site], deadline_s: float) -> Any:
        request_id = request.request_id
        for place, peer in enumerate(peers):
            was_asked = bool(request_id) and self._remember(request_id, peer)
            left_s = deadline_s - monotonic()
            try:
                return await self._call(kind, request, peer, left_s / (len(peers) - place))
            except KvError as error:
                if was_asked and error.reason == Unavailable.reason:
                    error.definite = False  # what became of it the first time, nobody has said
                elif error.definite and not was_asked:
                    self._asked.pop(request_id, None)
                is_over = was_asked or not error.definite or error.reason not in ELSEWHERE
                if is_over or place == len(peers) - 1:
                    raise
        raise AssertionError("there is at least one holder")

    def _remember(self, request_id: bytes, peer: Site) -> bool:
        """Before it is asked: whoever waits for the answer may go away at any moment. Whether it was asked before."""
        was_asked = request_id in self._asked
        self._asked[request_id] = peer
        self._asked.move_to_end(request_id)
        if len(self._asked) > self._cluster.limits.requests_max:
            self._asked.popitem(last=False)
        return was_asked

    def _order(self, kind: str, request: Any, holders: Mask) -> list[Site]:
        """Whom to ask, one after the other."""
        here, count = self._site.number, len(self._cluster.sites)
        peers = sorted((peer for peer in sites_of(holders) if peer != here), key=lambda peer: (peer - here) % count)
        if not peers:
            raise KeysApart(holders="no site holds them all")
        if kind not in READS:
            if request.request_id in self._asked:
                return [self._asked[request.request_id]]
            return peers
        states = {peer: self._links.state(peer) for peer in peers}
        return sorted(peers, key=lambda peer: (self._is_cut(peer), not states[peer].connected, states[peer].ack_ms))

    async def _call(self, kind: str, request: Any, peer: Site, seconds: float) -> Any:
        site = self._cluster.sites[peer]
        there_s, back_s = (self._shape.delay_ms(peer, incoming=incoming) / 1000 for incoming in (False, True))
        await self._travel(peer, there_s, is_sent=False)
        wrapped = peer_pb2.ForwardRequest(cluster_id=self._cluster.cluster_id, to=peer, **{kind: request})
        call = self._stub(peer)(wrapped, timeout=max(seconds - there_s - back_s, 0.001))
        self._calls[call] = peer
        try:
            response = await call
        except grpc.aio.AioRpcError as error:
            failure = error_of_rpc(error, site=site.name, timeout_ms=round(seconds * 1000))
            if (error.details() or "").startswith(NEVER_SENT) and not error.trailing_metadata():
                failure.definite = True
            raise failure from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the client went away
            raise self._cut_off(peer, is_sent=True) from None
        finally:
            del self._calls[call]
        await self._travel(peer, back_s, is_sent=True)
        if response.WhichOneof("answer") != kind:
            raise Internal(why=f"{site.name} answered another question than it was asked")
        return getattr(response, kind)

    # The shape of a dev cluster

    async def _travel(self, peer: Site, seconds: float, *, is_sent: bool) -> None:
        if seconds and not self._is_cut(peer):
            await asyncio.sleep(seconds)
        if self._is_cut(peer):
            raise self._cut_off(peer, is_sent=is_sent)

    def _is_cut(self, peer: Site) -> bool:
        return self._shape.is_cut(peer) or self._shape.is_cut(peer, incoming=True)

    def _cut_off(self, peer: Site, *, is_sent: bool) -> KvError:
        error = Unavailable(site=self._cluster.sites[peer].name, why="the link is cut")
        error.definite = not is_sent
        return error

    def _look(self) -> None:
        """Links were cut or healed."""
        for call in [call for call, peer in self._calls.items() if self._is_cut(peer)]:
            call.cancel()

    def _stub(self, peer: Site) -> Any:
        if peer not in self._channels:
            size_max = ("grpc.max_receive_message_length", self._cluster.limits.frame_bytes_max)
            address = self._cluster.sites[peer].peer
            self._channels[peer] = grpc.aio.insecure_channel(address, options=(*CHANNEL_OPTIONS, size_max))
        return self._channels[peer].unary_unary(
            f"/{SERVICE}/Forward",
            request_serializer=peer_pb2.ForwardRequest.SerializeToString,
            response_deserializer=peer_pb2.ForwardResponse.FromString,
        )

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()

    # Answering

    def join(self, server: grpc.aio.Server, answering: Answering) -> None:
        """Stand at the peers' port and answer by this."""
        self._answering = answering
        handler: grpc.RpcMethodHandler[Any, Any] = grpc.unary_unary_rpc_method_handler(
            self._forward,
            request_deserializer=peer_pb2.ForwardRequest.FromString,
            response_serializer=peer_pb2.ForwardResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Forward": handler}),))

    async def _forward(self, request: peer_pb2.ForwardRequest, context: Context) -> peer_pb2.ForwardResponse:
        self._served += 1
        try:
            if self._served > self._most:
                raise TooManyWaiting(limit=self._most, what="forwarded calls")
            return await self._answer(request, context)
        except KvError as error:
            failure = error
        except SnapshotEnded:
            failure = Unavailable(site=self._site.name, why="the storage could not wait for this read to end")
        except Exception as error:
            log.exception("a forwarded call failed in a way that it should not")
            failure = Internal(why=f"a forwarded call failed at {self._site.name}: {error!r}")
        finally:
            self._served -= 1
        return await abort(context, failure)

    async def _answer(self, request: peer_pb2.ForwardRequest, context: Context) -> peer_pb2.ForwardResponse:
        here = (self._cluster.cluster_id, self._site.number)
        if (request.cluster_id, request.to) != here:
            there = f"{request.cluster_id}, site {request.to}"
            raise ClusterMismatch(what="addressee", here=f"{here[0]}, site {here[1]}", there=there)
        kind = request.WhichOneof("call")
        if kind is None:
            raise BadRequest(why="a forwarded call that this version does not know", field="call")
        limits = self._cluster.limits
        left_s: float | None = context.time_remaining()
        seconds = limits.deadline_default_ms / 1000 if left_s is None else min(left_s, limits.deadline_max_ms / 1000)
        answer = await getattr(self._answering, kind)(getattr(request, kind), monotonic() + seconds, is_forwarded=True)
        return peer_pb2.ForwardResponse(**{kind: answer})
