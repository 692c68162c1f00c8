"""The door for clients: keys and values at one replica.

A write is decoded, checked, and asked of the corridor; it is answered when it is committed. A read does not enter the
corridor: it looks at the last commit, here and now. Every call ends with an answer or with one error that clients know;
a mistake of ours is logged with its trace, told as INTERNAL, and the replica goes on.

Nothing waits without an end: calls under way are counted and bounded, and a call has a deadline, the client's or ours.
When it passes, the client has given up, and what still waits in the inbox is not done; what was taken from there may
be, so the error says that nobody knows. Streams may stay open; those that are read slowly have places of their own and
keep no other call out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from time import perf_counter
from typing import Any, Protocol, TypeVar

from kvstore.config import Cluster, SiteConfig
from kvstore.effects import Write, Written
from kvstore.errors import DeadlineExceeded, Internal, KvError, TooManyWaiting, Unavailable
from kvstore.feed import Feed
from kvstore.leases import Leases
from kvstore.loop import Loop, Results
from kvstore.replica import Replica
from kvstore.rpc.decode import Decoder
from kvstore.rpc.reading import Reading
from kvstore.rpc.watch import PROGRESS_S, Watching
from kvstore.rpc.wire import Context, abort, send, to_error
from kvstore.storage.contract import SnapshotEnded, Storage
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
        replica: Replica,
        loop: Loop,
        storage: Storage,
        feed: Feed,
        leases: Leases,
        metrics: CallMetrics,
        clock_ms: Callable[[], int],
        *,
        progress_s: float = PROGRESS_S,
    ) -> None:
        limits = cluster.limits
        self.metrics = metrics
        most = {"calls": limits.calls_max, "scans": limits.calls_max, "watches": limits.watches_max}
        self.places = {kind: Places(number, kind) for kind, number in most.items()}
        self._site = site.name
        self._loop = loop
        self._deadline_default_s = limits.deadline_default_ms / 1000
        self._deadline_max_s = limits.deadline_max_ms / 1000
        self._decode = Decoder(cluster, site)
        self._reading = Reading(site, storage, leases, limits, clock_ms)
        self._watching = Watching(cluster, site, replica, loop, storage, feed, self._decode, progress_s=progress_s)

    # Writes

    @answered
    async def Put(self, request: kv_pb2.PutRequest, context: Context) -> kv_pb2.PutResponse:  # noqa: N802
        written = await self._write(self._decode.put(request), context)
        response = kv_pb2.PutResponse(site=self._site, commit=written.commit)
        version = response.version
        version.time, version.site = written.versions[0]
        return response

    @answered
    async def Delete(self, request: kv_pb2.DeleteRequest, context: Context) -> kv_pb2.DeleteResponse:  # noqa: N802
        written = await self._write(self._decode.delete(request), context)
        response = kv_pb2.DeleteResponse(site=self._site, commit=written.commit)
        version = response.version
        version.time, version.site = written.versions[0]
        return response

    @answered
    async def Batch(self, request: kv_pb2.BatchRequest, context: Context) -> kv_pb2.BatchResponse:  # noqa: N802
        written = await self._write(self._decode.batch(request), context)
        response = kv_pb2.BatchResponse(site=self._site, commit=written.commit)
        for time, site in written.versions:
            response.versions.add(time=time, site=site)
        return response

    async def _write(self, write: Write, context: Context) -> Written:
        (result,) = await self._ask((write,), context)
        if isinstance(result, KvError):
            raise result.with_traceback(None)  # one that stands for many calls must not gather all their frames
        return result

    async def _ask(self, writes: Sequence[Write], context: Context) -> Results:
        left_s: float | None = context.time_remaining()
        seconds = self._deadline_default_s if left_s is None else min(left_s, self._deadline_max_s)
        answer = self._loop.ask(writes)
        timer = asyncio.get_running_loop().call_later(seconds, answer.cancel)  # what is still in the inbox is not done
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the client went away
            waiting_for = "the write was handed over and may still be done"
            raise DeadlineExceeded(timeout_ms=round(seconds * 1000), waiting_for=waiting_for) from None
        finally:
            timer.cancel()

    @answered
    async def Pipeline(self, request: kv_pb2.PipelineRequest, context: Context) -> kv_pb2.PipelineResponse:  # noqa: N802
        """The writes first, all in one question to the corridor; then the reads, all from one snapshot."""
        plan = self._decode.pipeline(request)
        writes = [one for one in plan if isinstance(one, Write)]
        results = iter(await self._ask(writes, context) if writes else ())
        response = kv_pb2.PipelineResponse(site=self._site)
        gets = []
        for call, one in zip(request.calls, plan, strict=True):
            result = response.results.add()
            if isinstance(one, bytes):
                gets.append((one, result))
                continue
            outcome = next(results) if isinstance(one, Write) else one
            if isinstance(outcome, KvError):
                result.error.CopyFrom(to_error(outcome))
                continue
            answer = result.put if call.HasField("put") else result.delete
            answer.commit = outcome.commit
            version = answer.version
            version.time, version.site = outcome.versions[0]
            response.commit = max(response.commit, outcome.commit)
        if gets:
            response.commit = max(response.commit, self._reading.answer(gets))
        return response

    # Reads

    @answered
    async def Get(self, request: kv_pb2.GetRequest, context: Context) -> kv_pb2.GetResponse:  # noqa: N802
        return self._reading.get(self._decode.get(request))

    @answered
    async def GetMany(self, request: kv_pb2.GetManyRequest, context: Context) -> kv_pb2.GetManyResponse:  # noqa: N802
        return self._reading.get_many(self._decode.get_many(request), request.snapshot)

    # Streams are written response by response: so we, and not a collector of garbage, decide when they end

    @answered
    async def Scan(self, request: kv_pb2.ScanRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        start, stop = self._decode.scan(request)
        page, rest = self._reading.page(self._reading.range(request, start, stop), request.snapshot)
        await send(context, page)
        while rest is not None:
            page, rest = self._reading.page(rest, request.snapshot)
            if rest is not None or page.entries:
                await send(context, page)

    @answered
    async def Watch(self, request: watch_pb2.WatchRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        await self._watching.watch(request, context)

    # Errors

    def failure_of(self, method: str, error: Exception) -> KvError:
        """What a client is told of it."""
        if isinstance(error, KvError):
            return error
        if isinstance(error, SnapshotEnded):
            return Unavailable(site=self._site, why="the storage could not wait for this read to end; ask again")
        log.error("%s failed in a way that it should not", method, exc_info=error)
        return Internal(why=f"{method} failed at {self._site}, and its log says where")
