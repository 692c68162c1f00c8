"""Request ids that were done, with their answers: a retry has one effect, also after a crash.

The answer is committed in the same batch as the write, so either both are there or neither. Only so many are kept; a
retry that comes later than that acts again.
"""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct

from kvstore.effects import Written
from kvstore.errors import CorruptRecord
from kvstore.layout import BY_AGE, BY_ID, index_key, index_of
from kvstore.storage.contract import Batch, Snapshot
from kvstore.update import Version

_COMMIT = Struct(">Q")
_VERSION_BYTES = 10


class Requests:
    def __init__(self, most: int) -> None:
        self._most = most
        self._done: OrderedDict[bytes, tuple[int, Written]] = OrderedDict()  # id -> number, answer; the oldest first
        self._newest = 0

    def answer(self, request_id: bytes) -> Written | None:
        """What a request was answered when it was done."""
        found = self._done.get(request_id)
        return None if found is None else found[1]._replace(is_repeat=True)

    def remember(self, request_id: bytes, written: Written, batch: Batch) -> None:
        if not request_id:
            return
        self._newest += 1
        self._done[request_id] = (self._newest, written)
        batch.puts.append(("requests", BY_ID + request_id, _pack(written)))
        batch.puts.append(("requests", BY_AGE + index_key(self._newest), request_id))
        if len(self._done) > self._most:
            oldest, (number, done) = self._done.popitem(last=False)
            if (
                done.commit == batch.number
            ):  # remembered a moment ago, in this very batch, where a put outlives a delete
                gone = {BY_ID + oldest, BY_AGE + index_key(number)}
                batch.puts[:] = [put for put in batch.puts if put[0] != "requests" or put[1] not in gone]
            else:
                batch.deletes += [("requests", BY_ID + oldest), ("requests", BY_AGE + index_key(number))]

    def load(self, view: Snapshot) -> None:
        for key, request_id in view.scan("requests", BY_AGE, BY_ID):
            packed = view.get("requests", BY_ID + request_id)
            if packed is None:
                raise CorruptRecord(table="requests", key=request_id.hex(), why="a request without its answer")
            self._newest = index_of(key[1:])
            self._done[request_id] = (self._newest, _unpack(packed))


def _pack(written: Written) -> bytes:
    return _COMMIT.pack(written.commit) + b"".join([version.pack() for version in written.versions])


def _unpack(packed: bytes) -> Written:
    (commit,) = _COMMIT.unpack_from(packed)
    places = range(_COMMIT.size, len(packed), _VERSION_BYTES)
    return Written(tuple(Version.unpack(packed[at : at + _VERSION_BYTES]) for at in places), commit)
