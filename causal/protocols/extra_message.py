"""`extra-message`: Sanchez and Alvarez, "A lightweight asynchronous algorithm for causal delivery using extra message
insertion", section 3.

A matrix of which only the non-zero cells are stored and sent, at most k of them. Cells are zero for three reasons: a
site's own column is satisfied; a message to j stands for all that was in column j before; and when a site has more
than k cells it sends an *extra message* to the site with the fullest column, which then stands for that column. The
price: later messages wait for the extra message as well.

The paper speaks of unicasts. A copy of a multicast tells its receiver about the other destinations too: their columns
as they are after the send (the message itself, which the copy's destinations say anyway), the receiver's own as it was
before. So a copy can have more cells than the matrix it is made from, and room is made *before* stamping, until every
copy fits. A delivery or an adopted token can pass the threshold as well, and emit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from causal.blocks import Reader
from causal.columns import (
    Column,
    Columns,
    first_missing,
    merged_column,
    pack_column,
    pack_columns,
    unpack_column,
    unpack_columns,
)
from causal.errors import BadOption, Malformed
from causal.model import Dot, Mask, Message, Missing, Site, sites_of
from causal.multicast import Multicast, Outgoing


class ColumnStamp(NamedTuple):
    """An extra message's stamp: the receiver's column, and nothing to learn."""

    own: Column

    def at(self, site: Site) -> ColumnStamp:
        return self

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        return first_missing(self.own, delivered)

    def highest(self, site: Site) -> int:
        return self.own.get(site, 0)

    def units(self) -> int:
        return len(self.own)


class SparseStamp(NamedTuple):
    """A copy's cells: its receiver's column, those of sites that are no destination, and one for each other receiver.

    The latter name the message itself; they count, but the destinations say them already.
    """

    common: Columns  # the columns of all destinations are empty
    own: Column
    others: int  # how many other destinations there are

    def at(self, site: Site) -> SparseStamp:
        return self

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        return first_missing(self.own, delivered)

    def highest(self, site: Site) -> int:
        return max(self.own.get(site, 0), self.common.highest(site))

    def units(self) -> int:
        return self.common.units() + len(self.own) + self.others


class SparseStamps(NamedTuple):
    common: Columns
    before: Columns
    others: int

    def at(self, site: Site) -> SparseStamp:
        return SparseStamp(self.common, self.before.columns[site], self.others)


def default_threshold(sites: int) -> int:
    """No matrix has more cells, so nothing extra is sent: the best choice wherever bytes and waiting both count.

    docs/algorithms.md has the measurement, and what a smaller threshold buys.
    """
    return max(sites + 1, (sites - 1) ** 2)


class ExtraMessage(Multicast[Columns]):
    name = "extra-message"
    number = 4
    paper = "Sanchez and Alvarez, section 3"
    carries = "at most k non-zero cells of a matrix"
    promise = "causal order; no user message carries more than k cells"
    makes_extras = True

    def __init__(self, site: Site, sites: int, *, threshold: int | None = None) -> None:
        super().__init__(site, sites)
        most = max(sites * sites, sites + 1)
        self.threshold = default_threshold(sites) if threshold is None else threshold
        if not isinstance(self.threshold, int) or not sites < self.threshold <= most:
            raise BadOption(f"threshold {threshold}: it must be above n = {sites} and at most n * n = {most}")

    @property
    def options(self) -> dict[str, int]:
        return {"threshold": self.threshold}

    def _origin(self) -> Columns:
        return Columns.empty(self.sites)

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> SparseStamps:
        before = self.context
        self.context = before.replaced(to, {dot.site: dot.seq})
        return SparseStamps(before.replaced(to, {}), before, to.bit_count() - 1)

    def _learn(self, message: Message) -> None:
        if message.is_extra:
            return
        sender, seq = message.dot
        columns = list(self.context.merged(message.stamp.common).columns)
        for site in sites_of(message.to):
            columns[site] = merged_column(columns[site], {sender: seq})
        columns[self.site] = {}
        self.context = Columns(tuple(columns))

    def _make_room(self, to: Mask) -> list[Outgoing]:
        made: list[Outgoing] = []
        while self._largest_copy(to) > self.threshold:
            columns = self.context.columns
            fullest = max(range(self.sites), key=lambda site: len(columns[site]))  # the lowest-numbered one of equals
            dot = self.take_dot()
            made.append(Outgoing(dot, 1 << fullest, ColumnStamp(columns[fullest]), is_extra=True))
            self.context = self.context.replaced(1 << fullest, {dot.site: dot.seq})
        return made

    def _largest_copy(self, to: Mask) -> int:
        """How many cells the largest copy of a message to `to` would have; to nobody: how many there are."""
        lengths = list(map(len, self.context.columns))
        inside = [lengths[site] for site in sites_of(to)]
        if not inside:
            return sum(lengths)
        return sum(lengths) - sum(inside) + max(inside) + len(inside) - 1

    def _pack_stamps(self, stamps: SparseStamps | SparseStamp | ColumnStamp, to: Sequence[Site]) -> Iterable[bytes]:
        common = b"" if isinstance(stamps, ColumnStamp) else pack_columns(stamps.common.columns)
        return [common + pack_column(stamps.at(site).own) for site in to]

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> SparseStamp | ColumnStamp:
        if is_extra:
            if to != 1 << self.site:
                raise Malformed("an extra message to more than one site")
            return ColumnStamp(unpack_column(reader, self.sites, self.site))
        common = unpack_columns(reader, self.sites)
        if any(common.columns[site] for site in sites_of(to)):
            raise Malformed("a column of a destination among the common columns")
        stamp = SparseStamp(common, unpack_column(reader, self.sites, self.site), to.bit_count() - 1)
        if stamp.units() > self.threshold:
            raise Malformed(f"{stamp.units()} cells, but the threshold is {self.threshold}")
        return stamp

    def _pack_context(self, context: Columns) -> bytes:
        return pack_columns(context.columns)

    def _unpack_context(self, reader: Reader) -> Columns:
        return unpack_columns(reader, self.sites)
