"""`causal replay` against a second implementation of it (reference.py), on schedules that nobody wrote by hand.

A maker of schedules drives the reference one line at a time, because only a running replay knows which extra messages
there are to arrive; then the product gets the finished schedule. The command itself, and what it refuses, is in
test_replay_command.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from causal.replay import ScheduleError, replay
from tests.causal import reference
from tests.causal.reference import Line

ORDERED = ["optimal", "pruning", "false-causality", "extra-message", "matrix", "direct", "vector", "fifo"]
EVERY = [*ORDERED, "unordered"]
SCHEDULES = 45  # for each protocol
LARGE = [33, 64, 65, 100]


class Maker:
    """A random schedule and what the reference says to it; the habits of one schedule are drawn once."""

    def __init__(self, rng: random.Random, first: Line, active: Sequence[int] = ()) -> None:
        self.rng = rng
        self.active = active or range(first["sites"])  # the sites that send and receive
        self.lines, self.out = [first], list[Line]()
        self.state = reference.Replay(first)
        self.fan_outs = (
            ["all"]
            if first["protocol"] == "vector"
            else rng.choice([["one"], ["some"], ["all"], ["one", "some", "all"]])
        )
        self.sending = rng.choice([0.12, 0.25, 0.45])
        self.repeating = rng.choice([0.0, 0.05, 0.15])
        self.draining = rng.choice([0.0, 0.005])
        self.dependent = rng.choice([0.0, 0.3, 0.8])
        self.newest_first = rng.random() < 0.4
        self.starved = rng.choice([-1, rng.choice(self.active)])  # this site's copies mostly wait
        self.names = 0

    def destinations(self, sender: int) -> list[int]:
        others = [site for site in self.active if site != sender]
        fan_out = self.rng.choice(self.fan_outs)
        size = {"one": 1, "some": self.rng.randint(1, len(others)), "all": len(others)}[fan_out]
        return self.rng.sample(others, size)

    def send(self) -> Line:
        sender = self.rng.choice(self.active)
        self.names += 1
        line: Line = {"send": f"m{self.names}", "from": sender, "to": self.destinations(sender)}
        if self.rng.random() < 0.8:
            line["semantic"] = self.rng.random() < self.dependent
        return line

    def arrival(self) -> Line:
        copies = self.state.under_way
        if self.rng.random() < 0.95:
            copies = [copy for copy in copies if copy[1] != self.starved] or copies
        index = self.rng.randrange(len(copies))
        if self.newest_first:
            index = max(index, self.rng.randrange(len(copies)))
        name, at = copies[index]
        return {"arrive": name, "at": at}

    def repeat(self) -> Line:
        name, at = self.rng.choice(self.state.arrived)
        return {"arrive": name, "at": at}

    def next_line(self) -> Line:
        chance = self.rng.random()
        if chance < self.draining:
            return {"drain": True}
        if self.state.arrived and self.rng.random() < self.repeating:
            return self.repeat()
        if not self.state.under_way or chance < self.draining + self.sending:
            return self.send()
        return self.arrival()

    def make(self, steps: int) -> tuple[list[Line], list[Line]]:
        for _ in range(steps):
            line = self.next_line()
            self.lines.append(line)
            self.out += self.state.step(line)
        return self.lines, self.out + self.state.step({"drain": True})


def without_bytes(lines: list[Line]) -> Iterator[Line]:
    """What the product answers, each stamp's size looked at and left out."""
    for line in replay([json.dumps(line) for line in lines]):
        if "sent" in line or "extra" in line:
            assert type(line["bytes"]) is int and line["bytes"] > 0, line
            yield {key: value for key, value in line.items() if key != "bytes"}
        else:
            yield line


def compare(lines: list[Line], expected: list[Line]) -> None:
    """Equal line by line, keys in the same order; otherwise the schedule is printed up to where they part."""
    got: list[Line] = []
    try:
        got.extend(without_bytes(lines))
    except ScheduleError as error:
        got.append({"error": str(error)})
    if list(map(json.dumps, got)) != list(map(json.dumps, expected)):
        pairs = zip([*got, {}], [*expected, {}], strict=False)
        at, (ours, theirs) = next(
            (i, pair) for i, pair in enumerate(pairs) if json.dumps(pair[0]) != json.dumps(pair[1])
        )
        print("\n".join(map(json.dumps, lines)))
        pytest.fail(f"answer {at + 1} to the schedule above: the product says {ours}, the reference {theirs}")


