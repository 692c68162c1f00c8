"""What one step makes of the keys: the last commit, with the step's own changes laid over it.

A step reads what it has just written, long before it is on disk. Everything that changes goes into the step's batch,
with the marks by which it will be swept and the change that watchers will read.

A row of siblings can be written and taken away again within one step. In a batch a put always stays, whatever is
deleted, so the row's put must not be there any more; it is remembered where it lies.
"""

from __future__ import annotations

from causal.model import Dot
from kvstore.config import Cluster
from kvstore.effects import Step
from kvstore.layout import expiry_key, index_key, tombstone_key
from kvstore.placement import siblings_of
from kvstore.storage.contract import Snapshot
from kvstore.update import Record, Update, pack_change, pack_record, records_of, row_of, unpack_record


class Keys:
    """The keys of one replica. `begin` opens a step; the rest happens within it."""

    def __init__(self, cluster: Cluster) -> None:
        self.changes = 0  # index of the newest change
        self.changes_oldest = 1
        self._changes_max = cluster.limits.changes_max
        self._siblings = siblings_of(cluster)
        self._has_siblings = "siblings" in cluster.merge.values()

    _view: Snapshot
    _step: Step
    _overlay: dict[bytes, Record | None]  # what this step has read or made of a key; None: nothing is there
    _places: dict[bytes, int]  # in the batch's puts: where the rows of siblings that this step has written lie

    def begin(self, view: Snapshot, step: Step) -> None:
        self._view, self._step, self._overlay, self._places = view, step, {}, {}

    def is_siblings(self, key: bytes) -> bool:
        """Whether this key may have several values at once."""
        return self._has_siblings and self._siblings.find(key)

    def record(self, key: bytes) -> Record | None:
        """What is under a key now, this step included: with siblings, the whole row."""
        if key in self._overlay:
            return self._overlay[key]
        data = self._view.get("keys", key)
        record = None if data is None else unpack_record(data, key=key)
        self._overlay[key] = record
        return record

    def records(self, key: bytes) -> tuple[Record, ...]:
        """The same, each record by itself, greatest version first; expired ones too, until they are swept away."""
        return records_of(self.record(key))

    def expire(self, key: bytes, now_ms: int) -> None:
        """Take away the siblings that are expired. Who lives stays as it is."""
        row = self.record(key)
        left = [one for one in records_of(row) if one.is_alive(now_ms)]
        if row is not None and len(left) <= len(row.others):
            rest = row_of(left, commit=row.commit)
            self.put(key, rest) if rest is not None else self.remove(key)

    def put(self, key: bytes, record: Record) -> None:
        """Replace what is under a key, with the marks by which it will be swept."""
        self._overlay[key] = record
        self._step.changed = True
        puts = self._step.batch.puts
        if self._has_siblings and self._siblings.find(key):
            self._put_row(key, record)
            return
        puts.append(("keys", key, pack_record(record)))
        if record.value is None:
            puts.append(("tombstones", tombstone_key(record.version, key), b""))
        elif record.expires_ms:
            puts.append(("tombstones", expiry_key(record.expires_ms, key), b""))

    def _put_row(self, key: bytes, row: Record) -> None:
        batch = self._step.batch
        put = ("keys", key, pack_record(row))
        place = self._places.setdefault(key, len(batch.puts))
        if place < len(batch.puts):
            batch.puts[place] = put
        else:
            batch.puts.append(put)
        for one in records_of(row):
            if one.expires_ms and one.commit == batch.number:  # the others have their marks
                batch.puts.append(("tombstones", expiry_key(one.expires_ms, key), b""))

    def remove(self, key: bytes) -> None:
        """Nothing is left of a key, not even that it was deleted."""
        self._overlay[key] = None
        self._step.changed = True
        batch = self._step.batch
        batch.deletes.append(("keys", key))
        place = self._places.get(key)
        if place is not None:  # others know their places, so something must lie here: a mark that the next sweep clears
            batch.puts[place] = ("tombstones", expiry_key(0, key), b"")

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
