"""The `kvstore` command for operators: status, explain, backup and verify."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.commands.look import Answer, _links
from kvstore.config import Cluster, SiteConfig
from kvstore.storage.contract import Batch
from kvstore.storage.lmdb import LmdbStorage
from kvstore.v1 import event_pb2, status_pb2
from tests.kvstore.script import Script
from tests.kvstore.shell import Shell, run, shell_for


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def kv(script: Script, tmp_path: Path) -> Iterator[Shell]:
    with shell_for(script, tmp_path) as shell:
        yield shell


# Looking inside


def busy(site: str = "a") -> status_pb2.StatusResponse:
    said = status_pb2.StatusResponse(cluster_id="c", site=site, site_number=0, commit=1234, protocol="optimal")
    does = said.activity
    does.held, does.held_oldest_ms, does.keys, does.log_units, does.control_bytes = 2, 1500, 10, 7, 2048
    does.commits_per_second, does.updates_per_second = 12.34, 99.9
    link = said.links.add(sender=site, receiver="b", trouble="nobody answers", made=20, acked=15, delay_ms=40)
    link.outbox_messages, link.outbox_bytes = 5, 3_000_000
    said.links.add(sender="b", receiver=site, connected=True, passed=8, acked=8)
    said.replicas.add(name=site, number=0, connected=True)
    said.replicas.add(name="b", number=1, delivered=8, heard_ms=61_000, clock_ahead_ms=-5)
    alarm = said.alarms.add(reason="OUTBOX_FILLING", message="b does not take what waits for it")
    alarm.since_ms = int(time.time() * 1000) - 5000
    said.placement.add(prefix=b"\xff", sites=["a"])
    said.limits["inbox_max"] = 1024
    return said


@pytest.fixture
def busy_script(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    async def answer(_self: Script, _request: object, _context: object) -> status_pb2.StatusResponse:
        return busy()

    monkeypatch.setattr(Script, "Status", answer)
    return script


def test_status_shows_all_sites_and_one_that_is_down_as_down(busy_script: Script, kv: Shell) -> None:
    arguments = ("status", "--cluster", kv.file, "--timeout", "500ms", "--output")
    result = run(*arguments, "table")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["a", "up", "1,234", "10", "2", "(1.5", "s)", "2.9", "MiB", "7", "2.0", "KiB", "12.3", "99.9", "1"] in lines
    assert next(line for line in lines if line[:1] == ["b"])[:3] == ["b", "down", "-"]
    assert any("cannot be reached" in line for line in result.stdout.splitlines())
    assert "a → b: nobody answers" in result.stdout and "5 (2.9 MiB)" in result.stdout
    assert "OUTBOX_FILLING, for 5" in result.stdout
    up, down = run(*arguments, "plain").stdout.splitlines()
    assert up.split("\t") == ["a", "up", "1234", "10", "2", "3000000", "7", "2048", "12.3", "99.9", "1"]
    assert down.split("\t")[:3] == ["b", "down", "-"]
    first, second = json.loads(run(*arguments, "json").stdout)["sites"]
    assert (first["state"], first["commit"], first["activity"]["held"]) == ("up", 1234, 2)
    assert first["limits"] == {"inbox_max": 1024.0} and first["placement"][0]["prefix"] == {"base64": "/w=="}
    assert first["replicas"][0]["heard_ms"] is None and first["replicas"][1]["heard_ms"] == 61_000
    assert (second["site"], second["state"], second["reason"]) == ("b", "down", "UNAVAILABLE")


def test_of_a_link_the_word_of_its_sender_counts() -> None:
    def said(site: str, acked: int) -> status_pb2.StatusResponse:
        pairs = (("a", "b"), ("b", "a"))
        links = [status_pb2.LinkStatus(sender=one, receiver=other, acked=acked) for one, other in pairs]
        return status_pb2.StatusResponse(site=site, links=links)

    answers = [Answer("a", said("a", 1)), Answer("b", said("b", 2))]
    for given in (answers, answers[::-1]):
        assert {pair: link.acked for pair, link in _links(given).items()} == {("a", "b"): 1, ("b", "a"): 2}
    assert {pair: link.acked for pair, link in _links(answers[:1]).items()} == {("a", "b"): 1, ("b", "a"): 1}


def test_status_of_one_site_shows_how_it_sees_the_others(busy_script: Script, kv: Shell) -> None:
    result = kv("status", output="table")
    assert "As a sees the others:" in result.stdout
    assert "1 m ago" in result.stdout.replace("1.0", "1") and "-5 ms" in result.stdout


def test_status_is_exit_3_when_nobody_answers(kv: Shell) -> None:
    result = run("status", "--cluster", kv.file, "--site", "b", "--timeout", "300ms", "--output", "table")
    assert result.exit_code == 3 and "down" in result.stdout


@pytest.fixture
def holding_script(script: Script, monkeypatch: pytest.MonkeyPatch) -> Script:
    async def answer(self: Script, request: event_pb2.ExplainRequest, _: object) -> event_pb2.ExplainResponse:
        self.requests.append(request)
        said = event_pb2.ExplainResponse(site="a", held_total=3)
        held = said.held.add(origin="b", missing_origin="c", held_ms=2500, updates=1)
        held.dot.site, held.dot.seq, held.missing.site, held.missing.seq = 1, 12, 2, 7
        held.cause = event_pb2.HOLD_CAUSE_TRUE
        held.chain.add(sentence="message 7 of c has not come here", why=event_pb2.ChainStep.WHY_MISSING)
        held.chain.add(sentence="b had delivered it", why=event_pb2.ChainStep.WHY_DELIVERED_BEFORE)
        return said

    monkeypatch.setattr(Script, "Explain", answer)
    return script


def test_explain_tells_the_chain_in_sentences(holding_script: Script, kv: Shell) -> None:
    assert kv("explain", output="table").stdout.splitlines() == [
        "a has held message 12 of b (1 update) for 2.5 s, cause true:",
        "  message 7 of c has not come here",
        "  b had delivered it",
        "a holds 2 more",
        "",
        (
            "cause true: it depends on the missing message; "
            "false: it only came after it at its site, and waits in vain; unknown: nobody told"
        ),
    ]
    assert kv("explain").stdout == "a\tb:12\tc:7\t2500ms\ttrue\tmessage 7 of c has not come here; b had delivered it\n"
    (site,) = json.loads(kv("explain", output="json").stdout)["sites"]
    assert site["held"][0]["cause"] == "true" and site["held"][0]["missing"] == {"site": 2, "seq": 7}
    assert [step["why"] for step in site["held"][0]["chain"]] == ["missing", "delivered_before"]


def test_explain_can_be_asked_for_one_message(holding_script: Script, kv: Shell) -> None:
    kv("explain", "b:12", "--limit", "5")
    (request,) = holding_script.asked(event_pb2.ExplainRequest)
    assert (request.dot.site, request.dot.seq, request.limit) == (1, 12, 5)


def test_explain_says_so_when_nothing_is_held(kv: Shell) -> None:
    assert kv("explain", output="table").stdout == "Nothing is held back.\n"


# Disks


def test_a_backup_goes_to_an_absolute_path_and_needs_a_site(kv: Shell, script: Script) -> None:
    told = json.loads(kv("backup", "copy", output="json").stdout)
    assert told["directory"] == str(Path("copy").absolute())
    assert run("backup", "copy", "--cluster", kv.file).exit_code == 2
    assert script.effects == 1


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    with LmdbStorage(folder, create=True) as storage:
        storage.commit(Batch(1, puts=[("meta", b"k", b"v"), ("changes", b"k", b"value")]))
    return folder


def test_verify_counts_what_is_sound(data: Path) -> None:
    result = run("verify", str(data), "--output", "table")
    assert result.exit_code == 0 and "records in changes     1\n" in result.stdout
    told = json.loads(run("verify", str(data), "--output", "json").stdout)
    assert (told["commit"], told["bad"], told["records"]["changes"]) == (1, 0, 1)


def test_verify_finds_a_changed_byte_and_exits_with_5(data: Path) -> None:
    file = data / "data.mdb"
    content = file.read_bytes()
    assert content.count(b"value") >= 1
    file.write_bytes(content.replace(b"value", b"vaLue"))
    result = run("verify", str(data), "--output", "plain")
    assert result.exit_code == 5
    assert "changes k" in result.stderr and "1 records of" in result.stderr
    assert "bad\t1" in result.stdout


def test_verify_of_what_is_no_data_says_so(tmp_path: Path, data: Path) -> None:
    assert run("verify", str(tmp_path / "none")).exit_code == 4
    assert run("verify").exit_code == 2
    with LmdbStorage(data):
        result = run("verify", str(data))
        assert result.exit_code == 3 and "has it open" in result.stderr
    (data / "data.mdb").write_bytes(b"something else" * 1000)
    assert run("verify", str(data)).exit_code in (4, 5)


def test_verify_finds_the_data_of_a_site(data: Path, tmp_path: Path) -> None:
    site = SiteConfig("a", 0, "127.0.0.1:1", "127.0.0.1:2", "data")
    (tmp_path / "cluster.toml").write_text(Cluster("c", (site,), {b"": ("a",)}).to_toml())
    result = run("verify", "--site", "a", "--cluster", str(tmp_path), "--output", "json")
    assert json.loads(result.stdout)["commit"] == 1
