"""What is wrong, said once when it begins and once when it is over; and nothing is said when all is well."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kvstore.alarms import (
    DISK_FREE_MIN_BYTES,
    HELD_LONG_MS,
    QUIET_MS,
    REASONS,
    TOMBSTONES_KEPT_MS,
    Alarm,
    Alarms,
    Facts,
    PeerFacts,
    alarms_of,
    facts_of,
)
from kvstore.effects import Operation, Write
from kvstore.errors import Amnesia
from kvstore.limits import MIB, Limits
from tests.kvstore.stage import Stage

NOW_MS = 1_700_000_000_000
LIMITS = Limits()
B = PeerFacts("b", silent_ms=100, wall_ahead_ms=3, promise_ms=NOW_MS - 200)
C = PeerFacts("c", silent_ms=200, wall_ahead_ms=-5, promise_ms=NOW_MS - 300)
WELL = Facts("a", LIMITS, NOW_MS, clock_ms=NOW_MS, peers=(B, C), storage_bytes=MIB, disk_free_bytes=1 << 40)


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def alarms(clock: Clock) -> Alarms:
    return Alarms(clock)


def with_b(**changed: Any) -> Facts:
    return replace(WELL, peers=(replace(B, **changed), C))


# What is wrong with facts


WRONG: dict[str, list[Facts]] = {
    "AMNESIA": [replace(WELL, fence="b knows of message 7 of a, which remembers only 5")],
    "CLOCK_AHEAD": [replace(WELL, clock_ms=NOW_MS + LIMITS.clock_skew_max_ms + 1)],
    "CLOCK_SKEW": [replace(WELL, peers=(replace(B, wall_ahead_ms=2_001), replace(C, wall_ahead_ms=9_000)))],
    "HELD_LONG": [replace(WELL, held=3, held_oldest_ms=HELD_LONG_MS + 1)],
    "OUTBOX_FILLING": [with_b(outbox_bytes=LIMITS.outbox_bytes_max // 2, outbox_messages=9)],
    "OUTBOX_FULL": [with_b(outbox_bytes=LIMITS.outbox_bytes_max), with_b(outbox_bytes=LIMITS.outbox_bytes_max * 2)],
    "PEER_CLOCK": [with_b(wall_ahead_ms=-2_001)],
    "PEER_SILENT": [with_b(silent_ms=LIMITS.peer_silent_ms + 1)],
    "RESTORED": [replace(WELL, unproven=("b", "c"))],
    "STORAGE_NEARLY_FULL": [
        replace(WELL, storage_bytes=LIMITS.map_bytes_max * 9 // 10 + 1),
        replace(WELL, disk_free_bytes=DISK_FREE_MIN_BYTES - 1),
    ],
    "TOMBSTONES_KEPT": [
        replace(with_b(promise_ms=0, is_absent=True), tombstone_oldest_ms=NOW_MS - TOMBSTONES_KEPT_MS - 1),
    ],
    "TRACE_LOST": [replace(WELL, trace_lost=12)],
    "TRACE_STOPPED": [replace(WELL, trace_trouble="no space left on device", trace_lost=12)],
}
TOLD = {"LINK_REFUSED", "PEER_REFUSED"}  # only a link knows

FINE: list[Facts] = [
    WELL,
    replace(WELL, peers=()),
    with_b(outbox_bytes=LIMITS.outbox_bytes_max // 2 - 1),
    with_b(silent_ms=LIMITS.peer_silent_ms),
    with_b(wall_ahead_ms=60_000),  # we are ahead of one, but not of all: it is that one who is behind
    with_b(wall_ahead_ms=None, promise_ms=0),
    replace(WELL, held=3, held_oldest_ms=HELD_LONG_MS),
    replace(WELL, tombstone_oldest_ms=NOW_MS - TOMBSTONES_KEPT_MS * 9),  # nobody is behind: the sweep will come to it
    replace(with_b(promise_ms=0, is_absent=True), tombstone_oldest_ms=NOW_MS - TOMBSTONES_KEPT_MS + 1),
    replace(
        with_b(promise_ms=0), tombstone_oldest_ms=NOW_MS - TOMBSTONES_KEPT_MS * 9
    ),  # it is here, with nothing to say
    replace(WELL, disk_free_bytes=None),
]


def test_every_reason_is_shown_or_only_known_to_a_link() -> None:
    assert WRONG.keys() | TOLD == REASONS.keys() and not WRONG.keys() & TOLD


@pytest.mark.parametrize(("reason", "facts"), [(reason, one) for reason, some in WRONG.items() for one in some])
def test_each_wrong_is_found_and_nothing_else(reason: str, facts: Facts) -> None:
    (found,) = alarms_of(facts)
    assert found.reason == reason
    assert found.message.endswith(REASONS[reason])  # what to do about it
    assert found.details


@pytest.mark.parametrize("facts", FINE, ids=str)
def test_where_all_is_well_there_is_no_alarm(facts: Facts) -> None:
    assert alarms_of(facts) == []


def test_an_alarm_about_a_peer_names_it_and_the_limit() -> None:
    (found,) = alarms_of(with_b(outbox_bytes=LIMITS.outbox_bytes_max // 2, outbox_messages=9))
    assert found.message == (
        "9 messages wait for b, 512.0 MiB of the 1024.0 MiB that may. "
        "Bring it back; at the limit outbox_bytes_max writes to keys that it holds are refused here"
    )
    size = LIMITS.outbox_bytes_max // 2
    assert found.details == {"peer": "b", "size_bytes": str(size), "messages": "9", "limit": str(2 * size)}


def test_a_silent_peer_is_named_with_the_trouble_if_there_is_any() -> None:
    (found,) = alarms_of(with_b(silent_ms=12_345, trouble="b cannot be reached: connection refused"))
    assert found.message.startswith("nothing was heard from b for 12 s (b cannot be reached: connection refused). See")


def test_two_peers_in_trouble_are_two_alarms() -> None:
    both = replace(WELL, peers=tuple(replace(peer, silent_ms=99_999) for peer in WELL.peers))
    assert [one.key for one in alarms_of(both)] == [("PEER_SILENT", "b"), ("PEER_SILENT", "c")]


# Since when, and how often it is said


def reasons(alarms: Alarms) -> list[tuple[str, int]]:
    return [(one.alarm.reason, one.since_ms) for one in alarms.current()]


def test_an_alarm_stands_since_it_was_first_seen_and_tells_the_newest_facts(alarms: Alarms, clock: Clock) -> None:
    for silent_ms in (6_000, 7_000, 8_000):
        alarms.look(with_b(silent_ms=silent_ms))
        clock.now_ms += 1_000
    assert reasons(alarms) == [("PEER_SILENT", NOW_MS)]
    assert alarms.current()[0].alarm.details["silent_ms"] == "8000"


def test_the_oldest_alarm_comes_first(alarms: Alarms, clock: Clock) -> None:
    alarms.raise_("PEER_REFUSED", "the cluster id differs", peer="c")
    clock.now_ms += 1
    alarms.look(with_b(silent_ms=6_000))
    assert reasons(alarms) == [("PEER_REFUSED", NOW_MS), ("PEER_SILENT", NOW_MS + 1)]


def test_it_is_logged_once_when_it_begins_and_once_when_it_is_over(
    alarms: Alarms, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "kvstore.alarms"):
        for facts in (*[with_b(silent_ms=6_000)] * 5, *[WELL] * 20):
            alarms.look(facts)
            clock.now_ms += 200
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert texts[0].startswith("alarm PEER_SILENT: nothing was heard from b for 6 s. See")
    assert texts[1] == "alarm PEER_SILENT about b is over, after 3 s"
    assert alarms.current() == []


def test_what_comes_and_goes_with_every_look_is_one_alarm(
    alarms: Alarms, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    filling = with_b(outbox_bytes=LIMITS.outbox_bytes_max // 2)
    with caplog.at_level(logging.DEBUG, "kvstore.alarms"):
        for _ in range(20):
            alarms.look(filling)
            clock.now_ms += QUIET_MS // 2
            alarms.look(WELL)
            clock.now_ms += QUIET_MS // 4
    assert len(caplog.records) == 1
    assert reasons(alarms) == [("OUTBOX_FILLING", NOW_MS)]


# Those who are told


def test_what_was_raised_stands_until_it_is_cleared(alarms: Alarms, clock: Clock) -> None:
    alarms.raise_("LINK_REFUSED", "b refuses the link: the cluster id is x here and y there", peer="b")
    clock.now_ms += 3_600_000
    alarms.look(WELL)
    assert reasons(alarms) == [("LINK_REFUSED", NOW_MS)]
    assert alarms.current()[0].alarm.message.startswith("b refuses the link: the cluster id is x here and y there. One")
    alarms.clear("LINK_REFUSED", peer="b")
    assert alarms.current() == []


def test_clearing_one_leaves_the_others(alarms: Alarms) -> None:
    for peer in "bc":
        alarms.raise_("LINK_REFUSED", "refused", peer=peer)
    alarms.raise_("PEER_REFUSED", "refused", peer="b")
    alarms.clear("LINK_REFUSED", peer="b")
    alarms.clear("LINK_REFUSED", peer="d")
    assert [one.alarm.key for one in alarms.current()] == [("LINK_REFUSED", "c"), ("PEER_REFUSED", "b")]


def test_raising_again_keeps_its_beginning_and_is_not_logged_again(
    alarms: Alarms, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for word in ("first", "second"):
        alarms.raise_("LINK_REFUSED", word, peer="b")
        clock.now_ms += 2_000
    assert len(caplog.records) == 1
    assert reasons(alarms) == [("LINK_REFUSED", NOW_MS)]
    assert alarms.current()[0].alarm.message.startswith("second")


def test_what_is_both_told_and_seen_stands_once_and_is_not_ended_by_not_looking(alarms: Alarms, clock: Clock) -> None:
    alarms.look(replace(WELL, fence="b knows more"))
    alarms.raise_("AMNESIA", "b knows more", site="a")
    alarms.look(replace(WELL, fence="b knows more"))
    clock.now_ms += 10 * QUIET_MS
    alarms.look(WELL)
    assert reasons(alarms) == [("AMNESIA", NOW_MS)]


def test_a_reason_that_is_not_in_the_table_is_a_bug(alarms: Alarms) -> None:
    with pytest.raises(KeyError):
        alarms.raise_("OUTBOX_FILING", "a misspelt one")


# From a replica


def node_of(stage: Stage, site: int) -> Any:
    """The parts that are looked at, with links that nothing was heard on."""
    silent = SimpleNamespace(state=lambda _: SimpleNamespace(trouble="", heard_mono=0.0, connected=False))
    return SimpleNamespace(
        cluster=stage.cluster,
        site=stage.cluster.sites[site],
        replica=stage.replicas[site],
        storage=stage.storages[site],
        links=silent,
        peering=silent,
        trace=None,
        started_ms=stage.now_ms - 60,
        now_ms=lambda: stage.now_ms,
    )


def test_the_facts_of_a_replica_that_has_just_started_are_well(alarms: Alarms) -> None:
    stage = Stage(3, "optimal")
    alarms.check(node_of(stage, 0))
    assert alarms.current() == []


def test_what_a_replica_holds_and_owes_is_in_its_facts() -> None:
    stage = Stage(3, "optimal")
    stage.write(0)
    stage.carry(0, 1)
    stage.write(1)
    stage.step(1, Write((Operation(b"gone", None),)))
    stage.carry(1, 2)
    stage.now_ms += 5
    facts = facts_of(node_of(stage, 2))
    assert (facts.held, facts.held_oldest_ms, facts.site) == (2, 5, "c")
    facts = facts_of(node_of(stage, 1))
    assert facts.tombstone_oldest_ms == stage.now_ms - 5
    a, c = facts.peers
    assert (a.name, a.silent_ms, a.promise_ms) == ("a", 60, stage.now_ms - 5)
    assert (c.name, c.outbox_messages, c.promise_ms) == ("c", 2, 0) and c.outbox_bytes > 0


def test_a_replica_that_may_not_speak_and_one_that_must_wait_for_others_say_so() -> None:
    stage = Stage(3, "optimal")
    node = node_of(stage, 0)
    node.replica.fence = Amnesia(peer="b", what="message", there=7, site="a", here=5)
    node.replica.unproven = {2}
    node.trace = SimpleNamespace(lost=3, trouble="")
    assert [one.reason for one in alarms_of(facts_of(node))] == ["AMNESIA", "RESTORED", "TRACE_LOST"]


def test_values_that_will_expire_are_no_deletes() -> None:
    stage = Stage(3, "optimal")
    stage.step(0, Write((Operation(b"soon", b"v", 1_000),)))
    assert facts_of(node_of(stage, 0)).tombstone_oldest_ms is None


def test_an_alarm_is_known_by_its_reason_and_its_peer() -> None:
    assert Alarm("PEER_SILENT", "", {"peer": "b", "silent_ms": "1"}).key == ("PEER_SILENT", "b")
