"""Events and explanations on their way out: event.proto, from what the core says.

An event is a row of the trace, so it is made as the trace makes it: a message that a turn sent, delivered or applied is
also committed by it, and a row of its own says so. How long a message was held is known here for all that began while
somebody read, and for what was held already when the reader came.

A list cannot be null here. What depends on nothing is not `semantic`; of what is, an empty `depends_on` is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from causal.model import Dot, sites_of
from kvstore.effects import Event, Happened
from kvstore.errors import BadRequest
from kvstore.explain import ChainStep, Explained
from kvstore.holds import CAUSES, Hold
from kvstore.v1 import event_pb2, model_pb2

if TYPE_CHECKING:
    from kvstore.node import Node

KEPT = ("sent", "delivered", "applied")  # kinds that a commit makes last

_KINDS = {kind.removeprefix("KIND_").lower(): number for kind, number in event_pb2.Event.Kind.items()}
_CAUSES = {cause: event_pb2.HoldCause.Value(f"HOLD_CAUSE_{cause.upper()}") for cause in CAUSES}


def pb_dot(dot: tuple[int, int]) -> model_pb2.Dot:
    return model_pb2.Dot(site=dot[0], seq=dot[1])


class Rows:
    """The events for one reader."""

    def __init__(self, node: Node, kinds: Sequence[event_pb2.Event.Kind.ValueType]) -> None:
        known = event_pb2.Event.Kind.values()
        if any(kind not in known or kind == event_pb2.Event.KIND_UNSPECIFIED for kind in kinds):
            raise BadRequest(why=f"there are no events of the kinds {list(kinds)}", field="kinds")
        self._kinds = frozenset(kinds)
        self._site = node.site.number
        self._incarnation = node.replica.incarnation
        self._holds = node.metrics.holds.copy()
        self._index = 0

    def skip(self, lost: int) -> None:
        """So many were lost; they keep their places."""
        self._index += lost

    def of(self, happened: Happened) -> Iterator[event_pb2.Event]:
        """What one turn made true, as far as this reader wants it."""
        extra = {event.dot for event in happened.events if event.is_extra}
        kept: dict[Dot, None] = {}
        for event in happened.events:
            row = self._row(event, happened, is_extra=event.dot in extra)
            if event.kind in KEPT:
                kept[event.dot] = None
            if self._is_wanted(row):
                yield row
        for dot in kept:
            row = self._row(Event("committed", dot, self._site), happened, is_extra=dot in extra)
            if self._is_wanted(row):
                yield row

    def _is_wanted(self, row: event_pb2.Event) -> bool:
        return not self._kinds or row.kind in self._kinds

    def _row(self, event: Event, happened: Happened, *, is_extra: bool) -> event_pb2.Event:
        self._index += 1
        at = happened.committed if event.kind == "committed" else happened.stepped
        row = event_pb2.Event(
            index=self._index,
            kind=_KINDS[event.kind],
            site=self._site,
            incarnation=self._incarnation,
            dot=pb_dot(event.dot),
            destinations=sites_of(event.to),
            is_extra=is_extra,
            semantic=event.semantic,
            depends_on=map(pb_dot, event.depends_on or ()),
            time_wall_ns=at.wall_ns,
            time_mono_ns=at.mono_ns,
            control_bytes=event.control_bytes,
            units=event.units,
            payload_bytes=event.payload_bytes,
            updates=event.updates,
            session=event.session,
        )
        if event.peer != self._site:
            row.link, row.link_number = event.peer, event.number
        if event.missing is not None:
            row.missing.CopyFrom(pb_dot(event.missing[:2]))
        self._tell_hold(row, self._hold(event, at.mono_ns))
        return row

    def _hold(self, event: Event, mono_ns: int) -> Hold | None:
        if event.kind == "held":
            return self._holds.begin(event, mono_ns)
        return self._holds.end(event.dot, mono_ns) if event.kind == "released" else None

    def _tell_hold(self, row: event_pb2.Event, hold: Hold | None) -> None:
        if hold is not None:
            row.hold_cause = _CAUSES[hold.cause]
            row.held_ns = max(0, hold.held_ns or 0)


def pb_held(node: Node, explained: Explained) -> event_pb2.HeldMessage:
    dot, since_ms, (site, seq, by_link), chain, cause, updates = explained
    sites = node.cluster.sites
    return event_pb2.HeldMessage(
        dot=pb_dot(dot),
        origin=sites[dot.site].name,
        since_ms=since_ms,
        held_ms=max(0, node.now_ms() - since_ms),
        missing=pb_dot((site, seq)),
        missing_origin=sites[site].name,
        by_link=by_link,
        chain=[_pb_step(node, step) for step in chain],
        cause=_CAUSES[cause],
        updates=updates,
    )


def _pb_step(node: Node, step: ChainStep) -> event_pb2.ChainStep:
    return event_pb2.ChainStep(
        dot=pb_dot(step.dot),
        origin=node.cluster.sites[step.dot.site].name,
        why=event_pb2.ChainStep.Why.Value(f"WHY_{step.why.name}"),
        sentence=step.sentence,
    )
