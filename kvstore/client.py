"""The blocking client.

    with connect("127.0.0.1:7400") as kv:
        kv.put(b"question", b"why?")
        entry = kv.get(b"question")          # None, or an Entry with .value and .version
        session = kv.session()               # the same, and it reads what it wrote, wherever it is answered

Any number of threads may share a client. It speaks to one replica at a time: the first of its endpoints that answers.
Every call has a deadline, is tried again within it as far as that is safe (retry.py), and fails with a KvError whose
`definite` says whether a write surely did not happen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from random import random
from threading import TIMEOUT_MAX, Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import grpc

from causal.model import Dot
from kvstore import calls
from kvstore.calls import RECEIVE_BYTES_MAX, TIMEOUT_S, Call, RequestIds, closed_error, failure_of
from kvstore.checks import checked_timeout, checked_token, endpoints_of, refuse_security
from kvstore.errors import KvError
from kvstore.reader import Watch, listen, scan
from kvstore.retry import Course, Kind, Route, last_word
from kvstore.session import Memory, no_turn
from kvstore.snapshot import SnapshotReader
from kvstore.streams import Following, Listening, Scanning, Watching
from kvstore.v1 import admin_pb2, admin_pb2_grpc, event_pb2, kv_pb2_grpc, status_pb2
from kvstore.values import Entry, Position
from kvstore.verbs import Verbs

if TYPE_CHECKING:
    from kvstore.history import Diary, History

Result = TypeVar("Result")

BACKUP_S = 600.0  # seconds that a backup may take, if nothing is said


def connect(
    endpoints: str | Iterable[str],
    *,
    auth: None = None,
    tls: None = None,
    timeout_s: float = TIMEOUT_S,
    receive_bytes_max: int = RECEIVE_BYTES_MAX,
    history: History | None = None,
) -> Client:
    """A client of these replicas, "host:port" each, the preferred one first. Nothing is sent before the first call.

    `history` writes down what all calls did and saw.
    """
    refuse_security(auth=auth, tls=tls)
    timeout_s = checked_timeout(timeout_s, TIMEOUT_S)
    return Client(Caller(endpoints_of(endpoints), timeout_s, receive_bytes_max, history))


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
        self._is_closed = False
        options = calls.channel_options(receive_bytes_max)
        self._channels = [grpc.insecure_channel(one, options=options) for one in endpoints]
        self._keys = [kv_pb2_grpc.KeyValueStub(one) for one in self._channels]
        self._admin = [admin_pb2_grpc.AdminStub(one) for one in self._channels]

    def close(self) -> None:
        self._is_closed = True
        for channel in self._channels:
            channel.close()
        if self.history is not None:
            self.history.close()

    def course(self, kind: Kind, timeout_s: float | None, pinned_at: int | None = None) -> Course:
        timeout_s = checked_timeout(timeout_s, self.timeout_s)
        return Course(self.route, kind, now_s=time.monotonic(), timeout_s=timeout_s, pinned_at=pinned_at)

    def ask(self, call: Call[Result], timeout_s: float | None, pinned_at: int | None = None) -> Result:
        course = self.course(call.kind, timeout_s, pinned_at)
        if self.diary is None or not call.operations:
            return call.read(self.run(call, course))
        started_ns = time.monotonic_ns()
        try:
            answer = self.run(call, course)
            result = call.read(answer)
        except BaseException as error:
            self.diary.failed(call, error, started_ns=started_ns)
            raise
        self.diary.answered(call, result, site=answer.site, started_ns=started_ns)
        return result

    def run(self, call: Call[Any], course: Course) -> Any:
        """The answer, not read yet."""
        while True:
            try:
                answer = self._method(call.method, course.at)(call.request, timeout=course.attempt_s(time.monotonic()))
            except grpc.RpcError as error:
                self.wait_or_raise(course, self._failure(error, course))
            else:
                course.worked()
                return answer

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
            raise last_word(failure, course if isinstance(course, Course) else course.course, self.endpoints)
        time.sleep(wait_s)

    def _failure(self, error: grpc.RpcError, course: Course | Following[Any]) -> KvError:
        return failure_of(error, endpoint=self.endpoints[course.at], timeout_s=course.timeout_s)

    def _method(self, name: str, at: int) -> Any:
        if self._is_closed:
            raise closed_error()
        keys = self._keys[at]
        return getattr(keys if hasattr(keys, name) else self._admin[at], name)


class Client(Verbs):
    _has_session: ClassVar[bool] = False

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

    def _ask(self, call: Call[Result], timeout_s: float | None) -> Result:
        return self._caller.ask(call, timeout_s)

    def _scan(self, request: Any, limit: int | None, timeout_s: float | None) -> Iterator[Entry]:
        return scan(self._caller, Scanning(request, limit), timeout_s)

    def _watch(self, request: Any, position: Position | None, timeout_s: float | None, patience_s: float) -> Watch:
        return Watch(self._caller, Watching(request, position), timeout_s, patience_s)

    def session(self, token: bytes | None = None) -> Session:
        """A new session, or one that goes on after another: with its token, here or in any other client."""
        return Session(self._caller, self._ids, checked_token(token))

    def snapshot(self, *, lease_ms: int | None = None, timeout_s: float | None = None) -> SnapshotReader:
        """Reads as of one moment, call after call, while it lasts: `with kv.snapshot() as then: then.get_many(…)`."""
        return SnapshotReader(self._caller, lease_ms, timeout_s)

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


class Session(Verbs):
    """The calls of a client that belong together. It reads what it wrote; what it read once, it never reads older;
    its writes come in order, and after what it had read: at every replica, and whichever replica answers it.

    Its calls are done one after another, also those of many threads. When its replica dies or lacks what the session
    has seen, it moves to another; when none has it in time, PastMissing says which message that is. A write that
    failed without being definite is none of the session's writes: later reads may show it or not (session.py).
    """

    _has_session: ClassVar[bool] = True

    def __init__(self, caller: Caller, ids: RequestIds, token: bytes) -> None:
        self._caller = caller
        self._ids = ids
        self._memory = Memory(token)
        self.lock = Lock()  # whoever has it does the session's call of the moment
        self.route = caller.route.of_session()
        self.diary: Diary | None = None if caller.history is None else caller.history.session()

    def token(self) -> bytes:
        """What the session has seen, sealed, for `kv.session(token)` anywhere; empty before it has done anything.

        Waits for the call that is under way.
        """
        with self.lock:
            return self._memory.token

    def _ask(self, call: Call[Result], timeout_s: float | None) -> Result:
        timeout_s = checked_timeout(timeout_s, self._caller.timeout_s)
        deadline_s = time.monotonic() + timeout_s
        if not self.lock.acquire(timeout=min(timeout_s, TIMEOUT_MAX)):
            raise no_turn(timeout_s)
        try:
            if self._memory.must_begin(call.request):
                self._do(calls.begin(), deadline_s)
            return self._do(call, deadline_s)
        finally:
            self.lock.release()

    def _do(self, call: Call[Result], deadline_s: float) -> Result:
        """Whose turn it is."""
        memory, diary, now_s = self._memory, self.diary, time.monotonic()
        memory.fill(call)
        course = Course(self.route, call.kind, now_s=now_s, timeout_s=max(deadline_s - now_s, 0.001))
        started_ns = time.monotonic_ns()
        try:
            answer = self._caller.run(call, course)
            result = memory.learn(call, answer)
        except BaseException as error:
            if diary is not None:
                diary.failed(call, error, started_ns=started_ns, token=memory.token)
            raise
        if diary is not None:
            diary.answered(call, result, site=answer.site, started_ns=started_ns, token=memory.token)
        return result

    def _scan(self, request: Any, limit: int | None, timeout_s: float | None) -> Iterator[Entry]:
        return scan(self._caller, Scanning(request, limit, self._memory), timeout_s, session=self)

    def _watch(self, request: Any, position: Position | None, timeout_s: float | None, patience_s: float) -> Watch:
        return Watch(self._caller, Watching(request, position, self._memory), timeout_s, patience_s, self)

    def begin_before(self, source: Scanning | Watching) -> None:
        """A stream that cannot ask for the session's first token itself has its turn."""
        if source.must_begin:
            self._do(calls.begin(), time.monotonic() + self._caller.timeout_s)
