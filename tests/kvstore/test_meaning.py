"""What a write is meant to follow: what its session saw, what its client says, and in any case what it replaces."""

from __future__ import annotations

from typing import Any

import pytest

from causal.model import Dot
from kvstore import meaning as module
from kvstore.effects import ABSENT, Event, Operation, Write, Written
from kvstore.meaning import EVERYTHING, NOTHING, Meaning, Messages, meaning_of
from kvstore.past import SEEN_MAX, Past, unpack_dots
from kvstore.update import Version, unpack_record
from tests.kvstore.stage import CAUSAL, Stage

A, B, C = range(3)
READ, OTHER, OLD = Dot(A, 1), Dot(B, 4), Dot(C, 9)
VERSIONS = {READ: Version(10, A), OTHER: Version(40, B), OLD: Version(90, C)}
NEVER_SEEN = Version(1234, C)


@pytest.fixture
def messages() -> Messages:
    made = Messages()
    for dot, version in VERSIONS.items():
        made.remember([version], dot)
    return made


def write(*operations: Operation, **said: Any) -> Write:
    return Write(operations or (Operation(b"k", b"v"),), **said)


def session(*seen: Dot) -> Past:
    return Past(None, seen=seen)


# What the session saw


def test_without_a_session_nothing_is_known_and_everything_is_assumed(messages: Messages) -> None:
    assert meaning_of(write(), messages) == EVERYTHING == Meaning(semantic=True, meant=None)


def test_with_a_session_it_follows_what_the_session_saw(messages: Messages) -> None:
    assert meaning_of(write(past=session(READ, OTHER)), messages) == Meaning(True, (READ, OTHER))


def test_the_first_write_of_a_session_that_has_read_nothing_follows_nothing(messages: Messages) -> None:
    assert meaning_of(write(past=session()), messages) == NOTHING == Meaning(semantic=False, meant=())


def test_a_session_that_saw_too_much_follows_everything(messages: Messages) -> None:
    assert meaning_of(write(past=Past(None, seen=None)), messages) == EVERYTHING


# What the client says


def test_an_independent_write_follows_nothing_whatever_its_session_saw(messages: Messages) -> None:
    assert meaning_of(write(independent=True), messages) == NOTHING
    assert meaning_of(write(independent=True, past=session(READ)), messages) == NOTHING


def test_who_names_versions_follows_the_messages_that_brought_them_and_nothing_else(messages: Messages) -> None:
    said = write(depends=(VERSIONS[OTHER], VERSIONS[READ], VERSIONS[OTHER]), past=session(OLD))
    found = meaning_of(said, messages)
    assert found.semantic and found.meant is not None and sorted(found.meant) == [READ, OTHER]


def test_who_names_a_version_that_is_not_known_here_follows_everything(messages: Messages) -> None:
    assert meaning_of(write(depends=(VERSIONS[READ], NEVER_SEEN)), messages) == EVERYTHING


# What it is compared with


COMPARED = [
    Operation(b"k", b"v", expect=VERSIONS[READ]),
    Operation(b"k", b"v", replaces=(VERSIONS[READ],)),
    Operation(b"k", None, replaces=(VERSIONS[READ],)),
]


@pytest.mark.parametrize("operation", COMPARED)
def test_a_write_that_is_compared_is_dependent_even_if_it_is_said_to_be_independent(
    operation: Operation, messages: Messages
) -> None:
    assert meaning_of(write(operation, independent=True), messages) == Meaning(True, (READ,))
    assert meaning_of(write(operation, independent=True, past=session(OTHER)), messages) == Meaning(True, (READ,))


@pytest.mark.parametrize("operation", COMPARED)
def test_what_it_is_compared_with_is_added_to_what_the_session_saw_and_what_is_said(
    operation: Operation, messages: Messages
) -> None:
    assert meaning_of(write(operation, past=session(OTHER)), messages) == Meaning(True, (OTHER, READ))
    assert meaning_of(write(operation, past=session()), messages) == Meaning(True, (READ,))
    named = meaning_of(write(operation, depends=(VERSIONS[OTHER],)), messages).meant
    assert named is not None and sorted(named) == [READ, OTHER]


def test_that_a_key_must_be_absent_may_be_due_to_anything(messages: Messages) -> None:
    assert meaning_of(write(Operation(b"k", b"v", expect=ABSENT), independent=True), messages) == EVERYTHING
    assert meaning_of(write(Operation(b"k", b"v", expect=ABSENT), past=session()), messages) == EVERYTHING


