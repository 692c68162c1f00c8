"""A replica that plays by a script: a small honest store behind real gRPC, with mishaps ordered in advance.

`script.mishaps["Put"]` says what happens to the next calls of a method, one entry each: None is nothing, REFUSED ends
the call before anything is done, LOST does it and loses the answer, SILENT never answers; a KvError is answered with.
A pipeline looks up the mishap of each of its calls under "Item".
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc

from kvstore.errors import KvError, VersionMismatch
from kvstore.rpc.wire import abort, to_error
from kvstore.v1 import admin_pb2, admin_pb2_grpc, event_pb2, kv_pb2, kv_pb2_grpc, model_pb2, status_pb2, watch_pb2

REFUSED, LOST, SILENT = "refused", "lost", "silent"
Mishap = str | KvError | None


class Script(kv_pb2_grpc.KeyValueServicer, admin_pb2_grpc.AdminServicer):
    def __init__(self, site: str = "a", number: int = 0) -> None:
        self.site, self.number = site, number
        self.data: dict[bytes, model_pb2.Entry] = {}
        self.mishaps: dict[str, deque[Mishap]] = defaultdict(deque)
        self.requests: list[Any] = []
        self.effects = 0  # writes that were done
        self.watches: deque[list[watch_pb2.WatchResponse | Mishap]] = deque()  # what each watch says, one after another
        self.page_max = 2
        self.lease_ms = 60_000
        self._remembered: dict[bytes, Any] = {}
        self._delay_s = 0.0

    def asked(self, kind: type) -> list[Any]:
        return [one for one in self.requests if isinstance(one, kind)]

    async def _play(self, name: str, request: Any, context: Any, work: Any) -> Any:
        copy = type(request)()
        copy.CopyFrom(request)
        self.requests.append(copy)
        mishap = self.mishaps[name].popleft() if self.mishaps[name] else None
        await self._suffer(mishap, context)
        try:
            answer = work(request)
        except KvError as error:
            await abort(context, error)
        if mishap == LOST:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return answer

    async def _suffer(self, mishap: Mishap, context: Any) -> None:
        if mishap == REFUSED:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        if mishap == SILENT:
            await asyncio.sleep(3600)
        if isinstance(mishap, KvError):
            await abort(context, mishap)

    # The store

    def _get(self, request: kv_pb2.GetRequest) -> kv_pb2.GetResponse:
        return kv_pb2.GetResponse(entry=self.data.get(request.key), site=self.site)

    def _write(self, request: Any) -> Any:
        if request.request_id in self._remembered:
            return self._remembered[request.request_id]
        is_put = isinstance(request, kv_pb2.PutRequest)
        self._compare(request)
        version = self._apply(request, request.value if is_put else None)
        kind = kv_pb2.PutResponse if is_put else kv_pb2.DeleteResponse
        answer = kind(version=version, site=self.site, commit=self.effects)
        if request.request_id:
            self._remembered[request.request_id] = answer
        return answer

    def _compare(self, request: Any) -> None:
        wanted, found = request.WhichOneof("expect"), self.data.get(request.key)
        if wanted == "expect_absent" and found is not None:
            raise VersionMismatch(key=request.key.decode(), found=found.version.time, expected="none")
        if wanted == "expect_version" and (found is None or found.version != request.expect_version):
            raise VersionMismatch(key=request.key.decode(), found="another", expected=request.expect_version.time)

    def _apply(self, request: Any, value: bytes | None) -> model_pb2.Version:
        self.effects += 1
        version = model_pb2.Version(time=self.effects, site=self.number)
        if value is None:
            self.data.pop(request.key, None)
        else:
            expires_ms = 1_000_000 + request.ttl_ms if request.ttl_ms else 0
            self.data[request.key] = model_pb2.Entry(
                key=request.key, value=value, version=version, expires_ms=expires_ms
            )
        return version

    def _batch(self, request: kv_pb2.BatchRequest) -> Any:
        if request.request_id in self._remembered:
            return self._remembered[request.request_id]
        versions = []
        for one in request.operations:
            is_put = one.WhichOneof("operation") == "put"
            versions.append(self._apply(one.put if is_put else one.delete, one.put.value if is_put else None))
        answer = kv_pb2.BatchResponse(versions=versions, site=self.site, commit=self.effects)
        self._remembered[request.request_id] = answer
        return answer

    def _pipeline(self, request: kv_pb2.PipelineRequest) -> kv_pb2.PipelineResponse:
        answer = kv_pb2.PipelineResponse(site=self.site, commit=self.effects)
        for call in request.calls:
            kind = call.WhichOneof("call")
            assert kind is not None
            result = answer.results.add()
            mishap = self.mishaps["Item"].popleft() if self.mishaps["Item"] else None
            try:
                if isinstance(mishap, KvError):
                    raise mishap
                one = self._get(call.get) if kind == "get" else self._write(getattr(call, kind))
                getattr(result, kind).CopyFrom(one)
                getattr(result, kind).ClearField("site")
            except KvError as error:
                result.error.CopyFrom(to_error(error))
        return answer

    def _get_many(self, request: kv_pb2.GetManyRequest) -> kv_pb2.GetManyResponse:
        return kv_pb2.GetManyResponse(entries=[self.data[key] for key in request.keys if key in self.data])

    # KeyValue

    async def Get(self, request, context):  # noqa: N802
        return await self._play("Get", request, context, self._get)

    async def Put(self, request, context):  # noqa: N802
        return await self._play("Put", request, context, self._write)

    async def Delete(self, request, context):  # noqa: N802
        return await self._play("Delete", request, context, self._write)

    async def Batch(self, request, context):  # noqa: N802
        return await self._play("Batch", request, context, self._batch)

    async def Pipeline(self, request, context):  # noqa: N802
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        return await self._play("Pipeline", request, context, self._pipeline)

    async def GetMany(self, request, context):  # noqa: N802
        return await self._play("GetMany", request, context, self._get_many)

    async def Scan(self, request, context):  # noqa: N802
        """The mishap of a scan comes after its first page."""
        mishap = self.mishaps["Scan"].popleft() if self.mishaps["Scan"] else None
        copy = kv_pb2.ScanRequest()
        copy.CopyFrom(request)
        self.requests.append(copy)
        keys = sorted(key for key in self.data if key.startswith(request.prefix) and key > request.after)
        if request.WhichOneof("keys") == "range":
            keys = [key for key in keys if request.range.start <= key and (key < (request.range.end or b"\xff" * 9))]
        keys = keys[: request.limit] if request.limit else keys
        size = request.page_size or self.page_max
        for first in range(0, len(keys), size):
            page = keys[first : first + size]
            yield kv_pb2.ScanResponse(entries=[self.data[key] for key in page], last_key=page[-1])
            await self._suffer(mishap, context)

    async def Watch(self, request, context):  # noqa: N802
        copy = watch_pb2.WatchRequest()
        copy.CopyFrom(request)
        self.requests.append(copy)
        for one in self.watches.popleft() if self.watches else [SILENT]:
            if isinstance(one, watch_pb2.WatchResponse):
                yield one
            else:
                await self._suffer(one, context)

    # Admin

    async def Status(self, request, context):  # noqa: N802
        def work(_):
            return status_pb2.StatusResponse(site=self.site, site_number=self.number)

        return await self._play("Status", request, context, work)

    async def Explain(self, request, context):  # noqa: N802
        return await self._play("Explain", request, context, lambda _: event_pb2.ExplainResponse(site=self.site))

    async def Events(self, request, context):  # noqa: N802
        self.requests.append(request)
        yield event_pb2.EventsResponse(site=self.site, events=[event_pb2.Event(index=1)])
        await self._suffer(REFUSED, context)

    async def Backup(self, request, context):  # noqa: N802
        def work(asked):
            self.effects += 1
            return admin_pb2.BackupResponse(directory=asked.directory, site=self.site)

        return await self._play("Backup", request, context, work)

    async def Snapshot(self, request, context):  # noqa: N802
        def work(_):
            return admin_pb2.SnapshotResponse(lease_ms=self.lease_ms, site=self.site, commit=7, snapshot=b"handle")

        return await self._play("Snapshot", request, context, work)

    async def RenewSnapshot(self, request, context):  # noqa: N802
        def work(_):
            return admin_pb2.RenewSnapshotResponse(lease_ms=self.lease_ms)

        return await self._play("RenewSnapshot", request, context, work)

    async def ReleaseSnapshot(self, request, context):  # noqa: N802
        return await self._play("ReleaseSnapshot", request, context, lambda _: admin_pb2.ReleaseSnapshotResponse())


def make_server(script: Script, port: int, receive_bytes_max: int) -> tuple[grpc.aio.Server, str]:
    options = (("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", receive_bytes_max))
    server = grpc.aio.server(options=options)
    kv_pb2_grpc.add_KeyValueServicer_to_server(script, server)
    admin_pb2_grpc.add_AdminServicer_to_server(script, server)
    found = server.add_insecure_port(f"127.0.0.1:{port}")
    assert found, "the port is taken"
    return server, f"127.0.0.1:{found}"


@asynccontextmanager
async def served(script: Script, port: int = 0, receive_bytes_max: int = 4 << 20) -> AsyncIterator[str]:
    """A server on the running event loop; its address."""
    server, address = make_server(script, port, receive_bytes_max)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


@contextmanager
def serving(*scripts: Script, port: int = 0, receive_bytes_max: int = 4 << 20) -> Iterator[list[str]]:
    """Servers in a thread with an event loop of its own, for clients that block; their addresses."""
    addresses: list[str] = []
    ready, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        made = [make_server(script, port, receive_bytes_max) for script in scripts]
        for server, address in made:
            await server.start()
            addresses.append(address)
        ready.set()
        await done.wait()
        for server, _ in made:
            await server.stop(None)

    thread = threading.Thread(target=_run, args=(loop, serve, ready))
    thread.start()
    try:
        assert ready.wait(10)
        yield addresses
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join(10)
        loop.close()


def _run(loop: asyncio.AbstractEventLoop, serve: Any, ready: threading.Event) -> None:
    try:
        loop.run_until_complete(serve())
    finally:
        ready.set()
