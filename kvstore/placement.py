"""Where a key lives, and how its values merge: by its longest prefix in a table.

A write goes to the sites that hold its key; the papers' multicast to arbitrary groups is for just this. The prefix `""`
is in every table, so every key has an answer, and all replicas have the same table (the hello compares it): a key that
two of them place differently would be lost to one of them without anybody noticing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from causal.model import Mask, mask_of
from kvstore.config import Cluster
from kvstore.merge import MERGES, Merge

T = TypeVar("T")
FIRST_KEY = b"\0"  # the least of all keys


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

    __slots__ = ("_segments", "_table", "everyone", "is_full")

    def __init__(self, cluster: Cluster) -> None:
        numbers = {site.name: site.number for site in cluster.sites}
        masks = {prefix: mask_of(numbers[name] for name in names) for prefix, names in cluster.placement.items()}
        self.everyone: Mask = mask_of(numbers.values())
        self.is_full = set(masks.values()) == {self.everyone}  # every site holds every key
        self._table = PrefixTable({b"": self.everyone} if self.is_full else masks)
        self._segments = list(self._segmented(() if self.is_full else masks))

    def _segmented(self, prefixes: Iterable[bytes]) -> Iterator[tuple[bytes, bytes | None, Mask]]:
        """All keys cut where a prefix begins or ends: between two cuts (None: the end) all live at the same sites."""
        ends = [end for prefix in prefixes if (end := end_of_prefix(prefix)) is not None]
        cuts = sorted({FIRST_KEY, *filter(None, prefixes), *ends})
        for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
            yield start, stop, self.sites_of(start)

    def sites_of(self, key: bytes) -> Mask:
        """The sites that hold this key, the writer among them if it does."""
        return self._table.find(key)

    def holders(self, prefix: bytes) -> Mask:
        """The sites that hold every key with this prefix, written or not."""
        return self.holders_of_range(prefix, end_of_prefix(prefix))

    def holders_of_range(self, start: bytes, stop: bytes | None) -> Mask:
        """The sites that hold every key from `start` to before `stop`; None: to the end. Of no keys: all sites."""
        holders = self.everyone
        if stop is None or start < stop:
            for first, end, mask in self._segments:
                if (stop is None or first < stop) and (end is None or start < end):
                    holders &= mask
        return holders


def end_of_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all that begin with the prefix; None where there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


def merges_of(cluster: Cluster) -> PrefixTable[Merge]:
    """Which merge each key follows."""
    return PrefixTable({prefix: MERGES[name] for prefix, name in cluster.merge.items()})


def siblings_of(cluster: Cluster) -> PrefixTable[bool]:
    """Whether a key may have several values at once."""
    return PrefixTable({prefix: name == "siblings" for prefix, name in cluster.merge.items()})
