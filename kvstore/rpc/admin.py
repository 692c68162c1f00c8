"""The service for operators: how a replica is, why messages wait, what happens; copies and snapshots of its data.

Nothing here changes what the replica holds. A backup takes its time on a thread of its own, one at a time; everything
else is answered from memory on the loop. Beside it stand the two services that every gRPC tool knows: health, which
tells a load balancer whether clients should come here, and reflection, which tells a tool what can be asked.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from causal.model import Dot
from kvstore.errors import BadRequest, Internal, KvError, Stopping, TooManyWaiting, Unavailable
from kvstore.explain import explain
from kvstore.rpc.events import Rows, pb_held
from kvstore.rpc.status import status_of
from kvstore.rpc.wire import Context, abort
from kvstore.storage.contract import SnapshotEnded
from kvstore.storage.folder import DATA
from kvstore.storage.lmdb import LmdbStorage
from kvstore.v1 import admin_pb2, admin_pb2_grpc, event_pb2, kv_pb2, status_pb2

if TYPE_CHECKING:
    from kvstore.node import Node

BACKUPS_MAX = 1  # under way at once; beyond it: TooManyWaiting
EVENTS_MAX = 500  # in one response; beyond it: another response
HEALTH_S_MAX = 1.0  # for those who watch our health to hear of a change; beyond it: they are not waited for

KEY_VALUE = kv_pb2.DESCRIPTOR.services_by_name["KeyValue"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[["AdminService", Request, Context], Awaitable[Response]]

log = logging.getLogger("kvstore.admin")


def answered(method: Method[Request, Response]) -> Method[Request, Response]:
    """Errors of ours end the call as what they are; anything else is a mistake, logged and said."""

    @functools.wraps(method)
    async def call(self: AdminService, request: Request, context: Context) -> Response:
        started_s, reason = time.monotonic(), "CANCELLED"
        try:
            response = await method(self, request, context)
            reason = ""
            return response
        except Exception as error:
            failure = self.failure_of(error)
            reason = failure.reason
        finally:
            self.node.metrics.call(method.__name__, time.monotonic() - started_s, reason)
        return await abort(context, failure)

    return call


class AdminService(admin_pb2_grpc.AdminServicer):
    """Looks into one replica."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._backups: set[asyncio.Task[admin_pb2.BackupResponse]] = set()

    def failure_of(self, error: Exception) -> KvError:
        if isinstance(error, KvError):
            return error
        if isinstance(error, SnapshotEnded):
            return Unavailable(site=self.node.site.name, why="the storage is being rearranged")
        log.error("a call of the admin service has stumbled over a mistake of ours", exc_info=error)
        return Internal(why=repr(error))

    @answered
    async def Status(self, request: status_pb2.StatusRequest, context: Context) -> status_pb2.StatusResponse:  # noqa: N802
        return status_of(self.node)

    @answered
    async def Explain(self, request: event_pb2.ExplainRequest, context: Context) -> event_pb2.ExplainResponse:  # noqa: N802
        node = self.node
        dot = None
        if request.HasField("dot"):
            dot = Dot(request.dot.site, request.dot.seq)
            if dot.site >= len(node.cluster.sites) or not dot.seq:
                raise BadRequest(why=f"{dot} is no message of this cluster", field="dot")
        held = [pb_held(node, one) for one in explain(node.replica, dot=dot, limit=request.limit)]
        return event_pb2.ExplainResponse(held=held, held_total=len(node.replica.held), site=node.site.name)

    async def Events(  # noqa: N802
        self, request: event_pb2.EventsRequest, context: Context
    ) -> AsyncIterator[event_pb2.EventsResponse]:
        try:
            async for response in self._events(request):
                yield response
        except Exception as error:
            await abort(context, self.failure_of(error))

    async def _events(self, request: event_pb2.EventsRequest) -> AsyncIterator[event_pb2.EventsResponse]:
        """The first response is empty: from now on nothing is missed without being counted."""
        node = self.node
        name = node.site.name
        rows = Rows(node, request.kinds)
        with node.events.open() as reader:
            yield event_pb2.EventsResponse(site=name)
            while not reader.is_closed:
                happened, lost = await reader.take()
                rows.skip(lost)
                events = [row for one in happened for row in rows.of(one)]
                for start in range(0, max(len(events), bool(lost)), EVENTS_MAX):
                    yield event_pb2.EventsResponse(events=events[start : start + EVENTS_MAX], lost=lost, site=name)
                    lost = 0
        raise Stopping(site=name)

    # Copies

    @answered
    async def Backup(self, request: admin_pb2.BackupRequest, context: Context) -> admin_pb2.BackupResponse:  # noqa: N802
        """Goes on when the caller has gone: under its name there will be a whole copy, or none."""
        target = self._target(request.directory)
        if len(self._backups) >= BACKUPS_MAX:
            raise TooManyWaiting(limit=BACKUPS_MAX, what="backups")
        task = asyncio.create_task(asyncio.to_thread(self._copy, target))
        self._backups.add(task)
        task.add_done_callback(self._copied)
        return await asyncio.shield(task)

    def _target(self, directory: str) -> Path:
        target, data = Path(directory), self.node.cluster.data_of(self.node.site).absolute()
        if not target.is_absolute() or "\0" in directory or ".." in target.parts:
            raise BadRequest(why=f"{directory!r} is not the absolute path of a directory", field="directory")
        if data == target or data in target.parents:
            raise BadRequest(why=f"{directory} is inside the data directory itself", field="directory")
        return target

    def _copy(self, target: Path) -> admin_pb2.BackupResponse:
        """On a thread: nothing here may touch what belongs to the loop."""
        started_s = time.monotonic()
        try:
            is_there = target.parent.is_dir()
            if is_there:
                self.node.storage.backup(target)
        except OSError as error:
            raise BadRequest(why=f"{target}: {error.strerror or error}", field="directory") from error
        if not is_there:
            raise BadRequest(why=f"there is no directory {target.parent}", field="directory")
        with LmdbStorage(target) as copy:  # only the copy itself knows which commit was the last to get into it
            commit = copy.number
        return admin_pb2.BackupResponse(
            directory=str(target),
            size_bytes=(target / DATA).stat().st_size,
            took_ms=round((time.monotonic() - started_s) * 1000),
            site=self.node.site.name,
            commit=commit,
        )

    def _copied(self, task: asyncio.Task[admin_pb2.BackupResponse]) -> None:
        self._backups.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("a backup failed: %s", error)

    # Snapshots

    @answered
    async def Snapshot(self, request: admin_pb2.SnapshotRequest, context: Context) -> admin_pb2.SnapshotResponse:  # noqa: N802
        node = self.node
        lease = node.leases.open(request.lease_ms)
        lease.committed = node.loop.committed(lease.number)
        token = b""
        if lease.committed.past is not None:
            try:
                await node.sessions.durable(lease.number, time.monotonic() + lease.lease_ms / 1000)
                token = node.sessions.seal.seal(lease.committed.past)
            except BaseException:
                node.leases.release(lease.handle)
                raise
        return admin_pb2.SnapshotResponse(
            lease_ms=lease.lease_ms, site=node.site.name, commit=lease.number, snapshot=lease.handle, session=token
        )

    @answered
    async def RenewSnapshot(  # noqa: N802
        self, request: admin_pb2.RenewSnapshotRequest, context: Context
    ) -> admin_pb2.RenewSnapshotResponse:
        lease = self.node.leases.renew(request.snapshot, request.lease_ms)
        return admin_pb2.RenewSnapshotResponse(lease_ms=lease.lease_ms)

    @answered
    async def ReleaseSnapshot(  # noqa: N802
        self, request: admin_pb2.ReleaseSnapshotRequest, context: Context
    ) -> admin_pb2.ReleaseSnapshotResponse:
        self.node.leases.release(request.snapshot)
        return admin_pb2.ReleaseSnapshotResponse()


class Health:
    """Whether clients should come here. A replica that lost its memory still answers operators, and nobody else."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._shown: bool | None = None

    def join(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def show(self, *, is_serving: bool) -> None:
        """Call it as often as you like; only a change is said."""
        if is_serving != self._shown:
            self._shown = is_serving
            shown = SERVING if is_serving else NOT_SERVING
            await self._in_time(self._set({"": shown, KEY_VALUE: shown, ADMIN: SERVING}))

    async def stop(self) -> None:
        """Nobody should come here any more."""
        await self._in_time(self._servicer.enter_graceful_shutdown())

    async def _set(self, states: dict[str, Any]) -> None:
        for service, state in states.items():
            await self._servicer.set(service, state)

    async def _in_time(self, saying: Awaitable[None]) -> None:
        """A watcher who does not read would hold us up."""
        try:
            await asyncio.wait_for(saying, HEALTH_S_MAX)
        except TimeoutError:
            log.warning("somebody watches our health and does not read")


def add_reflection(server: grpc.aio.Server) -> None:
    """Let tools ask what there is to ask."""
    reflection.enable_server_reflection((KEY_VALUE, ADMIN, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
