"""`causal replay` as a command: where it reads, what it prints, what it refuses and how it says so (INTERFACES.md)."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.causal import reference
from tests.causal.reference import Line

SECONDS_MAX = 20  # for a long schedule; a few are usual


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = shutil.which("causal", path=str(Path(sys.executable).parent))
    assert command, "the command is installed beside the interpreter"
    return subprocess.run([command, "replay", *arguments], input=given, capture_output=True, timeout=120, check=False)


def text(*lines: str | Line) -> bytes:
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()


def answers(printed: bytes) -> list[Line]:
    lines = [json.loads(line) for line in printed.decode().splitlines()]
    return [{key: value for key, value in line.items() if key != "bytes"} for line in lines]


FIRST: Line = {"sites": 3, "protocol": "optimal"}
SEND: Line = {"send": "m1", "from": 0, "to": [1, 2]}
ARRIVE: Line = {"arrive": "m1", "at": 1}
SENT = [{"sent": "m1", "to": 1, "units": 0}, {"sent": "m1", "to": 2, "units": 0}]
STORY = [
    FIRST,
    SEND,
    ARRIVE,
    {"send": "m2", "from": 1, "to": [2]},
    {"arrive": "m2", "at": 2},
    {"arrive": "m2", "at": 2},
]
ENDING = [
    *SENT,
    {"delivered": "m1", "at": 1},
    {"sent": "m2", "to": 2, "units": 1},
    {"held": "m2", "at": 2, "missing": {"site": 0, "seq": 1}},
    {"duplicate": "m2", "at": 2},
    {"delivered": "m1", "at": 2},
    {"delivered": "m2", "at": 2},
]


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_a_schedule_comes_from_standard_input(arguments: list[str]) -> None:
    done = run(*arguments, given=text(*STORY))
    assert (done.returncode, done.stderr) == (0, b"")
    assert answers(done.stdout) == ENDING


def test_a_schedule_comes_from_a_file_and_its_last_line_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    path.write_bytes(text(*STORY).rstrip())
    done = run(str(path), given=b"not looked at")
    assert (done.returncode, done.stderr) == (0, b"")
    assert answers(done.stdout) == ENDING


def extra(**options: object) -> Line:
    return {"sites": 3, "protocol": "extra-message", "options": options}


# What was wrong -> the schedule, whose last line is the wrong one.
WRONG: dict[str, list[str | Line]] = {
    "a reused name": [FIRST, SEND, SEND],
    "a name reused after delivery": [FIRST, SEND, ARRIVE, {"arrive": "m1", "at": 2}, {**SEND, "from": 1, "to": [0]}],
    "a name that starts with x": [FIRST, SEND, {**SEND, "send": "xylophone"}],
    "the name of an extra message": [extra(threshold=4), SEND, {**SEND, "send": "x1"}],
    "an arrival before sending": [FIRST, SEND, {"arrive": "m2", "at": 1}],
    "an extra message that was never made": [extra(threshold=4), SEND, {"arrive": "x1", "at": 1}],
    "an arrival at a non-destination": [FIRST, SEND, {"send": "m2", "from": 1, "to": [0]}, {"arrive": "m2", "at": 2}],
    "an arrival at the sender": [FIRST, SEND, {"arrive": "m1", "at": 0}],
    "oneself among the destinations": [FIRST, SEND, {"send": "m2", "from": 1, "to": [0, 1]}],
    "nobody as destination": [FIRST, SEND, {"send": "m2", "from": 1, "to": []}],
    "an unknown sender": [FIRST, SEND, {"send": "m2", "from": 3, "to": [0]}],
    "a negative sender": [FIRST, SEND, {"send": "m2", "from": -1, "to": [0]}],
    "an unknown destination": [FIRST, SEND, {"send": "m2", "from": 1, "to": [0, 3]}],
    "a negative destination": [FIRST, SEND, {"send": "m2", "from": 1, "to": [-1]}],
    "an arrival at an unknown site": [FIRST, SEND, {"arrive": "m1", "at": 3}],
    "an arrival at a negative site": [FIRST, SEND, {"arrive": "m1", "at": -2}],
    "a subset for vector": [{"sites": 3, "protocol": "vector"}, SEND, {"send": "m2", "from": 1, "to": [0]}],
    "no JSON": [FIRST, SEND, '{"arrive": "m1", "at": '],
    "JSON and more": [FIRST, SEND, '{"drain": true} {"drain": true}'],
    "nesting without end": [FIRST, SEND, "[" * 100_000],
    "a number without end": [FIRST, SEND, '{"arrive": "m1", "at": ' + "9" * 5000 + "}"],
    "a list": [FIRST, SEND, "[1]"],
    "a string": [FIRST, SEND, '"drain"'],
    "null": [FIRST, SEND, "null"],
    "an empty object": [FIRST, SEND, {}],
    "a second first line": [FIRST, SEND, FIRST],
    "two commands in one": [FIRST, SEND, {**ARRIVE, "drain": True}],
    "an unknown key of a send": [FIRST, SEND, {"send": "m2", "from": 1, "to": [0], "at": 1}],
    "an unknown key of an arrival": [FIRST, SEND, {**ARRIVE, "from": 0}],
    "an unknown key of a drain": [FIRST, SEND, {"drain": True, "at": 1}],
    "a send without from": [FIRST, SEND, {"send": "m2", "to": [1]}],
    "a send without to": [FIRST, SEND, {"send": "m2", "from": 1}],
    "an arrival without at": [FIRST, SEND, {"arrive": "m1"}],
    "an arrival without name": [FIRST, SEND, {"at": 1}],
    "a number as name": [FIRST, SEND, {"send": 2, "from": 1, "to": [0]}],
    "a list as name": [FIRST, SEND, {"arrive": ["m1"], "at": 1}],
    "true as sender": [FIRST, SEND, {"send": "m2", "from": True, "to": [0]}],
    "a fraction as sender": [FIRST, SEND, {"send": "m2", "from": 1.0, "to": [0]}],
    "text as sender": [FIRST, SEND, {"send": "m2", "from": "1", "to": [0]}],
    "NaN as sender": [FIRST, SEND, {"send": "m2", "from": float("nan"), "to": [0]}],
    "false as destination": [FIRST, SEND, {"send": "m2", "from": 1, "to": [False]}],
    "a fraction as destination": [FIRST, SEND, {"send": "m2", "from": 1, "to": [0.0]}],
    "a number for the list": [FIRST, SEND, {"send": "m2", "from": 1, "to": 0}],
    "text for the list": [FIRST, SEND, {"send": "m2", "from": 1, "to": "02"}],
    "a list in the list": [FIRST, SEND, {"send": "m2", "from": 1, "to": [[0]]}],
    "semantic as a number": [FIRST, SEND, {"send": "m2", "from": 1, "to": [0], "semantic": 1}],
    "true as place": [FIRST, SEND, {"arrive": "m1", "at": True}],
    "a fraction as place": [FIRST, SEND, {"arrive": "m1", "at": 1.0}],
    "drain that is a number": [FIRST, SEND, {"drain": 1}],
    "an unknown protocol": [{"sites": 3, "protocol": "magic"}],
    "a protocol that is no name": [{"sites": 3, "protocol": ["optimal"]}],
    "an option of another protocol": [{**FIRST, "options": {"threshold": 5}}],
    "an unknown option": [extra(k=5)],
    "a threshold of n": [extra(threshold=3)],
    "a threshold above n * n": [extra(threshold=10)],
    "a threshold of true": [extra(threshold=True)],
    "a threshold with a fraction": [extra(threshold=5.0)],
    "a threshold in text": [extra(threshold="5")],
    "options that are a list": [{**FIRST, "options": []}],
    "no sites": [{"sites": 0, "protocol": "optimal"}],
    "sites in a fraction": [{"sites": 3.0, "protocol": "optimal"}],
    "sites that are true": [{"sites": True, "protocol": "optimal"}],
    "sites without end": [{"sites": 10**12, "protocol": "matrix"}],
    "a first line without sites": [{"protocol": "optimal"}],
    "a first line without protocol": [{"sites": 3}],
    "a first line with more": [{**FIRST, "seed": 1}],
    "a send as first line": [SEND],
    "a first line that is no JSON": ["{"],
    "a first line that is a list": ["[]"],
    "a mark before the first line": ["\ufeff" + json.dumps(FIRST)],
}


@pytest.mark.parametrize("schedule", WRONG.values(), ids=WRONG)
def test_a_wrong_line_is_refused_in_one_sentence_and_the_lines_before_it_stand(schedule: list[str | Line]) -> None:
    done = run("-", given=text(*schedule))
    said = done.stderr.decode()
    assert done.returncode == 2
    assert said.count("\n") == 1 and said.endswith("\n") and said.strip()
    assert re.findall(r"\bline (\d+)", said)[:1] == [str(len(schedule))]
    before = [json.loads(line) if isinstance(line, str) else line for line in schedule[:-1]]
    assert answers(done.stdout) == without_end(before)


def without_end(lines: list[Line]) -> list[Line]:
    """What the reference says to these lines, without the drain at the end of a whole schedule."""
    state = reference.Replay(lines[0]) if lines else None
    return [answer for line in lines[1:] if state for answer in state.step(line)]


def test_a_sentence_about_a_line_names_no_other_line() -> None:
    done = run("-", given=text(FIRST, SEND, '{"arrive": "m1", "at": '))
    assert re.findall(r"\bline (\d+)", done.stderr.decode()) == ["3"]


def test_an_empty_schedule_is_refused_at_line_1() -> None:
    done = run("-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.count(b"\n") == 1 and b"line 1" in done.stderr


NO_UTF_8 = text(FIRST, SEND) + b'{"arrive": "\xff\xfe", "at": 1}\n'


def test_what_is_not_utf_8_is_refused_in_one_sentence() -> None:
    done = run("-", given=NO_UTF_8)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1 and b"Traceback" not in done.stderr


def test_the_lines_before_one_that_is_not_utf_8_stand() -> None:
    done = run("-", given=NO_UTF_8)
    assert answers(done.stdout) == SENT
    assert b"line 3" in done.stderr


def long_schedule(protocol: str, messages: int) -> list[Line]:
    """At five sites, some forty copies under way, any of which arrives next."""
    rng = random.Random(f"{protocol} long")
    lines: list[Line] = [{"sites": 5, "protocol": protocol}]
    under_way: list[Line] = []
    for number in range(messages):
        sender = rng.randrange(5)
        others = [site for site in range(5) if site != sender]
        to = others if protocol == "vector" else rng.sample(others, rng.randint(1, 4))
        lines.append({"send": f"m{number}", "from": sender, "to": to})
        under_way += [{"arrive": f"m{number}", "at": site} for site in to]
        while len(under_way) > 40:
            lines.append(under_way.pop(rng.randrange(len(under_way))))
    return lines


@pytest.mark.parametrize("protocol", ["optimal", "false-causality", "extra-message"])
def test_five_thousand_messages_take_seconds_and_each_copy_is_delivered_once(protocol: str) -> None:
    given = text(*long_schedule(protocol, 5000))
    start = time.monotonic()
    done = run("-", given=given)
    assert time.monotonic() - start < SECONDS_MAX
    assert (done.returncode, done.stderr) == (0, b"")
    printed = answers(done.stdout)
    delivered = Counter((line["delivered"], line["at"]) for line in printed if "delivered" in line)
    copies = {(line.get("sent") or line["extra"], line["to"]) for line in printed if "to" in line}
    assert set(delivered) == copies and max(delivered.values()) == 1


@pytest.mark.parametrize("protocol", ["optimal", "matrix", "direct", "fifo", "unordered"])
def test_a_link_of_thousands_in_reverse_is_released_in_order(protocol: str) -> None:
    names = [f"m{number}" for number in range(3000)]
    sends = [{"send": name, "from": 0, "to": [1]} for name in names]
    arrivals = [{"arrive": name, "at": 1} for name in reversed(names)]
    start = time.monotonic()
    done = run("-", given=text({"sites": 2, "protocol": protocol}, *sends, *arrivals))
    assert time.monotonic() - start < SECONDS_MAX
    order = [line["delivered"] for line in answers(done.stdout) if "delivered" in line]
    assert order == (names[::-1] if protocol == "unordered" else names)
