"""`kvstore-pipeline audit` as a user meets it: lines, exit codes, and one sentence where something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pipeline import cli
from pipeline.audit import FORMATS
from tests.pipeline.test_formats import V1, V2, as_jsonl, as_parquet, read_row, row

ROOT = Path(__file__).resolve().parents[2]
CAUSAL = "w 0 0\n-----\nr 0 0\n"
BROKEN = "w 0 1\n-----\nw 0 2\n=====\nr 0 2\n-----\nr 0 1\n"


def audit(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["audit", *map(str, arguments)])


def put(folder: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_a_history_that_holds_is_one_line_and_exit_0(tmp_path: Path) -> None:
    file = put(tmp_path, good=CAUSAL) / "good"
    result = audit(file)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == {
        "file": str(file),
        "format": "awdit",
        "cc": True,
        "ccv": True,
        "sessions": True,
        "pattern": None,
        "witness": None,
    }


def test_a_violation_is_named_with_its_witness_and_exit_1(tmp_path: Path) -> None:
    result = audit(put(tmp_path, bad=BROKEN) / "bad")
    assert result.exit_code == 1
    assert result.stdout.count("\n") == 1
    line = json.loads(result.stdout)
    assert list(line) == ["file", "format", "cc", "ccv", "sessions", "pattern", "witness"]
    assert (line["cc"], line["ccv"], line["sessions"], line["pattern"]) == (False, False, False, "WriteCORead")
    assert line["witness"] == [
        "session 0, operation 0 (line 1): wrote 0 = 1",
        "session 0, operation 1 (line 3): wrote 0 = 2",
        "session 1, operation 1 (line 7): read 0, saw 1",
    ]


def test_explain_tells_every_broken_promise(tmp_path: Path) -> None:
    result = audit("--explain", put(tmp_path, bad=BROKEN) / "bad")
    told = [line.split(": ")[1] for line in result.stderr.splitlines()]
    assert told == ["WriteCORead", "MonotonicReads"]


def test_a_directory_is_the_histories_below_it(tmp_path: Path) -> None:
    put(tmp_path, b__x=CAUSAL, a=BROKEN, LICENSE="free", **{"README.md": "hello", ".hidden__x": "what"})
    result = audit(tmp_path)
    assert [json.loads(line)["file"] for line in result.stdout.splitlines()] == [f"{tmp_path}/a", f"{tmp_path}/b/x"]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"w 1 1\nw 1\n", "line 2: 'w 1' is neither an operation like 'w 3 1' nor a line of - or ="),
        (b"hello\n", "it is of no format that is known here (awdit, plume, edn, jsonl, parquet); --format can name it"),
        (b"", "it is of no format that is known here (awdit, plume, edn, jsonl, parquet); --format can name it"),
    ],
)
def test_a_bad_file_is_one_sentence_and_exit_2_and_the_others_are_judged(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    put(tmp_path, a=content, b=BROKEN)
    result = audit(tmp_path)
    assert result.exit_code == 2
    assert result.stderr == f"kvstore-pipeline: {tmp_path}/a: {sentence}\n"
    assert json.loads(result.stdout)["pattern"] == "WriteCORead"


def test_wrong_use_is_exit_2(tmp_path: Path) -> None:
    assert audit().exit_code == 2
    assert audit("--format", "csv", tmp_path).exit_code == 2
    nowhere = audit(tmp_path / "nowhere")
    assert (nowhere.exit_code, nowhere.stderr) == (2, f"kvstore-pipeline: there is no {tmp_path}/nowhere\n")
    empty = audit(tmp_path)
    assert (empty.exit_code, empty.stderr) == (2, f"kvstore-pipeline: there is no history in {tmp_path}\n")


def test_a_format_that_is_named_is_believed(tmp_path: Path) -> None:
    file = put(tmp_path, x=CAUSAL) / "x"
    result = audit("--format", "plume", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "line 1: 'w 0 0' is no operation like 'w(3,1,0,0)'" in result.stderr


def test_parts_of_a_run_are_judged_together(tmp_path: Path) -> None:
    put(tmp_path, a=as_jsonl(row()), b=as_parquet(read_row(session="s2", observed=[V1])))
    assert audit(tmp_path).exit_code == 1
    result = audit("--together", tmp_path)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["file"] == str(tmp_path)


def test_siblings_and_incomplete_records_can_be_told(tmp_path: Path) -> None:
    history = as_jsonl(
        row(version=V2), row(session="s2"), read_row(session="s2", observed=[V1, V2], index=2, key="s/x")
    )
    lost = as_jsonl(row(version=V2), row(session="s2"), read_row(session="s1", observed=[V1]))
    put(tmp_path, a=history, b=lost)
    assert json.loads(audit(tmp_path / "a").stdout)["pattern"] == "ThinAirRead"
    assert audit("--incomplete", tmp_path / "a").exit_code == 0
    assert json.loads(audit(tmp_path / "b").stdout)["pattern"] == "CyclicCF"
    assert audit("--siblings", "x", tmp_path / "b").exit_code == 0


def test_the_help_says_what_comes_out() -> None:
    result = audit("--help")
    assert result.exit_code == 0
    for word in ("monotonic writes", "pattern", "witness", "Exit code", "--together", *FORMATS):
        assert word in result.stdout


def test_progress_is_for_terminals_and_for_those_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "PATIENCE_S", -1.0)
    put(tmp_path, a=CAUSAL, b=CAUSAL)
    assert audit(tmp_path).stderr == ""
    monkeypatch.setattr(cli, "_is_watched", lambda: True)
    assert "\r1 of 2 judged" in audit(tmp_path).stderr
    monkeypatch.setattr(cli, "PATIENCE_S", 60.0)
    assert audit(tmp_path).stderr == ""


def test_the_package_is_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline", "audit", str(put(tmp_path, bad=BROKEN) / "bad")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["pattern"] == "WriteCORead"
