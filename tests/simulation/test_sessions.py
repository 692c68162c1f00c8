"""Sessions that move with every operation while replicas die: all four guarantees and causal consistency, audited.

The same audit must notice where there are none: `fifo` and `unordered`, with their refusal of sessions switched off.
"""

from __future__ import annotations

from typing import Any

import pytest

from causal.protocols.fifo import LinkMulticast
from kvstore.errors import NoSessions
from tests.simulation.replicas import Weather
from tests.simulation.sessions import CAUSAL, Run

QUICK, LONG = 2_000, 10_000  # operations
CALM = Weather(crash_every_ms=1e9)
PARTIAL = [name for name in CAUSAL if name != "vector"]  # which needs every message to go to everybody


def judged(run: Run) -> Run:
    """Something must have happened, and all of it was right."""
    run.go()
    assert run.judged() == [], f"to see it again: {run.command}"
    counts = run.counts
    assert counts["operations"] >= run.operations and counts["moves"] >= run.operations * 0.9 * (1 - run.stays), counts
    assert counts["waits"] > run.operations / 5 and counts["crashes"] and counts["held"], counts
    return run


@pytest.mark.parametrize("protocol", CAUSAL)
def test_sessions_that_move_keep_every_guarantee(protocol: str) -> None:
    judged(Run(protocol, CAUSAL.index(protocol), QUICK))


@pytest.mark.long
@pytest.mark.parametrize("protocol", CAUSAL)
def test_sessions_that_move_ten_thousand_times_keep_every_guarantee(protocol: str) -> None:
    counts = judged(Run(protocol, CAUSAL.index(protocol), LONG)).counts
    assert counts["crashes"] > 20 and counts["doubts"] and counts["repeats"], counts


@pytest.mark.parametrize("protocol", PARTIAL)
def test_with_keys_in_three_groups_of_five_sites_too(protocol: str) -> None:
    run = judged(Run(protocol, 3, QUICK // 2, is_partial=True))
    assert run.counts["forwarded"], run.counts


@pytest.mark.long
@pytest.mark.parametrize("protocol", PARTIAL)
def test_with_keys_in_three_groups_ten_thousand_times(protocol: str) -> None:
    judged(Run(protocol, 4, LONG, is_partial=True))


@pytest.mark.parametrize("protocol", ["optimal", "false-causality"])
def test_when_disks_lose_what_was_not_synced_tokens_have_waited_for_the_sync(protocol: str) -> None:
    judged(Run(protocol, 5, QUICK // 2, is_periodic=True))


@pytest.mark.parametrize("protocol", ["optimal", "false-causality", "extra-message"])
def test_sessions_that_sometimes_stay_keep_every_guarantee(protocol: str) -> None:
    judged(Run(protocol, 6, QUICK // 2, stays=0.5))


def test_a_protocol_that_makes_extra_messages_for_sessions_that_land() -> None:
    run = judged(Run("extra-message", 7, QUICK // 2, options={"threshold": 5}))
    assert run.counts["extras"] > 100, run.counts


@pytest.mark.long
@pytest.mark.parametrize("protocol", CAUSAL)
@pytest.mark.parametrize(
    "settings",
    [
        {"weather": Weather(crash_every_ms=300.0, down_ms=3_000.0)},
        {"weather": Weather(link_ms=1_000.0, commit_ms=50.0, skew_ms=900.0)},
        {"is_periodic": True},
        {"sites": 2},
        {"sites": 7, "sessions": 60},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_in_any_weather(protocol: str, settings: dict[str, Any]) -> None:
    for seed in range(10, 20):
        run = Run(protocol, seed, 500, **settings).go()
        assert run.judged() == [], f"{settings} {run.command}"


@pytest.mark.parametrize("protocol", ["unordered", "fifo"])
def test_the_audit_catches_protocols_without_order(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinkMulticast, "is_causal", True)  # so nobody refuses; their tokens name nothing
    for seed in range(3):
        verdict = Run(protocol, seed, 500, weather=CALM).go().verdict()
        assert not verdict.cc and not verdict.sessions, f"seed {seed}"
        names = {one.pattern for one in verdict.guarantees}
        assert {"ReadYourWrites", "MonotonicReads"} <= names, f"seed {seed}: {names}"


@pytest.mark.parametrize("protocol", ["unordered", "fifo"])
def test_protocols_without_order_refuse_sessions(protocol: str) -> None:
    complaints = Run(protocol, 0, 10, weather=CALM).go().complaints
    assert complaints and str(NoSessions(protocol=protocol)) in complaints[0]


def test_a_seed_decides_everything() -> None:
    runs = [Run("optimal", 8, 400).go() for _ in range(2)]
    assert runs[0].rows == runs[1].rows and runs[0].counts == runs[1].counts
