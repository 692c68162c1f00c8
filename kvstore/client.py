"""The blocking client.

    with connect("127.0.0.1:7400") as kv:
        kv.put(b"question", b"why?")
        entry = kv.get(b"question")          # None, or an Entry with .value and .version

Any number of threads may share a client. It speaks to one replica at a time: the first of its endpoints that answers.
Every call has a deadline, is tried again within it as far as that is safe (retry.py), and fails with a KvError whose
`definite` says whether a write surely did not happen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from random import random
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

import grpc

from causal.model import Dot
from kvstore import calls
from kvstore.calls import RECEIVE_BYTES_MAX, TIMEOUT_S, Call, Item, RequestIds, closed_error, failure_of
from kvstore.checks import Operation, checked_timeout, endpoints_of, refuse_security
from kvstore.errors import KvError, NoSessions
from kvstore.reader import SnapshotReader, Watch, listen, scan
from kvstore.retry import Course, Kind, Route
from kvstore.streams import PATIENCE_S, Following, Listening, Scanning, Watching
from kvstore.v1 import admin_pb2, admin_pb2_grpc, event_pb2, kv_pb2_grpc, status_pb2
from kvstore.values import Delete, Entry, Position, Put, Version, Written, WrittenBatch

Result = TypeVar("Result")

BACKUP_S = 600.0  # seconds that a backup may take, if nothing is said


def connect(
    endpoints: str | Iterable[str],
    *,
    auth: None = None,
    tls: None = None,
    timeout_s: float = TIMEOUT_S,
    receive_bytes_max: int = RECEIVE_BYTES_MAX,
) -> Client:
    """A client of these replicas, "host:port" each, the preferred one first. Nothing is sent before the first call."""
    refuse_security(auth=auth, tls=tls)
    return Client(Caller(endpoints_of(endpoints), checked_timeout(timeout_s, TIMEOUT_S), receive_bytes_max))


class Caller:
    """Asks calls at replicas, again where that is safe. Everything that gRPC raises ends here as an error of ours."""

    def __init__(self, endpoints: tuple[str, ...], timeout_s: float, receive_bytes_max: int) -> None:
        self.endpoints = endpoints
        self.timeout_s = timeout_s
        self.route = Route(len(endpoints))
        self._is_closed = False
        options = calls.channel_options(receive_bytes_max)
        self._channels = [grpc.insecure_channel(one, options=options) for one in endpoints]
        self._keys = [kv_pb2_grpc.KeyValueStub(one) for one in self._channels]
        self._admin = [admin_pb2_grpc.AdminStub(one) for one in self._channels]

    def close(self) -> None:
        self._is_closed = True
        for channel in self._channels:
            channel.close()

    def course(self, kind: Kind, timeout_s: float | None, pinned_at: int | None = None) -> Course:
        timeout_s = checked_timeout(timeout_s, self.timeout_s)
        return Course(self.route, kind, now_s=time.monotonic(), timeout_s=timeout_s, pinned_at=pinned_at)

    def ask(self, call: Call[Result], timeout_s: float | None, pinned_at: int | None = None) -> Result:
        return self.run(call, self.course(call.kind, timeout_s, pinned_at))

    def run(self, call: Call[Result], course: Course) -> Result:
        while True:
            try:
                answer = self._method(call.method, course.at)(call.request, timeout=course.attempt_s(time.monotonic()))
            except grpc.RpcError as error:
                self.wait_or_raise(course, self._failure(error, course))
            else:
                course.worked()
                return call.read(answer)

    def open(self, following: Following[Any]) -> Any:
        """A stream, to be read by `read`."""
        source = following.source
        timeout_s = following.attempt_s(time.monotonic())
        return self._method(source.method, following.at)(source.request(), timeout=timeout_s)

    def read(self, stream: Any, following: Following[Any]) -> Any:
        """The next answer of a stream; None after the last."""
        try:
            return next(stream, None)
        except grpc.RpcError as error:
            raise self._failure(error, following) from error

    def wait_or_raise(self, course: Course | Following[Any], failure: KvError) -> None:
        wait_s = course.after(failure, now_s=time.monotonic(), chance=random())
        if wait_s is None or self._is_closed:
            raise failure
        time.sleep(wait_s)

    def _failure(self, error: grpc.RpcError, course: Course | Following[Any]) -> KvError:
        return failure_of(error, endpoint=self.endpoints[course.at], timeout_s=course.timeout_s)

    def _method(self, name: str, at: int) -> Any:
        if self._is_closed:
            raise closed_error()
        keys = self._keys[at]
        return getattr(keys if hasattr(keys, name) else self._admin[at], name)


class Client:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._ids = RequestIds()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Calls that are still under way fail."""
        self._caller.close()

    # One key

    def get(self, key: bytes, *, timeout_s: float | None = None) -> Entry | None:
        return self._caller.ask(calls.get(key), timeout_s)

    def put(
        self,
        key: bytes,
        value: bytes,
        *,
        ttl_ms: int | None = None,
        expect: Version | None = None,
        request_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Write, only if the replica has the expected version, or nothing under the key with `expect=ABSENT`."""
        return self._caller.ask(calls.write(Put(key, value, ttl_ms, expect), self._id(request_id)), timeout_s)

    def delete(
        self,
        key: bytes,
        *,
        expect: Version | None = None,
        request_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Delete; what is not there too."""
        return self._caller.ask(calls.write(Delete(key, expect), self._id(request_id)), timeout_s)

    # Many keys

    def batch(
        self,
        operations: Iterable[Put | Delete],
        *,
        request_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> WrittenBatch:
        """All or nothing, here and at every replica."""
        return self._caller.ask(calls.batch(operations, self._id(request_id)), timeout_s)

    def pipeline(self, operations: Sequence[Operation], *, timeout_s: float | None = None) -> list[Item]:
        """Independent calls in one request: for each what the call alone would give, or its error, not raised."""
        ids = [self._ids.make() for _ in operations]
        return self._caller.ask(calls.pipeline(operations, ids), timeout_s)

    def get_many(self, keys: Iterable[bytes], *, timeout_s: float | None = None) -> dict[bytes, Entry]:
        """All at one moment; what is not there is left out."""
        return self._caller.ask(calls.get_many(keys), timeout_s)

    def scan(
        self,
        prefix: bytes = b"",
        *,
        start: bytes = b"",
        end: bytes = b"",
        after: bytes = b"",
        limit: int | None = None,
        page_size: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Entry]:
        """All keys with a prefix, or from start up to end, in order. `timeout_s` is for one page."""
        request = calls.scan_request(prefix=prefix, start=start, end=end, after=after, page_size=page_size)
        return scan(self._caller, Scanning(request, limit), timeout_s)

    def watch(
        self,
        prefix: bytes = b"",
        *,
        position: Position | None = None,
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Watch:
        """Every change under a prefix from now on, or after a position. When this returns, the watch has begun.

        A broken connection and a restart of the replica are survived, if they last no longer than `patience_s`.
        """
        return Watch(self._caller, Watching(calls.watch_request(prefix), position), timeout_s, patience_s)

    def snapshot(self, *, lease_ms: int | None = None, timeout_s: float | None = None) -> SnapshotReader:
        """Reads as of one moment, call after call, while it lasts: `with kv.snapshot() as then: then.get_many(…)`."""
        return SnapshotReader(self._caller, lease_ms, timeout_s)

    def session(self, token: bytes | None = None) -> NoReturn:
        raise NoSessions("this version has no sessions yet; calls without one see what the replica has")

    # For operators

    def status(self, *, timeout_s: float | None = None) -> status_pb2.StatusResponse:
        return self._caller.ask(calls.status(), timeout_s)

    def explain(
        self, dot: Dot | None = None, *, limit: int | None = None, timeout_s: float | None = None
    ) -> event_pb2.ExplainResponse:
        """Why messages are held back at the replica."""
        return self._caller.ask(calls.explain(dot, limit), timeout_s)

    def events(self, kinds: Iterable[str] = ()) -> Iterator[event_pb2.EventsResponse]:
        """What happens at the replica, as it happens. A broken connection ends it with an error."""
        return listen(self._caller, Listening(calls.events_request(kinds)))

    def backup(self, directory: str, *, timeout_s: float = BACKUP_S) -> admin_pb2.BackupResponse:
        """Copy the replica's data to a directory on its own machine."""
        return self._caller.ask(calls.backup(directory), timeout_s, pinned_at=self._caller.route.at)

    def _id(self, request_id: bytes | None) -> bytes:
        return self._ids.make() if request_id is None else request_id
