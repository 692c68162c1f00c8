"""What goes into a step of the replica, and what comes out of it.

A step decides; somebody else does. What comes out must be done in this order: commit the batch; only then send, ack
and answer. Whoever speaks before the commit can be made a liar by a crash (a dot used twice, an acknowledged update
lost), and in this system a lie spreads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from causal.model import Dot, Mask, Missing, Site
from kvstore.errors import CorruptRecord, KvError
from kvstore.past import Past, Seen
from kvstore.storage.contract import Batch
from kvstore.update import Version

ABSENT = Version(0, 0)  # as an expectation: the key must not be there

VERSION_BYTES = 10  # of a version that a write replaces, in its message

_ENVELOPE = Struct("<QIHH")  # time, bytes of control, of witness, of meant


class Operation(NamedTuple):
    """One write of a client. The doors have checked key, value and time to live."""

    key: bytes
    value: bytes | None  # None deletes
    ttl_ms: int = 0  # 0 is for ever
    expect: Version | None = None  # compare-and-set: what must be there now; ABSENT for nothing
    replaces: tuple[Version, ...] = ()  # where keys merge by siblings: what the writer has seen

    @property
    def size(self) -> int:
        return len(self.key) + len(self.value or b"") + VERSION_BYTES * len(self.replaces)


class Write(NamedTuple):
    """A client's request: all of its operations or none."""

    operations: tuple[Operation, ...]
    request_id: bytes = b""  # a retry with the same one has one effect; empty: no retry
    past: Past | None = None  # of the session that writes; due here, or the write is refused
    independent: bool = False  # it is said to depend on nothing
    depends: tuple[Version, ...] = ()  # it is said to depend on these, and on nothing else

    @property
    def size(self) -> int:
        return sum([one.size for one in self.operations])


class Envelope(NamedTuple):
    """A message on a link. Packed, it waits in the outbox until the peer has committed it; never stamped again."""

    number: int  # on this link, from 1
    time: int  # the sender's hybrid clock: nothing older follows on this link
    control: bytes  # dot, destinations and stamp
    payload: bytes  # the updates, for this destination
    witness: bytes = b""  # a plain vector clock, only where tracing is on; traces are checked against it
    meant: bytes = b""  # the messages that its updates were meant to follow, packed; empty: not known

    @property
    def size(self) -> int:
        return len(self.control) + len(self.payload) + len(self.witness) + len(self.meant)

    def pack(self) -> bytes:
        head = _ENVELOPE.pack(self.time, len(self.control), len(self.witness), len(self.meant))
        return b"".join((head, self.control, self.witness, self.meant, self.payload))

    @classmethod
    def unpack(cls, number: int, data: bytes) -> Envelope:
        if len(data) < _ENVELOPE.size:
            raise CorruptRecord(table="outbox", key=str(number), why=f"{len(data)} bytes are less than a head")
        time, control_size, witness_size, meant_size = _ENVELOPE.unpack_from(data)
        witness_at = _ENVELOPE.size + control_size
        meant_at = witness_at + witness_size
        payload_at = meant_at + meant_size
        control, witness = data[_ENVELOPE.size : witness_at], data[witness_at:meant_at]
        return cls(number, time, control, data[payload_at:], witness, data[meant_at:payload_at])


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


class Greeted(NamedTuple):
    """A hello between us and a peer went well."""

    peer: Site
    incarnation: int  # of the peer's data
    is_accepted_by_peer: bool = False  # it answered our hello; else we answered its hello
    time: int = 0  # what the peer knows of our hybrid clock: nothing we send may be older


class Tick(NamedTuple):
    """Time passed: what is expired becomes a tombstone, tombstones that nothing can need any more go."""


Input = Write | Arrived | Heard | Acked | Greeted | Tick


class Written(NamedTuple):
    """The answer to a write."""

    versions: tuple[Version, ...]  # of its operations, in order
    commit: int  # the local commit that holds it
    is_repeat: bool = False  # the request was done before; this is its answer again
    dot: Dot | None = None  # of the message that carries it; not remembered for repeats


class Committed(NamedTuple):
    """The state as of one commit: the only thing a reader of that commit may speak of."""

    number: int
    past: Past | None  # of a session that has seen all of it; None where the protocol has no sessions
    delivered: tuple[int, ...]
    time: int  # hybrid clock
    changes: int  # index of the newest change


class Event(NamedTuple):
    """Something that happened to a message, for traces: in the past tense."""

    kind: str  # sent, received, held, released, delivered, applied, adopted, duplicate, restarted
    dot: Dot
    peer: Site  # the other end of the link, or ourselves
    number: int = 0  # on the link
    missing: Missing | None = None  # of a held one
    to: Mask = 0  # all its destinations
    is_extra: bool = False
    semantic: bool = True  # whether it depends on what its site had sent and delivered
    control_bytes: int = 0
    units: int = 0  # of control information, as the papers count it; known to the sender
    payload_bytes: int = 0
    updates: int = 0  # in it; of an applied one: those that changed a key
    keys: tuple[bytes, ...] = ()  # changed, of an applied one
    time: int = 0  # hybrid clock of its sender when it was stamped
    witness: bytes = b""
    depends_on: Seen = None  # the messages that its updates were meant to follow; None: not known
    session: str = ""  # of an adopted past: the name of its token
    cause: str = ""  # of a held one: whether it needs what it waits for; true, false or unknown


class Moment(NamedTuple):
    """One moment by both clocks: what it is called, and what durations are taken by."""

    wall_ns: int
    mono_ns: int


class Happened(NamedTuple):
    """What one turn of the loop made true, once it is durable."""

    commit: int  # its number; when nothing had to be committed, of the last one before
    events: list[Event]
    stepped: Moment
    committed: Moment
    inputs: int
    updates: int  # written or delivered


@dataclass(slots=True)
class Step:
    """What the caller must do, in this order: commit `batch`; then send, ack and answer."""

    batch: Batch
    sends: dict[Site, list[Envelope]] = field(default_factory=dict)
    acks: dict[Site, int] = field(default_factory=dict)
    answers: dict[int, Written | KvError] = field(default_factory=dict)  # by the input's place
    refused: dict[Site, KvError] = field(default_factory=dict)  # peers whose link must be closed, and why
    events: list[Event] = field(default_factory=list)
    updates: int = 0  # written or delivered
    changed: bool = False  # whether there is anything to commit
