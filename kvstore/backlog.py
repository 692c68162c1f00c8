"""What is to be sent on one link: the outbox on disk is the truth, and memory only a shortcut to its end.

A message is handed over when its commit is durable, and it may be sent from then on, never before (SAFETY 2). While the
link keeps up, messages are taken from memory in the moment they come. When it falls behind, memory keeps the newest
few and the rest is read from the outbox, a frame at a time; when nobody takes anything, because the peer is away,
memory keeps nothing at all. So a peer may be away for as long as the disk has room, at no cost in memory.
"""

from __future__ import annotations

from collections import deque

from causal.model import Site
from kvstore.effects import Envelope
from kvstore.errors import CorruptRecord
from kvstore.hello import ENVELOPES_MAX
from kvstore.layout import outbox_key, outbox_number
from kvstore.limits import Limits
from kvstore.storage.contract import Storage

ENVELOPE_OVERHEAD = 32  # bytes that an envelope takes on the wire beside control, payload and witness, about
CACHE_FRAMES = 16  # bytes kept in memory, in full frames; beyond it: they are read from the outbox


class Backlog:
    def __init__(self, peer: Site, storage: Storage, limits: Limits, *, said: int) -> None:
        self.said = said  # the newest number that may be sent
        self.next = said + 1  # the number that is sent next
        self.is_open = False  # whether anybody takes anything
        self.newest: tuple[int, bytes] = (0, b"")  # taken since the process started: its number and control
        self._peer = peer
        self._storage = storage
        self._count_max = min(limits.link_batch_max, ENVELOPES_MAX)
        self._bytes_max = limits.link_batch_bytes_max
        self._cache_max = limits.link_cache_max
        self._cache_bytes_max = CACHE_FRAMES * limits.link_batch_bytes_max
        self._fresh: deque[Envelope] = deque()  # without a gap up to `said`
        self._fresh_bytes = 0

    def __len__(self) -> int:
        """Messages in memory."""
        return len(self._fresh)

    def open(self, after: int) -> None:
        """The peer has everything up to here."""
        self.next = after + 1
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        self._fresh.clear()
        self._fresh_bytes = 0

    def add(self, envelopes: list[Envelope]) -> None:
        """These may be sent now. They follow what was said before."""
        assert envelopes[0].number == self.said + 1, f"{envelopes[0].number} was said after {self.said}"
        self.said = envelopes[-1].number
        if not self.is_open:
            return
        fresh = self._fresh
        for envelope in envelopes:
            fresh.append(envelope)
            self._fresh_bytes += _size(envelope)
        while len(fresh) > self._cache_max or self._fresh_bytes > self._cache_bytes_max:
            self._fresh_bytes -= _size(fresh.popleft())

    @property
    def is_empty(self) -> bool:
        """Everything that may be sent is sent."""
        return self.next > self.said

    @property
    def fills_a_frame(self) -> bool:
        """Waiting for more would not make the next frame larger; what has to be read from disk is late already."""
        return (
            self.said - self.next + 1 >= self._count_max
            or self._fresh_bytes >= self._bytes_max
            or not self._fresh
            or self.next < self._fresh[0].number
        )

    def take(self) -> list[Envelope]:
        """The messages of the next frame, one at least."""
        fresh = self._fresh
        while fresh and fresh[0].number < self.next:  # read from disk in the meantime
            self._fresh_bytes -= _size(fresh.popleft())
        taken = self._take_fresh() if fresh and fresh[0].number == self.next else self._read()
        self.next = taken[-1].number + 1
        self.newest = max(self.newest, (taken[-1].number, taken[-1].control))
        return taken

    def _take_fresh(self) -> list[Envelope]:
        fresh, room = self._fresh, self._bytes_max
        taken: list[Envelope] = []
        while fresh and len(taken) < self._count_max:
            size = _size(fresh[0])
            if taken and size > room:
                break
            taken.append(fresh.popleft())
            self._fresh_bytes -= size
            room -= size
        return taken

    def _read(self) -> list[Envelope]:
        stop = min(self.said + 1, self.next + self._count_max)
        room = self._bytes_max
        taken: list[Envelope] = []
        with self._storage.snapshot() as view:
            rows = view.scan("outbox", outbox_key(self._peer, self.next), outbox_key(self._peer, stop))
            for expected, (key, packed) in enumerate(rows, start=self.next):
                if outbox_number(key) != expected or (taken and len(packed) > room):
                    break
                taken.append(Envelope.unpack(expected, packed))
                room -= len(packed)
        if not taken:
            raise CorruptRecord(table="outbox", key=str(self.next), why="it is not there, and nobody acknowledged it")
        return taken


def _size(envelope: Envelope) -> int:
    return len(envelope.control) + len(envelope.payload) + len(envelope.witness) + ENVELOPE_OVERHEAD
