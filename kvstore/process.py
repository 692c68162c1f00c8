"""Processes that we may signal later, from another process, without ever hitting a stranger.

A process id alone names nobody: the system gives it to the next one. An id together with the boot and the moment of
its start names one process for ever, so that is what a pid file holds. And because a process may end between a look
at it and a signal to it, the signal goes through a pidfd: a handle that stays with the process it was opened for.

All of it reads `/proc`, so this is for Linux.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, NamedTuple

_STATE, _STARTED = 0, 19  # in /proc/PID/stat, counted after the name: what it does, ticks after boot when it started
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Our own children, so that they are taken off the system's list when they end, however often a caller forgets them.
_children: dict[int, subprocess.Popen[bytes]] = {}


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"  # stopped by a signal; it goes on with another
    GONE = "gone"


class Process(NamedTuple):
    """One process, of all that ever had its id."""

    pid: int
    started: int  # clock ticks after boot
    boot: str

    def state(self) -> State:
        _reap(self.pid)
        found = _stat(self.pid)
        if found is None or found[0] in "ZX" or (found[1], _boot()) != (self.started, self.boot):
            return State.GONE
        return State.PAUSED if found[0] in "Tt" else State.RUNNING

    def send(self, *signals: signal.Signals) -> bool:
        """Whether the process was there to receive them."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if self.state() is State.GONE:  # asked after opening: from here on the handle cannot mean another one
                return False
            for one in signals:
                signal.pidfd_send_signal(handle, one)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is gone. Whether it is."""
        deadline = time.monotonic() + timeout_s
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            found = _stat(self.pid)
            if found is None or (found[1], _boot()) != (self.started, self.boot):
                return True
            # A killed process is a zombie already while its other threads, and with them its ports, are still there:
            # only the handle tells when the last of them is gone.
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            return bool(ended.poll(max(0.0, deadline - time.monotonic()) * 1000))
        finally:
            os.close(handle)
            _reap(self.pid)

    def exit_code(self) -> int | None:
        """Of a child that has ended; negative: the signal that ended it. None: not ended, or not our child."""
        _reap(self.pid)
        child = _children.get(self.pid)
        return None if child is None else child.returncode


def spawn(
    arguments: Sequence[str],
    log: IO[bytes],
    *,
    folder: Path,
    environment: Mapping[str, str],
    is_tied: bool = False,
) -> Process:
    """Start a process in a session of its own, so that Ctrl-C here does not reach it there.

    One that is *tied* has a standard input that ends when this process does, however it ends.
    """
    child = subprocess.Popen(
        list(arguments),
        stdin=subprocess.PIPE if is_tied else subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
    )
    _children[child.pid] = child
    found = _stat(child.pid)
    if found is None:  # nothing but we can take a child's entry away, so there is no /proc
        child.kill()
        child.wait()
        raise OSError(f"{sys.platform} does not tell in /proc when a process started")
    return Process(child.pid, found[1], _boot())


def write_pid_file(path: Path, process: Process, arguments: Sequence[str]) -> None:
    """Name a process, and the arguments to start the next one with. The file is there as a whole or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({**process._asdict(), "arguments": list(arguments)}) + "\n", encoding="utf-8")
    draft.replace(path)


def read_pid_file(path: Path) -> tuple[Process, list[str]] | None:
    """What `write_pid_file` wrote. Anything else names no process that we may touch."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        pid, started, boot, arguments = (content[name] for name in ("pid", "started", "boot", "arguments"))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    if not (type(pid) is type(started) is int and pid > 0 and isinstance(boot, str) and isinstance(arguments, list)):
        return None
    return Process(pid, started, boot), [str(one) for one in arguments]


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold anything, brackets too
    return fields[_STATE], int(fields[_STARTED])


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None and child.stdin is not None:
        child.stdin.close()
