"""Runs the commands that README.md and docs/ show, so that no page tells its reader to type something broken.

A command stands in a fenced block whose info string begins with `console`, on a line that begins with `$ `; a trailing
backslash continues it. What follows, up to the next `$ `, is the output that the page shows. Words after `console`:

    console expect    the shown output is compared with stdout; a line that is only `...` stands for any lines
    console long      too slow, or not for here (a clone, the tests themselves): counted, not run

A command must exit with 0, or with the code it announces at its end: `causal replay bad.jsonl  # exit 2`. Each runs in
a shell of its own at the root of the project. Files go to $OUT: a fresh folder for each page, also $HOME and $TMPDIR.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.is_file()]
TIMEOUT_S = 60
WORDS = {"expect", "long"}
NOT_FOR_HERE = re.compile(r"(?:make|cd|git clone|pip install)\b")  # recursion, no effect, network


class BadPage(Exception):
    """A block that the runner cannot read, and so would silently not run."""


@dataclass(slots=True)
class Command:
    line: int  # where it stands in the page
    text: str
    shown: list[str] = field(default_factory=list)
    is_expected: bool = False  # the shown output is a promise
    is_long: bool = False

    @property
    def exit_code(self) -> int:
        announced = re.search(r"# exit (\d+)$", self.text)
        return int(announced.group(1)) if announced else 0


def commands_in(page: str) -> list[Command]:
    return [
        command for line, info, body in _blocks(page) if info[:1] == ["console"] for command in _read(line, info, body)
    ]


def _blocks(page: str) -> Iterator[tuple[int, list[str], list[str]]]:
    """Every fenced block: the line it begins on, the words of its info string, its lines without their indentation."""
    lines = enumerate(page.splitlines(), 1)
    for start, opening in lines:
        fence = re.fullmatch(r"(\s*)(`{3,}|~{3,})([^`]*)", opening)
        if not fence:
            continue
        indent, mark, info = fence.groups()
        body = []
        for _, text in lines:
            if text.strip() == mark:
                break
            body.append(text.removeprefix(indent))
        else:
            raise BadPage(f"line {start}: the block is never closed")
        yield start, info.split(), body


def _read(start: int, info: list[str], body: list[str]) -> list[Command]:
    words = set(info[1:])
    if words - WORDS:
        raise BadPage(f"line {start}: unknown word {' '.join(sorted(words - WORDS))!r} after console")
    commands: list[Command] = []
    is_continued = False
    for line, text in enumerate(body, start + 1):
        if is_continued:
            commands[-1].text += "\n" + text.removeprefix("> ")
            is_continued = text.endswith("\\")
        elif text.startswith("$ "):
            commands.append(Command(line, text[2:], is_expected="expect" in words, is_long="long" in words))
            is_continued = text.endswith("\\")
        elif commands:
            commands[-1].shown.append(text)
        else:
            raise BadPage(f"line {line}: a console block begins with a command, after `$ `")
    if not commands:
        raise BadPage(f"line {start}: a console block without a command")
    for command in commands:
        if not command.is_long and NOT_FOR_HERE.match(command.text):
            raise BadPage(f"line {command.line}: mark the block with `{command.text}` as `console long`")
    return commands


def complaint_about(command: Command, out: Path, root: Path) -> str | None:
    """Runs one command. None when it did what the page says, else a text with all that helps to see why not."""
    try:
        code, stdout, stderr = _run(command.text, out, root)
    except subprocess.TimeoutExpired:
        return f"line {command.line}: $ {command.text}\nstill runs after {TIMEOUT_S} s"
    if code != command.exit_code:
        wrong = f"exits with {code}, not {command.exit_code}"
    elif command.is_expected and not matches(command.shown, stdout.splitlines()):
        wrong = "prints something else than the page shows:\n" + "\n".join(command.shown)
    else:
        return None
    return f"line {command.line}: $ {command.text}\n{wrong}\n--- stdout\n{stdout}\n--- stderr\n{stderr}"


def _run(text: str, out: Path, root: Path) -> tuple[int, str, str]:
    places = dict.fromkeys(("HOME", "TMPDIR", "OUT"), str(out))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    process = subprocess.Popen(
        ["sh", "-c", text],
        cwd=root,
        env={**os.environ, **places, "PATH": path, "COLUMNS": "80"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        start_new_session=True,  # so that a late command ends with everything it started
    )
    with process:
        try:
            stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, stdout, stderr


def matches(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether the output is what the page shows, line by line. Empty lines at the end do not count."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in _trimmed(shown))
    return re.fullmatch(pattern, "".join(line + "\n" for line in _trimmed(printed))) is not None


def _trimmed(lines: Sequence[str]) -> Sequence[str]:
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    return lines
