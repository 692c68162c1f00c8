"""Each format: what it means, and that its own signs are enough to know it."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.audit import FORMATS, Malformed, Operation, Outcome, UnknownFormat, detect, judge, load
from pipeline.audit.formats import load_parts
from pipeline.audit.formats.edn import parse
from pipeline.audit.formats.rows import NULLABLE, REQUIRED
from pipeline.audit.history import Kind

SCHEMA = pa.schema(
    [
        pa.field("run", pa.string()),
        pa.field("session", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("transaction", pa.int64()),
        pa.field("operation", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("version", pa.string()),
        pa.field("observed", pa.list_(pa.string())),
        pa.field("replica", pa.string()),
        pa.field("start_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("outcome", pa.string()),
        pa.field("token", pa.string()),
        pa.field("expires", pa.bool_()),
        pa.field("replaces", pa.list_(pa.string())),
    ]
)
V1, V2 = "018bcfe568000001-0", "018bcfe568000002-65535"


def row(**changes: Any) -> dict[str, Any]:
    plain = {
        "run": "r1",
        "session": "s1",
        "index": 0,
        "transaction": 0,
        "operation": "write",
        "key": "x",
        "value": None,
        "version": V1,
        "observed": [],
        "replica": "a",
        "start_ns": 1,
        "end_ns": 2,
        "outcome": "ok",
        "token": None,
    }
    return {**plain, **changes}


def read_row(**changes: Any) -> dict[str, Any]:
    return row(**{"operation": "read", "version": None, "index": 1, "transaction": 1, **changes})


def as_jsonl(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in rows)


def as_parquet(*rows: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    made = [{**one, "key": one["key"].encode() if isinstance(one["key"], str) else one["key"]} for one in rows]
    pq.write_table(pa.Table.from_pylist(made, schema=SCHEMA), file)
    return file.getvalue()


def patterns(data: bytes, format: str) -> list[str]:
    return [violation.pattern for violation in judge(load(data, format)).violations()]


def brief(operations: list[Operation]) -> list[tuple[str, int, int, str, bytes, str | None]]:
    return [
        (one.session, one.index, one.transaction, one.kind[0], one.key, one.version or ",".join(one.observed) or None)
        for one in operations
    ]


# Those of others


def test_awdit_separates_transactions_and_sessions_by_lines() -> None:
    found = FORMATS["awdit"].read(b"w 0 0\nw 1 0\n-----\nr 0 0\n=====\n\n  r 01 0  \r\n")
    assert brief(found) == [
        ("0", 0, 0, "w", b"0", "0"),
        ("0", 1, 0, "w", b"1", "0"),
        ("0", 2, 1, "r", b"0", "0"),
        ("1", 0, 0, "r", b"1", "0"),
    ]
    assert [one.line for one in found] == [1, 2, 4, 7]


def test_awdit_has_no_initial_value() -> None:
    assert patterns(b"w 0 1\n=====\nr 0 0\n", "awdit") == ["ThinAirRead"]


def test_plume_takes_a_session_in_the_order_of_its_lines() -> None:
    found = FORMATS["plume"].read(b"w(1,1,0,7)\nw(2,5,9,3)\nr(1,1,0,8)\nw(3,4,0,7)\nr(1, 0, 9, 3)\n")
    assert brief(found) == [
        ("0", 0, 7, "w", b"1", "1"),
        ("0", 1, 7, "w", b"3", "4"),  # a transaction stands where it began
        ("9", 0, 3, "w", b"2", "5"),
        ("9", 1, 3, "r", b"1", None),
        ("0", 2, 8, "r", b"1", "1"),
    ]


def test_plume_ignores_writes_of_the_initial_value() -> None:
    assert patterns(b"w(1,0,0,0)\nr(1,0,0,1)\nr(1,0,1,2)\n", "plume") == []
    assert patterns(b"w(1,0,0,0)\nw(1,1,0,1)\nr(1,0,0,2)\n", "plume") == ["WriteCOInitRead", "ReadYourWrites"]


def test_what_plume_aborted_must_not_be_seen() -> None:
    assert patterns(b"w(1,5,0,-1)\nr(1,5,1,1)\n", "plume") == ["AbortedRead"]
    assert patterns(b"w(1,5,0,-1)\nw(1,5,0,2)\nr(1,5,1,1)\n", "plume") == []
    assert patterns(b"w(1,5,0,1)\nr(1,9,0,-1)\nr(1,5,0,2)\n", "plume") == []


EDN = """\
{:type :invoke, :f :write, :value [x 1], :process 0, :time 0, :position 0, :link nil, :index 0}
{:type :ok, :f :write, :value [x 1], :process 0, :time 0, :position 0, :link nil, :index 0}
; a comment
#jepsen.history.Op{:index 4, :type :ok, :process 1, :f :read, :value ["y" nil]}
{:type :info, :f :start, :value nil, :process :nemesis, :error "a \\"net\\" split"}
{:type :ok, :f :read, :value [x 1] :process 1}
{:type :fail, :f :read, :value nil, :process 1}
{:type :ok, :f :write, :value [:x 0] :process 1}
"""


def test_edn_keeps_what_ended_well() -> None:
    assert brief(FORMATS["edn"].read(EDN.encode())) == [
        ("0", 0, 0, "w", b"x", "1"),
        ("1", 0, 0, "r", b'"y"', None),
        ("1", 1, 1, "r", b"x", "1"),
    ]


@pytest.mark.parametrize("value", ["nil", "-1", "0", "+0", "00", "0N"])
def test_edn_has_three_initial_values(value: str) -> None:
    text = "{:type :ok, :f :write, :value [x 1], :process 0}\n{:type :ok, :f :read, :value [x %s], :process 0}\n"
    assert patterns((text % value).encode(), "edn") == ["WriteCOInitRead", "ReadYourWrites"]


def test_edn_knows_failed_and_doubtful_writes() -> None:
    text = "{:type :%s, :f :write, :value [x 1], :process 0}\n{:type :ok, :f :read, :value [x 1], :process 1}\n"
    assert patterns((text % "ok").encode(), "edn") == []
    assert patterns((text % "info").encode(), "edn") == []
    assert patterns((text % "fail").encode(), "edn") == ["AbortedRead"]
    assert patterns((text % "invoke").encode(), "edn") == ["ThinAirRead"]


def test_an_edn_form_is_nested_and_quoted() -> None:
    form = parse('{:a [1 (x "y ]\\" ;")]} ; end', 1)
    assert form is not None
    assert form.as_map()[":a"].members[1].members[1].atom == '"y ]\\" ;"'


# Our own


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_a_row_becomes_an_operation(write: Any) -> None:
    data = write(row(expires=True, replaces=[V2], session="ä"), read_row(observed=[V1, V2], session="ä", end_ns=9))
    format = detect(data, name="history")
    history = load(data, format)
    assert history.is_ordered
    assert history.siblings == {b"x"}
    assert history.operations == (
        Operation("ä", 0, 0, Kind.WRITE, b"x", V1, (), Outcome.OK, True, (V2,), "a", 1, 2, "r1", 1),
        Operation("ä", 1, 1, Kind.READ, b"x", None, (V1, V2), Outcome.OK, False, None, "a", 1, 9, "r1", 2),
    )


def test_bytes_that_are_no_text_are_base64_in_json() -> None:
    key = {"base64": base64.b64encode(b"\xff\x00").decode()}
    assert load(as_jsonl(row(key=key, value=key)), "jsonl").operations[0].key == b"\xff\x00"
    assert load(as_jsonl(row(key="ä")), "jsonl").operations[0].key == "ä".encode()


@pytest.mark.parametrize("write", [as_jsonl, as_parquet])
def test_rows_may_come_in_any_order(write: Any) -> None:
    late, early = read_row(index=5, transaction=5, observed=[V1]), row(index=2, transaction=2)
    assert [one.index for one in load(write(late, early), detect(write(late), name="")).operations] == [2, 5]


def test_columns_that_may_be_missing_may_be_missing() -> None:
    bare = {name: value for name, value in row().items() if name not in NULLABLE or name == "version"}
    assert set(bare) == {*REQUIRED, "version"}
    assert load(as_jsonl(bare), "jsonl").operations[0].replaces is None


def test_every_column_is_in_the_table_of_columns() -> None:
    assert {field.name for field in SCHEMA} == {*REQUIRED, *NULLABLE}


def test_parts_of_one_run_are_judged_together() -> None:
    writer, reader = as_jsonl(row()), as_parquet(read_row(session="s2", observed=[V1]))
    assert judge(load_parts([writer, reader], ["jsonl", "parquet"])).holds
    assert patterns(reader, "parquet") == ["ThinAirRead"]
    with pytest.raises(Malformed, match="of the run 'r2', others are of 'r1'"):
        load_parts([writer, as_jsonl(read_row(session="s2", run="r2"))], ["jsonl", "jsonl"])


def test_only_our_own_parts_can_be_put_together() -> None:
    with pytest.raises(UnknownFormat, match="only the store's own"):
        load_parts([b"w 1 1", b"r 1 1"], ["awdit", "awdit"])
    with pytest.raises(UnknownFormat, match="only the store's own"):
        load_parts([b"w 1 1", as_jsonl(row())], ["awdit", "jsonl"])


# Which is which


@pytest.mark.parametrize(
    ("data", "name", "format"),
    [
        (b"w 1 1\n", "x", "awdit"),
        (b"\n\n  r 1 1\n", "x.edn", "awdit"),
        (b"=====\nr 1 1\n", "x", "awdit"),
        (b"w(1,1,0,0)\n", "x", "plume"),
        (b"{:type :ok}\n", "x", "edn"),
        (b"; jepsen\n{:type :ok}\n", "x", "edn"),
        (b"#jepsen.history.Op{:type :ok}\n", "x", "edn"),
        (b'{"run": 1}\n', "x", "jsonl"),
        (b'{ "run": 1}\n', "x.txt", "jsonl"),
        (as_parquet(row()), "x.txt", "parquet"),
        (b"what?", "x.edn", "edn"),
        (b"", "x.jsonl", "jsonl"),
        (b"", "x.PARQUET", "parquet"),
    ],
)
def test_a_format_is_known_by_its_beginning_or_its_name(data: bytes, name: str, format: str) -> None:
    assert detect(data, name=name) == format


@pytest.mark.parametrize("data", [b"", b"hello", b"[1, 2]", b"\xff\xfe", b"word 1 2"])
def test_what_is_nothing_of_this_is_said_so(data: bytes) -> None:
    with pytest.raises(UnknownFormat, match="awdit, plume, edn, jsonl, parquet"):
        detect(data, name="x.txt")
