"""A hybrid logical clock: time that respects causality and stays close to the wall clock.

Kulkarni et al., "Logical Physical Clocks" (2014), in one number: milliseconds in the upper 48 bits, a counter in the
lower 16. A tick is the wall clock, or one more than the greatest time ever seen, whichever is greater; a counter that
runs over simply carries into the milliseconds. So what happens after something has the greater time, although wall
clocks jump, stand still and disagree; and where they agree, times can be read as times.

This is what makes the greatest version a *good* winner. With wall clocks alone a session reads version 101 at b, writes
version 51 at a, and its own later write loses (SAFETY 9). With this clock the price of a bad wall clock is only that
everybody's times run ahead; `ahead_ms` measures it, and the replica refuses client writes where it becomes too much.

No wall clock is read here: whoever asks says what time it is.
"""

from __future__ import annotations

from kvstore.errors import ClockSkew

COUNTER_BITS = 16
TIME_BELIEVED = 1 << 63  # the latest time taken from a peer, in the year 6429; beyond it: its message is malformed
TIME_MAX = (1 << 64) - 1  # what fits into a packed version; beyond it: ClockSkew


class HybridClock:
    """One site's clock. `latest` is committed with every batch and given back after a restart."""

    __slots__ = ("latest",)

    def __init__(self, latest: int = 0) -> None:
        self.latest = latest

    def tick(self, now_ms: int) -> int:
        """The time of a new update: greater than every time given or merged before."""
        time = max(self.latest + 1, now_ms << COUNTER_BITS)
        if time > TIME_MAX:
            raise ClockSkew("the clock has come to its end: somebody gave us a time that leaves no later one")
        self.latest = time
        return time

    def merge(self, time: int) -> None:
        """A time that somebody else gave: in a message, a heartbeat, a token. Whatever we give next is greater."""
        if time > self.latest:
            self.latest = time

    def ahead_ms(self, now_ms: int) -> int:
        """How far this clock runs ahead of the wall clock; below zero when it has not ticked for a while."""
        return time_ms(self.latest) - now_ms


def time_ms(time: int) -> int:
    """The milliseconds of a hybrid time."""
    return time >> COUNTER_BITS
