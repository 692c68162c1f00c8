"""The one translation between protobuf and our values, and between our errors and gRPC's.

An error travels twice. As a gRPC status, which any client understands: its code says what to do (ask for something
else, later, elsewhere). And as a google.rpc.ErrorInfo beside it, which says what was wrong by a name that never
changes, with the facts, and whether a write surely did not happen.

A status *without* that second part was not made by a replica: a connection broke, a deadline passed on the way, a proxy
spoke. Then nobody knows. Also a connection that could not be made looks no different from one that broke after the
request had gone out; so none of these is ever `definite`.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from kvstore.errors import BadVersion, DeadlineExceeded, Internal, KvError, Unavailable, error_of
from kvstore.update import SITE_MAX, Record, Version
from kvstore.v1 import model_pb2

DOMAIN = "kvstore"  # of every ErrorInfo that we make
STATUS_KEY = "grpc-status-details-bin"  # where a google.rpc.Status travels
DEFINITE = "definite"  # in the metadata of an ErrorInfo: true or false
MESSAGE_BYTES_MAX = 768  # of a sentence in a status; beyond it: cut, for metadata of 8 KiB is refused on the way
DETAIL_BYTES_MAX = 2048  # of one fact: a key of 480 bytes, each written as \xff, fits

Context = grpc.aio.ServicerContext[Any, Any]

# Values


def pb_version(version: Version) -> model_pb2.Version:
    return model_pb2.Version(time=version[0], site=version[1])


def version_of(version: model_pb2.Version) -> Version:
    """The version that a client names; BadVersion for one that no write can have."""
    if not version.time or version.site > SITE_MAX:
        raise BadVersion(text=f"time {version.time:016x} at site {version.site}")
    return Version(version.time, version.site)


def entry_of(key: bytes, record: Record, *siblings: Record) -> model_pb2.Entry:
    """What lives under a key, greatest version first, as clients get it."""
    entry = model_pb2.Entry()
    fill(entry, key, record, *siblings)
    return entry


def fill(entry: model_pb2.Entry, key: bytes, record: Record, *siblings: Record) -> None:
    """The same, in its place in an answer: nothing is copied in, which halves the price."""
    version = entry.version
    (version.time, version.site), value, expires_ms, *_ = record
    entry.key, entry.value, entry.expires_ms = key, value or b"", expires_ms
    for one in siblings:
        shown = entry.siblings.add(value=one.value or b"", expires_ms=one.expires_ms)
        shown.version.time, shown.version.site = one.version


# Answers and errors of ours, on their way out


async def send(context: Context, response: Any) -> None:
    """One response of a stream. When the other side is gone, this call has ended like any other that is cancelled."""
    try:
        await context.write(response)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


async def abort(context: Context, error: KvError) -> NoReturn:
    """End a call with this error."""
    code = grpc.StatusCode[error.status]
    message = _fit(str(error), MESSAGE_BYTES_MAX)
    await context.abort(code, message, ((STATUS_KEY, _status(error, code, message).SerializeToString()),))


def _status(error: KvError, code: grpc.StatusCode, message: str) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=_facts(error))
    info.metadata[DEFINITE] = "true" if error.definite else "false"
    status = status_pb2.Status(code=code.value[0], message=message)
    status.details.add().Pack(info)
    return status


def to_error(error: KvError) -> model_pb2.Error:
    """The same for one item of a pipeline."""
    message = _fit(str(error), MESSAGE_BYTES_MAX)
    return model_pb2.Error(reason=error.reason, message=message, definite=error.definite, details=_facts(error))


def _facts(error: KvError) -> dict[str, str]:
    return {name: _fit(value, DETAIL_BYTES_MAX) for name, value in error.details.items()}


def _fit(text: str, bytes_max: int) -> str:
    data = text.encode(errors="replace")
    return data[:bytes_max].decode(errors="ignore")


# Errors of others, as they come in


def error_of_pb(error: model_pb2.Error) -> KvError:
    """What became of an item of a pipeline."""
    return error_of(error.reason, error.message, error.details, definite=error.definite)


def error_of_rpc(error: grpc.RpcError, *, site: str, timeout_ms: int) -> KvError:
    """What a call failed with, blocking or not. `site` is whom we asked, `timeout_ms` what time it had."""
    call = cast("grpc.Call", error)  # what is raised is both
    code, details = call.code(), call.details() or ""
    ours = _info_of(call)
    if ours is not None:
        facts = dict(ours.metadata)
        return error_of(ours.reason, details, facts, definite=facts.pop(DEFINITE, "") == "true")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(timeout_ms=timeout_ms, waiting_for=f"what became of it, {site} did not say")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return Unavailable(site=site, why=_plain(details) or code.name)
    return Internal(why=f"{site} ended the call with {code.name}: {details}")


def _plain(details: str) -> str:
    """What gRPC says of a connection that failed ends with the system's reason: "…: Connection refused"."""
    return details.rpartition(": ")[2] if details.startswith("failed to connect to all addresses") else details


def _info_of(call: grpc.Call) -> error_details_pb2.ErrorInfo | None:
    """What a replica said about its error. Anything that does not read as such was said by somebody else."""
    for key, value in call.trailing_metadata() or ():
        if key != STATUS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
            for one in status.details:
                info = error_details_pb2.ErrorInfo()
                if one.Unpack(info) and info.domain == DOMAIN:
                    return info
        except DecodeError:
            continue
    return None
