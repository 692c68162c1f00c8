"""Histories of a store that is right, and of the same store with a bug: no false alarm, and no bug unnoticed."""

from __future__ import annotations

import time

import pytest

from pipeline.audit import judge
from pipeline.audit.history import Outcome
from tests.pipeline.model import BUGS, Model


@pytest.mark.parametrize("seed", range(150))
def test_a_store_that_keeps_its_promises_is_not_accused(seed: int) -> None:
    model = Model(seed, sites=2 + seed % 4, clients=2 + seed % 7, keys=1 + seed % 5)
    assert judge(model.run(40 + seed % 200)).violations() == ()


@pytest.mark.parametrize("bug", BUGS)
def test_a_store_with_a_bug_is_convicted(bug: str) -> None:
    assert not all(judge(Model(seed, bug=bug).run(120)).holds for seed in range(60))


def test_the_model_produces_what_is_hard_to_judge() -> None:
    operations = [one for seed in range(20) for one in Model(seed).run(120).operations]
    assert {one.outcome for one in operations} == set(Outcome)
    assert any(len(one.observed) > 1 for one in operations)
    assert any(one.expires for one in operations)
    assert any(one.replaces for one in operations)


def test_ten_thousand_operations_of_a_hundred_sessions_take_seconds() -> None:
    history = Model(1, sites=5, clients=100, keys=10).run(10_000)
    began = time.process_time()
    assert judge(history).holds
    assert time.process_time() - began < 10
