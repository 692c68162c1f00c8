"""The two servers of a replica: one for clients and operators, one for the other replicas.

They have ports of their own, so that a flood at one does not keep the other closed, and so that later only replicas
need be let through to the second. Whatever a stranger can send is bounded here before a line of ours runs: the size
of a request, of its metadata, the streams of one connection, the pace of its pings.
"""

from __future__ import annotations

import socket

import grpc

from kvstore.errors import AddressTaken

STREAMS_MAX = 1024  # calls at once on one connection; beyond it: they wait at the client
METADATA_BYTES_MAX = 16 * 1024  # of one request; beyond it: RESOURCE_EXHAUSTED
PING_MS_MIN = 5_000  # between two keepalive pings of a client; faster ones are sent away


def make_server(size_max: int, address: str, what: str) -> grpc.aio.Server:
    """A server that is bound to its address and does not listen to anybody yet. `size_max` is for one request."""
    server = grpc.aio.server(
        options=(
            ("grpc.so_reuseport", 0),  # or a second replica would silently share the port
            ("grpc.max_receive_message_length", size_max),
            ("grpc.max_send_message_length", -1),  # what we send is bounded where it is made
            ("grpc.max_concurrent_streams", STREAMS_MAX),
            ("grpc.max_metadata_size", METADATA_BYTES_MAX),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_MS_MIN),
        )
    )
    try:
        _try_out(address)
        server.add_insecure_port(address)
    except (OSError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise AddressTaken(address=address, what=what, why=why) from None
    return server


def _try_out(address: str) -> None:
    """Bind to it once ourselves: gRPC would not say why it cannot."""
    host, _, port = address.rpartition(":")
    family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(where)
