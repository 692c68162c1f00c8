"""Traces to test with: made in one folder and closed in any case, fed with turns that are made by hand."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from causal.blocks import pack_numbers
from causal.model import Dot, mask_of
from kvstore.effects import Event, Happened, Moment
from kvstore.limits import Limits
from kvstore.trace import Trace
from kvstore.tracefile import read_trace
from tests.simulation.cluster import make_cluster

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = make_cluster(3, "extra-message", options={"threshold": 8})
MS = 1_000_000
WALL = 1_700_000_000_000 * MS

Make = Callable[..., Trace]


@contextmanager
def traces_in(folder: Path) -> Iterator[Make]:
    """What makes a trace there; limits are given by name, and without one, time alone seals nothing."""
    made: list[Trace] = []

    def start(*, site: int = 0, incarnation: int = 1, run: str = "r1", **settings: Any) -> Trace:
        others = {name: settings.pop(name) for name in ("with_keys", "alarm") if name in settings}
        limits = Limits(**{"trace_segment_ms_max": 3_600_000, **settings})
        where: dict[str, Any] = {"cluster": CLUSTER, "site": CLUSTER.sites[site], "incarnation": incarnation}
        made.append(Trace(folder, run=run, limits=limits, **where, **others))
        return made[-1]

    try:
        yield start
    finally:
        for one in made:
            one.close()


def turn(*events: Event, at_ms: int = 5, commit: int = 1) -> Happened:
    stepped = Moment(WALL + at_ms * MS, at_ms * MS)
    committed = Moment(stepped.wall_ns + MS, stepped.mono_ns + MS)
    return Happened(commit, list(events), stepped, committed, inputs=1, updates=1)


def written(seq: int) -> Happened:
    """A message of our own to both peers, applied here: four rows."""
    dot, to = Dot(0, seq), mask_of([1, 2])
    common: dict[str, Any] = {"to": to, "control_bytes": 9, "units": 2, "payload_bytes": 100, "updates": 1}
    sent = [Event("sent", dot, peer, seq, witness=pack_numbers([seq, 0, 0]), **common) for peer in (1, 2)]
    return turn(*sent, Event("applied", dot, 0, updates=1, keys=(b"k",)))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return list(read_trace(folder).to_pylist())


def eventually(condition: Callable[[], object], *, within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
