"""`false-causality`: Gambhire and Kshemkalyani, "Reducing False Causality in Causal Message Ordering", 2000, figure 3.

Happens-before orders more than an application means. Two matrices tell the two apart: PREV holds what this message
must follow, CONC what was sent before it without being meant. A *dependent* send moves all of CONC into PREV (E1 to
E5); an independent one leaves PREV as it was, so it waits for less.

The paper counts messages and needs CONC = all - PREV. With message numbers in the cells (see `causal.rows`), "all" is
itself merged by maximum, so `sent` = PREV + CONC is kept in CONC's place. Counting is also why the paper assumes FIFO
links: an independent message does not name its own predecessors, and on a link that overtakes, semantic order breaks.
So a copy carries its link number, and one that overtook its predecessor waits for it.

A token is the stamp of a dependent message: its PREV is everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from causal.blocks import Reader, pack_numbers
from causal.errors import Malformed
from causal.links import LinkNumbers, pack_link, unpack_link
from causal.model import Dot, Mask, Message, Missing, Site
from causal.multicast import Multicast
from causal.rows import Matrix, Rows, pack_rows, unpack_rows


class Meant(NamedTuple):
    """A causal past, and the part of it that what comes next is meant to follow."""

    previous: Matrix  # SENT_PREV
    sent: Matrix  # SENT_PREV + SENT_CONC

    def dependent(self) -> Meant:
        return Meant(self.sent, self.sent)

    def merged(self, other: Meant) -> Meant:
        return Meant(self.previous.merged(other.previous), self.sent.merged(other.sent))

    def joined(self, other: Meant, at: Site) -> Meant:
        return self.merged(other)

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        return self.previous.first_missing(at, delivered)

    def highest(self, site: Site) -> int:
        return self.sent.highest(site)

    def units(self) -> int:
        return 2 * self.sent.units()


class MeantStamp(NamedTuple):
    past: Meant
    link: int

    def at(self, site: Site) -> MeantStamp:
        return self

    def highest(self, site: Site) -> int:
        return self.past.highest(site)

    def units(self) -> int:
        return self.past.units()


class MeantStamps(NamedTuple):
    past: Meant
    links: Mapping[Site, int]

    def at(self, site: Site) -> MeantStamp:
        return MeantStamp(self.past, self.links[site])


class FalseCausality(Multicast[Meant]):
    name = "false-causality"
    number = 3
    paper = "Gambhire and Kshemkalyani 2000, figure 3"
    carries = "two n x n matrices, SENT_PREV and SENT_CONC, and a link number"
    promise = "causal order among messages that are meant to depend on each other"
    heeds_meaning = True

    def __init__(self, site: Site, sites: int) -> None:
        super().__init__(site, sites)
        self._links = LinkNumbers(sites)

    def token(self) -> Meant:
        return super().token().dependent()

    def _origin(self) -> Meant:
        empty = Matrix.empty(self.sites)
        return Meant(empty, empty)

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> MeantStamps:
        past = self.context.dependent() if semantic else self.context
        self.context = Meant(past.previous, past.sent.with_message(dot, to))
        return MeantStamps(past, self._links.number(to))

    def _missing(self, message: Message) -> Missing | None:
        stamp: MeantStamp = message.stamp
        needed = stamp.past.first_missing(self.site, self.delivered)
        return needed or self._links.first_missing(message.dot.site, stamp.link)

    def _learn(self, message: Message) -> None:
        stamp: MeantStamp = message.stamp
        self._links.deliver(message.dot.site, stamp.link)
        previous, sent = self.context.merged(stamp.past)
        self.context = Meant(previous, sent.with_message(message.dot, message.to))

    def _reached(self, site: Site) -> list[tuple[bool, int]]:
        return [*super()._reached(site), (True, self._links.delivered[site])]

    def _pack_stamps(self, stamps: MeantStamps | MeantStamp, to: Sequence[Site]) -> Iterable[bytes]:
        past = self._pack_context(stamps.past)
        return [past + pack_link(stamps.at(site).link) for site in to]

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> MeantStamp:
        return MeantStamp(self._unpack_context(reader), unpack_link(reader))

    def _pack_context(self, context: Meant) -> bytes:
        """PREV, then how far each cell of `sent` is ahead of it: CONC, as small numbers."""
        previous, sent = context.previous.rows, context.sent.rows
        pairs = ((a, b) for one, other in zip(previous, sent, strict=True) for a, b in zip(one, other, strict=True))
        ahead = [b - a if b > a else 0 for a, b in pairs]  # never behind, unless somebody lied to us
        return pack_rows(previous) + pack_numbers(ahead)

    def _unpack_context(self, reader: Reader) -> Meant:
        previous = unpack_rows(reader, self.sites)
        ahead = unpack_rows(reader, self.sites)
        return Meant(Matrix(previous), Matrix(_added(previous, ahead)))

    def _pack_state(self) -> bytes:
        return self._links.pack()

    def _unpack_state(self, reader: Reader) -> None:
        self._links.unpack(reader)


def _added(previous: Rows, ahead: Rows) -> Rows:
    sums = tuple(
        [tuple([a + b for a, b in zip(one, other, strict=True)]) for one, other in zip(previous, ahead, strict=True)]
    )
    if max(map(max, sums)) >= 1 << 64:
        raise Malformed("a matrix cell beyond 64 bits")
    return sums
