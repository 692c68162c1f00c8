"""What a client writes down: every operation as its caller saw it, in files that survive a kill."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kvstore import ABSENT, Delete, Get, Put, connect, history
from kvstore.errors import BadRequest, ConfigError, KvError, StorageFailed
from kvstore.history import History, Row, digest, read_history
from kvstore.historyfile import COLUMNS, Segments
from kvstore.v1 import model_pb2
from tests.kvstore.script import LOST, SILENT, serving
from tests.kvstore.test_client import dead_address
from tests.kvstore.tokens import CLIENTS, TokenScript, play

V1, V2 = "0000000000000001-0", "0000000000000002-0"


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["history", "history.jsonl"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def rows_of(story: Any, script: TokenScript, path: Path, client: str, **options: Any) -> list[Row]:
    play(story, script, client=client, history=History(path, run="test", **options))
    return read_history(path)


def shown(rows: list[Row], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in names) for row in rows]


# What is in a row


def test_a_row_says_what_was_done_and_seen(client: str, path: Path) -> None:
    a = TokenScript()
    before = time.monotonic_ns()

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.put(b"k", b"v", ttl_ms=500)
        await one.get(b"k")
        await one.get(b"\xff")
        await one.delete(b"k")

    rows = rows_of(story, a, path, client)
    names = {row.session for row in rows}
    assert len(names) == 1 and names.pop().startswith("s1-")
    assert shown(rows, "index", "operation", "key", "version", "observed", "expires") == [
        (0, "write", b"k", V1, [], True),
        (1, "read", b"k", None, [V1], True),
        (2, "read", b"\xff", None, [], False),
        (3, "delete", b"k", V2, [], False),
    ]
    assert {(row.run, row.replica, row.outcome) for row in rows} == {("test", "a", "ok")}
    assert [row.value for row in rows] == [digest(b"v").encode()] * 2 + [None] * 2
    assert [row.token for row in rows] == [digest(b"a:1")] * 3 + [digest(b"a:1,a:2")]
    assert len(digest(b"")) == 16
    times = [before, *[at for row in rows for at in (row.start_ns, row.end_ns)], time.monotonic_ns()]
    assert times == sorted(times)


def test_siblings_are_several_versions(client: str, tmp_path: Path) -> None:
    a = TokenScript()
    other = model_pb2.Sibling(value=b"w", version=model_pb2.Version(time=1), expires_ms=9)
    a.data[b"k"] = model_pb2.Entry(key=b"k", value=b"v", version=model_pb2.Version(time=2), siblings=[other])
    (row,) = rows_of(lambda kv: kv.get(b"k"), a, tmp_path / "h", client)
    assert row.observed == [V2, V1] and row.expires


def test_what_was_done_at_one_moment_is_one_transaction(client: str, tmp_path: Path) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.batch([Put(b"k0", b"v"), Put(b"k1", b"v"), Delete(b"k2")])
        await one.get_many([b"k0", b"k1", b"k2"])
        assert len([entry async for entry in one.scan(b"k", page_size=1)]) == 2
        await one.pipeline([Put(b"k0", b"v"), Put(b"k1", b"v")])

    rows = rows_of(story, a, tmp_path / "h", client)
    assert [row.transaction for row in rows] == [0] * 3 + [1] * 3 + [2, 3] + [4, 5]
    assert [row.index for row in rows] == [*range(10)]
    assert [row.key for row in rows[6:8]] == [b"k0", b"k1"] and {row.replica for row in rows} == {"a"}


def test_calls_without_a_session_have_no_name_and_those_with_one_keep_theirs_apart(client: str, tmp_path: Path) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        first, second = kv.session(), kv.session()
        await asyncio.gather(kv.put(b"k", b"v"), first.get(b"k"), second.get(b"k"), kv.get(b"k"))
        assert [entry async for entry in kv.scan(b"k")]

    rows = rows_of(story, a, tmp_path / "h", client)
    outside = [row.index for row in rows if not row.session]
    assert [index - outside[0] for index in outside] == [0, 1, 2]
    assert outside[0] != next(History(tmp_path).outside._index), "nor are those of two histories the same"
    assert {row.token for row in rows if not row.session} == {None}
    assert {row.replica for row in rows} == {"a"}
    assert sorted(row.session.partition("-")[0] for row in rows if row.session) == ["s1", "s2"]


def test_reads_that_are_in_no_order_with_their_session_are_not_said_to_be(client: str, tmp_path: Path) -> None:
    """A judge would call it a broken promise that a read which was told not to wait did not wait."""
    a = TokenScript()

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.put(b"k", b"v")
        await one.get(b"k", freshness="any")
        assert [entry async for entry in one.scan(b"k", freshness="any")]
        await one.pipeline([Put(b"k", b"w"), Get(b"k")])
        await one.get(b"k", max_age_ms=5)

    rows = rows_of(story, a, tmp_path / "h", client)
    assert [row.operation for row in rows if row.session] == ["write", "write", "read"]
    assert [row.operation for row in rows if not row.session] == ["read"] * 3


def test_the_outcome_is_what_the_caller_was_told(client: str, tmp_path: Path) -> None:
    a = TokenScript()

    async def story(kv: Any) -> None:
        one = kv.session()
        await one.put(b"k", b"v")
        for call in (one.put(b"k", b"w", expect=ABSENT), kv.put(b"k", b"w", expect=ABSENT)):
            with pytest.raises(KvError):
                await call
        a.mishaps["Batch"] += [LOST] * 50
        with pytest.raises(KvError):
            await one.batch([Put(b"k", b"x"), Put(b"l", b"x")], timeout_s=0.2)
        a.mishaps["Get"] += [LOST] * 50
        with pytest.raises(KvError):
            await one.get(b"k", timeout_s=0.2)
        await one.pipeline([Put(b"k", b"y", expect=ABSENT), Put(b"m", b"y")])

    rows = rows_of(story, a, tmp_path / "h", client)
    mine = shown([row for row in rows if row.session], "operation", "key", "version", "outcome")
    assert [one[3] for one in mine] == ["ok", "fail", "unknown", "unknown", "fail", "fail", "ok"]
    assert [one[2] for one in mine[1:6]] == [None] * 5
    assert [row.outcome for row in rows if not row.session] == ["fail"]
    assert {row.token for row in rows[1:6] if row.session and row.outcome != "ok"} == {digest(b"a:1")}


def test_a_write_that_was_given_up_is_unknown(tmp_path: Path) -> None:
    a = TokenScript()
    for name in ("Put", "Pipeline"):
        a.mishaps[name] += [SILENT]

    async def story(kv: Any) -> None:
        for one in (kv.session(), kv):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(one.put(b"k", b"v"), 0.05)

    assert [row.outcome for row in rows_of(story, a, tmp_path / "h", "asyncio")] == ["unknown", "unknown"]


@pytest.mark.parametrize(("values", "kept"), [("full", b"\xff"), ("none", None), ("digest", digest(b"\xff").encode())])
def test_values_are_kept_as_told(path: Path, values: str, kept: bytes | None) -> None:
    a = TokenScript()
    with serving(a) as addresses, connect(addresses, history=History(path, values=values)) as kv:
        kv.put(b"k", b"\xff")
        kv.put(b"k", b"")
    first, second = read_history(path)
    assert first.value == kept
    assert second.value == {"full": b"", "none": None, "digest": digest(b"").encode()}[values]
    assert first.run.startswith("run-") and first.run == second.run


# Files


def test_a_segment_has_exactly_the_columns_that_are_promised(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")

    a = TokenScript()
    with serving(a) as addresses, connect(addresses, history=History(tmp_path / "h")) as kv:
        kv.session().put(b"k", b"v")
    (segment,) = (tmp_path / "h").glob("*.parquet")
    found = pa.parquet.read_schema(segment)
    assert {name: str(found.field(name).type) for name in found.names} == {
        "run": "string",
        "session": "string",
        "index": "int64",
        "transaction": "int64",
        "operation": "string",
        "key": "binary",
        "value": "binary",
        "version": "string",
        "observed": "list<element: string>",
        "replica": "string",
        "start_ns": "int64",
        "end_ns": "int64",
        "outcome": "string",
        "token": "string",
        "expires": "bool",
        "replaces": "list<element: string>",
    }
    assert [one.name for one in COLUMNS] == found.names == [*Row.__dataclass_fields__]
    assert [name for name in found.names if found.field(name).nullable] == ["value", "version", "token", "replaces"]
    assert found.metadata[b"kvstore.history.values"] == b"digest"


def test_lines_have_text_where_it_is_text_and_a_mark_where_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "new" / "h.jsonl"
    a = TokenScript()
    with serving(a) as addresses, connect(addresses, history=History(path, values="full")) as kv:
        kv.put("schlüssel".encode(), b"\xff")
        kv.get(b"\xff")
    first, second = map(json.loads, path.read_text().splitlines())
    assert (first["key"], first["value"]) == ("schlüssel", {"base64": "/w=="})
    assert (second["key"], second["value"], second["observed"]) == ({"base64": "/w=="}, None, [])
    assert [*first] == [one.name for one in COLUMNS]
    path.write_bytes(path.read_bytes() + b'{"run": "half a li')
    assert len(read_history(path)) == 2


def test_a_full_segment_is_sealed_and_many_clients_share_a_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "ROWS_MAX", 10)
    a = TokenScript()
    shared = History(tmp_path)

    def work() -> None:
        with connect(addresses, history=shared) as kv:
            one = kv.session()
            for _ in range(20):
                one.put(b"k", b"v")

    with serving(a) as addresses:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = read_history(tmp_path)
    assert len(rows) == len({(row.session, row.index) for row in rows}) == 80
    assert len([*tmp_path.glob("*.parquet")]) >= 8 and not [*tmp_path.glob(".*")]


def test_an_old_segment_is_sealed_while_the_client_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "AGE_MAX_S", 0.05)
    a = TokenScript()
    with serving(a) as addresses, connect(addresses, history=History(path)) as kv:
        kv.put(b"k", b"v")
        deadline_s = time.monotonic() + 10
        while not read_history(path):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


CHILD = """
import sys, kvstore.history
from kvstore import connect
from kvstore.history import History
kvstore.history.ROWS_MAX = 10
with connect(sys.argv[1], history=History(sys.argv[2])) as kv:
    one = kv.session()
    for number in range(100_000):
        one.put(b"k", b"%d" % number)
