"""The door for clients: keys and values at one replica.

Every call ends with an answer (answering.py) or with one error that clients know; a mistake of ours is logged with its
trace, told as INTERNAL, and the replica goes on.

Nothing waits without an end: calls under way are counted and bounded, and a call has a deadline, the client's or ours.
When it passes, the client has given up, and what still waits in the inbox is not done; what was taken from there may
be, so the error says that nobody knows. Streams may stay open; those that are read slowly have places of their own and
keep no other call out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from time import monotonic, perf_counter
from typing import Any, Protocol, TypeVar

from kvstore.config import Cluster, SiteConfig
from kvstore.errors import Internal, KvError, TooManyWaiting, Unavailable
from kvstore.rpc.answering import Answering
from kvstore.rpc.pipelining import Pipelining
from kvstore.rpc.reading import Look, Range
from kvstore.rpc.watch import Watching
from kvstore.rpc.wire import Context, abort, send
from kvstore.sessions import Lack, Wanted
from kvstore.storage.contract import SnapshotEnded
from kvstore.v1 import kv_pb2, kv_pb2_grpc, watch_pb2

log = logging.getLogger("kvstore.rpc")

STREAMS = {"Scan": "scans", "Watch": "watches"}  # whoever reads them slowly stays long: places of their own

Request = TypeVar("Request")
Response = TypeVar("Response")
Body = Callable[["KeyValueService", Request, Context], Awaitable[Response]]
Call = Callable[["KeyValueService", Request, Context], Coroutine[Any, Any, Response]]


class CallMetrics(Protocol):
    def call(self, method: str, seconds: float, reason: str = "") -> None:
        """A call was answered; without a reason, well."""


class Places:
    """Calls of one kind that are under way."""

    __slots__ = ("most", "taken", "what")

    def __init__(self, most: int, what: str) -> None:
        self.most = most
        self.what = what
        self.taken = 0


def answered(body: Body[Request, Response]) -> Call[Request, Response]:
    """What all calls have in common: a place, a measured time, and an end that clients understand."""
    method = body.__name__
    kind = STREAMS.get(method, "calls")

    @wraps(body)
    async def call(self: KeyValueService, request: Request, context: Context) -> Response:
        started, reason, places = perf_counter(), "CANCELLED", self.places[kind]
        places.taken += 1
        try:
            if places.taken > places.most:
                raise TooManyWaiting(limit=places.most, what=places.what)
            response = await body(self, request, context)
            reason = ""
            return response
        except Exception as error:
            failure = self.failure_of(method, error)
            reason = failure.reason
        finally:
            places.taken -= 1
            self.metrics.call(method, perf_counter() - started, reason)
        return await abort(context, failure)

    return call


class KeyValueService(kv_pb2_grpc.KeyValueServicer):
    def __init__(
        self,
        cluster: Cluster,
        site: SiteConfig,
        answering: Answering,
        watching: Watching,
        metrics: CallMetrics,
    ) -> None:
        limits = cluster.limits
        self.metrics = metrics
        most = {"calls": limits.calls_max, "scans": limits.calls_max, "watches": limits.watches_max}
        self.places = {kind: Places(number, kind) for kind, number in most.items()}
        self._site = site.name
        self._answering = answering
        self._pipelining = Pipelining(site, answering)
        self._watching = watching
        self._deadline_default_s = limits.deadline_default_ms / 1000
        self._deadline_max_s = limits.deadline_max_ms / 1000

    def _deadline_s(self, context: Context) -> float:
        """By the monotonic clock: the client's deadline, or ours."""
        left_s: float | None = context.time_remaining()
        return monotonic() + (self._deadline_default_s if left_s is None else min(left_s, self._deadline_max_s))

    @answered
    async def Get(self, request: kv_pb2.GetRequest, context: Context) -> kv_pb2.GetResponse:  # noqa: N802
        return await self._answering.get(request, self._deadline_s(context))

    @answered
    async def GetMany(self, request: kv_pb2.GetManyRequest, context: Context) -> kv_pb2.GetManyResponse:  # noqa: N802
        return await self._answering.get_many(request, self._deadline_s(context))

    @answered
    async def Put(self, request: kv_pb2.PutRequest, context: Context) -> kv_pb2.PutResponse:  # noqa: N802
        return await self._answering.put(request, self._deadline_s(context))

    @answered
    async def Delete(self, request: kv_pb2.DeleteRequest, context: Context) -> kv_pb2.DeleteResponse:  # noqa: N802
        return await self._answering.delete(request, self._deadline_s(context))

    @answered
    async def Batch(self, request: kv_pb2.BatchRequest, context: Context) -> kv_pb2.BatchResponse:  # noqa: N802
        return await self._answering.batch(request, self._deadline_s(context))

    @answered
    async def Pipeline(self, request: kv_pb2.PipelineRequest, context: Context) -> kv_pb2.PipelineResponse:  # noqa: N802
        return await self._pipelining.answer(request, self._deadline_s(context))

    # Streams are written response by response: so we, and not a collector of garbage, decide when they end

    @answered
    async def Scan(self, request: kv_pb2.ScanRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        answering, reading = self._answering, self._answering.reading
        start, stop = answering.decode.scan(request)
        wanted = answering.decode.wanted(request)
        rest: Range | None = reading.range(request, start, stop)
        is_first = True
        while rest is not None:
            page, rest = await self._page(rest, request.snapshot, wanted, context)
            if is_first or rest is not None or page.entries or page.session:  # that nothing follows was seen, too
                await send(context, page)
            is_first = False
            if page.session:
                wanted = wanted._replace(past=answering.sessions.seal.open(page.session))

    async def _page(
        self, wanted_rows: Range, handle: bytes, wanted: Wanted, context: Context
    ) -> tuple[kv_pb2.ScanResponse, Range | None]:
        left: list[Range | None] = []

        def read(asked_ms: int) -> tuple[kv_pb2.ScanResponse, Look] | Lack:
            answer = self._answering.reading.page(wanted_rows, handle, wanted, asked_ms)
            if isinstance(answer, Lack):
                return answer
            page, look, rest = answer
            left.append(rest)
            return page, look

        page = await self._answering.read(read, wanted, self._deadline_s(context))
        return page, left[-1]

    @answered
    async def Watch(self, request: watch_pb2.WatchRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        await self._watching.watch(request, context, self._deadline_s(context))

    # Errors

    def failure_of(self, method: str, error: Exception) -> KvError:
        """What a client is told of it."""
        if isinstance(error, KvError):
            return error
        if isinstance(error, SnapshotEnded):
            return Unavailable(site=self._site, why="the storage could not wait for this read to end; ask again")
        log.error("%s failed in a way that it should not", method, exc_info=error)
        return Internal(why=f"{method} failed at {self._site}, and its log says where")
