"""Every bad pattern and every session guarantee, violated and kept, in histories of a few lines."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pipeline.audit import History, judge
from pipeline.audit.errors import TooLarge
from pipeline.audit.history import Operation, Outcome
from tests.pipeline.cases import CASES, MR, MW, RYW, WFR, Case, verdict_of
from tests.pipeline.notation import by_value, by_version

PATTERNS = {
    *("ThinAirRead", "AbortedRead", "CyclicCO", "WriteCOInitRead", "WriteCORead", "CyclicCF"),
    *("FutureRead", "NotMyOwnWrite", "NotMyLastWrite", "IntermediateRead", "LostSibling"),
    *(RYW, MR, MW, WFR),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_is_the_one_made_by_hand(case: Case) -> None:
    assert verdict_of(case.history) == case.patterns


def test_there_is_a_case_for_every_pattern_and_no_two_of_one_name() -> None:
    assert {pattern for case in CASES for pattern in case.patterns} == PATTERNS
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_order_in_which_sessions_are_written_down_does_not_matter(case: Case) -> None:
    names = sorted({one.session for one in case.history.operations} - {""})
    renamed = dict(zip(names, reversed(names), strict=True))
    operations = [replace(one, session=renamed.get(one.session, "")) for one in case.history.operations]
    alone = [one for one in operations if not one.session]  # these have nothing but their places
    rest = [one for one in operations if one.session]
    random.Random(case.name).shuffle(rest)
    history = History.of(
        [*rest, *alone],
        is_ordered=case.history.is_ordered,
        siblings=case.history.siblings,
        is_complete=case.history.is_complete,
    )
    assert verdict_of(history) == case.patterns


def test_levels_and_sessions_are_judged_apart() -> None:
    causal = judge(by_value("a: w x 1\nb: r x 1"))
    assert (causal.cc, causal.ccv, causal.sessions, causal.holds) == (True, True, True, True)
    divergent = judge(by_value("a: w x 1, r x 2\nb: w x 2, r x 1"))
    assert (divergent.cc, divergent.ccv, divergent.sessions, divergent.holds) == (True, False, True, False)
    broken = judge(by_value("a: w x 1, r x -"))
    assert (broken.cc, broken.ccv, broken.sessions, broken.holds) == (False, False, False, False)
    far = judge(by_value("a: w x 1, w y 1\nb: r y 1, w z 1\nc: r z 1, r x -"))
    assert (far.cc, far.ccv, far.sessions) == (False, False, True)


def test_a_witness_names_the_operations_concerned() -> None:
    (violation,) = (
        found for found in judge(by_version("a: w x 1, w y 2\nb: r y 2, r x -")).violations() if found.pattern == MW
    )
    assert violation.witness == (
        "session a, operation 0: wrote x = 0000000000000001-0",
        "session a, operation 1: wrote y = 0000000000000002-0",
        "session b, operation 1: read x, saw nothing",
    )


def test_the_witness_of_a_cycle_goes_round_once() -> None:
    detour = "a: r x 1, w p 1, w q 1, w y 1\nb: r y 1, w r 1, w x 1"
    (violation,) = judge(by_value(detour)).violations()
    assert violation.witness == (
        "session a, operation 0: read x, saw 1 -> session a, operation 1: wrote p = 1 (in one session)",
        "session a, operation 1: wrote p = 1 -> session a, operation 2: wrote q = 1 (in one session)",
        "session a, operation 2: wrote q = 1 -> session a, operation 3: wrote y = 1 (in one session)",
        "session a, operation 3: wrote y = 1 -> session b, operation 0: read y, saw 1",
        "session b, operation 0: read y, saw 1 -> session b, operation 1: wrote r = 1 (in one session)",
        "session b, operation 1: wrote r = 1 -> session b, operation 2: wrote x = 1 (in one session)",
        "session b, operation 2: wrote x = 1 -> session a, operation 0: read x, saw 1",
    )


def test_the_witness_of_a_conflict_says_who_saw_it() -> None:
    (violation,) = judge(by_value("a: w x 1\nb: w x 2\nc: r x 1, r x 2\nd: r x 2, r x 1")).violations()
    first, second = "session a, operation 0: wrote x = 1", "session b, operation 0: wrote x = 2"
    assert sorted(violation.witness) == [
        f"{first} -> {second} (both lay before session c, operation 1: read x, saw 2)",
        f"{second} -> {first} (both lay before session d, operation 1: read x, saw 1)",
    ]


def test_an_operation_in_words_says_what_was_not_certain() -> None:
    one = by_version("a: w x ?").operations[0]
    assert str(one) == "session a, operation 0: wrote x (unknown)"
    odd = replace(one, key=b"\x00\xff", outcome=Outcome.OK, session="", line=7)
    assert str(odd) == "no session, 0 (line 7): wrote 00ff"
    assert str(replace(one, session="\x1b[2J")) == "session \ufffd[2J, operation 0: wrote x (unknown)"


def test_more_operations_than_memory_is_for_are_refused() -> None:
    one = by_value("a: w x 1").operations[0]
    many: list[Operation] = [replace(one, index=n, transaction=n, version=str(n)) for n in range(50_001)]
    with pytest.raises(TooLarge, match="50001 operations; 50000 can be judged"):
        judge(History.of(many, is_ordered=False))
