"""All sites keep the same record, whatever the order of arrival; and a session's later write wins over what it saw.

The second needs the clock as much as the merge, so it is shown here with good clocks and with planted bad ones. What
`siblings` keeps is shown in test_siblings.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal.model import Dot
from kvstore.clock import COUNTER_BITS, HybridClock
from kvstore.merge import MERGES, Merge, last_writer_wins
from kvstore.update import Record, Version

SITES = 3
A, B, C = range(SITES)


def record_of(version: Version) -> Record:
    """One version is one update, everywhere: whatever else a record says follows from it."""
    time, site = version
    value = None if time % 5 == 0 else f"{time}@{site}".encode()
    return Record(version, value, time % 3, Dot(site, time + 1), 0, 0)


RECORDS = st.builds(record_of, st.builds(Version, st.integers(0, 9), st.integers(0, SITES - 1)))


def merged(merge: Merge, records: Iterable[Record]) -> Record | None:
    """What a key holds after these updates, none of which knew of another."""
    stored = None
    for record in records:
        stored = merge(stored, record, ())
    return stored


def disagreements(merge: Merge, records: list[Record]) -> int:
    """How many different outcomes the orders of arrival have, beyond the one that there should be."""
    return len({merged(merge, order) for order in itertools.permutations(records)}) - 1


@given(one=RECORDS, other=RECORDS, third=RECORDS)
def test_lww_is_commutative_associative_and_idempotent(one: Record, other: Record, third: Record) -> None:
    def merge(stored: Record, incoming: Record) -> Record:
        return last_writer_wins(stored, incoming, ())

    assert last_writer_wins(None, one, ()) == one
    assert merge(one, one) == one
    assert merge(one, other) == merge(other, one)
    assert merge(merge(one, other), third) == merge(one, merge(other, third))


@pytest.mark.parametrize("merge", MERGES.values(), ids=MERGES)
@given(records=st.lists(RECORDS, min_size=1, max_size=5))
def test_every_order_of_arrival_ends_in_the_same_record(merge: Merge, records: list[Record]) -> None:
    assert disagreements(merge, records) == 0


PLANTED = {
    "the last to arrive": lambda stored, incoming, _: incoming,
    "the first to arrive": lambda stored, incoming, _: stored or incoming,
    "time without the site": lambda stored, incoming, _: (
        incoming if stored is None or incoming.version.time >= stored.version.time else stored
    ),
    "deletes always win": lambda stored, incoming, _: incoming if stored is None or incoming.value is None else stored,
}


@pytest.mark.parametrize("merge", PLANTED.values(), ids=PLANTED)
def test_the_check_sees_a_merge_that_depends_on_the_order(merge: Merge) -> None:
    records = [record_of(Version(time, site)) for time, site in ((7, C), (8, A), (8, B))]
    assert disagreements(merge, records)
    assert not disagreements(MERGES["lww"], records)


def test_the_greater_version_wins_by_time_and_then_by_site() -> None:
    lww = MERGES["lww"]
    old, same_time, new = (record_of(Version(time, site)) for time, site in ((7, A), (7, B), (8, A)))
    assert lww(old, same_time, ()) is same_time and lww(same_time, old, ()) is same_time
    assert lww(same_time, new, ()) is new and lww(new, same_time, ()) is new


def test_what_a_write_names_as_replaced_means_nothing_to_lww() -> None:
    old, new = record_of(Version(7, A)), record_of(Version(8, A))
    assert MERGES["lww"](new, old, (new.version,)) is new


def test_of_two_copies_of_one_update_the_stored_one_stays() -> None:
    """Else a repeat would move the record to a later commit, and a token would name more than the session saw."""
    stored = record_of(Version(7, A))
    assert MERGES["lww"](stored, stored._replace(commit=8), ()) is stored


# SAFETY 9: a session's own later write must not lose


class WallClock(HybridClock):
    """The planted bug: the time is what the site's wall clock shows."""

    def tick(self, now_ms: int) -> int:
        return now_ms << COUNTER_BITS


class DeafClock(HybridClock):
    """The planted bug: rises by itself, but learns nothing from tokens and messages."""

    def merge(self, time: int) -> None: ...


def lost_writes(clock: type[HybridClock], moves: list[tuple[int, int]]) -> list[Version]:
    """A session moves to a site where the wall clock shows so many ms, reads, and writes; these of its writes lost.

    Every site has seen all that the session has: what is lost here is lost by the version alone.
    """
    clocks = [clock() for _ in range(SITES)]
    stored: Record | None = None
    token = 0
    lost = []
    for site, now_ms in moves:
        if stored is not None:
            token = max(token, stored.version.time)  # it reads, and carries on what it saw
        clocks[site].merge(token)
        written = record_of(Version(clocks[site].tick(now_ms), site))
        stored = MERGES["lww"](stored, written, ())
        lost += [] if stored is written else [written.version]
    return lost


@given(st.lists(st.tuples(st.integers(0, SITES - 1), st.integers(0, 200)), max_size=12))
def test_a_session_never_loses_its_later_write(moves: list[tuple[int, int]]) -> None:
    assert lost_writes(HybridClock, moves) == []


@pytest.mark.parametrize("clock", [WallClock, DeafClock])
def test_by_wall_clock_alone_a_session_reads_101_at_b_and_its_later_write_51_at_a_loses(
    clock: type[HybridClock],
) -> None:
    moves = [(B, 101), (A, 51)]
    assert lost_writes(clock, moves) == [Version(51 << COUNTER_BITS, A)]
    assert lost_writes(HybridClock, moves) == []


def test_by_wall_clock_alone_the_second_write_of_one_millisecond_is_lost() -> None:
    moves = [(A, 7), (A, 7)]
    assert lost_writes(WallClock, moves)
    assert lost_writes(HybridClock, moves) == []
