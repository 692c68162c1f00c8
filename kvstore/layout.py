"""Where things lie in the tables. Numbers are big-endian, so that the order of keys is the order of numbers."""

from __future__ import annotations

from struct import Struct

from causal.model import Site
from kvstore.update import Version

_OUTBOX = Struct(">HQ")
_INDEX = Struct(">Q")

SITE = b"site"  # in meta: clock, counters and protocol state
TOMBSTONE = b"t"  # in tombstones: version, key; all that is deleted
EXPIRY = b"e"  # in tombstones: deadline, key; all that will expire
BY_ID, BY_AGE = b"i", b"a"  # in requests: id -> answer; number -> id, to forget the oldest first


def outbox_key(peer: Site, number: int) -> bytes:
    return _OUTBOX.pack(peer, number)


def outbox_number(key: bytes) -> int:
    number: int = _OUTBOX.unpack(key)[1]
    return number


def index_key(index: int) -> bytes:
    return _INDEX.pack(index)


def index_of(key: bytes) -> int:
    index: int = _INDEX.unpack(key)[0]
    return index


def tombstone_key(version: Version, key: bytes) -> bytes:
    return TOMBSTONE + version.pack() + key


def tombstone_of(key: bytes) -> tuple[Version, bytes]:
    return Version.unpack(key[1:11]), key[11:]


def expiry_key(deadline_ms: int, key: bytes) -> bytes:
    return EXPIRY + _INDEX.pack(deadline_ms) + key


def expiry_of(key: bytes) -> tuple[int, bytes]:
    return index_of(key[1:9]), key[9:]
