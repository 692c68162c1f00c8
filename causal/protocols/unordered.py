"""`unordered`, a control: whatever arrives is delivered at once, repeats excepted. An oracle must reject it."""

from __future__ import annotations

from causal.blocks import Reader, pack_count, pack_numbers
from causal.model import Message, Missing, Site
from causal.protocols.fifo import LinkMulticast


class Unordered(LinkMulticast):
    name = "unordered"
    number = 9
    paper = "a control"
    carries = "nothing (a link number, to recognise repeats)"
    promise = "no order"

    def __init__(self, site: Site, sites: int) -> None:
        super().__init__(site, sites)
        self._early: list[set[int]] = [set() for _ in range(sites)]  # delivered ahead of a gap, by sender

    def _missing(self, message: Message) -> Missing | None:
        return None

    def _learn(self, message: Message) -> None:
        site = message.dot.site
        early = self._early[site]
        early.add(message.stamp.number)
        while self._links.delivered[site] + 1 in early:
            self._links.delivered[site] += 1
            early.discard(self._links.delivered[site])

    def _is_repeat(self, message: Message) -> bool:
        site, number = message.dot.site, message.stamp.number
        return number <= self._links.delivered[site] or number in self._early[site]

    def _pack_state(self) -> bytes:
        sets = [sorted(early) for early in self._early]
        blocks = [pack_count(len(early)) + pack_numbers(early) for early in sets]
        return super()._pack_state() + b"".join(blocks)

    def _unpack_state(self, reader: Reader) -> None:
        super()._unpack_state(reader)
        self._early = [set(reader.numbers(reader.count(reader.left()))) for _ in range(self.sites)]
