"""Which of two values a key keeps, decided alike at every site whatever the order of arrival.

Concurrent writes reach different sites in different orders, so a merge must be commutative, associative and idempotent;
then all sites that have seen the same updates hold the same record. A merge must also respect causality: what was
written in the knowledge of a value replaces it.

`lww`, the last writer wins: the greater version. Versions are hybrid times with a site behind them, so they are unique,
totally ordered, and a later version of a session is always greater (clock.py). Of two writes that did not know of each
other one is lost, without a trace; where that is not acceptable, a merge that keeps both belongs into this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvstore.update import Record

Merge = Callable[[Record | None, Record], Record]


def last_writer_wins(stored: Record | None, incoming: Record) -> Record:
    """The record with the greater version. The same update again changes nothing, so `stored` wins between equals."""
    return incoming if stored is None or incoming.version > stored.version else stored


MERGES: Mapping[str, Merge] = {"lww": last_writer_wins}
