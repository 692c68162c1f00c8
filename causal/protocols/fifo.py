"""`fifo`, a control: copies on one link keep their order, and nothing else does. An oracle must reject it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from causal.blocks import Reader
from causal.links import LinkNumbers, LinkStamp, LinkStamps, Nothing, pack_link, unpack_link
from causal.model import Dot, Mask, Message, Missing, Site
from causal.multicast import Multicast


class LinkMulticast(Multicast[Nothing]):
    """What the two controls share: a link number on every copy, and no causal past."""

    is_causal = False
    size = 0  # of a stamp in units

    def __init__(self, site: Site, sites: int) -> None:
        super().__init__(site, sites)
        self._links = LinkNumbers(sites)

    def _origin(self) -> Nothing:
        return Nothing()

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> LinkStamps:
        return LinkStamps(self._links.number(to), self.size)

    def _pack_stamps(self, stamps: LinkStamps | LinkStamp, to: Sequence[Site]) -> Iterable[bytes]:
        return [pack_link(stamps.at(site).number) for site in to]

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> LinkStamp:
        return LinkStamp(unpack_link(reader), self.size)

    def _pack_context(self, context: Nothing) -> bytes:
        return b""

    def _unpack_context(self, reader: Reader) -> Nothing:
        return Nothing()

    def _pack_state(self) -> bytes:
        return self._links.pack()

    def _unpack_state(self, reader: Reader) -> None:
        self._links.unpack(reader)


class Fifo(LinkMulticast):
    name = "fifo"
    number = 8
    paper = "a control"
    carries = "a link number"
    promise = "order on each link only"
    size = 1

    def _missing(self, message: Message) -> Missing | None:
        return self._links.first_missing(message.dot.site, message.stamp.number)

    def _learn(self, message: Message) -> None:
        self._links.deliver(message.dot.site, message.stamp.number)

    def _reached(self, site: Site) -> list[tuple[bool, int]]:
        return [(True, self._links.delivered[site])]
