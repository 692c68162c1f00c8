"""The `kvstore` command for keys: what it sends, what it prints, and with which exit code it ends.

Against a replica that plays by a script, so that every kind of wrong can be ordered; real replicas are started in
test_local_cluster.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kvstore.cli import main
from kvstore.commands.common import EXIT_BY_ERROR, EXIT_BY_STATUS, Exit, exit_code
from kvstore.errors import (
    ERRORS,
    CorruptRecord,
    InboxFull,
    KvError,
    OutboxFull,
    PositionTooOld,
    StorageFailed,
    ValueTooLarge,
)
from kvstore.show import from_json
from kvstore.update import escape
from kvstore.v1 import kv_pb2, model_pb2, watch_pb2
from tests.kvstore.script import LOST, REFUSED, Script
from tests.kvstore.shell import Shell, run, shell_for, started

BYTES = b"\x00\xff\n\ttext\\"


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def kv(script: Script, tmp_path: Path) -> Iterator[Shell]:
    with shell_for(script, tmp_path) as shell:
        yield shell


# Help, versions, names


def commands_below(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from commands_below(command, (*path, name))


@pytest.mark.parametrize("path", list(commands_below(main)), ids=" ".join)
def test_every_command_explains_itself_and_all_its_options(path: tuple[str, ...]) -> None:
    for flag in ("-h", "--help"):
        result = run(*path, flag)
        assert result.exit_code == 0 and result.output.startswith(f"Usage: main {' '.join(path)}")
        assert "\\b" not in result.output, "a mark for the layout that was printed"
    command: click.Command = main
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_the_commands_are_those_that_are_promised() -> None:
    keys = {"put", "get", "delete", "batch", "scan", "watch", "token"}
    care = {"serve", "status", "explain", "backup", "restore", "verify", "cluster"}
    assert keys | care <= set(main.commands)
    group = main.commands["cluster"]
    assert isinstance(group, click.Group)
    promised = {"up", "status", "kill", "pause", "resume", "restart", "partition", "heal", "down"}
    assert promised <= set(group.commands)


def test_it_says_its_version_and_shows_help_when_asked_for_nothing() -> None:
    assert run("--version").output.startswith("kvstore, version ")
    result = run()
    assert result.exit_code == 2 and "Usage:" in result.output


def test_asking_for_help_loads_neither_grpc_nor_the_database() -> None:
    code = "import sys, kvstore.cli; print(sorted({'grpc', 'lmdb', 'google.protobuf', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# One key


def test_a_put_sends_its_bytes_and_prints_the_version(kv: Shell, script: Script) -> None:
    result = kv("put", "color", "blue")
    assert (result.exit_code, result.stdout) == (0, "0000000000000001-0\n")
    assert script.data[b"color"].value == b"blue"


@pytest.mark.parametrize("value", [b"", b"text\n", BYTES, b"\r\n", b"x" * 100_000], ids=len)
def test_a_value_from_standard_input_or_a_file_comes_back_byte_for_byte(
    kv: Shell, script: Script, value: bytes, tmp_path: Path
) -> None:
    (tmp_path / "value").write_bytes(value)
    for arguments in (("-",), ("--file", str(tmp_path / "value")), ("-f", "-")):
        script.data.clear()
        assert kv("put", "key", *arguments, stdin=value).exit_code == 0
        result = kv("get", "key")
        assert (result.exit_code, result.stdout_bytes) == (0, value)


def test_an_argument_that_is_no_text_keeps_its_bytes(kv: Shell, script: Script) -> None:
    """The shell hands over bytes; Python shows those that are no UTF-8 as surrogates."""
    kv("put", os.fsdecode(b"k\xff"), os.fsdecode(b"v\xfe"))
    assert script.data[b"k\xff"].value == b"v\xfe"


def test_escapes_are_read_only_when_asked_for(kv: Shell, script: Script) -> None:
    kv("put", "-e", r"a\x00\\", r"\xff")
    kv("put", r"a\x00", r"\xff")
    assert {key: entry.value for key, entry in script.data.items()} == {b"a\x00\\": b"\xff", rb"a\x00": rb"\xff"}
    result = kv("put", "-e", r"a\n", "x")
    assert result.exit_code == 2 and "backslash" in result.stderr


def test_a_put_carries_time_to_live_and_condition(kv: Shell, script: Script) -> None:
    kv("put", "k", "v", "--ttl", "1.5s", "--if-absent")
    kv("put", "k", "w", "--if-version", "0000000000000001-0")
    kv("delete", "k", "--if-version", "0000000000000002-0")
    first, second = script.asked(kv_pb2.PutRequest)
    (third,) = script.asked(kv_pb2.DeleteRequest)
    assert (first.ttl_ms, first.WhichOneof("expect")) == (1500, "expect_absent")
    assert (second.ttl_ms, second.expect_version) == (0, model_pb2.Version(time=1, site=0))
    assert third.expect_version == model_pb2.Version(time=2, site=0)


def test_json_has_text_where_it_is_text_and_a_mark_where_it_is_not(kv: Shell) -> None:
    kv("put", "grüße", "süß")
    kv("put", "-e", r"\xff", r"\x00\x80")
    text = json.loads(kv("get", "grüße", output="json").stdout)
    assert text == {"key": "grüße", "value": "süß", "version": "0000000000000001-0", "expires_ms": None}
    marked = json.loads(kv("get", "-e", r"\xff", output="json").stdout)
    assert (marked["key"], marked["value"]) == ({"base64": "/w=="}, {"base64": "AIA="})


def test_a_table_has_a_head_and_stays_on_its_lines(kv: Shell) -> None:
    kv("put", "key", "-", stdin=b"two\nlines" + b"!" * 100)
    head, row = kv("get", "key", output="table").stdout.splitlines()
    assert head.split() == ["key", "value", "version"]
    assert row.startswith(r"key  two\x0alines!!!") and "…" in row


def test_what_is_not_there_is_exit_1_with_a_sentence_and_nothing_on_stdout(kv: Shell) -> None:
    for output in ("plain", "json", "table"):
        result = kv("get", "nothing", output=output)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "kvstore: nothing: not found\n"


def test_several_keys_are_read_at_one_moment(kv: Shell, script: Script) -> None:
    kv("put", "a", "1")
    kv("put", "b", "2")
    assert kv("get", "b", "a").stdout == "b\t2\na\t1\n"
    result = kv("get", "a", "missing", "b")
    assert (result.exit_code, result.stdout) == (1, "a\t1\nb\t2\n")
    assert "missing" in result.stderr
    assert len(script.asked(kv_pb2.GetManyRequest)) == 2


def test_a_delete_prints_its_version_and_deleting_nothing_is_done(kv: Shell) -> None:
    kv("put", "k", "v")
    assert kv("delete", "k").stdout == "0000000000000002-0\n"
    assert kv("delete", "k").exit_code == 0
    assert kv("get", "k").exit_code == 1
    told = json.loads(kv("delete", "k", output="json").stdout)
    assert told == {"key": "k", "version": "0000000000000004-0", "site": "a", "commit": 4}


# Many keys


def test_a_batch_reads_json_lines_and_prints_a_version_for_each(kv: Shell, script: Script) -> None:
    lines = b"""{"put": "a", "value": "1", "ttl": "2s", "if_absent": true}
        {"put": {"base64": "/w=="}, "value": {"base64": "AIA="}}

        {"delete": "gone", "if_version": "0000000000000001-0"}
    """
    result = kv("batch", stdin=lines)
    assert result.stdout.split() == [f"{number:016x}-0" for number in (1, 2, 3)]
    (request,) = script.asked(kv_pb2.BatchRequest)
    first, second, third = request.operations
    assert (first.put.ttl_ms, first.put.expect_absent) == (2000, True)
    assert (second.put.key, second.put.value) == (b"\xff", b"\x00\x80")
    assert (third.delete.key, third.delete.expect_version.time) == (b"gone", 1)


def test_a_batch_may_stand_in_a_file(kv: Shell, tmp_path: Path) -> None:
    (tmp_path / "batch").write_text('{"put": "a", "value": "1"}\n')
    told = json.loads(kv("batch", str(tmp_path / "batch"), output="json").stdout)
    assert told == {"versions": ["0000000000000001-0"], "site": "a", "commit": 1}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "this is no JSON"),
        ('{"put": "a", "value": "\\ud800"}', "half a character"),
        ("[]", "an operation is an object"),
        ('{"put": "a", "delete": "a"}', "an operation is an object"),
        ('{"put": "a"}', "'value' is missing"),
        ('{"put": 3, "value": "x"}', "put: neither a text"),
        ('{"put": "a", "value": {"base64": "?"}}', "is not base64"),
        ('{"put": "a", "value": "x", "tll": "3s"}', "'tll' is unknown"),
        ('{"put": "a", "value": "x", "ttl": 3}', 'ttl must be a text like "30s"'),
        ('{"put": "a", "value": "x", "ttl": "3"}', "no duration"),
        ('{"put": "a", "value": "x", "if_absent": false}', "if_absent must be true"),
        ('{"put": "a", "value": "x", "if_version": "1"}', "is no version"),
        ('{"delete": "a", "if_absent": true}', "'if_absent' is unknown"),
        ("[" * 100_000, "this is no JSON"),
    ],
)
def test_a_batch_with_a_wrong_line_names_it_and_does_nothing(kv: Shell, script: Script, line: str, why: str) -> None:
    result = kv("batch", stdin=f'{{"put": "fine", "value": "1"}}\n{line}\n'.encode())
    assert result.exit_code == 2
    assert result.stderr.startswith("kvstore: line 2: ") and why in result.stderr
    assert script.requests == []


def test_an_empty_batch_is_wrong_use(kv: Shell) -> None:
    assert kv("batch", stdin=b"\n").exit_code == 2


def test_a_scan_prints_keys_and_values_that_escape_reads_back(kv: Shell, script: Script) -> None:
    for key, value in ((b"a", b"1"), (b"b\t\n", BYTES), (b"b\xff", b""), (b"c", b"3")):
        kv("put", "-e", escape(key), escape(value))
    lines = kv("scan").stdout.splitlines()
    assert lines == ["a\t1", f"b\\x09\\x0a\t{escape(BYTES)}", "b\\xff\t", "c\t3"]
    assert kv("scan", "b", "--keys").stdout.splitlines() == ["b\\x09\\x0a", "b\\xff"]
    assert kv("get", "-e", lines[1].split("\t")[0]).stdout_bytes == BYTES
    assert kv("scan", "--start", "b", "--end", "c", "--limit", "1", "--keys").stdout == "b\\x09\\x0a\n"
    shown = [json.loads(line) for line in kv("scan", output="json").stdout.splitlines()]
    assert [from_json(one["key"]) for one in shown] == [b"a", b"b\t\n", b"b\xff", b"c"]
    assert kv("scan", "nothing").exit_code == 0


def test_a_prefix_and_a_range_at_once_are_wrong_use(kv: Shell) -> None:
    result = kv("scan", "b", "--start", "a")
    assert result.exit_code == 2 and "not both" in result.stderr


def changes(*pairs: tuple[bytes, bytes | None], first: int) -> watch_pb2.WatchResponse:
    response = watch_pb2.WatchResponse(site="a")
    for index, (key, value) in enumerate(pairs, start=first):
        change = response.changes.add(key=key, value=value or b"", index=index)
        change.kind = watch_pb2.Change.KIND_DELETE if value is None else watch_pb2.Change.KIND_PUT
        change.version.time = index
    response.position.site, response.position.incarnation = 0, 1
    response.position.index = first + len(pairs) - 1
    return response


def test_a_watch_prints_a_line_a_change_and_goes_on_where_it_broke_off(kv: Shell, script: Script) -> None:
    begin = changes(first=5)
    script.watches.append([begin, changes((b"a", b"1"), (b"b", None), first=5), REFUSED])
    script.watches.append([changes((b"c\n", b"\xff"), first=7)])
    result = kv("watch", "--limit", "3")
    assert result.stdout.splitlines() == [
        "put\ta\t1\t0000000000000005-0",
        "delete\tb\t\t0000000000000006-0",
        "put\tc\\x0a\t\\xff\t0000000000000007-0",
    ]
    assert "watching at a, from 0-1-4" in result.stderr
    assert [one.position.index for one in script.asked(watch_pb2.WatchRequest)] == [0, 6]


def test_a_watch_in_json_says_where_to_go_on(kv: Shell, script: Script) -> None:
    script.watches.append([changes(first=5), changes((b"a", b"1"), (b"b", None), first=5)])
    first, second = map(json.loads, kv("watch", "--limit", "2", output="json").stdout.splitlines())
    assert first == {
        "change": "put",
        "key": "a",
        "value": "1",
        "version": "0000000000000005-0",
        "position": "0-1-5",
    }
    assert (second["change"], second["value"], second["position"]) == ("delete", None, "0-1-6")
    script.watches.append([changes(first=7), changes((b"z", b"1"), first=7)])
    assert kv("watch", "--from", "0-1-6", "--limit", "1").exit_code == 0
    assert script.asked(watch_pb2.WatchRequest)[-1].position.index == 6


def test_a_watch_flushes_each_line_and_ends_quietly_with_ctrl_c(kv: Shell, script: Script) -> None:
    script.watches.append([changes(first=1), changes((b"a", b"1"), first=1), "silent"])
    with started("watch", "--cluster", kv.file, "--site", "a") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "put\ta\t1\t0000000000000001-0\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr.read().splitlines() == ["watching at a, from 0-1-0"]


# Whom to ask, how to print


def test_the_cluster_the_site_and_the_output_may_come_from_the_environment(kv: Shell, script: Script) -> None:
    kv("put", "k", "v")
    environment: dict[str, Any] = {"KVSTORE_CLUSTER": kv.file, "KVSTORE_SITE": "a", "KVSTORE_OUTPUT": "json"}
    assert json.loads(run("get", "k", **environment).stdout)["value"] == "v"
    assert run("get", "k", "--output", "plain", **environment).stdout == "v"
    assert run("get", "k", KVSTORE_CLUSTER=str(Path(kv.file).parent), KVSTORE_SITE="a").stdout == "v"


def test_without_a_site_any_replica_that_answers_is_asked(kv: Shell, script: Script) -> None:
    assert run("put", "k", "v", "--cluster", kv.file).exit_code == 0


def test_into_a_pipe_output_is_plain_and_on_a_terminal_a_table(kv: Shell) -> None:
    kv("put", "k", "v")
    get = [sys.executable, "-m", "kvstore", "get", "k", "--cluster", kv.file, "--site", "a"]
    assert subprocess.run(get, capture_output=True, check=True).stdout == b"v"
    ours, theirs = os.openpty()
    subprocess.run(get, stdout=theirs, check=True)
    assert os.read(ours, 1000).split()[:5] == [b"key", b"value", b"version", b"k", b"v"]
    subprocess.run([*get, "--output", "plain"], stdout=theirs, check=True)
    assert os.read(ours, 1000) == b"v\r\n", "on a terminal the prompt must not stick to the value"
    os.close(ours)
    os.close(theirs)


def test_a_reader_that_goes_away_ends_the_command_without_a_word(kv: Shell) -> None:
    kv("put", "k", "-", stdin=b"x" * 1_000_000)
    command = [sys.executable, "-m", "kvstore", "get", "k", "--cluster", kv.file, "--site", "a"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(10) == 141


# Wrong use: one sentence, exit 2, nothing sent


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", "k"),
        ("put", "k", "v", "-f", "-"),
        ("put", "k", "v", "--ttl", "soon"),
        ("put", "k", "v", "--ttl", "30"),
        ("put", "k", "v", "--ttl", "0s"),
        ("put", "k", "v", "--if-version", "latest"),
        ("put", "k", "v", "--if-absent", "--if-version", "0000000000000001-0"),
        ("put", "k", "v", "-f", "no such file"),
        ("put", "", "v"),
        ("put", "k" * 481, "v"),
        ("get", "k" * 481),
        ("get",),
        ("get", "k", "--timeout", "0s"),
        ("delete", "k", "--if-version", "x"),
        ("watch", "--from", "yesterday"),
        ("explain", "twelve"),
        ("explain", "nobody:12"),
        ("scan", "--limit", "0"),
        ("backup",),
        ("nonsense",),
        ("get", "k", "--nonsense"),
        ("get", "k", "--session", "no token!"),
        ("get", "k", "--session", ""),
        ("get", "k", "--freshness", "fresh"),
        ("get", "k", "--freshness", "session"),
        ("get", "k", "--max-age-ms", "0"),
        ("get", "k", "--freshness", "any", "--max-age-ms", "5"),
        ("put", "k", "v", "--replaces", "latest"),
        ("put", "k", "v", "--independent", "--depends-on", "0000000000000001-0"),
        ("delete", "k", "--independent", "--replaces", "0000000000000001-0"),
        ("status", "--session", "new"),
        ("token", "A"),
    ],
    ids=" ".join,
)
def test_wrong_use_is_exit_2_with_a_sentence_and_nothing_is_sent(
    kv: Shell, script: Script, arguments: tuple[str, ...]
) -> None:
    result = kv(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr and "Traceback" not in result.stderr
    assert result.stdout == "" and script.requests == []


def test_no_cluster_a_wrong_one_and_an_unknown_site_are_wrong_use(kv: Shell, tmp_path: Path) -> None:
    assert "--cluster FILE" in run("get", "k").stderr
    (tmp_path / "bad.toml").write_text("format = 1\ncluster_id = 3\n")
    for arguments, words in (
        (("--cluster", str(tmp_path / "none.toml")), "No such file"),
        (("--cluster", str(tmp_path / "bad.toml")), "bad.toml: cluster_id: must be a text"),
        (("--cluster", kv.file, "--site", "z"), "there is no site 'z'; there are a, b"),
    ):
        for command in (("get", "k"), ("serve",), ("status",)):
            site = () if "--site" in arguments else ("--site", "a")
            result = run(*command, *arguments, *site)
            assert result.exit_code == 2 and words in result.stderr
            assert result.stderr.count("\n") == 1 and result.stderr.startswith("kvstore: ")


# What goes wrong elsewhere


def test_every_error_has_an_exit_code_of_its_kind() -> None:
    codes = {error: exit_code(error("what happened")) for error in ERRORS}
    assert set(EXIT_BY_STATUS) >= set(ERRORS.values()) and set(EXIT_BY_ERROR) <= set(ERRORS)
    assert set(codes.values()) == set(Exit) - {Exit.DONE, Exit.NOT_FOUND}
    by_code = {code: {error.__name__ for error in codes if codes[error] == code} for code in Exit}
    assert {"KeyTooLong", "ConfigError", "UnknownSite", "BadVersion"} <= by_code[Exit.WRONG_USE]
    assert {"Unavailable", "DeadlineExceeded", "InboxFull", "StorageFailed"} <= by_code[Exit.UNAVAILABLE]
    assert {"VersionMismatch", "ForeignData", "PositionTooOld", "Amnesia"} <= by_code[Exit.REFUSED]
    assert by_code[Exit.CORRUPT] == {"CorruptRecord"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueTooLarge(length=9, limit=8), 2),
        (InboxFull(limit=3, unit="writes"), 3),
        (OutboxFull(peer="b", size=9, limit=8), 3),
        (StorageFailed(path="data", why="the disk is gone"), 3),
        (PositionTooOld(position=1, oldest=5), 4),
        (CorruptRecord(table="keys", key="k", why="crc"), 5),
    ],
    ids=lambda one: type(one).__name__,
)
def test_the_error_of_a_replica_is_its_sentence_and_its_exit_code(
    kv: Shell, script: Script, error: KvError, code: int
) -> None:
    script.mishaps["Put"].extend([error] * 100)
    result = kv("put", "k", "v", "--timeout", "300ms")
    assert (result.exit_code, result.stdout) == (code, "")
    doubt = "" if error.definite else "; the write may have been done all the same"
    assert result.stderr == f"kvstore: {error}{doubt}\n"


def test_a_write_that_may_have_been_done_says_so(kv: Shell, script: Script) -> None:
    script.mishaps["Put"].extend([LOST] * 100)
    result = kv("put", "k", "v", "--timeout", "300ms")
    assert result.exit_code == 3 and result.stderr.endswith("; the write may have been done all the same\n")
    script.mishaps["Get"].extend([LOST] * 100)
    assert "may have been done" not in kv("get", "k", "--timeout", "300ms").stderr


def test_a_condition_that_does_not_hold_is_refused(kv: Shell) -> None:
    kv("put", "k", "v")
    result = kv("put", "k", "w", "--if-absent")
    assert result.exit_code == 4 and "has version" in result.stderr


def test_nobody_there_and_no_answer_in_time_are_exit_3(kv: Shell, script: Script) -> None:
    started = time.monotonic()
    result = run("get", "k", "--cluster", kv.file, "--site", "b", "--timeout", "500ms")
    assert result.exit_code == 3 and "cannot be reached" in result.stderr and result.stderr.count("\n") == 1
    script.mishaps["Get"].extend(["silent"] * 10)
    result = kv("get", "k", "--timeout", "500ms")
    assert result.exit_code == 3 and "500 ms" in result.stderr
    assert time.monotonic() - started < 5
