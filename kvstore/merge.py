"""What a key keeps when an update comes, decided alike at every site whatever the order of arrival.

Concurrent writes reach different sites in different orders, so merging them must be commutative, associative and
idempotent; then all sites that have seen the same updates hold the same values. A merge must also respect causality:
what was written in the knowledge of a value replaces it.

`lww`, the last writer wins: the greater version. Versions are hybrid times with a site behind them, so they are unique,
totally ordered, and a later version of a session is always greater (clock.py). Of two writes that did not know of each
other one is lost, without a trace.

`siblings` keeps both. A write names the versions that its writer had seen and wants gone; these go, all others stay
beside it. A delete only takes away. Nothing is left of what was taken away, no tombstone either: causal order brings a
write to every holder before the one that replaces it, so a replaced version cannot come back later. That is why
`siblings` needs a causal protocol, and links on which nothing comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvstore.update import REPLACES_MAX, Record, Version, records_of, row_of

# What is stored under the key, what comes, and what that replaces -> what the key holds from now on. `stored` itself
# says that nothing has changed, None that nothing is left.
Merge = Callable[[Record | None, Record, Sequence[Version]], Record | None]


def last_writer_wins(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record:
    """The record with the greater version. The same update again changes nothing, so `stored` wins between equals."""
    return incoming if stored is None or incoming.version > stored.version else stored


def keep_siblings(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    """All that nobody has replaced. The row remembers the commit also when something only went away."""
    there, gone = records_of(stored), set(replaces)
    left = [one for one in there if one.version not in gone]
    if incoming.value is not None and all(one.version != incoming.version for one in left):
        left.append(incoming)
    elif len(left) == len(there):
        return stored
    return row_of(left, commit=incoming.commit)


def siblings_max(sites: int) -> int:
    """How many values a key may have where a client adds one more; beyond it: the write is refused.

    A replica may refuse its own clients only, so others can still bring theirs. But of each site's writes a row never
    has more than that site had itself when it wrote the last of them, for what it had seen replaced is replaced here
    before. So one write can replace a whole row, and what its own batch has just added to it; only what expires at one
    site may stay a while longer at another, whose clock is behind.
    """
    return max(1, (REPLACES_MAX - 1) // sites)


MERGES: Mapping[str, Merge] = {"lww": last_writer_wins, "siblings": keep_siblings}
