"""The bad patterns against the definition: thousands of tiny histories, each judged twice."""

from __future__ import annotations

import random
from collections import Counter

from pipeline.audit import History, judge
from pipeline.audit.history import Kind, Outcome
from tests.pipeline.cases import PAPER
from tests.pipeline.notation import by_value, by_version
from tests.pipeline.random_history import random_by_value, random_by_version
from tests.pipeline.second_opinion import broken_guarantees, is_cc, is_ccv, is_lww_consistent, tiny


def test_both_opinions_know_the_figures_of_the_paper() -> None:
    assert [is_cc(case.history, is_thorough=False) for case in PAPER] == [True, True, True, True, False]
    assert [is_ccv(case.history, is_thorough=False) for case in PAPER] == [False, True, False, True, False]


def test_by_value_the_patterns_say_what_the_definition_says() -> None:
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(4000):
        text = random_by_value(random.Random(seed), operations_max=6)
        history = by_value(text)
        verdict = judge(history)
        opinion = is_cc(history, is_thorough=False), is_ccv(history, is_thorough=False)
        assert (verdict.cc, verdict.ccv) == opinion, (seed, text)
        assert verdict.sessions or not verdict.cc, (seed, text)
        found[opinion] += 1
    assert min(found[True, True], found[True, False], found[False, False]) > 100, found


def test_no_causal_order_at_all_explains_what_the_patterns_reject() -> None:
    """Where there are few transactions even the least causal order is not taken for granted."""
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(2500):
        text = random_by_value(random.Random(seed), operations_max=6)
        history = by_value(text)
        if tiny(history).size > 4:
            continue
        verdict = judge(history)
        opinion = is_cc(history, is_thorough=True), is_ccv(history, is_thorough=True)
        assert (verdict.cc, verdict.ccv) == opinion, (seed, text)
        found[opinion] += 1
    assert min(found[True, True], found[True, False], found[False, False]) > 5, found


def test_by_version_nothing_is_reported_that_can_be_explained() -> None:
    """And what cannot be explained is reported, unless there was a choice."""
    found: Counter[tuple[bool, bool]] = Counter()
    for seed in range(4000):
        text = random_by_version(random.Random(seed), operations_max=7)
        history = by_version(text)
        verdict, can_be_explained = judge(history), is_lww_consistent(history)
        assert verdict.holds or not can_be_explained, (seed, text)
        assert can_be_explained or not verdict.ccv or has_choice(history), (seed, text)
        found[can_be_explained, verdict.ccv] += 1
    assert min(found[True, True], found[False, False]) > 500, found
    assert found[False, True] < 30, found


def has_choice(history: History) -> bool:
    """Several possible reasons for an empty answer, or several writes for a version."""
    removers = Counter(
        one.key
        for one in history.operations
        if (one.kind is Kind.DELETE or one.expires) and one.outcome is not Outcome.FAIL
    )
    in_doubt = [one.key for one in history.operations if one.outcome is Outcome.UNKNOWN]
    return bool(in_doubt) or any(number > 1 for number in removers.values())


def test_the_guarantees_are_what_every_pair_and_triple_says() -> None:
    found: Counter[str] = Counter()
    for seed in range(2500):
        text = random_by_version(random.Random(seed), operations_max=8, is_plain=True)
        history = by_version(text)
        broken = {violation.pattern for violation in judge(history).guarantees}
        assert broken == broken_guarantees(history), (seed, text)
        found.update(broken)
    assert len(found) == 4 and min(found.values()) > 100, found
