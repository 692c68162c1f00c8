"""Both doors of a replica, open and shut: which services stand at which port, and what is said at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore.limits import MIB
from kvstore.rpc.admin import AdminService, Health, add_reflection
from kvstore.rpc.answering import Answering
from kvstore.rpc.server import make_server
from kvstore.rpc.service import KeyValueService
from kvstore.rpc.watch import Watching
from kvstore.v1 import admin_pb2_grpc, kv_pb2_grpc

if TYPE_CHECKING:
    from kvstore.node import Node

CLIENT_SLACK_BYTES = MIB  # what a request may have beside its keys and values


class Doors:
    def __init__(self, node: Node, *, reflection: bool) -> None:
        limits = node.cluster.limits
        answering = Answering(
            node.cluster,
            node.site,
            node.loop,
            node.storage,
            node.leases,
            node.sessions,
            node.forwarding,
            node.clock_ms,
            node.now_ms,
        )
        watching = Watching(
            node.cluster,
            node.site,
            node.replica,
            node.loop,
            node.storage,
            node.feed,
            answering.decode,
            node.sessions,
        )
        service = KeyValueService(node.cluster, node.site, answering, watching, node.metrics)
        self._node = node
        self._health = Health()
        self._clients = make_server(limits.message_bytes_max + CLIENT_SLACK_BYTES, node.site.client, "clients")
        self._peers = make_server(limits.frame_bytes_max, node.site.peer, "peers")
        kv_pb2_grpc.add_KeyValueServicer_to_server(service, self._clients)
        admin_pb2_grpc.add_AdminServicer_to_server(AdminService(node), self._clients)
        self._health.join(self._clients)
        node.peering.join(self._peers)
        node.forwarding.join(self._peers, answering)
        if reflection:
            add_reflection(self._clients)

    async def open(self) -> None:
        await self._peers.start()
        await self._clients.start()
        await self.show_health()

    async def show_health(self) -> None:
        """Clients should come here as long as they may write here."""
        await self._health.show(is_serving=self._node.replica.fence is None)

    async def close(self, grace_s: float) -> None:
        """Streams end by themselves when they are told; other calls get some time."""
        await self._health.stop()
        self._node.sessions.close()
        self._node.feed.close()
        self._node.events.close()
        await self._clients.stop(grace_s)
        self._node.peering.close()
        await self._peers.stop(0)
