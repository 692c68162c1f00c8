"""What one step makes of the keys: the last commit, with the step's own changes laid over it.

A step reads what it has just written, long before it is on disk. Everything that changes goes into the step's batch,
with the marks by which it will be swept and the change that watchers will read.
"""

from __future__ import annotations

from causal.model import Dot
from kvstore.config import Cluster
from kvstore.effects import Step
from kvstore.layout import expiry_key, index_key, tombstone_key
from kvstore.storage.contract import Snapshot
from kvstore.update import Record, Update, pack_change, pack_record, unpack_record


class Keys:
    """The keys of one replica. `begin` opens a step; the rest happens within it."""

    def __init__(self, cluster: Cluster) -> None:
        self.changes = 0  # index of the newest change
        self.changes_oldest = 1
        self._changes_max = cluster.limits.changes_max

    _view: Snapshot
    _step: Step
    _overlay: dict[bytes, Record | None]  # what this step has read or made of a key; None: nothing is there

    def begin(self, view: Snapshot, step: Step) -> None:
        self._view, self._step, self._overlay = view, step, {}

    def record(self, key: bytes) -> Record | None:
        """What is under a key now, this step included."""
        if key in self._overlay:
            return self._overlay[key]
        data = self._view.get("keys", key)
        record = None if data is None else unpack_record(data, key=key)
        self._overlay[key] = record
        return record

    def keep(self, update: Update, dot: Dot, index: int) -> None:
        """Put an update under its key."""
        key, value, version, expires_ms = update
        self.put(key, Record(version, value, expires_ms, dot, index, self._step.batch.number))

    def put(self, key: bytes, record: Record) -> None:
        """Replace what is under a key, with the marks by which it will be swept."""
        self._overlay[key] = record
        puts = self._step.batch.puts
        puts.append(("keys", key, pack_record(record)))
        if record.value is None:
            puts.append(("tombstones", tombstone_key(record.version, key), b""))
        elif record.expires_ms:
            puts.append(("tombstones", expiry_key(record.expires_ms, key), b""))
        self._step.changed = True

    def remove(self, key: bytes) -> None:
        """Nothing is left of a key, not even that it was deleted."""
        self._overlay[key] = None
        self._step.batch.deletes.append(("keys", key))
        self._step.changed = True

    def note_change(self, dot: Dot, updates: list[Update]) -> None:
        """Updates of a message changed keys: one change for each message, so that a watcher sees a batch whole."""
        if not updates:
            return
        self.changes += 1
        batch = self._step.batch
        batch.puts.append(("changes", index_key(self.changes), pack_change(dot, updates)))
        oldest = self.changes - self._changes_max + 1
        if oldest > self.changes_oldest:
            batch.drops.append(("changes", index_key(self.changes_oldest), index_key(oldest)))
            self.changes_oldest = oldest
        self._step.changed = True
