"""Bugs planted in the audit itself: each one is a rule that somebody might find superfluous, and a case needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pipeline.audit import causality, guarantee, register, source, timeline, verdict
from pipeline.audit.graph import Nodes
from pipeline.audit.history import NO_SESSION
from pipeline.audit.timeline import Timeline
from tests.pipeline.cases import mistakes


def nothing(*_: object, **__: object) -> Iterator[Any]:
    return iter(())


def only_direct(_nodes: Nodes, before: Any, _order: Any) -> Any:
    return list(before)


def no_session_order(_operations: Any, nodes: Nodes) -> Any:
    return [0] * len(nodes.operations_of)


def doubt_precedes(operations: Any, nodes: Nodes) -> Any:
    """What a session did after a write in doubt is taken to follow it."""
    before = [0] * len(nodes.operations_of)
    last: dict[str, int] = {}
    for number, node in enumerate(nodes.node_of):
        session = operations[number].session
        if session != NO_SESSION:
            before[node] |= nodes.operations_of[last.get(session, node)]
            last[session] = node
    return before


def without_conflicts(timeline: Timeline) -> Any:
    return timeline.nodes, list(timeline.before)


def without_versions(timeline: Timeline) -> Any:
    nodes, before = timeline.nodes, list(timeline.before)
    for read in timeline.reads():
        for write in timeline.seen[read]:
            before[nodes.node_of[write]] |= timeline.register(read).writes & timeline.past_of(read)
    return nodes, [those & ~own for those, own in zip(before, nodes.operations_of, strict=True)]


def any_delete_will_do(self: Timeline, read: int, value: int) -> int:
    return self.register(value).removers & ~self.future_of(read)


def later_deletes_too(self: Timeline, _read: int, value: int) -> int:
    return self.register(value).removers & (self.register(value).newer[value] | self.register(value).doubtful)


def no_delete_in_doubt(self: Timeline, read: int, value: int) -> int:
    return self.register(value).removers & self.register(value).newer[value] & ~self.future_of(read)


def any_write_replaces(self: Timeline, value: int) -> int:
    return self.register(value).writes & ~(1 << value)


def anything_is_final(operations: Any, _node_of: Any) -> int:
    return (1 << len(operations)) - 1


def whole_session(self: Timeline, number: int) -> int:
    start = self.session_start[number]
    return sum(1 << other for other, first in enumerate(self.session_start) if first == start and other != number)


def without_guarantee(name: str) -> dict[str, Any]:
    return {other: check for other, check in guarantee.GUARANTEES.items() if other != name}


BUGS: dict[str, tuple[object, str, object]] = {
    "the causal order is not transitive": (timeline, "pasts", only_direct),
    "the future is not transitive": (timeline, "futures", lambda nodes, before, order: [0] * len(before)),
    "sessions have no order": (timeline, "_session_order", no_session_order),
    "a write in doubt precedes what follows it": (timeline, "_session_order", doubt_precedes),
    "conflicts do not order writes": (causality, "arbitration", without_conflicts),
    "versions do not order writes": (causality, "arbitration", without_versions),
    "batches win as a whole": (causality, "_single_operations", lambda timeline: timeline.nodes),
    "the only delete is not followed": (timeline, "_with_remover", lambda timeline, number: timeline.seen[number]),
    "an older delete explains an absence": (Timeline, "removers", any_delete_will_do),
    "a later delete explains an absence": (Timeline, "removers", later_deletes_too),
    "a delete in doubt explains no absence": (Timeline, "removers", no_delete_in_doubt),
    "any write replaces a sibling": (Timeline, "_replacers", any_write_replaces),
    "absence is never wrong": (Timeline, "_not_removed", lambda self, read, values: 0),
    "absence is always wrong": (Timeline, "_not_removed", lambda self, read, values: values),
    "every write of a transaction may be seen": (register, "_last_of_their_transaction", anything_is_final),
    "a write in doubt is never what was seen": (source, "_nameless_writes", lambda history: _Nobody()),
    "thin air is breathed": (source, "_thin_air", nothing),
    "transactions are not looked into": (causality, "_within_transactions", nothing),
    "nothing is overwritten": (causality, "_overwritten_reads", nothing),
    "an absence needs no explanation": (causality, "_unexplained_absences", nothing),
    "siblings may get lost": (causality, "_lost_siblings", nothing),
    "convergence is not asked for": (verdict, "convergence_violation", lambda timeline: None),
    "what is later in a session counts as earlier": (Timeline, "earlier_in_session", whole_session),
    "a write may lose against its own session": (guarantee, "_losing_writes", nothing),
    "nobody looks at other sessions": (guarantee, "_seen_by_others", nothing),
    **{f"no {name}": (verdict, "GUARANTEES", without_guarantee(name)) for name in guarantee.GUARANTEES},
}


class _Nobody(dict[bytes, list[int]]):
    def __missing__(self, key: bytes) -> list[int]:
        return []


def test_the_audit_as_it_is_makes_no_mistake() -> None:
    assert mistakes() == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, name, replacement = BUGS[bug]
    original: Callable[..., object] = getattr(where, name)
    assert original is not replacement
    monkeypatch.setattr(where, name, replacement)
    assert mistakes()
