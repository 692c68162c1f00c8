"""Where a key lives, and how its values merge: by its longest prefix in a table.

A write goes to the sites that hold its key; the papers' multicast to arbitrary groups is for just this. The prefix `""`
is in every table, so every key has an answer, and all replicas have the same table (the hello compares it): a key that
two of them place differently would be lost to one of them without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from causal.model import Mask, mask_of
from kvstore.config import Cluster
from kvstore.merge import MERGES, Merge

T = TypeVar("T")


class PrefixTable(Generic[T]):
    """The longest prefix wins. One look-up for each length that occurs, longest first; with `""` alone, none."""

    __slots__ = ("_fallback", "_lengths", "_rows")

    def __init__(self, rows: Mapping[bytes, T]) -> None:
        self._rows = dict(rows)
        self._fallback = self._rows.pop(b"")
        self._lengths = sorted({len(prefix) for prefix in self._rows}, reverse=True)

    def find(self, key: bytes) -> T:
        rows = self._rows
        for length in self._lengths:
            # A key shorter than this is looked up whole, and then is itself the longest prefix it can have.
            prefix = key[:length]
            if prefix in rows:
                return rows[prefix]
        return self._fallback


class Placement:
    """Which sites hold which keys."""

    __slots__ = ("_table", "everyone", "is_full")

    def __init__(self, cluster: Cluster) -> None:
        numbers = {site.name: site.number for site in cluster.sites}
        masks = {prefix: mask_of(numbers[name] for name in names) for prefix, names in cluster.placement.items()}
        self.everyone: Mask = mask_of(numbers.values())
        self.is_full = set(masks.values()) == {self.everyone}  # every site holds every key
        self._table = PrefixTable({b"": self.everyone} if self.is_full else masks)

    def sites_of(self, key: bytes) -> Mask:
        """The sites that hold this key, the writer among them if it does."""
        return self._table.find(key)


def merges_of(cluster: Cluster) -> PrefixTable[Merge]:
    """Which merge each key follows."""
    return PrefixTable({prefix: MERGES[name] for prefix, name in cluster.merge.items()})