def compare_random(rng: random.Random, first: Line, steps: int, active: Sequence[int] = ()) -> Counter[str]:
    lines, expected = Maker(rng, first, active).make(steps)
    compare(lines, expected)
    return Counter(next(iter(line)) for line in expected)


@pytest.mark.parametrize("protocol", EVERY)
def test_small_random_schedules_are_answered_as_the_reference_answers_them(protocol: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        rng = random.Random(f"{protocol} {seed}")
        n = 2 + seed % 11
        options = {"options": {"threshold": rng.randint(n + 1, n * n)}} if protocol == "extra-message" else {}
        seen += compare_random(rng, {"sites": n, "protocol": protocol, **options}, rng.randint(10, 110))
    assert seen["sent"] > 1000 and seen["duplicate"] > 50
    assert (seen["held"] > 100) == (protocol != "unordered")
    assert (seen["extra"] > 100) == (protocol == "extra-message")


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize("protocol", EVERY)
def test_large_random_schedules_are_answered_as_the_reference_answers_them(protocol: str, n: int) -> None:
    """A few sites of many talk, the last one always, so that overtaking is as frequent as among few (vector: all)."""
    rng = random.Random(f"{protocol} large {n}")
    few = [*rng.sample(range(n - 1), 15), n - 1]
    options = {"options": {"threshold": n + 1}} if protocol == "extra-message" else {}
    active = range(n) if protocol == "vector" else few
    compare_random(rng, {"sites": n, "protocol": protocol, **options}, 150, active)


@pytest.mark.parametrize("protocol", EVERY)
def test_broadcasts_among_65_sites_are_answered_as_the_reference_answers_them(protocol: str) -> None:
    compare_random(random.Random(f"{protocol} 65"), {"sites": 65, "protocol": protocol}, 12)


@pytest.mark.parametrize("n", range(2, 9))
def test_every_threshold_is_kept_and_answered_as_the_reference_answers_it(n: int) -> None:
    for k in range(n + 1, n * n + 1):
        rng = random.Random(f"threshold {n} {k}")
        first: Line = {"sites": n, "protocol": "extra-message", "options": {"threshold": k}}
        lines, expected = Maker(rng, first).make(70)
        compare(lines, expected)
        assert all(line["units"] <= k for line in expected if "sent" in line)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 10, 12])
def test_the_default_threshold_is_the_one_that_causal_protocols_prints(n: int) -> None:
    for seed in range(4):
        compare_random(random.Random(f"default {n} {seed}"), {"sites": n, "protocol": "extra-message"}, 150)


def test_extra_messages_arrive_by_name_in_any_order_and_are_held_and_repeated() -> None:
    seen: Counter[str] = Counter()
    for seed in range(25):
        rng = random.Random(f"extras {seed}")
        n = rng.randint(4, 8)
        first: Line = {"sites": n, "protocol": "extra-message", "options": {"threshold": n + 1}}
        lines, expected = Maker(rng, first).make(120)
        compare(lines, expected)
        for line in [*lines, *expected]:
            kind = next(iter(line))
            seen[kind] += str(line[kind]).startswith("x")
    assert min(seen[kind] for kind in ("arrive", "held", "delivered", "duplicate")) > 20, seen


def expected_of(lines: list[Line]) -> list[Line]:
    return list(reference.replay(map(json.dumps, lines)))


