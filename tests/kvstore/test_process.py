"""Processes by more than their number: no signal ever reaches a stranger."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.process import Process, State, read_pid_file, spawn, write_pid_file

PATIENT = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with (tmp_path / "log").open("ab") as log:
        found = spawn(PATIENT, log, folder=tmp_path, environment=os.environ)
    yield found
    found.send(signal.SIGKILL)
    assert found.wait(10)


def until(process: Process, state: State) -> None:
    deadline = time.monotonic() + 10
    while process.state() is not state:
        assert time.monotonic() < deadline, f"it is {process.state()}, not {state}"
        time.sleep(0.005)


def test_it_runs_is_paused_goes_on_and_is_gone(process: Process) -> None:
    assert process.state() is State.RUNNING
    assert process.send(signal.SIGSTOP)
    until(process, State.PAUSED)
    assert process.send(signal.SIGCONT)
    until(process, State.RUNNING)
    assert not process.wait(0.05)
    assert process.exit_code() is None
    assert process.send(signal.SIGTERM)
    assert process.wait(10)
    assert process.state() is State.GONE
    assert process.exit_code() == -signal.SIGTERM
    assert not process.send(signal.SIGTERM)


def test_another_process_with_the_same_number_is_not_it(process: Process) -> None:
    for stranger in (process._replace(started=process.started - 1), process._replace(boot="another")):
        assert stranger.state() is State.GONE
        assert not stranger.send(signal.SIGKILL)
        assert stranger.wait(0)
    assert process.state() is State.RUNNING


def test_one_that_ended_and_that_nobody_took_notice_of_is_gone(tmp_path: Path) -> None:
    """A zombie still has its number; its parent here never asks after it."""
    code = "import subprocess, time; child = subprocess.Popen(['true']); print(child.pid, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        stat = Path(f"/proc/{pid}/stat")
        deadline = time.monotonic() + 10
        while ") Z " not in stat.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        started = int(stat.read_text().rsplit(")", 1)[1].split()[19])
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert Process(pid, started, boot).state() is State.GONE
        assert Process(pid, started, boot).wait(0)
        parent.kill()


def test_it_has_a_session_of_its_own_so_ctrl_c_does_not_reach_it(process: Process) -> None:
    assert os.getsid(process.pid) == process.pid != os.getsid(0)


def test_what_it_prints_goes_to_the_log(process: Process, tmp_path: Path) -> None:
    deadline = time.monotonic() + 10
    while (tmp_path / "log").read_text() != "here\n":
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_pid_file_names_the_process_and_its_arguments(process: Process, tmp_path: Path) -> None:
    path = tmp_path / "a.pid"
    assert read_pid_file(path) is None
    write_pid_file(path, process, ["--trace", "folder"])
    assert read_pid_file(path) == (process, ["--trace", "folder"])
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith("a.pid")] == ["a.pid"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "12345",
        "[]",
        json.dumps({"pid": 1}),
        json.dumps({"pid": "1", "started": 1, "boot": "x", "arguments": []}),
        json.dumps({"pid": True, "started": 1, "boot": "x", "arguments": []}),
        json.dumps({"pid": -1, "started": 1, "boot": "x", "arguments": []}),
        json.dumps({"pid": 1, "started": 1, "boot": None, "arguments": []}),
    ],
)
def test_a_pid_file_of_anybody_else_names_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.pid").write_text(content)
    assert read_pid_file(tmp_path / "a.pid") is None
