"""How long each folder of tests may take, and the judgement of a run.

A suite that grows slower by a second a week is never run again after a year; so every folder has a budget and
exceeding it is a failure like any other. And a folder that ran nothing looks green while it proves nothing: when the
whole suite was asked for, that is a failure too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

TOP = "."  # the test files that stand in tests/ itself

BUDGET_SECONDS: Mapping[str, float] = {
    "causal": 360,
    "cluster": 480,
    "docs": 90,
    "kvstore": 300,
    "pipeline": 60,
    "simulation": 300,
    TOP: 60,
}


@dataclass(slots=True)
class Tally:
    """What one folder did in this run."""

    ran: int = 0
    skipped: int = 0
    seconds: float = 0.0


def folder_of(nodeid: str) -> str:
    """The folder below tests/ that a test belongs to."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    return parts[1] if len(parts) > 2 else TOP


def folders_with_tests(tests: Path) -> set[str]:
    return {folder_of(path.relative_to(tests.parent).as_posix()) for path in tests.rglob("test_*.py")}


def table(tallies: Mapping[str, Tally], budgets: Mapping[str, float]) -> Iterator[str]:
    yield f"{'folder':<12} {'run':>6} {'skipped':>8} {'seconds':>9} {'budget':>7}"
    for folder, tally in sorted(tallies.items()):
        name = "tests/" if folder == TOP else folder
        budget = f"{budgets[folder]:.0f}" if folder in budgets else "none"
        yield f"{name:<12} {tally.ran:>6} {tally.skipped:>8} {tally.seconds:>9.1f} {budget:>7}"


def overruns(tallies: Mapping[str, Tally], budgets: Mapping[str, float]) -> Iterator[str]:
    """One sentence for each folder that took too long, or for which nobody decided how long it may take."""
    for folder, tally in sorted(tallies.items()):
        if folder not in budgets:
            yield f"tests/{folder} has no time budget: give it one in tests/budgets.py"
        elif tally.seconds > budgets[folder]:
            yield f"tests/{folder} took {tally.seconds:.1f} s; its budget is {budgets[folder]:.0f} s"


def idle(tallies: Mapping[str, Tally], folders: Collection[str], *, skips_count: bool) -> Iterator[str]:
    """One sentence for each folder that ran nothing. Where `skips_count`, a skip with its reason is an answer too."""
    for folder in sorted(folders):
        tally = tallies.get(folder, Tally())
        if not tally.ran and not (skips_count and tally.skipped):
            yield f"tests/{folder} ran no test"
