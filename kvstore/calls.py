"""What the blocking and the asyncio client share: a call as plain data, how to ask it and how to read its answer.

A `Call` holds the request, how its answer becomes a value, and how often it may be asked (retry.py). Everything that a
caller can get wrong is said before anything is sent (checks.py): in a request that carries the calls of many, one bad
key would otherwise be everybody's trouble. Calls with many answers remember how far they have come: streams.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Generic, TypeVar, cast

import grpc

from causal.model import Dot
from kvstore import answers
from kvstore.answers import Item
from kvstore.checks import (
    Operation,
    check,
    check_bytes,
    check_count,
    check_key,
    check_range,
    check_request_id,
    check_several,
)
from kvstore.errors import BadRequest, BatchTooLarge, KvError, Unavailable, error_of
from kvstore.retry import Kind
from kvstore.rpc.wire import error_of_rpc
from kvstore.terms import Depends, Fresh, OpenWrite, fill_versions
from kvstore.v1 import admin_pb2, event_pb2, kv_pb2, status_pb2, watch_pb2
from kvstore.values import ABSENT, Change, Delete, Get, Put, Read, ReadMany, Version, Written, WrittenBatch

Result = TypeVar("Result")

TIMEOUT_S = 10.0  # seconds that a call may take, if nothing is said
RECEIVE_BYTES_MAX = 64 << 20  # bytes of one answer: many keys at once, or a page; beyond it: the call fails

# The start of what gRPC says when it had no connection to send the call on: then surely nothing was done.
NEVER_SENT = ("failed to connect to all addresses", "errors resolving ", "DNS resolution failed")
# What gRPC says of a request that the server, or an answer that the client, has no room for.
TOO_LARGE = re.compile(r"(CLIENT|SERVER): Received message larger than max \((\d+) vs\. (\d+)\)")


def channel_options(receive_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", receive_bytes_max),
        ("grpc.max_send_message_length", -1),  # the replica says what is too much, with its limit
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.min_reconnect_backoff_ms", 2_000),  # in truth the longest time for one attempt to connect
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0),  # a quiet watch must notice a dead connection too
        ("grpc.enable_http_proxy", 0),  # a store is not behind the proxy that web pages are fetched through
    ]


class RequestIds:
    """Names for writes, unlike any other: chance names the client, a number the write. Of any thread."""

    def __init__(self) -> None:
        self._client = os.urandom(10)
        self._numbers = count()

    def make(self) -> bytes:
        return self._client + next(self._numbers).to_bytes(6, "big")


# Calls


def _nothing(_result: object) -> Sequence[Item]:
    return ()


@dataclass(frozen=True, slots=True)
class Call(Generic[Result]):
    method: str  # of the service KeyValue, or of Admin
    request: Any
    kind: Kind
    read: Callable[[Any], Result]
    operations: Sequence[Operation] = ()  # what it does to which keys
    items: Callable[[Result], Sequence[Item]] = _nothing  # what became of each of the operations
    open: Sequence[OpenWrite] = ()


def read(key: bytes, fresh: Fresh) -> Call[Read]:
    check_key(key)
    request = kv_pb2.GetRequest(key=key)
    fresh.fill(request)
    return Call("Get", request, Kind.READ, answers.found, (Get(key),), lambda found: (found.entry,))


def read_many(keys: Iterable[bytes], fresh: Fresh, snapshot: bytes = b"") -> Call[ReadMany]:
    check_several("keys", keys)
    found = list(keys)
    for key in found:
        check_key(key)
    request = kv_pb2.GetManyRequest(keys=found, snapshot=snapshot)
    fresh.fill(request)
    gets = tuple(map(Get, dict.fromkeys(found)))
    items = partial(_each_entry, gets)
    return Call("GetMany", request, Kind.READ, answers.found_many, gets, items)


def _each_entry(gets: Sequence[Get], read: ReadMany) -> list[Item]:
    return [read.entries.get(one.key) for one in gets]


def write(operation: Put | Delete, request_id: bytes, depends: Depends) -> Call[Written]:
    """A put or a delete alone."""
    operation = check(operation)
    kind = write_kind(request_id)
    request: kv_pb2.PutRequest | kv_pb2.DeleteRequest
    if isinstance(operation, Put):
        request = kv_pb2.PutRequest(request_id=request_id)
        _fill_put(request, operation)
    else:
        request = kv_pb2.DeleteRequest(request_id=request_id)
        _fill_delete(request, operation)
    depends.fill(request, (operation,))
    open_ones = depends.open_ones(((operation, request),))
    method = "Put" if isinstance(operation, Put) else "Delete"
    return Call(method, request, kind, answers.written, (operation,), lambda done: (done,), open_ones)


def batch(operations: Iterable[Put | Delete], request_id: bytes, depends: Depends) -> Call[WrittenBatch]:
    check_request_id(request_id)
    request = kv_pb2.BatchRequest(request_id=request_id)
    filled: list[OpenWrite] = []
    for one in operations:
        if not isinstance(one, Put | Delete):
            raise TypeError(f"a batch holds Put and Delete, not {type(one).__name__}")
        checked, message = check(one), request.operations.add()
        if isinstance(checked, Put):
            _fill_put(message.put, checked)
        else:
            _fill_delete(message.delete, checked)
        filled.append((checked, message.put if isinstance(checked, Put) else message.delete))
    writes = [one for one, _ in filled]
    depends.fill(request, writes)
    kind, open_ones = write_kind(request_id), depends.open_ones(filled)
    return Call("Batch", request, kind, answers.written_batch, writes, answers.each_written, open_ones)


def pipeline(operations: Iterable[Operation], request_ids: Iterable[bytes]) -> Call[list[Item]]:
    checked = []
    for one in operations:
        if not isinstance(one, Get | Put | Delete):
            raise TypeError(f"a pipeline holds Get, Put and Delete, not {type(one).__name__}")
        checked.append(check(one))
    kind = Kind.READ if all(isinstance(one, Get) for one in checked) else Kind.WRITE
    request = pipeline_request(checked, request_ids)
    both = zip(checked, request.calls, strict=True)
    writes = [
        (one, call.put if isinstance(one, Put) else call.delete) for one, call in both if not isinstance(one, Get)
    ]
    items = partial(answers.items, calls=len(checked))
    return Call("Pipeline", request, kind, items, checked, lambda done: done, Depends().open_ones(writes))


def begin() -> Call[ReadMany]:
    """Reads nothing: what a session without a token asks for, to get one."""
    return read_many((), Fresh())


# Streams and the rest


def scan_request(
    *,
    prefix: bytes,
    start: bytes,
    end: bytes,
    after: bytes,
    page_size: int | None,
    only_held: bool = False,
    snapshot: bytes = b"",
    fresh: Fresh,
) -> kv_pb2.ScanRequest:
    check_range(prefix=prefix, start=start, end=end, after=after)
    check_count("page_size", page_size, 1 << 31)
    request = kv_pb2.ScanRequest(page_size=page_size or 0, after=after, only_held=only_held, snapshot=snapshot)
    fresh.fill(request)
    if start or end:
        request.range.start, request.range.end = start, end
    elif prefix:
        request.prefix = prefix
    return request


def watch_request(prefix: bytes, fresh: Fresh) -> watch_pb2.WatchRequest:
    check_bytes("a prefix", prefix)
    request = watch_pb2.WatchRequest(prefix=prefix)
    fresh.fill(request)
    return request


def change_of(message: watch_pb2.Change) -> Change:
    return answers.change_of(message, is_delete=message.kind == watch_pb2.Change.KIND_DELETE)


def events_request(kinds: Iterable[str]) -> event_pb2.EventsRequest:
    """The kinds by their names in the trace: sent, held, …"""
    request = event_pb2.EventsRequest()
    for kind in kinds:
        name = f"KIND_{kind.upper()}"
        if name not in event_pb2.Event.Kind.keys():  # noqa: SIM118 - an enum is no mapping
            raise BadRequest(why=f"there are no events of the kind {kind!r}")
        request.kinds.append(event_pb2.Event.Kind.Value(name))
    return request


def _as_it_is(answer: Result) -> Result:
    return answer


def write_kind(request_id: bytes) -> Kind:
    check_request_id(request_id)
    return Kind.WRITE if request_id else Kind.ONCE


def status() -> Call[status_pb2.StatusResponse]:
    return Call("Status", status_pb2.StatusRequest(), Kind.READ, _as_it_is)


def explain(dot: Dot | None, limit: int | None) -> Call[event_pb2.ExplainResponse]:
    check_count("limit", limit, 1 << 31)
    request = event_pb2.ExplainRequest(limit=limit or 0)
    if dot is not None:
        request.dot.site, request.dot.seq = dot.site, dot.seq
    return Call("Explain", request, Kind.READ, _as_it_is)


def backup(directory: str) -> Call[admin_pb2.BackupResponse]:
    return Call("Backup", admin_pb2.BackupRequest(directory=directory), Kind.ONCE, _as_it_is)


def snapshot(lease_ms: int | None) -> Call[admin_pb2.SnapshotResponse]:
    check_count("lease_ms", lease_ms, 1 << 31)
    return Call("Snapshot", admin_pb2.SnapshotRequest(lease_ms=lease_ms or 0), Kind.READ, _as_it_is)


def renew_snapshot(handle: bytes, lease_ms: int | None) -> Call[admin_pb2.RenewSnapshotResponse]:
    request = admin_pb2.RenewSnapshotRequest(snapshot=handle, lease_ms=lease_ms or 0)
    return Call("RenewSnapshot", request, Kind.READ, _as_it_is)


def release_snapshot(handle: bytes) -> Call[admin_pb2.ReleaseSnapshotResponse]:
    return Call("ReleaseSnapshot", admin_pb2.ReleaseSnapshotRequest(snapshot=handle), Kind.READ, _as_it_is)


# Requests


def pipeline_request(operations: Iterable[Operation], request_ids: Iterable[bytes]) -> kv_pb2.PipelineRequest:
    """Many calls in one request; checked before. Filling fields in place is three times as fast as building them."""
    request = kv_pb2.PipelineRequest()
    add = request.calls.add
    for one, request_id in zip(operations, request_ids, strict=True):
        call = add()
        if isinstance(one, Get):
            call.get.key = one.key
        elif isinstance(one, Put):
            put = call.put
            _fill_put(put, one)
            put.request_id = request_id
        else:
            delete = call.delete
            _fill_delete(delete, one)
            delete.request_id = request_id
    return request


def _fill_put(request: kv_pb2.PutRequest | kv_pb2.Operation.Put, put: Put) -> None:
    request.key, request.value = put.key, put.value
    if put.ttl_ms is not None:
        request.ttl_ms = put.ttl_ms
    if put.replaces:
        fill_versions(request.replaces, cast("Iterable[Version]", put.replaces))
    if put.expect is None:
        return
    if put.expect == ABSENT:
        request.expect_absent = True
    else:
        request.expect_version.time, request.expect_version.site = put.expect


def _fill_delete(request: kv_pb2.DeleteRequest | kv_pb2.Operation.Delete, delete: Delete) -> None:
    request.key = delete.key
    if delete.replaces:
        fill_versions(request.replaces, cast("Iterable[Version]", delete.replaces))
    if delete.expect is not None:
        request.expect_version.time, request.expect_version.site = delete.expect


# Failures


def failure_of(error: grpc.RpcError, *, endpoint: str, timeout_s: float) -> KvError:
    """What went wrong with an attempt, as an error of ours."""
    call = cast("grpc.Call", error)
    too_large = too_large_of(error)
    if too_large is not None:
        return too_large
    failure = error_of_rpc(error, site=endpoint, timeout_ms=round(timeout_s * 1000))
    if (call.details() or "").startswith(NEVER_SENT) and not call.trailing_metadata():
        failure.definite = True
    return failure


def too_large_of(error: grpc.RpcError) -> BatchTooLarge | None:
    """A request or its answer that the other end does not take at once: less at once may work."""
    call = cast("grpc.Call", error)
    found = TOO_LARGE.search(call.details() or "") if call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else None
    if found is None:
        return None
    what, size, limit = ("an answer" if found[1] == "CLIENT" else "a request"), found[2], found[3]
    sentence = f"{what} of {size} bytes; at most {limit} are taken at once"
    failure = BatchTooLarge(sentence, size=size, unit="bytes", limit=limit)
    failure.definite = found[1] == "SERVER"  # it was not read; an answer comes when all is done
    return failure


def one_more(failure: KvError) -> KvError:
    """The same error once more: an exception that is raised in two places belongs to neither."""
    return error_of(failure.reason, str(failure), failure.details, definite=failure.definite)


def closed_error(*, is_definite: bool = True) -> KvError:
    """A call that came after the client was closed, or, not definite, that was under way then."""
    error = Unavailable("this client is closed", why="closed")
    error.definite = is_definite
    return error
