"""Link numbers: the copies from one site to another, counted from 1.

A protocol whose delivery rule counts on FIFO links stamps the link number and holds a copy that overtook its
predecessor (the remedy of KS section 7.1). `unordered` uses the numbers only to recognise a repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from causal.blocks import Reader, pack_numbers
from causal.errors import Malformed
from causal.model import Mask, Missing, Site, sites_of


class LinkNumbers:
    """One site's counters, for the copies it sent and the copies it delivered."""

    __slots__ = ("delivered", "sent")

    def __init__(self, sites: int) -> None:
        self.sent = [0] * sites
        self.delivered = [0] * sites  # all up to this number are delivered

    def number(self, to: Mask) -> dict[Site, int]:
        """The link numbers of a new message's copies."""
        numbers = {}
        for site in sites_of(to):
            self.sent[site] += 1
            numbers[site] = self.sent[site]
        return numbers

    def deliver(self, sender: Site, number: int) -> None:
        """Never backwards, whatever a sender says."""
        self.delivered[sender] = max(self.delivered[sender], number)

    def first_missing(self, sender: Site, number: int) -> Missing | None:
        """The copy's predecessor on its link, unless that is delivered."""
        return Missing(sender, number - 1, by_link=True) if self.delivered[sender] < number - 1 else None

    def pack(self) -> bytes:
        return pack_numbers(self.sent) + pack_numbers(self.delivered)

    def unpack(self, reader: Reader) -> None:
        sites = len(self.sent)
        self.sent, self.delivered = reader.numbers(sites), reader.numbers(sites)


class LinkStamp(NamedTuple):
    """A stamp that is a link number and names no message."""

    number: int
    size: int  # in units: 1 where it orders, 0 where it does not count

    def at(self, site: Site) -> LinkStamp:
        return self

    def highest(self, site: Site) -> int:
        return 0

    def units(self) -> int:
        return self.size


class LinkStamps(NamedTuple):
    numbers: Mapping[Site, int]
    size: int

    def at(self, site: Site) -> LinkStamp:
        return LinkStamp(self.numbers[site], self.size)


def pack_link(number: int) -> bytes:
    return pack_numbers((number,))


def unpack_link(reader: Reader) -> int:
    number = reader.number()
    if not number:
        raise Malformed("link numbers start from 1")
    return number


class Nothing(NamedTuple):
    """The causal past of a protocol that keeps none."""

    def merged(self, other: Nothing) -> Nothing:
        return self

    def joined(self, other: Nothing, at: Site) -> Nothing:
        return self

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        return None

    def highest(self, site: Site) -> int:
        return 0

    def units(self) -> int:
        return 0
