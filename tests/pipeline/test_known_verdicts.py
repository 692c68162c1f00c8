"""Histories that others recorded and judged. They stay where they are: KVSTORE_HISTORIES, or in shared/ beside us."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.audit import detect, judge, load
from tests.conftest import IN_CI

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("KVSTORE_HISTORIES") or ROOT.parent / "shared" / "histories")
VIOLATING_PLUME = {"yugabyte_tcc.txt", "dgraph_si.txt"}
FILES = {path.relative_to(FOLDER).as_posix(): path for path in sorted(FOLDER.rglob("*.txt"))}


def is_causal(name: str) -> bool:
    """In awdit/ the folder is the strongest level that holds."""
    collection, level, *_ = name.split("/")
    return level == "causal" if collection == "awdit" else level not in VIOLATING_PLUME


def test_there_are_histories_of_others_to_judge() -> None:
    if FILES:
        assert {is_causal(name) for name in FILES} == {True, False}
        return
    reason = "no histories of others here: KVSTORE_HISTORIES names no folder with any"
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.parametrize("name", FILES)
def test_the_verdict_agrees_with_the_one_that_others_gave(name: str) -> None:
    data = FILES[name].read_bytes()
    format = detect(data, name=name)
    assert format == ("awdit" if name.startswith("awdit/") else "plume")
    verdict = judge(load(data, format))
    assert verdict.ccv == is_causal(name)
    assert verdict.cc >= verdict.ccv
    assert verdict.sessions >= verdict.cc
