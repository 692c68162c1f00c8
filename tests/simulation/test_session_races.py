"""The races that break sessions, planted one by one: the audit of moving sessions catches each.

Each bug is a small change to the product that looks harmless and, most of the time, is. The same runs without it are
clean, so it is the bug that is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from causal.multicast import Multicast
from causal.protocols.false_causality import FalseCausality
from kvstore.effects import Committed, Step
from kvstore.loop import Loop
from kvstore.past import Past
from kvstore.replica import Replica
from kvstore.rpc.reading import Look, Reading
from kvstore.seal import Seal
from kvstore.sessions import Lack, Sessions
from tests.simulation.clockwork import LaggingStorage
from tests.simulation.moving import Session
from tests.simulation.replicas import Weather
from tests.simulation.sessions import Run

OPERATIONS = 600
SEEDS = range(30)  # the first that shows the bug is enough; the rarest shows in every fifth
CLEAN = 1  # of these is run without a bug every time, all of them in the long suite
STORMY = Weather(crash_every_ms=300.0, down_ms=600.0)  # for what only a crash brings to light
SLOW = Weather(commit_ms=100.0)  # disks, for what happens between a step and its commit
FAR = Weather(link_ms=800.0)
SKEWED = Weather(skew_ms=900.0)
SLOW_AND_STORMY = Weather(commit_ms=150.0, crash_every_ms=200.0, down_ms=400.0)

# One committed record (SAFETY 1)


def token_one_commit_older_than_the_data(patch: pytest.MonkeyPatch) -> None:
    committed_by = Loop.committed_by
    patch.setattr(Loop, "committed_by", lambda self, number: committed_by(self, number - 1))


def due_judged_in_memory_and_value_read_from_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Loop, "committed", lambda self, number: self.replica.committed(number))


def token_from_memory_ahead_of_the_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Loop, "committed_by", lambda self, number: self.replica.committed(number))


def record_of_the_last_commit_that_was_heard_of(patch: pytest.MonkeyPatch) -> None:
    """A number kept beside the store: the disk shows a commit a moment before its writer knows."""

    def said(self: Loop, number: int) -> Committed:
        return self.said

    patch.setattr(Loop, "committed_by", said)


# What a crash takes back (SAFETY 2, 4)


def token_does_not_wait_for_the_disk(patch: pytest.MonkeyPatch) -> None:
    async def at_once(self: Sessions, commit: int, deadline_s: float) -> None: ...

    patch.setattr(Sessions, "durable", at_once)


def peers_hear_of_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LaggingStorage, "durable", property(lambda self: self.number))


def extra_messages_of_an_adoption_outside_the_commit(patch: pytest.MonkeyPatch) -> None:
    """They are laid into the outbox by the commit after it."""
    land, step_of = Replica._land, Replica.step
    late: dict[int, list[Any]] = {}

    def careless(self: Replica, past: Past, **how: Any) -> None:
        self._close()
        puts = self._step.batch.puts
        before = len(puts)
        land(self, past, **how)
        late.setdefault(id(self), []).extend(puts[before:])
        del puts[before:]

    def step(self: Replica, *given: Any) -> Step:
        overdue = late.pop(id(self), [])
        made = step_of(self, *given)
        made.batch.puts.extend(overdue)
        made.changed |= bool(overdue)
        return made

    patch.setattr(Replica, "_land", careless)
    patch.setattr(Replica, "step", step)


# What a token must say, and what is done with it (SAFETY 9 to 13)


def token_without_the_hybrid_clock(patch: pytest.MonkeyPatch) -> None:
    seal = Seal.seal
    patch.setattr(Seal, "seal", lambda self, past: seal(self, past._replace(time=0)))


def clock_of_the_token_not_merged(patch: pytest.MonkeyPatch) -> None:
    land = Replica._land
    patch.setattr(Replica, "_land", lambda self, past, *, adopts: land(self, past._replace(time=0), adopts=adopts))


def token_not_taken_into_the_past_of_the_site(patch: pytest.MonkeyPatch) -> None:
    land = Replica._land
    patch.setattr(Replica, "_land", lambda self, past, *, adopts: land(self, past, adopts=False))


def token_forgets_what_it_carried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Past, "merged", lambda self, other: other)


def past_judged_by_prev_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FalseCausality, "token", Multicast.token)


def expiry_judged_by_the_clock_of_the_site_alone(patch: pytest.MonkeyPatch) -> None:
    look = Reading._look

    def short_sighted(self: Reading, number: int, committed: Any, clock_ms: int, *wanted: Any) -> Look | Lack:
        found = look(self, number, committed, clock_ms, *wanted)
        if isinstance(found, Look):
            found.clock_ms = clock_ms
        return found

    patch.setattr(Reading, "_look", short_sighted)


def expiry_that_a_session_saw_is_not_in_its_token(patch: pytest.MonkeyPatch) -> None:
    seen = Look.seen
    patch.setattr(Look, "seen", lambda self: seen(self)._replace(clock_ms=0))


# Controls: without tokens there is nothing to rely on


def token_dropped_on_the_way(patch: pytest.MonkeyPatch) -> None:
    seal = Session._seal

    def drop(self: Session, task: Any) -> None:
        self.token = b""
        seal(self, task)

    patch.setattr(Session, "_seal", drop)


def nobody_waits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sessions, "lack", lambda self, wanted, committed, asked_ms: None)


@dataclass(frozen=True)
class Bug:
    plant: Callable[[pytest.MonkeyPatch], None]
    protocol: str = "optimal"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, seed: int) -> Run:
        return Run(self.protocol, seed, **{"operations": OPERATIONS, **self.settings})


SLOW_DISKS = {"weather": SLOW, "keys": 1, "sessions": 60}
RELAXED = {"is_periodic": True, "weather": STORMY}
PARTIAL = {"is_partial": True, "weather": SKEWED}
FAR_APART = {**PARTIAL, "weather": FAR, "keys": 1, "sessions": 40, "shares": (20, 40, 40, 0, 0), "operations": 1_500}
EXPIRING = {"weather": SKEWED, "shares": (0, 85, 13, 2, 0), "sessions": 5, "operations": 1_500}
MANY_EXTRAS = {**PARTIAL, "options": {"threshold": 6}, "weather": STORMY}

BUGS = (
    Bug(token_one_commit_older_than_the_data),
    Bug(due_judged_in_memory_and_value_read_from_disk),
    Bug(token_from_memory_ahead_of_the_disk, settings={"weather": SLOW_AND_STORMY, "sessions": 60}),
    Bug(record_of_the_last_commit_that_was_heard_of, settings=SLOW_DISKS),
    Bug(token_does_not_wait_for_the_disk, settings=RELAXED),
    Bug(peers_hear_of_what_is_not_durable, settings=RELAXED),
    Bug(extra_messages_of_an_adoption_outside_the_commit, "extra-message", MANY_EXTRAS),
    Bug(token_without_the_hybrid_clock, settings=PARTIAL),
    Bug(clock_of_the_token_not_merged, settings=PARTIAL),
    Bug(token_not_taken_into_the_past_of_the_site, settings=FAR_APART),
    Bug(token_forgets_what_it_carried),
    Bug(past_judged_by_prev_alone, "false-causality"),
    Bug(expiry_judged_by_the_clock_of_the_site_alone, settings=EXPIRING),
    Bug(expiry_that_a_session_saw_is_not_in_its_token, settings=EXPIRING),
    Bug(token_dropped_on_the_way),
    Bug(nobody_waits),
)


def found(bug: Bug, seed: int) -> list[str]:
    """What is wrong with a run: by the audit, by the replicas at rest, or by an assertion on the way."""
    try:
        return bug.run(seed).go().judged()
    except AssertionError as error:
        return [repr(error)]


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        bug.plant(patch)
        yield


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.plant.__name__)
def test_a_planted_race_is_caught(bug: Bug) -> None:
    with planted(bug):
        assert any(found(bug, seed) for seed in SEEDS)


CONTROLS = {bug.plant.__name__: bug for bug in {(bug.protocol, str(bug.settings)): bug for bug in BUGS}.values()}


@pytest.mark.parametrize("control", CONTROLS)
def test_without_a_planted_race_the_same_runs_are_clean(control: str) -> None:
    for seed in SEEDS[:CLEAN]:
        run = CONTROLS[control].run(seed).go()
        assert run.judged() == [], f"{CONTROLS[control].settings} {run.command}"


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.plant.__name__)
def test_without_the_bug_every_seed_is_clean(bug: Bug) -> None:
    for seed in SEEDS:
        run = bug.run(seed).go()
        assert run.judged() == [], f"{bug.settings} {run.command}"
