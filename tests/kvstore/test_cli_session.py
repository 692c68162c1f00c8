"""The `kvstore` command with sessions, freshness and siblings: what it sends, and what it prints beside the answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvstore.errors import BadToken
from kvstore.show import outline, token_of, token_text
from kvstore.terms import Level
from kvstore.v1 import kv_pb2, model_pb2, watch_pb2
from tests.kvstore.shell import Shell, run, shell_for
from tests.kvstore.test_cli import changes
from tests.kvstore.tokens import TokenScript, replaced, sent

V1, V7 = "0000000000000001-0", "0000000000000007-3"


@pytest.fixture
def script() -> TokenScript:
    return TokenScript()


@pytest.fixture
def kv(script: TokenScript, tmp_path: Path) -> Iterator[Shell]:
    with shell_for(script, tmp_path) as shell:
        yield shell


def told(result: Any, name: str = "session") -> str:
    """What stands beside the answer on standard error."""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith(f"{name}: ")]
    return str(line.partition(": ")[2])


def test_a_session_goes_from_command_to_command(kv: Shell, script: TokenScript) -> None:
    first = kv("put", "k", "v", "--session", "new")
    assert first.stdout == f"{V1}\n" and token_of(told(first)) == b"a:1"
    second = kv("get", "k", "--session", told(first))
    assert second.stdout == "v" and told(second) == told(first)
    third = kv("delete", "k", "--session", told(second), output="table")
    fourth = kv("batch", "--session", told(third), stdin=b'{"put": "l", "value": "w"}')
    fifth = kv("scan", "--session", told(fourth))
    assert fifth.stdout == "l\tw\n" and token_of(told(fifth)) == b"a:1,a:2,a:3"
    tokens = [b"", b"a:1", b"a:1", b"a:1,a:2", b"a:1,a:2,a:3"]
    assert [one.session for one in script.requests] == tokens
    assert script.requests[0].freshness.level == Level.SESSION
    assert "session" not in kv("get", "l").stderr


def test_json_has_the_session_in_the_answer(kv: Shell) -> None:
    token = token_text(b"a:1")
    assert json.loads(kv("put", "k", "v", "--session", "new", output="json").stdout)["session"] == token
    found = kv("get", "k", "--session", token, output="json")
    assert json.loads(found.stdout)["session"] == token and found.stderr == ""
    for command in (("get", "k", "l"), ("scan",)):
        lines = kv(*command, "--session", token, output="json").stdout.splitlines()
        assert [sorted(json.loads(line))[0] for line in lines] == ["expires_ms", "session"], (
            "last, in a line of its own"
        )
    absent = kv("get", "l", "--session", token, output="json")
    assert absent.exit_code == 1 and json.loads(absent.stdout) == {"session": token}, (
        "that it is not there was seen too"
    )


def test_a_watch_in_a_session(kv: Shell, script: TokenScript) -> None:
    script.watches.append([changes(first=5), changes((b"a", b"1"), (b"b", None), first=5)])
    result = kv("watch", "--limit", "2", "--session", "new")
    assert token_of(told(result)) == b"w:5,w:6"
    script.watches.append([changes(first=7), changes((b"a", b"1"), first=7)])
    again = kv("watch", "--limit", "1", "--session", told(result), output="json")
    assert token_of(json.loads(again.stdout)["session"]) == b"w:5,w:6,w:7"
    assert sent(script, watch_pb2.WatchRequest) == [(b"", Level.SESSION), (b"w:5,w:6", 0)]


def test_a_past_that_is_missing_is_exit_3_and_named(kv: Shell, script: TokenScript) -> None:
    result = kv("get", "k", "--session", token_text(b"b:7"), "--timeout", "300ms")
    assert result.exit_code == 3 and "has message 7 of b, which the session has seen" in result.stderr
    script.mishaps["Get"] += [BadToken(why="its seal is broken")]
    result = kv("get", "k", "--session", token_text(b"b:7"))
    assert result.exit_code == 2 and "its seal is broken" in result.stderr


def test_freshness_is_asked_for_and_the_age_is_told(kv: Shell, script: TokenScript) -> None:
    kv("put", "k", "v")
    result = kv("get", "k", "--freshness", "any")
    assert result.stdout == "v" and (told(result, "site"), told(result, "staleness_ms")) == ("a", "77")
    answer = json.loads(kv("get", "k", "--freshness", "any", output="json").stdout)
    assert (answer["value"], answer["site"], answer["staleness_ms"]) == ("v", "a", 77)
    assert told(kv("get", "k", "--max-age-ms", "9"), "staleness_ms") == "unknown"
    kv("scan", "--max-age-ms", "9", "--only-held")
    (asked,) = script.asked(kv_pb2.ScanRequest)
    assert (asked.freshness.level, asked.freshness.bound_ms, asked.only_held) == (Level.BOUNDED, 9, True)


def test_what_a_write_replaces_and_depends_on_travels(kv: Shell, script: TokenScript) -> None:
    kv("put", "k", "v", "--replaces", V1, "--replaces", V7)
    kv("delete", "k", "--replaces", V7, "--depends-on", V1)
    kv("put", "k", "v", "--independent")
    kv("batch", "--depends-on", V7, stdin=b'{"delete": "k"}')
    first, second = script.asked(kv_pb2.PutRequest)
    (delete,) = script.asked(kv_pb2.DeleteRequest)
    (batch,) = script.asked(kv_pb2.BatchRequest)
    assert (replaced(first), replaced(delete)) == ([1, 7], [7])
    assert [one.time for one in delete.dependencies.versions] == [1] and second.dependencies.independent
    assert [(one.time, one.site) for one in batch.dependencies.versions] == [(7, 3)]
    assert not first.HasField("dependencies")


def test_siblings_are_shown(kv: Shell, script: TokenScript) -> None:
    other = model_pb2.Sibling(value=b"red", version=model_pb2.Version(time=1))
    script.data[b"k"] = model_pb2.Entry(key=b"k", value=b"blue", version=model_pb2.Version(time=7), siblings=[other])
    lines = kv("get", "k", output="table").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [["k", "blue", "0000000000000007-0"], ["k", "red", V1]]
    plain = kv("get", "k")
    assert plain.stdout == "blue" and "1 more values were written concurrently" in plain.stderr
    assert kv("scan").stdout == "k\tblue\nk\tred\n"
    assert json.loads(kv("get", "k", output="json").stdout)["siblings"] == [{"value": "red", "version": V1}]


# A token in readable form


def test_a_token_is_text_that_comes_back() -> None:
    for token in (b"", b"a", b"ab", b"abc", bytes(range(256))):
        text = token_text(token)
        assert "=" not in text and (not token or token_of(text) == token)
    for wrong in ("", "A", "a b", "a+b/", "abc=", "ü"):
        with pytest.raises(ValueError, match="is no token"):
            token_of(wrong)


def test_a_token_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = ModuleType("kvstore.seal")
    asked: list[bytes] = []

    def describe(token: bytes) -> dict[str, Any]:
        asked.append(token)
        return {"protocol": "optimal", "bytes": 1234, "newest": {"0": 5, "1": 7}, "seen": ["message 5 of site 0"]}

    seal.describe = describe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kvstore.seal", seal)
    assert run("token", token_text(b"t"), "--output", "plain").stdout.splitlines() == [
        "protocol  optimal",
        "bytes     1,234",
        "newest",
        "  0  5",
        "  1  7",
        "seen      message 5 of site 0",
    ]
    assert json.loads(run("token", token_text(b"t"), "--output", "json").stdout)["newest"] == {"0": 5, "1": 7}
    assert asked == [b"t", b"t"]


def test_what_is_no_token_is_wrong_use() -> None:
    result = run("token", token_text(b"anything"))
    assert result.exit_code == 2 and result.stderr.startswith("kvstore: this is no token")


def test_an_outline_says_when_there_is_nothing() -> None:
    assert outline({"seen": [], "newest": {}}) == ["seen  none", "newest  none"]
