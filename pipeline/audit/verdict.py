"""From a history to its verdict, and the line that says it.

`cc` and `ccv` are the two levels of causality.py, `sessions` all four promises of guarantee.py. They are judged
apart: a store can keep all four promises and still not be causal, because promises name two sessions and causality
any number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.audit.causality import convergence_violation, weak_violations
from pipeline.audit.errors import TooLarge
from pipeline.audit.guarantee import GUARANTEES
from pipeline.audit.history import History
from pipeline.audit.source import find_sources
from pipeline.audit.timeline import Timeline, build
from pipeline.audit.violation import Violation

OPERATIONS_MAX = 50_000  # two sets of operations for each: about 600 MB; beyond it: TooLarge


@dataclass(frozen=True, slots=True)
class Verdict:
    """For each broken promise its first violation, the most basic promise first."""

    weak: tuple[Violation, ...] = ()
    convergence: Violation | None = None
    guarantees: tuple[Violation, ...] = ()

    @property
    def cc(self) -> bool:
        return not self.weak

    @property
    def ccv(self) -> bool:
        return self.cc and self.convergence is None

    @property
    def sessions(self) -> bool:
        return not self.guarantees

    @property
    def holds(self) -> bool:
        return self.ccv and self.sessions

    def violations(self) -> tuple[Violation, ...]:
        convergence = () if self.convergence is None else (self.convergence,)
        return self.weak + convergence + self.guarantees

    def line(self, file: str, format: str) -> str:
        first = next(iter(self.violations()), None)
        fields = {
            "file": file,
            "format": format,
            "cc": self.cc,
            "ccv": self.ccv,
            "sessions": self.sessions,
            "pattern": first and first.pattern,
            "witness": first and list(first.witness),
        }
        return json.dumps(fields)


def judge(history: History) -> Verdict:
    count = len(history.operations)
    if count > OPERATIONS_MAX:
        raise TooLarge(f"it has {count} operations; {OPERATIONS_MAX} can be judged at once")
    sources = find_sources(history)
    timeline = build(history, sources)
    weak = _first_of_each([*sources.violations, *weak_violations(timeline)])
    return Verdict(
        weak=weak,
        convergence=None if weak else convergence_violation(timeline),  # what cannot be explained has no order anyway
        guarantees=tuple(_broken_guarantees(timeline)),
    )


def _first_of_each(violations: Iterable[Violation]) -> tuple[Violation, ...]:
    found: dict[str, Violation] = {}
    for violation in violations:
        found.setdefault(violation.pattern, violation)
    return tuple(found.values())


def _broken_guarantees(timeline: Timeline) -> Iterator[Violation]:
    for guarantee in GUARANTEES.values():
        first = next(guarantee(timeline), None)
        if first is not None:
            yield first
