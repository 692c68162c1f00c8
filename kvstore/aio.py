"""The asyncio client: the same as the blocking one, with await.

    async with connect("127.0.0.1:7400") as kv:
        await kv.put(b"question", b"why?")

Gets, puts and deletes that are made in the same moment go out as one request, each with its own result (lane.py), so
that many single calls in flight cost a few requests. `coalesce=False` sends every call alone; so does a call with a
`timeout_s` of its own, with a freshness or dependencies, or of a session. A client belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Generator, Iterable, Sequence
from random import random
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import grpc

from causal.model import Dot
from kvstore import answers, calls
from kvstore.aio_reader import Watch, listen, scan
from kvstore.aio_session import Session
from kvstore.aio_snapshot import SnapshotReader
from kvstore.aio_verbs import Verbs
from kvstore.calls import RECEIVE_BYTES_MAX, TIMEOUT_S, Call, RequestIds, closed_error, failure_of
from kvstore.checks import (
    Operation,
    check,
    check_key,
    check_request_id,
    checked_timeout,
    checked_token,
    endpoints_of,
    refuse_security,
)
from kvstore.client import BACKUP_S
from kvstore.errors import BatchTooLarge, KvError
from kvstore.lane import Lane, TooLarge, Waiting
from kvstore.retry import Course, Kind, Route, last_word
from kvstore.streams import Following, Listening, Scanning, Watching
from kvstore.terms import Depends
from kvstore.v1 import admin_pb2, admin_pb2_grpc, event_pb2, kv_pb2_grpc, status_pb2
from kvstore.values import Delete, Entry, Get, Position, Put, Read, Written

if TYPE_CHECKING:
    from kvstore.history import Diary, History

Result = TypeVar("Result")


def connect(
    endpoints: str | Iterable[str],
    *,
    auth: None = None,
    tls: None = None,
    timeout_s: float = TIMEOUT_S,
    receive_bytes_max: int = RECEIVE_BYTES_MAX,
    coalesce: bool = True,
    history: History | None = None,
) -> Client:
    """A client of these replicas, "host:port" each, the preferred one first. Nothing is sent before the first call.

    `history` writes down what all calls did and saw.
    """
    refuse_security(auth=auth, tls=tls)
    caller = Caller(endpoints_of(endpoints), checked_timeout(timeout_s, TIMEOUT_S), receive_bytes_max, history)
    return Client(caller, coalesce=coalesce)


class Caller:
    """Asks calls at replicas, again where that is safe. Everything that gRPC raises ends here as an error of ours."""

    def __init__(
        self, endpoints: tuple[str, ...], timeout_s: float, receive_bytes_max: int, history: History | None
    ) -> None:
        self.endpoints = endpoints
        self.timeout_s = timeout_s
        self.route = Route(len(endpoints))
        self.history = history
        self.diary = None if history is None else history.outside
        self.is_closed = False
        self._options = calls.channel_options(receive_bytes_max)
        self._doors: dict[int, tuple[grpc.aio.Channel, Any, Any]] = {}  # made when used: inside the event loop

    async def close(self) -> None:
        self.is_closed = True
        for channel, _, _ in self._doors.values():
            await channel.close()
        if self.history is not None:
            await asyncio.to_thread(self.history.close)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def course(self, kind: Kind, timeout_s: float | None, pinned_at: int | None = None) -> Course:
        timeout_s = checked_timeout(timeout_s, self.timeout_s)
        return Course(self.route, kind, now_s=self.now_s(), timeout_s=timeout_s, pinned_at=pinned_at)

    async def ask(self, call: Call[Result], timeout_s: float | None, pinned_at: int | None = None) -> Result:
        course = self.course(call.kind, timeout_s, pinned_at)
        if self.diary is None or not call.operations:
            return call.read(await self.run(call, course))
        started_ns = time.monotonic_ns()
        try:
            answer = await self.run(call, course)
            result = call.read(answer)
        except BaseException as error:
            self.diary.failed(call, error, started_ns=started_ns)
            raise
        self.diary.answered(call, result, site=answer.site, started_ns=started_ns)
        return result

    async def run(self, call: Call[Any], course: Course) -> Any:
        """The answer, not read yet."""
        while True:
            try:
                answer = await self.once(call.method, call.request, course, course.attempt_s(self.now_s()))
            except grpc.RpcError as error:
                await self.wait_or_raise(course, self.failure(error, course))
            else:
                course.worked()
                return answer

    async def once(self, name: str, request: Any, course: Course, attempt_s: float) -> Any:
        try:
            return await self._method(name, course.at)(request, timeout=attempt_s)
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise

    def open(self, following: Following[Any]) -> Any:
        """A stream, to be read by `read`."""
        source = following.source
        timeout_s = following.attempt_s(self.now_s())
        return self._method(source.method, following.at)(source.request(), timeout=timeout_s)

    async def read(self, stream: Any, following: Following[Any]) -> Any:
        """The next answer of a stream; None after the last."""
        try:
            answer = await stream.read()
        except grpc.RpcError as error:
            raise self.failure(error, following) from error
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        return None if answer is grpc.aio.EOF else answer

    async def wait_or_raise(self, course: Course | Following[Any], failure: KvError) -> None:
        wait_s = course.after(failure, now_s=self.now_s(), chance=random())
        if wait_s is None or self.is_closed:
            raise last_word(failure, course if isinstance(course, Course) else course.course, self.endpoints)
        await asyncio.sleep(wait_s)

    def failure(self, error: grpc.RpcError, course: Course | Following[Any]) -> KvError:
        return failure_of(error, endpoint=self.endpoints[course.at], timeout_s=course.timeout_s)

    def _raise_if_closed(self) -> None:
        """A closed channel cancels its calls, which looks as if somebody had cancelled whoever waits for them."""
        task = asyncio.current_task()
        if self.is_closed and (task is None or not task.cancelling()):
            raise closed_error(is_definite=False)

    def _method(self, name: str, at: int) -> Any:
        if self.is_closed:
            raise closed_error()
        if at not in self._doors:
            channel = grpc.aio.insecure_channel(self.endpoints[at], options=self._options)
            self._doors[at] = (channel, kv_pb2_grpc.KeyValueStub(channel), admin_pb2_grpc.AdminStub(channel))
        _, keys, admin = self._doors[at]
        return getattr(keys if hasattr(keys, name) else admin, name)


class Client(Verbs):
    _has_session: ClassVar[bool] = False

    def __init__(self, caller: Caller, *, coalesce: bool) -> None:
        self._caller = caller
        self._ids = RequestIds()
        self._coalesces = coalesce
        self._reads: Lane | None = None
        self._writes: Lane | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, Any, Self]:
        """`kv = await connect(…)` is as good as `async with`, for those who close it themselves."""
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Calls that are still under way fail."""
        for lane in (self._reads, self._writes):
            if lane is not None:
                lane.close()
        await self._caller.close()

    async def _ask(self, call: Call[Result], timeout_s: float | None) -> Result:
        return await self._caller.ask(call, timeout_s)

    def _scan(self, request: Any, limit: int | None, timeout_s: float | None) -> AsyncIterator[Entry]:
        return scan(self._caller, Scanning(request, limit), timeout_s)

    def _watch(self, request: Any, position: Position | None, timeout_s: float | None, patience_s: float) -> Watch:
        return Watch(self._caller, Watching(request, position), timeout_s, patience_s)

    def session(self, token: bytes | None = None) -> Session:
        """A new session, or one that goes on after another: with its token, here or in any other client."""
        return Session(self._caller, self._ids, checked_token(token))

    # Calls that can travel together

    async def read(
        self,
        key: bytes,
        *,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Read:
        is_plain = timeout_s is None and freshness is None and max_age_ms is None
        if not (self._coalesces and is_plain):
            return await super().read(key, freshness=freshness, max_age_ms=max_age_ms, timeout_s=timeout_s)
        check_key(key)
        if self._reads is None:
            self._reads = self._lane(Kind.READ)
        found: Read = await self._noted(Get(key), self._reads.ask(Get(key), b"", len(key)))
        return found

    def _write(
        self, operation: Put | Delete, request_id: bytes | None, depends: Depends, timeout_s: float | None
    ) -> Awaitable[Written]:
        if not self._coalesces or timeout_s is not None or request_id == b"" or depends != Depends():
            return super()._write(operation, request_id, depends, timeout_s)
        operation = check(operation)
        if request_id is not None:
            check_request_id(request_id)
        if self._writes is None:
            self._writes = self._lane(Kind.WRITE)
        size = len(operation.key) + (len(operation.value) if isinstance(operation, Put) else 0)
        return self._noted(operation, self._writes.ask(operation, self._id(request_id), size))

    def _noted(self, operation: Operation, asked: asyncio.Future[Any]) -> Awaitable[Any]:
        return asked if self._caller.diary is None else _note(self._caller.diary, operation, asked)

    def _lane(self, kind: Kind) -> Lane:
        if self._caller.is_closed:
            raise closed_error()
        return Lane(self._post, lambda left_s: self._caller.course(kind, max(left_s, 0.001)), self._caller.timeout_s)

    async def _post(self, waiting: Sequence[Waiting], course: Course, attempt_s: float) -> list[answers.Result]:
        """Send the calls of a lane as one request."""
        request = calls.pipeline_request([one.operation for one in waiting], [one.request_id for one in waiting])
        try:
            answer = await self._caller.once("Pipeline", request, course, attempt_s)
        except grpc.RpcError as error:
            failure = self._caller.failure(error, course)
            raise TooLarge(failure) if isinstance(failure, BatchTooLarge) else failure from error
        return answers.results(answer, len(waiting))

    # What takes longer than a call

    def snapshot(self, *, lease_ms: int | None = None, timeout_s: float | None = None) -> SnapshotReader:
        """Reads as of one moment, call after call, while it lasts: `async with kv.snapshot() as then`."""
        return SnapshotReader(self._caller, lease_ms, timeout_s)

    # For operators

    async def status(self, *, timeout_s: float | None = None) -> status_pb2.StatusResponse:
        return await self._caller.ask(calls.status(), timeout_s)

    async def explain(
        self, dot: Dot | None = None, *, limit: int | None = None, timeout_s: float | None = None
    ) -> event_pb2.ExplainResponse:
        """Why messages are held back at the replica."""
        return await self._caller.ask(calls.explain(dot, limit), timeout_s)

    def events(self, kinds: Iterable[str] = ()) -> AsyncIterator[event_pb2.EventsResponse]:
        """What happens at the replica, as it happens. A broken connection ends it with an error."""
        return listen(self._caller, Listening(calls.events_request(kinds)))

    async def backup(self, directory: str, *, timeout_s: float = BACKUP_S) -> admin_pb2.BackupResponse:
        """Copy the replica's data to a directory on its own machine."""
        return await self._caller.ask(calls.backup(directory), timeout_s, pinned_at=self._caller.route.at)


async def _note(diary: Diary, operation: Operation, asked: asyncio.Future[Any]) -> Any:
    started_ns = time.monotonic_ns()
    try:
        result = await asked
    except BaseException as error:
        diary.single(operation, error, started_ns=started_ns)
        raise
    diary.single(operation, result, started_ns=started_ns)
    return result
