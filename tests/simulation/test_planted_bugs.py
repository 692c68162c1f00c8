"""The simulated cluster notices what it is there to notice: each bug is planted, and caught within a few seeds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from causal.model import Site
from kvstore.clock import HybridClock
from kvstore.effects import Arrived
from kvstore.link import Link
from kvstore.replica import Replica
from kvstore.requests import Requests
from tests.simulation.cluster import SimulatedCluster, make_cluster
from tests.simulation.test_cluster import complaints

SEEDS = range(25)
Patch = Callable[[pytest.MonkeyPatch], None]


def speaks_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    """A replica sends what it has stepped; a crash then takes it back, and the dots are used again."""
    step = SimulatedCluster._step

    def hasty(self: SimulatedCluster, site: Site) -> None:
        was_pending = self.nodes[site].pending
        step(self, site)
        pending = self.nodes[site].pending
        if pending is not None and was_pending is None:
            for peer, envelopes in pending[0].sends.items():
                if (site, peer) in self.wires:
                    self.wires[site, peer].extend(Arrived(site, envelope) for envelope in envelopes)
            pending[0].sends.clear()

    patch.setattr(SimulatedCluster, "_step", hasty)


def forgets_request_ids(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Requests, "load", lambda self, view: None)


def takes_versions_from_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    """Two writes in one millisecond, or a clock that lags, and a later write loses."""

    def tick(self: HybridClock, now_ms: int) -> int:
        self.latest = now_ms << 16
        return self.latest

    patch.setattr(HybridClock, "tick", tick)


def acknowledges_what_it_only_holds(patch: pytest.MonkeyPatch) -> None:
    arrived = Replica._arrived

    def eager(self: Replica, one: Any) -> None:
        arrived(self, one)
        self._step.acks[one.peer] = self.links[one.peer].received

    patch.setattr(Replica, "_arrived", eager)


def drops_the_outbox_on_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedCluster, "_connect", _connect_without_outbox)


def _connect_without_outbox(self: SimulatedCluster, sender: Site, receiver: Site) -> None:
    self.wires[sender, receiver] = deque()


def drops_tombstones_at_once(patch: pytest.MonkeyPatch) -> None:
    def never_waits(links: Iterable[Link]) -> int:
        return (1 << 64) - 1

    patch.setattr("kvstore.sweep.least_promise", never_waits)


def resumes_one_too_late(patch: pytest.MonkeyPatch) -> None:
    def apply(self: Link, number: int, time: int) -> None:
        self.applied = number + 1

    patch.setattr(Link, "apply", apply)


BUGS: list[Patch] = [
    speaks_before_the_commit,
    forgets_request_ids,
    takes_versions_from_the_wall_clock,
    acknowledges_what_it_only_holds,
    drops_the_outbox_on_a_restart,
    drops_tombstones_at_once,
    resumes_one_too_late,
]


def caught(seed: int) -> bool:
    """By the books at the end, or by an assertion on the way."""
    try:
        cluster = SimulatedCluster(make_cluster(4, "optimal"), seed, crashes=0.02)
        cluster.run(1500)
        cluster.settle()
        return bool(complaints(cluster))
    except (AssertionError, KeyError):
        return True


def test_without_a_bug_the_same_seeds_are_clean() -> None:
    assert not any(caught(seed) for seed in SEEDS)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(bug: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert any(caught(seed) for seed in SEEDS)