def test_a_multicast_that_would_break_the_bound_is_relieved_first() -> None:
    """ALGORITHMS trap 3: n=6, k=7; 2 to 5 each unicast to 1, then to 0; 0 multicasts to all."""
    lines: list[Line] = [{"sites": 6, "protocol": "extra-message", "options": {"threshold": 7}}]
    for site in (2, 3, 4, 5):
        lines += [{"send": f"a{site}", "from": site, "to": [1]}, {"send": f"b{site}", "from": site, "to": [0]}]
        lines += [{"arrive": f"b{site}", "at": 0}]
    lines += [{"send": "all", "from": 0, "to": [1, 2, 3, 4, 5]}, {"arrive": "all", "at": 1}]
    expected = expected_of(lines)
    compare(lines, expected)
    relief = expected.index({"extra": "x1", "from": 0, "to": 1, "units": 4})
    assert expected[relief + 1] == {"sent": "all", "to": 1, "units": 5}
    assert {"held": "all", "at": 1, "missing": {"site": 0, "seq": 1}} in expected


def test_a_send_that_crosses_the_threshold_is_followed_by_its_relief() -> None:
    """Site 0 knows seven cells at k=7 and sends to a site that it knew nothing of."""
    lines: list[Line] = [{"sites": 6, "protocol": "extra-message", "options": {"threshold": 7}}]
    for site, to in ((2, [1, 3]), (3, [1, 4]), (4, [1]), (5, [1, 2])):
        lines += [{"send": f"a{site}", "from": site, "to": to}, {"send": f"b{site}", "from": site, "to": [0]}]
        lines += [{"arrive": f"b{site}", "at": 0}]
    lines += [{"send": "late", "from": 0, "to": [5]}]
    expected = expected_of(lines)
    compare(lines, expected)
    sent = expected.index({"sent": "late", "to": 5, "units": 7})
    assert expected[sent + 1] == {"extra": "x1", "from": 0, "to": 1, "units": 4}


@pytest.mark.parametrize("protocol", ORDERED)
def test_what_a_delivery_releases_follows_in_order_of_arrival(protocol: str) -> None:
    """c follows from b, which follows from a, and d from a alone. They arrive as c, b, d, a: c goes before d."""
    lines: list[Line] = [{"sites": 5, "protocol": protocol}]
    for name, sender in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
        lines += [{"send": name, "from": sender, "to": [site for site in range(5) if site != sender]}]
        reader = {"a": (1, 3), "b": (2,)}.get(name, ())
        lines += [{"arrive": name, "at": site} for site in reader]
        lines += [{"arrive": "a", "at": 2}] if name == "b" else []
    lines += [{"arrive": name, "at": 4} for name in ("c", "b", "d", "a")]
    expected = expected_of(lines)
    compare(lines, expected)
    order = [line["delivered"] for line in expected if line.get("at") == 4 and "delivered" in line]
    assert order == (["c", "b", "d", "a"] if protocol == "fifo" else ["a", "b", "c", "d"])


def test_a_hold_names_the_link_number_only_where_nothing_but_the_link_holds() -> None:
    """0 sends one message to 1, then three to 2: messages 2, 3 and 4, but 1, 2 and 3 on their link."""
    independent = {"from": 0, "to": [2], "semantic": False}
    lines: list[Line] = [
        {"sites": 3, "protocol": "false-causality"},
        {"send": "m1", "from": 0, "to": [1], "semantic": False},
        {"send": "m2", **independent},
        {"send": "m3", **independent},
        {"send": "m4", "from": 0, "to": [2], "semantic": True},
        {"arrive": "m3", "at": 2},
        {"arrive": "m4", "at": 2},
    ]
    expected = expected_of(lines)
    compare(lines, expected)
    held = [line["missing"] for line in expected if "held" in line]
    assert held == [{"site": 0, "seq": 1}, {"site": 0, "seq": 3}]


def test_a_message_that_is_missed_comes_before_a_link_number_of_a_lower_site() -> None:
    """m misses b of site 1, and on its link a of site 0: the hold does more than restore the order of the link."""
    lines: list[Line] = [
        {"sites": 3, "protocol": "false-causality"},
        {"send": "b", "from": 1, "to": [2]},
        {"send": "c", "from": 1, "to": [0]},
        {"arrive": "c", "at": 0},
        {"send": "a", "from": 0, "to": [2], "semantic": False},
        {"send": "m", "from": 0, "to": [2], "semantic": False},
        {"arrive": "m", "at": 2},
    ]
    expected = expected_of(lines)
    compare(lines, expected)
    assert {"held": "m", "at": 2, "missing": {"site": 1, "seq": 1}} in expected