"""


def test_a_kill_loses_at_most_what_was_not_sealed(path: Path) -> None:
    a = TokenScript()
    with serving(a) as [address]:
        child = subprocess.Popen([sys.executable, "-c", CHILD, address, str(path)])
        try:
            deadline_s = time.monotonic() + 30
            while not path.exists() or len(read_history(path)) < 50:
                assert time.monotonic() < deadline_s
                time.sleep(0.02)
        finally:
            os.kill(child.pid, signal.SIGKILL)
            child.wait()
    rows = read_history(path)
    assert [row.index for row in rows] == [*range(len(rows))], "from the first on, without a hole"
    assert {row.outcome for row in rows} == {"ok"}


def test_a_disk_that_fails_is_told_at_the_end_and_fails_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Segments, rows: list[Row]) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Segments, "write", broken)
    a = TokenScript()
    with serving(a) as addresses:
        kv = connect(addresses, history=History(tmp_path))
        kv.put(b"k", b"v")
        with pytest.raises(StorageFailed, match="1 rows and all that follow are lost: no space left"):
            kv.close()


def test_wrong_use_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequest, match="no way 'all' to keep values; there are digest, full, none"):
        History(tmp_path, values="all")
    (tmp_path / "file").touch()
    for name in ("file/h", "file/h.jsonl"):
        with pytest.raises(ConfigError, match="the history cannot be written to"):
            History(tmp_path / name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"a history needs pyarrow, .* pip install 'causal-kvstore\[trace\]'"):
        History(tmp_path / "h")
    History(tmp_path / "h.jsonl").close()


def test_a_client_without_a_history_loads_nothing_of_it() -> None:
    code = "import sys; from kvstore import connect, aio; aio.connect; assert 'kvstore.history' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_call_to_nobody_is_written_down_too(tmp_path: Path) -> None:
    with connect(dead_address(), timeout_s=0.2, history=History(tmp_path)) as kv, pytest.raises(KvError):
        kv.put(b"k", b"v")
    (row,) = read_history(tmp_path)
    assert row.outcome == "fail" and row.replica.startswith("127.0.0.1:"), "surely not done, and where not"
