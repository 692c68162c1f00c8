"""A server that answers every Get with nothing: what gRPC costs on this machine before a store does anything."""

from __future__ import annotations

import asyncio

import grpc

from kvstore.node import fast_loop
from kvstore.v1 import kv_pb2

SERVICE = kv_pb2.DESCRIPTOR.services_by_name["KeyValue"].full_name


async def get(request: kv_pb2.GetRequest, context: object) -> kv_pb2.GetResponse:
    return kv_pb2.GetResponse()


async def main() -> None:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    method = grpc.unary_unary_rpc_method_handler(
        get, kv_pb2.GetRequest.FromString, kv_pb2.GetResponse.SerializeToString
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Get": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(main())
