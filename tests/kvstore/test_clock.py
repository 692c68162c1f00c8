"""Time only rises, whatever the wall clock does and whatever others say; and the check sees clocks that break this."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.clock import COUNTER_BITS, TIME_MAX, HybridClock, time_ms
from kvstore.errors import ClockSkew

WALL = st.integers(-(1 << 40), 1 << 41) | st.integers(0, 5)  # set back, set forward, before 1970, standing still
THEIRS = st.integers(0, 1 << 57) | st.integers(0, 5 << COUNTER_BITS)
STEPS = st.lists(
    st.tuples(st.just("tick"), WALL) | st.tuples(st.just("merge"), THEIRS) | st.tuples(st.just("restart"), WALL)
)
BACKWARDS = [("tick", 101), ("tick", 51)]
STANDING = [("tick", 5), ("tick", 5)]
AFTER_A_MESSAGE = [("tick", 5), ("merge", 9 << COUNTER_BITS), ("tick", 6)]


def times_that_did_not_rise(clock: HybridClock, steps: list[tuple[str, int]]) -> list[int]:
    """Times given by `clock` that are not above everything it gave or was told before."""
    greatest, wrong = clock.latest, []
    for step, number in steps:
        if step == "tick":
            time = clock.tick(number)
            wrong += [time] if time <= greatest else []
            greatest = max(greatest, time)
        elif step == "merge":
            clock.merge(number)
            greatest = max(greatest, number)
        else:
            clock = type(clock)(clock.latest)
    return wrong


@given(STEPS)
def test_time_rises_under_any_jumps_merges_and_restarts(steps: list[tuple[str, int]]) -> None:
    assert times_that_did_not_rise(HybridClock(), steps) == []


class WallClock(HybridClock):
    def tick(self, now_ms: int) -> int:
        return now_ms << COUNTER_BITS


class DeafClock(HybridClock):
    def merge(self, time: int) -> None: ...


class ForgetfulClock(HybridClock):
    """Takes the other's time even when its own is greater."""

    def merge(self, time: int) -> None:
        self.latest = time


@pytest.mark.parametrize(
    ("clock", "steps"),
    [
        (WallClock, BACKWARDS),
        (WallClock, STANDING),
        (DeafClock, AFTER_A_MESSAGE),
        (ForgetfulClock, [("tick", 9), ("merge", 0), ("tick", 5)]),
    ],
)
def test_the_check_sees_a_clock_that_does_not_rise(clock: type[HybridClock], steps: list[tuple[str, int]]) -> None:
    assert times_that_did_not_rise(clock(), steps)
    assert not times_that_did_not_rise(HybridClock(), steps)


def test_a_good_wall_clock_can_be_read_from_the_time() -> None:
    clock = HybridClock()
    assert [time_ms(clock.tick(now)) for now in (1000, 1000, 1001, 1500)] == [1000, 1000, 1001, 1500]


def test_a_counter_that_runs_over_carries_into_the_milliseconds() -> None:
    clock = HybridClock((1001 << COUNTER_BITS) - 1)
    assert clock.tick(1000) == 1001 << COUNTER_BITS


@given(wall=st.integers(0, 1 << 40), ticks=st.integers(1, 50))
def test_many_ticks_in_one_millisecond_stay_close_to_it(wall: int, ticks: int) -> None:
    clock = HybridClock()
    for _ in range(ticks):
        clock.tick(wall)
    assert clock.ahead_ms(wall) == 0


def test_how_far_ahead_is_measured_against_the_wall_clock() -> None:
    clock = HybridClock()
    clock.merge(5000 << COUNTER_BITS)
    assert (clock.ahead_ms(2000), clock.ahead_ms(5000), clock.ahead_ms(6000)) == (3000, 0, -1000)


def test_at_the_end_of_time_writes_are_refused_by_name_and_the_clock_stays_as_it_was() -> None:
    clock = HybridClock(TIME_MAX - 1)
    assert clock.tick(0) == TIME_MAX
    for now_ms in (0, 1 << 50):
        with pytest.raises(ClockSkew, match="end") as caught:
            clock.tick(now_ms)
        assert caught.value.definite
        assert clock.latest == TIME_MAX
