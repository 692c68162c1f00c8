"""The matrix of Raynal, Schiper and Toueg: cell (k, l) is the number of k's newest message to l, as far as is known.

The paper counts messages on each link; with message numbers in the cells a cell names a dot, and the delivery
condition is the same. Merging is the maximum cell by cell, but it need not look at cells. Row k is fixed by how many
messages of k are known: k's sends are totally ordered, and each only raises cells. So of two versions of a row one
is at least as great in *every* cell, the greater one as a tuple, and a merge of two matrices is n comparisons of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from causal.blocks import Reader, pack_numbers
from causal.errors import Malformed
from causal.model import Dot, Mask, Missing, Site

Rows = tuple[tuple[int, ...], ...]


class Matrix(NamedTuple):
    """A causal past as a matrix. It is its own stamp: every copy carries the whole of it."""

    rows: Rows

    @staticmethod
    def empty(sites: int) -> Matrix:
        return Matrix(((0,) * sites,) * sites)

    def at(self, site: Site) -> Matrix:
        return self

    def merged(self, other: Matrix) -> Matrix:
        return Matrix(tuple(map(max, self.rows, other.rows)))

    def joined(self, other: Matrix, at: Site) -> Matrix:
        return self.merged(other)

    def with_message(self, dot: Dot, to: Mask) -> Matrix:
        """The same past and the message `dot`, told about with *all* its destinations: each of them may pass the
        knowledge on to another before the copy arrives there. A message that is known already changes nothing; only
        under `false-causality` can it come later than the news of it."""
        rows = self.rows
        site, seq = dot
        row = tuple([seq if to >> column & 1 and cell < seq else cell for column, cell in enumerate(rows[site])])
        return Matrix((*rows[:site], row, *rows[site + 1 :]))

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        for site, row in enumerate(self.rows):
            if row[at] > delivered[site] and site != at:
                return Missing(site, row[at])
        return None

    def highest(self, site: Site) -> int:
        return max(self.rows[site])

    def units(self) -> int:
        return len(self.rows) ** 2


def pack_rows(rows: Rows) -> bytes:
    return pack_numbers([cell for row in rows for cell in row])


def unpack_rows(reader: Reader, sites: int) -> Rows:
    cells = reader.numbers(sites * sites)
    if any(cells[:: sites + 1]):
        raise Malformed("a matrix says that a site sent a message to itself")
    return tuple([tuple(cells[start : start + sites]) for start in range(0, sites * sites, sites)])