def test_what_it_takes_away_without_naming_it_is_compared_too(messages: Messages) -> None:
    said = write(Operation(b"k", None), independent=True)
    assert meaning_of(said, messages, [VERSIONS[READ]]) == Meaning(True, (READ,))


# Which message brought a version


def test_of_very_many_writes_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DOTS_KEPT", 3)
    made = Messages()
    for seq in range(1, 6):
        made.remember([Version(seq, A)], Dot(A, seq))
    assert [made.of([Version(seq, A)]) for seq in range(1, 6)] == [None, None, *((Dot(A, seq),) for seq in (3, 4, 5))]


def test_more_messages_than_can_be_told_are_not_told() -> None:
    made = Messages()
    versions = [Version(seq, A) for seq in range(1, SEEN_MAX + 2)]
    for version in versions:
        made.remember([version], Dot(A, version.time))
    assert len(made.of(versions[:-1]) or ()) == SEEN_MAX and made.of(versions) is None


# Writes that share a message


def test_a_message_follows_what_any_of_its_writes_follows() -> None:
    assert NOTHING.also(NOTHING) == NOTHING
    assert NOTHING.also(Meaning(True, (READ,))) == Meaning(True, (READ,)).also(NOTHING) == Meaning(True, (READ,))
    assert Meaning(True, (READ, OTHER)).also(Meaning(True, (OTHER, OLD))) == Meaning(True, (READ, OTHER, OLD))
    assert EVERYTHING.also(NOTHING) == NOTHING.also(EVERYTHING) == EVERYTHING


def test_a_message_whose_writes_follow_too_many_together_follows_everything() -> None:
    many = [Meaning(True, tuple(Dot(site, seq) for seq in range(1, 10))) for site in (A, B)]
    assert SEEN_MAX < 18 and many[0].also(many[1]) == EVERYTHING


def sent(stage: Stage, *writes: Write) -> Event:
    """The message in which b sends these writes, which all come in one step."""
    step = stage.step(B, *writes)
    assert all(isinstance(answer, Written) for answer in step.answers.values()), step.answers
    to_c = [event for event in step.events if event.kind == "sent" and event.peer == C]
    assert len(to_c) == 1
    (packed,) = {envelope.meant for envelope in step.sends[C]}
    assert unpack_dots(packed, 3) == to_c[0].depends_on  # what c will hear
    return to_c[0]


@pytest.mark.parametrize("protocol", CAUSAL)
def test_writes_of_one_run_share_their_meanings(protocol: str) -> None:
    stage = Stage(3, protocol)
    first, second = (stage.write(A, key) for key in (b"first", b"second"))
    stage.carry(A, B)

    def saw(dot: Dot) -> Write:
        past = stage.replicas[B].committed(stage.storages[B].number).past
        assert past is not None
        return write(past=past._replace(seen=(dot,)))

    def told(*writes: Write) -> tuple[bool, Any]:
        event = sent(stage, *writes)
        return event.semantic, event.depends_on

    aside = write(independent=True)
    assert told(aside, aside) == (False, ())
    assert told(saw(first), aside) == (True, (first,))
    assert told(saw(second), saw(first), aside) == (True, (second, first))
    assert told(saw(second), write()) == (True, None)
    assert told(aside, write()) == (True, None)


def test_one_dependent_write_in_a_run_makes_its_message_wait() -> None:
    """SAFETY 14. Both writes of b are in one message, and c has not heard a."""
    for said, is_held in (({"independent": True}, False), ({}, True)):
        stage = Stage(3, "false-causality")
        stage.write(A, b"question")
        stage.carry(A, B)
        sent(stage, write(Operation(b"x", b"1"), independent=True), write(Operation(b"y", b"2"), **said))
        stage.carry(B, C)
        assert bool(stage.replicas[C].held) is is_held


# Siblings


@pytest.mark.parametrize("said", [{"independent": True}, {"past": ()}])
def test_a_value_that_was_deleted_does_not_come_back_because_its_delete_was_not_meant_to_follow_it(said: Any) -> None:
    """b deletes what it has from a; c hears of the delete first."""
    stage = Stage(3, "false-causality", merge={b"": "siblings"})
    if "past" in said:
        beginning = stage.replicas[B].committed(0).past
        assert beginning is not None
        said = {"past": beginning._replace(seen=())}
    value = stage.write(A, b"k")
    stage.carry(A, B)
    event = sent(stage, write(Operation(b"k", None), **said))
    assert event.semantic and event.depends_on == (value,)
    stage.carry(B, C)
    stage.carry(A, C)
    stage.carry(B, A)
    for storage in stage.storages:
        with storage.snapshot() as view:
            assert [unpack_record(data).value for _, data in view.scan("keys")] == []
