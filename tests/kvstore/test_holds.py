"""Whether a held message needs what it waits for: read off what it was meant to follow, told only where it is sure."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from causal.model import Dot, Missing
from kvstore.effects import Arrived, Event, Operation, Step, Write
from kvstore.explain import explain
from kvstore.holds import ASKED_MAX, FALSE, TRUE, UNKNOWN, Hold, Holds, cause_of
from kvstore.past import Past, Seen
from kvstore.transit import InTransit
from tests.kvstore.stage import CAUSAL, Stage

A, B, C, D = range(4)
QUESTION, REPLY, ASIDE, OTHER = Dot(A, 1), Dot(B, 1), Dot(B, 2), Dot(C, 1)
MISSING = Missing(*QUESTION)


def cause(meant: Seen, *, held: Mapping[Dot, Seen] | None = None, here: tuple[Dot, ...] = ()) -> str:
    """Of a message that waits for the question."""
    waiting = {dot: SimpleNamespace(meant=seen) for dot, seen in (held or {}).items()}
    return cause_of(MISSING, meant, waiting, lambda dot: dot in here)


# True


def test_it_needs_the_missing_one_if_it_was_meant_to_follow_it() -> None:
    assert cause((QUESTION,)) == TRUE
    assert cause((OTHER, QUESTION), here=(OTHER,)) == TRUE


def test_it_needs_the_missing_one_if_something_that_it_follows_and_that_waits_too_needs_it() -> None:
    assert cause((REPLY,), held={REPLY: (QUESTION,)}) == TRUE
    assert cause((ASIDE,), held={ASIDE: (OTHER,), OTHER: (REPLY,), REPLY: (QUESTION,)}) == TRUE


def test_one_certain_way_is_enough_whatever_else_is_not_known() -> None:
    assert cause((OTHER, REPLY), held={REPLY: (QUESTION,), OTHER: None}) == TRUE
    assert cause((OTHER, REPLY), held={REPLY: (QUESTION,)}) == TRUE  # the other has not come


# False


def test_it_does_not_need_the_missing_one_if_it_follows_nothing() -> None:
    assert cause(()) == FALSE


def test_it_does_not_need_the_missing_one_if_all_that_it_follows_is_here() -> None:
    assert cause((REPLY, OTHER), here=(REPLY, OTHER)) == FALSE
    assert cause((ASIDE,), held={ASIDE: (OTHER,)}, here=(OTHER,)) == FALSE
    assert cause((ASIDE,), held={ASIDE: ()}) == FALSE


# Unknown


def test_what_nobody_told_is_not_known() -> None:
    assert cause(None) == UNKNOWN
    assert cause((REPLY,), held={REPLY: None}) == UNKNOWN


def test_what_has_not_come_may_itself_need_the_missing_one() -> None:
    assert cause((OTHER,)) == UNKNOWN
    assert cause((REPLY, ASIDE), held={REPLY: (OTHER,), ASIDE: ()}) == UNKNOWN


# Liars and long ways


def test_messages_that_claim_to_follow_each_other_in_a_circle_end_no_process() -> None:
    assert cause((REPLY,), held={REPLY: (OTHER,), OTHER: (REPLY,)}) == FALSE
    assert cause((REPLY,), held={REPLY: (OTHER,), OTHER: (REPLY, QUESTION)}) == TRUE
    assert cause((REPLY,), held={REPLY: (REPLY,)}) == FALSE


def row(length: int, *, end: Seen) -> dict[Dot, Seen]:
    """Each follows the one before it, and the first one follows this."""
    return {Dot(B, seq): end if seq == 1 else (Dot(B, seq - 1),) for seq in range(1, length + 1)}


@pytest.mark.parametrize(("end", "known"), [((QUESTION,), TRUE), ((), FALSE)])
def test_a_way_is_followed_so_far_and_no_farther(end: Seen, known: str) -> None:
    assert cause((Dot(B, ASKED_MAX),), held=row(ASKED_MAX, end=end)) == known
    assert cause((Dot(B, 5 * ASKED_MAX),), held=row(5 * ASKED_MAX, end=end)) == UNKNOWN


class Unlisted(dict[Dot, InTransit]):
    """Held messages that nobody may go through, and how often one was asked for."""

    asked = 0

    def __getitem__(self, dot: Dot) -> InTransit:
        self.asked += 1
        return super().__getitem__(dot)

    def __iter__(self) -> NoReturn:
        raise AssertionError("that takes the longer the more is held")

    items = values = keys = __iter__


def test_one_that_arrives_behind_many_costs_no_more_than_one_behind_a_few() -> None:
    """b's session writes and writes, and each write follows the one before; c has none of a's messages."""
    stage = Stage(3, "vector")
    stage.write(A, b"question")
    stage.carry(A, B)
    past = seen_by(stage, B, QUESTION)
    for _ in range(3 * ASKED_MAX):
        past = past._replace(seen=(written(stage, B, past),))
    last = stage.under_way[B, C].pop()
    stage.carry(B, C)
    held = stage.replicas[C].held = Unlisted(stage.replicas[C].held)
    stage.step(C, Arrived(B, last))
    assert len(held) == 3 * ASKED_MAX and ASKED_MAX < held.asked < ASKED_MAX + 10


# As a replica tells it


def seen_by(stage: Stage, site: int, *dots: Dot) -> Past:
    """A session that has read these messages at a site."""
    past = stage.replicas[site].committed(stage.storages[site].number).past
    assert past is not None
    return past._replace(seen=dots)


def step_of(stage: Stage, site: int, past: Past | None, **said: Any) -> Step:
    return stage.step(site, Write((Operation(b"k", b"v"),), past=past, **said))


def written(stage: Stage, site: int, past: Past | None, **said: Any) -> Dot:
    step = step_of(stage, site, past, **said)
    return next(event.dot for event in step.events if event.kind == "applied")


def causes_of_held(stage: Stage, sender: int, receiver: int) -> list[str]:
    """The causes of what is held when all that is under way there has come."""
    causes = []
    for envelope in stage.under_way.pop((sender, receiver)):
        events = stage.step(receiver, Arrived(sender, envelope)).events
        causes += [event.cause for event in events if event.kind == "held"]
    assert causes == [one.cause for one in explain(stage.replicas[receiver])]
    return causes


def asked_and_heard(protocol: str) -> Stage:
    """a asks twice, b has heard it, c has not."""
    stage = Stage(3, protocol)
    for key in (b"question", b"another"):
        stage.write(A, key)
    stage.carry(A, B)
    return stage


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_replica_tells_a_reply_from_what_was_only_written_later(protocol: str) -> None:
    newest = Dot(A, 2)
    stage = asked_and_heard(protocol)
    reply = written(stage, B, seen_by(stage, B, newest))
    written(stage, B, seen_by(stage, B, reply))
    written(stage, B, None)
    assert causes_of_held(stage, B, C) == [TRUE, TRUE, UNKNOWN]


@pytest.mark.parametrize("protocol", CAUSAL)
def test_what_a_site_has_sent_itself_is_here(protocol: str) -> None:
    stage = Stage(3, protocol)
    own = stage.write(C, b"own")
    stage.carry(C, B)
    stage.write(A, b"question")
    stage.carry(A, B)
    written(stage, B, seen_by(stage, B, own))
    assert causes_of_held(stage, B, C) == [FALSE]


@pytest.mark.parametrize("protocol", CAUSAL)
def test_an_independent_write_waits_for_nothing_or_needlessly(protocol: str) -> None:
    stage = Stage(3, protocol)
    stage.write(A, b"question")
    stage.carry(A, B)
    written(stage, B, None, independent=True)
    assert causes_of_held(stage, B, C) == ([] if protocol == "false-causality" else [FALSE])


def test_who_waits_for_one_that_only_waits_for_its_turn_does_not_need_the_one_before_it() -> None:
    """Links that overtake: a's second message passed by its first, and b's reply to the second alone came too."""
    stage = Stage(3, "false-causality")
    first = stage.write(A, b"first")
    second = written(stage, A, None, independent=True)
    stage.carry(A, B)
    written(stage, B, seen_by(stage, B, second))
    written(stage, B, seen_by(stage, B, first))
    written(stage, B, None)
    c, from_a, from_b = stage.replicas[C], stage.under_way[A, C], stage.under_way[B, C]
    c.links[A].received = 1  # as far as the link knows, the first one has come
    stage.step(C, Arrived(A, from_a[1]))
    for envelope in from_b:
        stage.step(C, Arrived(B, envelope))
    told = explain(c)
    assert [one.missing for one in told] == [Missing(A, 1, by_link=True)] * 4
    assert [one.cause for one in told] == [FALSE, FALSE, TRUE, UNKNOWN]


# How long


def held(dot: Dot, cause: str = "") -> Event:
    return Event("held", dot, dot.site, 1, MISSING, cause=cause)


def test_a_hold_is_timed_from_its_first_beginning_to_its_end() -> None:
    kept = Holds()
    assert kept.begin(held(REPLY, TRUE), 100) == Hold(TRUE)
    assert kept.begin(held(REPLY, FALSE), 150) == Hold(TRUE)
    assert kept.begin(held(OTHER), 120) == Hold(UNKNOWN)
    assert kept.end(REPLY, 180) == Hold(TRUE, 80)
    assert kept.end(REPLY, 190) is None


def test_who_looks_on_later_knows_what_was_held_already_and_ends_nothing_for_others() -> None:
    kept = Holds()
    kept.begin(held(REPLY, FALSE), 100)
    copy = kept.copy()
    assert copy.end(REPLY, 150) == Hold(FALSE, 50)
    copy.begin(held(OTHER), 100)
    assert kept.end(REPLY, 180) == Hold(FALSE, 80) and kept.end(OTHER, 180) is None
