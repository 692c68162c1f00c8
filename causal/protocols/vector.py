"""`vector`, a baseline: the broadcast special case of KS section 7.1, known as vector clocks.

When every message goes to everybody, one number a sender says it all. Only for full replication.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from causal.blocks import Reader, pack_numbers
from causal.errors import BadDestinations, Malformed
from causal.model import Dot, Mask, Message, Missing, Site
from causal.multicast import Multicast


class Clock(NamedTuple):
    """The number of each site's newest message in this past. It is its own stamp."""

    times: tuple[int, ...]

    def at(self, site: Site) -> Clock:
        return self

    def merged(self, other: Clock) -> Clock:
        return Clock(tuple(map(max, self.times, other.times)))

    def joined(self, other: Clock, at: Site) -> Clock:
        return self.merged(other)

    def with_message(self, dot: Dot) -> Clock:
        site, seq = dot
        return Clock((*self.times[:site], seq, *self.times[site + 1 :]))

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        for site, time in enumerate(self.times):
            if time > delivered[site] and site != at:
                return Missing(site, time)
        return None

    def highest(self, site: Site) -> int:
        return self.times[site]

    def units(self) -> int:
        return len(self.times)


class Vector(Multicast[Clock]):
    name = "vector"
    number = 7
    paper = "broadcast special case, Kshemkalyani and Singhal 1998, section 7.1"
    carries = "n counters"
    promise = "causal order; every message must go to all other sites"

    def _origin(self) -> Clock:
        return Clock((0,) * self.sites)

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> Clock:
        before = self.context
        self.context = before.with_message(dot)
        return before

    def _learn(self, message: Message) -> None:
        self.context = self.context.merged(message.stamp).with_message(message.dot)

    def _check_destinations(self, to: Mask) -> None:
        super()._check_destinations(to)
        if to | 1 << self.site != (1 << self.sites) - 1:
            raise BadDestinations("vector needs every message to go to all other sites")

    def _check_message(self, message: Message) -> None:
        super()._check_message(message)
        if message.to | 1 << message.dot.site != (1 << self.sites) - 1:
            raise Malformed("a vector message that does not go to all other sites")

    def _pack_context(self, context: Clock) -> bytes:
        return pack_numbers(context.times)

    def _unpack_context(self, reader: Reader) -> Clock:
        return Clock(tuple(reader.numbers(self.sites)))
