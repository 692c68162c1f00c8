"""Events on their way to a reader: what the trace has in its columns, the stream has in its fields."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from causal.model import Dot, Missing
from kvstore.effects import Event, Happened, Moment
from kvstore.holds import CAUSES
from kvstore.metrics import Metrics
from kvstore.past import Seen
from kvstore.rpc.events import Rows
from kvstore.v1 import event_pb2, model_pb2

MS = 1_000_000
Kind = event_pb2.Event


def node() -> Any:
    site = SimpleNamespace(number=0, name="a")
    return SimpleNamespace(site=site, replica=SimpleNamespace(incarnation=1), metrics=Metrics("a", "optimal"))


def turn(*events: Event, at_ms: int = 5) -> Happened:
    at = Moment(at_ms * MS, at_ms * MS)
    return Happened(1, list(events), at, at, inputs=1, updates=0)


def test_an_adopted_past_names_its_session_and_what_it_brought() -> None:
    brought = Event("adopted", Dot(0, 7), 0, session="f00d", depends_on=(Dot(1, 5), Dot(2, 8)))
    (row,) = Rows(node(), [Kind.KIND_ADOPTED]).of(turn(brought, Event("applied", Dot(0, 8), 0)))
    assert (row.kind, row.dot.seq, row.session) == (Kind.KIND_ADOPTED, 7, "f00d")
    assert list(row.depends_on) == [model_pb2.Dot(site=1, seq=5), model_pb2.Dot(site=2, seq=8)]
    assert not row.HasField("link")


@pytest.mark.parametrize(("meant", "semantic", "shown"), [(None, True, 0), ((), False, 0), ((Dot(1, 1),), True, 1)])
def test_what_depends_on_nothing_is_told_from_what_is_not_known(meant: Seen, semantic: bool, shown: int) -> None:
    (row, *_) = Rows(node(), []).of(turn(Event("sent", Dot(0, 1), 1, 1, semantic=semantic, depends_on=meant)))
    assert (row.semantic, len(row.depends_on), row.session) == (semantic, shown, "")


@pytest.mark.parametrize("cause", CAUSES)
def test_who_comes_while_a_message_is_held_hears_its_cause_at_the_end(cause: str) -> None:
    here, dot = node(), Dot(1, 4)
    here.metrics.happened(turn(Event("held", dot, 1, 4, Missing(2, 1), cause=cause), at_ms=10))
    rows = Rows(here, [])
    here.metrics.happened(turn(Event("released", dot, 1, 4), at_ms=35))  # the replica ends it for itself
    (row,) = rows.of(turn(Event("released", dot, 1, 4), at_ms=35))
    assert row.hold_cause == event_pb2.HoldCause.Value(f"HOLD_CAUSE_{cause.upper()}") and row.held_ns == 25 * MS
