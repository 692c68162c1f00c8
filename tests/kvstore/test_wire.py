"""What travels: versions and entries, and every error there and back."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from causal.model import Dot
from kvstore.errors import (
    ERRORS,
    BadVersion,
    DeadlineExceeded,
    Internal,
    KvError,
    PositionTooOld,
    Unavailable,
    VersionMismatch,
)
from kvstore.rpc import wire
from kvstore.update import Record, Version, escape
from kvstore.v1 import kv_pb2, kv_pb2_grpc, model_pb2
from tests.kvstore.served import refusal_of


class Refusing(kv_pb2_grpc.KeyValueServicer):
    """Refuses every get with the error of the moment."""

    error: KvError

    async def Get(self, request: kv_pb2.GetRequest, context: wire.Context) -> kv_pb2.GetResponse:  # noqa: N802
        return await wire.abort(context, self.error)


def an_error(kind: type[KvError]) -> KvError:
    return kind("a sentence, with é and\nlines", key="k\\xff", limit=480, site="a")


def ask_refusing(errors: list[KvError]) -> list[grpc.aio.AioRpcError]:
    """What a client meets, for each error that a server can end a call with."""

    async def story() -> list[grpc.aio.AioRpcError]:
        service, met = Refusing(), []  # type: ignore[abstract]
        server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        kv_pb2_grpc.add_KeyValueServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for service.error in errors:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await kv_pb2_grpc.KeyValueStub(channel).Get(kv_pb2.GetRequest(key=b"k"), timeout=10)
                met.append(raised.value)
        await server.stop(None)
        return met

    return asyncio.run(story())


def test_every_error_comes_over_with_its_status_reason_facts_and_definiteness() -> None:
    sent = [an_error(kind) for kind in ERRORS]
    for error, met in zip(sent, ask_refusing(sent), strict=True):
        seen = refusal_of(met)
        assert seen == (error.status, error.reason, error.definite, error.details, str(error))
        read = wire.error_of_rpc(met, site="a", timeout_ms=10)
        assert type(read) is type(error) and str(read) == str(error)
        assert (read.definite, read.details) == (error.definite, error.details)


def test_what_is_definite_is_said_by_the_error_itself_not_by_its_kind() -> None:
    late, lost = DeadlineExceeded(timeout_ms=5, waiting_for="x"), an_error(VersionMismatch)
    late.definite, lost.definite = True, False
    read = [wire.error_of_rpc(met, site="a", timeout_ms=10) for met in ask_refusing([late, lost])]
    assert [one.definite for one in read] == [True, False]


def test_an_error_about_the_longest_key_of_the_worst_bytes_still_fits_into_metadata() -> None:
    key = escape(b"\xff" * 480)
    (met,) = ask_refusing([VersionMismatch(key=key, found="none", expected="none")])
    read = wire.error_of_rpc(met, site="a", timeout_ms=10)
    assert isinstance(read, VersionMismatch) and read.details["key"] == key
    assert len(str(read)) == wire.MESSAGE_BYTES_MAX, "the sentence is cut, the facts are whole"


def test_a_text_is_cut_between_characters() -> None:
    (met,) = ask_refusing([Internal(why="é" * 5000, huge="é" * 5000)])
    read = wire.error_of_rpc(met, site="a", timeout_ms=10)
    assert set(read.details["huge"]) == {"é"} and len(read.details["huge"].encode()) <= wire.DETAIL_BYTES_MAX


def test_an_item_of_a_pipeline_says_the_same() -> None:
    for kind in ERRORS:
        error = an_error(kind)
        read = wire.error_of_pb(wire.to_error(error))
        assert type(read) is kind and str(read) == str(error)
        assert (read.definite, read.details) == (error.definite, error.details)


# What others say


class FakeCall(grpc.RpcError):
    """A failed call, blocking style."""

    def __init__(self, code: grpc.StatusCode, details: str | None = "", metadata: Any = ()) -> None:
        self._code, self._details, self._metadata = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str | None:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._metadata


def packed(reason: str, domain: str = wire.DOMAIN, **metadata: str) -> bytes:
    status = status_pb2.Status(code=9, message="m")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    made: bytes = status.SerializeToString()
    return made


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", Unavailable),
        ("CANCELLED", Unavailable),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("INTERNAL", Internal),
        ("UNKNOWN", Internal),
        ("RESOURCE_EXHAUSTED", Internal),
        ("UNIMPLEMENTED", Internal),
        ("INVALID_ARGUMENT", Internal),
    ],
)
def test_a_status_that_no_replica_made_is_never_definite(code: str, kind: type[KvError]) -> None:
    error = wire.error_of_rpc(FakeCall(grpc.StatusCode[code], "why"), site="b", timeout_ms=250)
    assert type(error) is kind and not error.definite
    assert "b" in str(error)
    if kind is DeadlineExceeded:
        assert error.details["timeout_ms"] == "250"
    else:
        assert "why" in str(error)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        (),
        ((wire.STATUS_KEY, b"\xff\xff\xff"),),
        ((wire.STATUS_KEY, b""),),
        ((wire.STATUS_KEY, packed("KEY_EMPTY", "another.domain", definite="true")),),
        (("some-other-bin", packed("KEY_EMPTY", definite="true")),),
        (("x", "y"), (wire.STATUS_KEY, status_pb2.Status(code=9).SerializeToString())),
    ],
)
def test_details_that_are_not_ours_count_for_nothing(metadata: Any) -> None:
    call = FakeCall(grpc.StatusCode.UNAVAILABLE, None, metadata)
    error = wire.error_of_rpc(call, site="b", timeout_ms=1)
    assert type(error) is Unavailable and not error.definite


def test_a_reason_that_is_newer_than_this_client_is_internal_and_keeps_what_it_says() -> None:
    call = FakeCall(grpc.StatusCode.ABORTED, "m", ((wire.STATUS_KEY, packed("NEWER", definite="true", a="1")),))
    error = wire.error_of_rpc(call, site="b", timeout_ms=1)
    assert type(error) is Internal and error.definite
    assert error.details == {"a": "1", "unknown_reason": "NEWER"}


def test_without_a_word_about_it_nothing_is_definite() -> None:
    call = FakeCall(grpc.StatusCode.OUT_OF_RANGE, "m", ((wire.STATUS_KEY, packed("POSITION_TOO_OLD")),))
    error = wire.error_of_rpc(call, site="b", timeout_ms=1)
    assert type(error) is PositionTooOld and not error.definite


def test_nobody_at_the_address_is_unavailable_and_not_definite() -> None:
    async def story() -> None:
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await kv_pb2_grpc.KeyValueStub(channel).Put(kv_pb2.PutRequest(key=b"k"), timeout=10)
        error = wire.error_of_rpc(raised.value, site="b", timeout_ms=10_000)
        assert type(error) is Unavailable and not error.definite

    asyncio.run(story())


# Values


@given(st.integers(1, (1 << 64) - 1), st.integers(0, (1 << 16) - 1))
def test_a_version_comes_back_as_it_went(time: int, site: int) -> None:
    assert wire.version_of(wire.pb_version(Version(time, site))) == Version(time, site)


@pytest.mark.parametrize(("time", "site"), [(0, 0), (0, 3), (5, 1 << 16), (5, (1 << 32) - 1)])
def test_a_version_that_no_write_can_have_is_refused(time: int, site: int) -> None:
    with pytest.raises(BadVersion):
        wire.version_of(model_pb2.Version(time=time, site=site))


def test_an_entry_has_all_that_a_client_may_see_of_a_record() -> None:
    record = Record(Version(7 << 16, 2), b"", 99, Dot(2, 5), 0, 3)
    expected = model_pb2.Entry(key=b"k", value=b"", version=model_pb2.Version(time=7 << 16, site=2), expires_ms=99)
    assert wire.entry_of(b"k", record) == expected
