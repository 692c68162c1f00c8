"""Bad files: for each mistake the sentence that names it and its line; for garbage a named error, and nothing else."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any

import pytest

from pipeline.audit import FORMATS, AuditError, Malformed, MissingLibrary, detect, judge, load
from tests.pipeline.test_formats import EDN, V1, V2, as_jsonl, as_parquet, read_row, row

HUGE = "9" * 5000
OK = "{:type :ok, :f :write, :value [x 1], :process 0}"

MISTAKES: list[tuple[str, str | bytes, str]] = [
    ("awdit", "w 1 1\nx 1 2", r"line 2: 'x 1 2' is neither an operation"),
    ("awdit", "w 1", r"line 1: 'w 1' is neither"),
    ("awdit", "w 1 1 1", r"line 1: .* is neither"),
    ("awdit", "w 1 one", r"line 1: the value is 'one'"),
    ("awdit", "\nw 1.5 1", r"line 2: the key is '1.5'"),
    ("awdit", "w ² 1", r"line 1: the key is '²'"),
    ("awdit", f"w 1 {HUGE}", r"line 1: the value is '9+…', which is no number of at most 19 digits"),
    ("awdit", "w 1 1\n-----\nw 1 1", r"line 3: 1 of key '1' is written again, after line 1"),
    ("awdit", "=====", r"there are no operations"),
    ("awdit", b"w 1 1\n\xff\n", r"line 2: it is no text in UTF-8"),
    ("plume", "w(1,1,0,0)\nw(1,1,0)", r"line 2: 'w\(1,1,0\)' is no operation"),
    ("plume", "w(1,1,0,0", r"line 1: .* is no operation"),
    ("plume", "r(1,,0,0)", r"line 1: the value is ''"),
    ("plume", f"r(1,2,0,{HUGE})", r"line 1: the transaction is"),
    ("plume", "w(1,1,0,0)\nw(1,1,1,1)", r"line 2: 1 of key '1' is written again, after line 1"),
    ("plume", "w(1,0,0,0)", r"there are no operations"),
    ("edn", OK + "\n" + OK[:-1], r"line 2: a { that is never closed"),
    ("edn", OK + "]", r"line 1: a ] that closes nothing"),
    ("edn", "{:type :ok)", r"line 1: a \) that closes nothing"),
    ("edn", OK + OK, r"line 1: more than one map on a line"),
    ("edn", "{:type :ok :f}", r"line 1: .* is no map"),
    ("edn", "[1 2]", r"line 1: '\[1 2\]' is no map"),
    ("edn", ":ok", r"line 1: ':ok' is no map"),
    ("edn", '{:type "ok', r"line 1: a text that does not end"),
    ("edn", "[" * 100, r"line 1: more than 16 brackets"),
    ("edn", "{:type :ok, :f :write, :value [x 1]}", r"line 1: there is no :process"),
    ("edn", OK.replace(":ok", ":perhaps"), r"line 1: the type is ':perhaps'"),
    ("edn", OK.replace(":write", ":cas"), r"line 1: the function is ':cas'"),
    ("edn", OK.replace("[x 1]", "1"), r"line 1: the :value is no pair"),
    ("edn", OK.replace("[x 1]", "[x [1]]"), r"line 1: the :value is no pair"),
    ("edn", OK.replace("process 0", "process x"), r"line 1: the process is 'x'"),
    ("edn", OK.replace("process 0", f"process {HUGE}"), r"line 1: the process is '9+…'"),
    ("edn", OK + "\n" + OK, r"line 2: 1 of key 'x' is written again"),
    ("edn", "; nothing", r"there are no operations"),
    ("jsonl", as_jsonl(row(), read_row())[:-3], r"line 2: it is cut off: who wrote it was killed"),
    ("jsonl", as_jsonl(row())[:-3] + b"\n", r"line 1: '.*…' is no JSON object"),
    ("jsonl", "[1]\n", r"line 1: '\[1\]' is no JSON object"),
    ("jsonl", '{"a": 1, "a": 2}\n', r"line 1: .* is no JSON object"),
    ("jsonl", '{"a": ' + "[" * 100_000 + "\n", r"line 1: .* is no JSON object"),
    ("jsonl", '{"a": ' + HUGE + "}\n", r"line 1: .* is no JSON object"),
    ("jsonl", '{"run": "\\ud800"}\n', r"line 1: it has no session"),
    ("parquet", b"PAR1", r"it cannot be read as Parquet|its end is missing"),
    ("parquet", b"PAR1" + b"x" * 100 + b"PAR1", r"it cannot be read as Parquet"),
    ("parquet", as_parquet(row())[:-100], r"its end is missing"),
    ("parquet", "hello", r"it is no Parquet file"),
    ("parquet", as_parquet(), r"there are no operations"),
]

BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    (row(session=None), "it has no session"),
    (row(colour="red"), "it has a column 'colour' that nobody knows"),
    (row(operation="scan"), "operation is 'scan'; known are read, write, delete"),
    (row(outcome="maybe"), "outcome is 'maybe'; known are ok, fail, unknown"),
    (row(outcome=[]), "outcome is"),
    (row(index="1"), "index is '1', not of the type int"),
    (row(index=True), "index is 'True', not of the type int"),
    (row(index=1.0), "index is '1.0', not of the type int"),
    (row(start_ns=1 << 63), "start_ns does not fit into 64 bits"),
    (row(session=1), "session is '1', not of the type str"),
    (row(version="1"), "'1' is no version"),
    (row(version="018bcfe568000001-65536"), "is no version"),
    (row(version="018BCFE568000001-1"), "is no version"),
    (row(version="018bcfe568000001-01"), "is no version"),
    (row(version=5), "'5' is no version"),
    (row(version=None), "an acknowledged write without its version"),
    (row(observed=[V1]), "a write observes nothing"),
    (row(operation="delete", observed=[V1]), "a delete observes nothing"),
    (read_row(version=V1), "a read creates no version"),
    (read_row(observed=[V1, V1]), "observed names a version twice"),
    (read_row(observed=V1), "observed is .*, not of the type list"),
    (read_row(observed=[None]), "'None' is no version"),
    (row(expires=1), "expires is '1', not of the type bool"),
    (row(replaces=["x"]), "'x' is no version"),
    (row(value=7), "value is '7', neither text nor an object with base64"),
    (row(key={"base64": "!"}), "key is .*, neither text nor an object with base64"),
    (row(key={"base64": "AA=="} | {"x": 1}), "key is .*, neither"),
    (row(key={"base64": "ä"}), "key is .*, neither"),
    (row(key="\ud800"), "key is .*, neither"),
    (row(session="\ud800"), "session is .*, which is no text"),
    (row(token=1), "token is '1', not of the type str"),
]

BAD_SETS: list[tuple[list[dict[str, Any]], str]] = [
    ([row(), read_row(run="r2")], "line 2: it is of the run 'r2', others are of 'r1'"),
    ([row(), read_row(index=0)], "line 2: operation 0 of session 's1' is there twice"),
    ([row(), read_row(), read_row(index=2, transaction=0)], "line 3: transaction 0 of session 's1' goes on after"),
    ([row(), row(index=1, version=V2, outcome="fail")], "line 2: transaction 0 of session 's1' is both ok and fail"),
    ([row(), row(session="s2")], f"line 2: {V1} of key 'x' is written again, after line 1"),
]


@pytest.mark.parametrize(("format", "data", "sentence"), MISTAKES)
def test_a_mistake_is_named_with_its_line(format: str, data: str | bytes, sentence: str) -> None:
    with pytest.raises(Malformed, match=sentence) as caught:
        load(data.encode() if isinstance(data, str) else data, format)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(("bad", "sentence"), BAD_ROWS)
def test_a_bad_row_is_named(bad: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Malformed, match=f"line 2: .*{sentence}"):
        load(as_jsonl(row(key="y"), bad), "jsonl")


@pytest.mark.parametrize(("rows", "sentence"), BAD_SETS)
@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_rows_that_contradict_each_other_are_named(rows: list[dict[str, Any]], sentence: str, format: str) -> None:
    with pytest.raises(Malformed, match=sentence):
        load(as_jsonl(*rows) if format == "jsonl" else as_parquet(*rows), format)


def test_without_pyarrow_the_sentence_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingLibrary, match="pyarrow, which is not installed"):
        load(b"PAR1PAR1", "parquet")


GOOD: dict[str, bytes] = {
    "awdit": b"w 0 0\nw 1 1\n-----\nr 0 0\n=====\nw 0 2\nr 1 1\n",
    "plume": b"w(1,1,0,0)\nw(2,1,0,0)\nr(1,1,1,1)\nr(2,0,1,2)\nw(3,3,1,-1)\n",
    "edn": EDN.encode(),
    "jsonl": as_jsonl(row(), read_row(observed=[V1, V2], session="s2"), row(index=3, transaction=3, version=V2)),
    "parquet": as_parquet(row(), read_row(observed=[V1]), row(index=3, transaction=3, version=V2)),
}


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_cut_anywhere_is_judged_or_refused_by_name(format: str) -> None:
    for end in range(len(GOOD[format]) + 1):
        judge_or_refuse(GOOD[format][:end], format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_damaged_file_is_judged_or_refused_by_name(format: str) -> None:
    for seed in range(400):
        chance = random.Random(seed)
        data = bytearray(GOOD[format])
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.choice((0, 10, 32, 48, 57, 255, chance.randrange(256)))
        judge_or_refuse(bytes(data), format)


@pytest.mark.parametrize("format", FORMATS)
def test_random_bytes_are_refused_by_name(format: str) -> None:
    for seed in range(200):
        chance = random.Random(seed)
        data = chance.randbytes(chance.randrange(200))
        judge_or_refuse(data, format)
        judge_or_refuse(b"PAR1" + data + b"PAR1", format)
        with contextlib.suppress(AuditError):
            detect(data, name="x")


def judge_or_refuse(data: bytes, format: str) -> None:
    with contextlib.suppress(AuditError):
        judge(load(data, format))
