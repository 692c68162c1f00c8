"""What a client's request says, checked: from protobuf to the values of the corridor.

Everything that can be wrong with a request in itself is found here, before anything waits or changes, so each of these
errors is definite. What depends on the state (a condition, a full outbox) is the replica's to judge. Fields that this
version does not know are ignored, as protobuf does; they come from a newer client, and what it must not leave out
without notice has to be a field that is set and refused here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from causal.model import Mask, sites_of
from kvstore.config import Cluster, SiteConfig
from kvstore.effects import ABSENT, Operation, Write
from kvstore.errors import (
    BadRange,
    BadRequest,
    BadTtl,
    BatchTooLarge,
    KeyEmpty,
    KeyTooLong,
    KvError,
    NotHeldHere,
    ValueTooLarge,
)
from kvstore.placement import Placement, end_of_prefix, siblings_of
from kvstore.rpc.wire import version_of
from kvstore.seal import Seal
from kvstore.sessions import PLAIN, Wanted
from kvstore.update import REPLACES_MAX, Version, escape
from kvstore.v1 import kv_pb2, model_pb2

PLACE_BYTES = 8  # that a pipeline's request id gets for the place of a call

Single = kv_pb2.PutRequest | kv_pb2.DeleteRequest
Put = kv_pb2.PutRequest | kv_pb2.Operation.Put
Delete = kv_pb2.DeleteRequest | kv_pb2.Operation.Delete
Dependencies = model_pb2.Dependencies
Freshness = model_pb2.Freshness
LEVELS = (
    Freshness.LEVEL_UNSPECIFIED,
    Freshness.LEVEL_ANY,
    Freshness.LEVEL_BOUNDED,
    Freshness.LEVEL_SESSION,
)


class Decoder:
    """The requests of one site's clients, within the limits of its cluster."""

    def __init__(self, cluster: Cluster, site: SiteConfig, seal: Seal) -> None:
        self.seal = seal
        self._cluster = cluster
        self._site = site
        self._placement = Placement(cluster)
        self._siblings = siblings_of(cluster)
        limits = cluster.limits
        self._key_max = limits.key_max
        self._value_max = limits.value_max
        self._ttl_max_ms = limits.ttl_max_ms
        self._batch_max = limits.batch_max
        self.bytes_max = limits.message_bytes_max
        self._id_max = limits.request_id_max

    # Writes

    def put(self, request: kv_pb2.PutRequest) -> Write:
        return self._single(request, self._put(request))

    def delete(self, request: kv_pb2.DeleteRequest) -> Write:
        return self._single(request, self._delete(request))

    def _single(self, request: Single, operation: Operation) -> Write:
        write = Write((operation,), self._request_id(request.request_id, self._id_max))
        return self._depending(write, request.dependencies) if request.HasField("dependencies") else write

    def batch(self, request: kv_pb2.BatchRequest) -> Write:
        count = len(request.operations)
        if not count:
            raise BadRequest(why="a batch needs at least one operation", field="operations")
        self.check_count(count, "operations")
        operations = tuple(map(self._operation, request.operations))
        size = sum([len(one.key) + len(one.value or b"") for one in operations])
        if size > self.bytes_max:
            raise BatchTooLarge(size=size, unit="bytes", limit=self.bytes_max)
        write = Write(operations, self._request_id(request.request_id, self._id_max))
        return self._depending(write, request.dependencies) if request.HasField("dependencies") else write

    def pipeline(self, request: kv_pb2.PipelineRequest) -> list[Write | bytes | KvError]:
        """For each call what it writes, or the key that it reads, or why it cannot be done."""
        self.check_count(len(request.calls), "calls")
        name = self._request_id(request.request_id, max(0, self._id_max - PLACE_BYTES))
        dependencies = request.dependencies if request.HasField("dependencies") else None
        return [self._call(call, name, place, dependencies) for place, call in enumerate(request.calls)]

    def _call(
        self, call: kv_pb2.PipelineCall, name: bytes, place: int, dependencies: Dependencies | None
    ) -> Write | bytes | KvError:
        try:
            match call.WhichOneof("call"):
                case "put":
                    write = self.put(call.put)
                    has_own = call.put.HasField("dependencies")
                case "delete":
                    write = self.delete(call.delete)
                    has_own = call.delete.HasField("dependencies")
                case "get":
                    return self.key(call.get.key)
                case _:
                    raise BadRequest(why="a call of a pipeline is a get, a put or a delete", field="call")
            if dependencies is not None and not has_own:
                write = self._depending(write, dependencies)
        except KvError as error:
            return error
        if name and not write.request_id:
            return write._replace(request_id=name + place.to_bytes(PLACE_BYTES))
        return write

    def _operation(self, operation: kv_pb2.Operation) -> Operation:
        match operation.WhichOneof("operation"):
            case "put":
                return self._put(operation.put)
            case "delete":
                return self._delete(operation.delete)
        raise BadRequest(why="an operation of a batch is a put or a delete", field="operation")

    def _put(self, one: Put) -> Operation:
        key, value, ttl_ms = one.key, one.value, one.ttl_ms
        if not 0 < len(key) <= self._key_max:
            raise self._bad_key(key)
        if len(value) > self._value_max:
            raise ValueTooLarge(length=len(value), limit=self._value_max)
        if ttl_ms > self._ttl_max_ms:
            raise BadTtl(ttl_ms=ttl_ms, limit=self._ttl_max_ms)
        return Operation(key, value, ttl_ms, self._expect(one), self._replaces(one))

    def _delete(self, one: Delete) -> Operation:
        key = one.key
        if not 0 < len(key) <= self._key_max:
            raise self._bad_key(key)
        return Operation(key, None, 0, self._expect(one), self._replaces(one))

    def _expect(self, one: Put | Delete) -> Version | None:
        condition = one.WhichOneof("expect")
        if condition is None:
            return None
        if condition == "expect_version":
            return version_of(one.expect_version)
        if not isinstance(one, Put) or not one.expect_absent:
            raise BadRequest(why="expect_absent must be true when it is set", field="expect_absent")
        return ABSENT

    def _request_id(self, request_id: bytes, most: int) -> bytes:
        if len(request_id) > most:
            why = f"a request id of {len(request_id)} bytes; at most {most} are possible"
            raise BadRequest(why=why, field="request_id")
        return request_id

    def _replaces(self, one: Put | Delete) -> tuple[Version, ...]:
        """Where keys merge by lww the greater version replaces all, whatever is named."""
        if not one.replaces or not self._siblings.find(one.key):
            return ()
        if len(one.replaces) > REPLACES_MAX:
            why = f"a write that replaces {len(one.replaces)} versions; at most {REPLACES_MAX} are possible"
            raise BadRequest(why=why, field="replaces")
        return tuple(map(version_of, one.replaces))

    def _depending(self, write: Write, dependencies: Dependencies) -> Write:
        """The write with what it says to depend on."""
        if len(dependencies.versions) > self._batch_max:
            raise BatchTooLarge(size=len(dependencies.versions), unit="dependencies", limit=self._batch_max)
        versions = tuple(map(version_of, dependencies.versions))
        if dependencies.independent and versions:
            raise BadRequest(why="a write that depends on versions is not independent", field="dependencies")
        if dependencies.independent and any(one.expect is not None or one.replaces for one in write.operations):
            why = "a write with a condition depends on what it is compared with; it is not independent"
            raise BadRequest(why=why, field="dependencies")
        return write._replace(independent=dependencies.independent, depends=versions)

    # Reads

    def get_many(self, request: kv_pb2.GetManyRequest) -> list[bytes]:
        self.check_count(len(request.keys), "keys")
        self._check_snapshot(request)
        return [self.key(key) for key in request.keys]

    def scan(self, request: kv_pb2.ScanRequest) -> tuple[bytes, bytes | None]:
        """The range of keys, from the first to before the last; None: to the end."""
        self._check_snapshot(request)
        start, stop = self._range(request)
        if not request.only_held:
            self._check_all_held(f"the range from {escape(start)}", self._placement.holders_of_range(start, stop))
        after = request.after
        if len(after) > self._key_max:
            raise KeyTooLong(length=len(after), limit=self._key_max)
        return (max(start, after + b"\0") if after else start), stop

    def _range(self, request: kv_pb2.ScanRequest) -> tuple[bytes, bytes | None]:
        if request.WhichOneof("keys") != "range":
            return self.prefix(request.prefix), end_of_prefix(request.prefix)
        start, end = request.range.start, request.range.end
        for bound in (start, end):
            if len(bound) > self._key_max + 1:  # the longest key and a zero byte is the first one behind it
                raise KeyTooLong(length=len(bound), limit=self._key_max + 1)
        if end and end <= start:
            raise BadRange(start=escape(start), stop=escape(end), why="the end is not after the start")
        return start, end or None

    def key(self, key: bytes) -> bytes:
        if not 0 < len(key) <= self._key_max:
            raise self._bad_key(key)
        return key

    def prefix(self, prefix: bytes) -> bytes:
        if len(prefix) > self._key_max:
            raise KeyTooLong(length=len(prefix), limit=self._key_max)
        return prefix

    def held_prefix(self, prefix: bytes) -> bytes:
        holders = self._placement.holders(self.prefix(prefix))
        self._check_all_held(f"the prefix {escape(prefix)!r}", holders)
        return prefix

    def _check_snapshot(self, request: kv_pb2.GetManyRequest | kv_pb2.ScanRequest) -> None:
        if request.snapshot and request.HasField("freshness"):
            raise BadRequest(why="a snapshot is as fresh as it is; leave freshness out", field="freshness")

    # What all have in common

    def wanted(self, request: Any, *, for_write: bool = False) -> Wanted:
        """What must be here before a request is served: a session's past, or everything up to some age."""
        if not request.session and not request.HasField("freshness"):
            return PLAIN
        freshness = request.freshness
        level = freshness.level
        self._check_freshness(freshness)
        is_session = bool(request.session) or level == Freshness.LEVEL_SESSION
        past = None
        if is_session:
            past = self.seal.open(request.session) if request.session else self.seal.beginning()
        waits = is_session and (for_write or level != Freshness.LEVEL_ANY)
        return Wanted(past, waits, freshness.bound_ms if level == Freshness.LEVEL_BOUNDED else None)

    def _check_freshness(self, freshness: Freshness) -> None:
        level = freshness.level
        why = ""
        if level not in LEVELS:
            why = f"there is no freshness level {level}"
        elif freshness.bound_ms and level != Freshness.LEVEL_BOUNDED:
            why = "bound_ms belongs to the bounded freshness alone"
        if why:
            raise BadRequest(why=why, field="freshness")

    def check_count(self, count: int, unit: str) -> None:
        if count > self._batch_max:
            raise BatchTooLarge(size=count, unit=unit, limit=self._batch_max)

    # Where keys are

    def needs_holder(self, write: Write) -> bool:
        """Whether a write must be made where its keys are: it is compared with what is there (SAFETY 18)."""
        return not self._placement.is_full and any(map(self._is_compared, write.operations))

    def _is_compared(self, one: Operation) -> bool:
        return one.expect is not None or self._siblings.find(one.key)

    def holders_of_write(self, write: Write) -> Mask:
        """The sites that hold all that it is compared with."""
        return self.holders_of(self.compared_keys(write))

    def compared_keys(self, write: Write) -> list[bytes]:
        return [one.key for one in write.operations if self._is_compared(one)]

    def holders_of(self, keys: Iterable[bytes]) -> Mask:
        """The sites that hold all of these keys."""
        holders = self._placement.everyone
        if not self._placement.is_full:
            for key in keys:
                holders &= self._placement.sites_of(key)
        return holders

    def is_here(self, holders: Mask) -> bool:
        return bool(holders >> self._site.number & 1)

    def check_held(self, keys: Iterable[bytes]) -> None:
        """Where keys are placed elsewhere, nothing here can be read or compared."""
        for key in keys:
            self._check_all_held(escape(key), self.holders_of((key,)))

    def _check_all_held(self, what: str, holders: Mask) -> None:
        if not self.is_here(holders):
            names = ", ".join(self._cluster.sites[number].name for number in sites_of(holders))
            raise NotHeldHere(key=what, site=self._site.name, holders=names or "no single site")

    def _bad_key(self, key: bytes) -> KvError:
        return KeyTooLong(length=len(key), limit=self._key_max) if key else KeyEmpty()
