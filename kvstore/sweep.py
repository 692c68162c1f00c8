"""What time takes away: values that expire, and tombstones that nothing can need any more.

An expired value *is* a tombstone of the same version from its deadline on; every site comes to that by itself, no
message says so and no origin must be alive (SAFETY 17). The sweep only makes it so on disk. Where keys have siblings
there are no tombstones: an expired one goes, and its siblings stay.

A tombstone keeps an older write that is still under way from bringing the key back. It may go when no older write can
come: clocks rise along each link, so each peer's last word promises that nothing older follows, and when the least of
all promises has passed the tombstone it is free to go (SAFETY 16). A peer that is away stops the collection; that all
destinations acknowledged the delete is not enough.

The marks in the table `tombstones` are only hints: a key that was written again meanwhile keeps its new record.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from kvstore.clock import TIME_MAX
from kvstore.errors import CorruptRecord
from kvstore.keys import Keys
from kvstore.layout import EXPIRY, TOMBSTONE, expiry_of, index_key, tombstone_of
from kvstore.link import Link
from kvstore.storage.contract import Batch, Snapshot
from kvstore.update import SITE_MAX, Version

SWEEP_MAX = 1000  # marks of each kind looked at in one sweep; the rest waits for the next


def sweep(keys: Keys, links: Iterable[Link], view: Snapshot, batch: Batch, now_ms: int) -> None:
    with suppress(CorruptRecord):  # a mark that does not pass its check stops the sweep there, and nothing else
        _expire(keys, view, batch, now_ms)
    with suppress(CorruptRecord):
        _collect(keys, least_promise(links), view, batch)


def least_promise(links: Iterable[Link]) -> int:
    """No peer will send anything older than this. Alone there is nobody to wait for."""
    return min((link.promise for link in links), default=TIME_MAX)


def _expire(keys: Keys, view: Snapshot, batch: Batch, now_ms: int) -> None:
    for mark, _ in view.scan("tombstones", EXPIRY, EXPIRY + index_key(now_ms + 1), limit=SWEEP_MAX):
        deadline_ms, key = expiry_of(mark)
        try:
            record = keys.record(key)
        except CorruptRecord:  # whoever reads it is told; a sweep leaves it alone
            continue
        if keys.is_siblings(key):
            keys.expire(key, now_ms)
        elif record is not None and record.value is not None and record.expires_ms == deadline_ms:
            keys.put(key, record._replace(value=None))
        batch.deletes.append(("tombstones", mark))


def _collect(keys: Keys, promise: int, view: Snapshot, batch: Batch) -> None:
    passed = TOMBSTONE + Version(promise, SITE_MAX).pack()
    for mark, _ in view.scan("tombstones", TOMBSTONE, passed, limit=SWEEP_MAX):
        version, key = tombstone_of(mark)
        try:
            record = keys.record(key)
        except CorruptRecord:
            continue
        if record is not None and record.value is None and record.version == version:
            keys.remove(key)
        batch.deletes.append(("tombstones", mark))
