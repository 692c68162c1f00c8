"""What a replica remembers of one peer: how far each direction has come, and what the peer has promised.

Outgoing messages are numbered and kept until the peer has committed them. Incoming ones are numbered too: `received` is
the newest we have taken, `applied` the newest that is delivered and committed, which is what we acknowledge. The
difference is held, in memory only; after a restart the peer sends it again.

A *promise* is a hybrid time: nothing older will come on this link any more. Clocks rise along a link, so whatever was
processed last makes it; a heartbeat counts once everything sent before it is applied.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

READINGS_KEPT = 5  # of a peer's wall clock
_CHUNK_BYTES = 1 << 16  # how finely the outbox is counted


@dataclass(slots=True)
class Link:
    sent: int = 0
    acked: int = 0
    trimmed: int = 0  # the outbox on disk begins after this number
    received: int = 0
    applied: int = 0
    promise: int = 0
    incarnation: int = 0  # of the peer's data; 0: we never met
    heard: tuple[int, int] = (0, 0)  # the newest heartbeat: it counts when this number is applied; its time
    wall_ahead_ms: int | None = None  # our wall clock before the peer's; None when it has not spoken lately
    outbox_bytes: int = 0
    held_bytes: int = 0  # received and not applied
    _readings: deque[int] = field(default_factory=lambda: deque(maxlen=READINGS_KEPT))
    _read_ms: int = 0  # when the last of them was taken
    _chunks: deque[list[int]] = field(default_factory=deque)  # [last number, bytes], oldest first

    def post(self, size: int) -> int:
        """The number of a new message of so many bytes."""
        self.sent += 1
        self.keep(self.sent, size)
        return self.sent

    def keep(self, number: int, size: int) -> None:
        """Count a message that lies in the outbox."""
        self.outbox_bytes += size
        if self._chunks and self._chunks[-1][1] < _CHUNK_BYTES:
            self._chunks[-1][0] = number
            self._chunks[-1][1] += size
        else:
            self._chunks.append([number, size])

    def ack(self, up_to: int) -> bool:
        """The peer has committed up to here. Whether that is news."""
        if up_to <= self.acked:
            return False
        self.acked = min(up_to, self.sent)
        while self._chunks and self._chunks[0][0] <= self.acked:
            self.outbox_bytes -= self._chunks.popleft()[1]
        return True

    def apply(self, number: int, time: int) -> None:
        """A message is delivered; messages of one link are delivered in its order."""
        self.applied = number
        self.promise = max(self.promise, time)
        self._count_heartbeat()

    def compare_clocks(self, *, ahead_ms: int, now_ms: int) -> None:
        """A heartbeat says what the peer's wall clock showed. On its way it can only have grown older, so of some
        readings the least is the nearest to the truth."""
        self._readings.append(ahead_ms)
        self._read_ms = now_ms
        self.wall_ahead_ms = min(self._readings)

    def forget_clock(self, *, now_ms: int, silent_ms: int) -> None:
        """Silence proves nothing (SAFETY 19): what a peer's clock showed long ago must not refuse anybody."""
        if now_ms - self._read_ms > silent_ms:
            self._readings.clear()
            self.wall_ahead_ms = None

    def hear(self, time: int) -> None:
        self.heard = (self.received, time)
        self._count_heartbeat()

    def _count_heartbeat(self) -> None:
        after, time = self.heard
        if self.applied >= after:
            self.promise = max(self.promise, time)
