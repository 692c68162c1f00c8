"""What a message to d must wait for, kept as one column a destination: sender -> message number.

A matrix whose empty cells are not stored, read by columns. `direct` and `extra-message` both keep it; they differ in
what they take out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from causal.blocks import Reader, pack_count, pack_numbers
from causal.errors import Malformed
from causal.model import Mask, Missing, Site, sites_of

Column = Mapping[Site, int]  # sender -> number of its message; never changed once made
_EMPTY: Column = {}


class Columns(NamedTuple):
    columns: tuple[Column, ...]  # by destination

    @staticmethod
    def empty(sites: int) -> Columns:
        return Columns((_EMPTY,) * sites)

    def at(self, site: Site) -> Columns:
        return self

    def merged(self, other: Columns) -> Columns:
        return Columns(tuple(map(merged_column, self.columns, other.columns)))

    def joined(self, other: Columns, at: Site) -> Columns:
        """What had to be delivered at `at` is; its column is empty from then on."""
        return self.merged(other).replaced(1 << at, _EMPTY)

    def replaced(self, of: Mask, by: Column) -> Columns:
        """The same, but one and the same column for all sites of a set."""
        columns = list(self.columns)
        for site in sites_of(of):
            columns[site] = by
        return Columns(tuple(columns))

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        return first_missing(self.columns[at], delivered)

    def highest(self, site: Site) -> int:
        return max([column.get(site, 0) for column in self.columns])

    def units(self) -> int:
        return sum(map(len, self.columns))


def merged_column(one: Column, other: Column) -> Column:
    """The maximum cell by cell. A column that knows nothing, or nothing new, costs nothing."""
    if one is other or not other:
        return one
    if not one:
        return other
    merged = dict(one)
    for site, seq in other.items():
        if merged.get(site, 0) < seq:
            merged[site] = seq
    return merged


def first_missing(column: Column, delivered: Sequence[int]) -> Missing | None:
    unmet = [Missing(site, seq) for site, seq in column.items() if seq > delivered[site]]
    return min(unmet) if unmet else None


def pack_column(column: Column) -> bytes:
    return pack_count(len(column)) + pack_numbers(list(column)) + pack_numbers(list(column.values()))


def unpack_column(reader: Reader, sites: int, receiver: Site) -> Column:
    count = reader.count(sites)
    senders, seqs = reader.numbers(count), reader.numbers(count)
    column = dict(zip(senders, seqs, strict=True))
    if len(column) != count or (count and max(senders) >= sites) or not all(seqs) or receiver in column:
        raise Malformed("a column names a site twice, an unknown site, its receiver, or message 0")
    return column


def pack_columns(columns: Sequence[Column]) -> bytes:
    """How long each column is, then all senders, then all numbers: three blocks."""
    senders = [site for column in columns for site in column]
    seqs = [seq for column in columns for seq in column.values()]
    return pack_numbers(list(map(len, columns))) + pack_numbers(senders) + pack_numbers(seqs)


def unpack_columns(reader: Reader, sites: int) -> Columns:
    lengths = reader.numbers(sites)
    if max(lengths) > sites:
        raise Malformed(f"a column of {max(lengths)} entries among {sites} sites")
    total = sum(lengths)
    senders, seqs = reader.numbers(total), reader.numbers(total)
    if total and (max(senders) >= sites or not all(seqs)):
        raise Malformed("a column names an unknown site or message 0")
    columns: list[Column] = []
    start = 0
    for site, length in enumerate(lengths):
        stop = start + length
        column = dict(zip(senders[start:stop], seqs[start:stop], strict=True))
        if len(column) != length or site in column:
            raise Malformed(f"the column of site {site} names a sender twice, or the site itself")
        columns.append(column)
        start = stop
    return Columns(tuple(columns))
