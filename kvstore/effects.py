"""What goes into a step of the replica, and what comes out of it.

A step decides; somebody else does. What comes out must be done in this order: commit the batch; only then send, ack
and answer. Whoever speaks before the commit can be made a liar by a crash (a dot used twice, an acknowledged update
lost), and in this system a lie spreads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any, NamedTuple

from causal.model import Dot, Mask, Missing, Site
from kvstore.errors import CorruptRecord, KvError
from kvstore.storage.contract import Batch
from kvstore.update import Version

ABSENT = Version(0, 0)  # as an expectation: the key must not be there

_ENVELOPE = Struct("<QI")  # time, bytes of control


class Operation(NamedTuple):
    """One write of a client. The doors have checked key, value and time to live."""

    key: bytes
    value: bytes | None  # None deletes
    ttl_ms: int = 0  # 0 is for ever
    expect: Version | None = None  # compare-and-set: what must be there now; ABSENT for nothing


class Write(NamedTuple):
    """A client's request: all of its operations or none."""

    operations: tuple[Operation, ...]
    request_id: bytes = b""  # a retry with the same one has one effect; empty: no retry


class Envelope(NamedTuple):
    """A message on a link. Packed, it waits in the outbox until the peer has committed it; never stamped again."""

    number: int  # on this link, from 1
    time: int  # the sender's hybrid clock: nothing older follows on this link
    control: bytes  # dot, destinations and stamp
    payload: bytes  # the updates, for this destination

    def pack(self) -> bytes:
        return _ENVELOPE.pack(self.time, len(self.control)) + self.control + self.payload

    @classmethod
    def unpack(cls, number: int, data: bytes) -> Envelope:
        if len(data) < _ENVELOPE.size:
            raise CorruptRecord(table="outbox", key=str(number), why=f"{len(data)} bytes are less than a head")
        time, size = _ENVELOPE.unpack_from(data)
        start = _ENVELOPE.size
        return cls(number, time, data[start : start + size], data[start + size :])


class Arrived(NamedTuple):
    """An envelope came from a peer, in the order of its link."""

    peer: Site
    envelope: Envelope


class Heard(NamedTuple):
    """A heartbeat came from a peer, behind everything the peer sent before it."""

    peer: Site
    time: int  # its hybrid clock
    wall_ms: int  # its wall clock


class Acked(NamedTuple):
    """A peer has committed everything we sent it up to this number."""

    peer: Site
    up_to: int


class Tick(NamedTuple):
    """Time passed: what is expired becomes a tombstone, tombstones that nothing can need any more go."""


Input = Write | Arrived | Heard | Acked | Tick


class Written(NamedTuple):
    """The answer to a write."""

    versions: tuple[Version, ...]  # of its operations, in order
    commit: int  # the local commit that holds it
    is_repeat: bool = False  # the request was done before; this is its answer again


class Committed(NamedTuple):
    """The state as of one commit: the only thing a reader of that commit may speak of."""

    number: int
    context: Any  # the causal past, ready to be a session's token
    delivered: tuple[int, ...]
    time: int  # hybrid clock
    changes: int  # index of the newest change


class Event(NamedTuple):
    """Something that happened to a message, for traces: in the past tense."""

    kind: str  # sent, received, held, delivered, duplicate
    dot: Dot
    peer: Site  # the other end of the link, or ourselves
    number: int = 0  # on the link
    missing: Missing | None = None  # of a held one
    to: Mask = 0  # of a sent one: all its destinations
    is_extra: bool = False
    control_bytes: int = 0
    payload_bytes: int = 0


@dataclass(slots=True)
class Step:
    """What the caller must do, in this order: commit `batch`; then send, ack and answer."""

    batch: Batch
    sends: dict[Site, list[Envelope]] = field(default_factory=dict)
    acks: dict[Site, int] = field(default_factory=dict)
    answers: dict[int, Written | KvError] = field(default_factory=dict)  # by the input's place
    refused: dict[Site, KvError] = field(default_factory=dict)  # peers whose link must be closed, and why
    events: list[Event] = field(default_factory=list)
    changed: bool = False  # whether there is anything to commit
