"""Both doors of a replica, open and shut: which services stand at which port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvstore.rpc.server import make_server
from kvstore.rpc.service import KeyValueService
from kvstore.v1 import kv_pb2_grpc

if TYPE_CHECKING:
    from kvstore.node import Node


class Doors:
    def __init__(self, node: Node, *, reflection: bool) -> None:
        limits = node.cluster.limits
        service = KeyValueService(
            node.cluster,
            node.site,
            node.replica,
            node.loop,
            node.storage,
            node.feed,
            node.leases,
            node.metrics,
            node.clock_ms,
        )
        self._clients = make_server(limits, node.site.client, "clients")
        self._peers = make_server(limits, node.site.peer, "peers")
        kv_pb2_grpc.add_KeyValueServicer_to_server(service, self._clients)
        node.peering.join(self._peers)

    async def open(self) -> None:
        await self._peers.start()
        await self._clients.start()

    async def close(self, grace_s: float) -> None:
        await self._clients.stop(grace_s)
        await self._peers.stop(0)
