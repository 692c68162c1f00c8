"""Every bound of a replica, by name: its unit, and what happens beyond it.

What has no bound has one all the same, found on the worst day: memory, disk, or the patience of a client. So everything
that can grow is named here, and for each the consequence is decided: refuse, wait, drop the oldest, raise an alarm.
Limits refuse *client* writes only; nothing here ever stops a delivery (SAFETY 6).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from causal.codec import TOKEN_MAX
from kvstore.toml import wrong
from kvstore.update import KEY_MAX, UPDATES_MAX, VALUE_MAX

MIB = 1 << 20
FRAME_OVERHEAD = 16 * MIB  # bytes that a frame may take beside its updates
MESSAGE_OVERHEAD = 64  # bytes that one update alone in its message takes beside key and value, at most


def limit(default: int, *, least: int = 1, most: int = 1 << 48) -> int:
    return field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True, slots=True)
class Limits:
    """The `[limits]` of a cluster file; what it does not name is as here."""

    key_max: int = limit(480, most=KEY_MAX)  # bytes of a key; beyond it: KeyTooLong
    value_max: int = limit(MIB, most=VALUE_MAX)  # bytes of a value; beyond it: ValueTooLarge
    batch_max: int = limit(1000, most=UPDATES_MAX)  # operations of a batch or pipeline; beyond it: BatchTooLarge
    message_bytes_max: int = limit(8 * MIB, most=1 << 30)  # bytes of a batch's updates; beyond it: BatchTooLarge
    ttl_max_ms: int = limit(315_360_000_000)  # ms to live, ten years; beyond it: BadTtl
    scan_page_max: int = limit(1000)  # keys in one page of a scan; beyond it: the rest comes in further pages
    scan_page_bytes_max: int = limit(MIB)  # bytes in one page of a scan; beyond it: the same, after one key at least

    inbox_max: int = limit(8192)  # writes waiting for the loop; beyond it: InboxFull, at once
    inbox_bytes_max: int = limit(64 * MIB)  # bytes of them; beyond it: the same
    commit_max: int = limit(4096)  # inputs in one commit; beyond it: they wait for the next one
    commit_bytes_max: int = limit(2 * MIB)  # bytes of them; beyond it: the same, after one input at least
    calls_max: int = limit(4096)  # calls of clients under way; beyond it: TooManyWaiting, at once
    waits_max: int = limit(1024)  # requests waiting for a token to be due; beyond it: TooManyWaiting
    forwards_max: int = limit(256)  # forwarded reads under way; beyond it: TooManyWaiting
    deadline_default_ms: int = limit(10_000)  # ms for a request that brings no deadline; beyond it: DeadlineExceeded
    deadline_max_ms: int = limit(60_000)  # ms that a request may take or wait; beyond it: DeadlineExceeded
    token_bytes_max: int = limit(MIB, most=TOKEN_MAX)  # bytes of a token; beyond it: BadRequest, never cut short
    request_id_max: int = limit(64, most=64)  # bytes of a request id; beyond it: BadRequest
    requests_max: int = limit(100_000)  # request ids remembered; beyond it: the oldest go, a later retry acts again
    periodic_sync_ms: int = limit(100, most=60_000)  # ms without a sync in mode periodic; beyond it: one is made
    map_bytes_max: int = limit(1 << 40, least=MIB)  # bytes of the database file; beyond it: StorageFailed

    link_queue_max: int = limit(256)  # messages of one peer not yet taken; beyond it: its link is not read
    link_queue_bytes_max: int = limit(MIB)  # bytes of them; beyond it: the same
    link_held_max: int = limit(10_000)  # messages of one peer held back; beyond it: its link is not read
    link_held_bytes_max: int = limit(64 * MIB)  # bytes of them; beyond it: the same
    link_cache_max: int = limit(4096)  # messages kept in memory for one peer; beyond it: they are read from the outbox
    link_gather_ms: int = limit(5, most=1000)  # ms that a busy link gathers messages; beyond it: they are sent
    link_batch_max: int = limit(256)  # messages in one frame on a link; beyond it: another frame
    link_batch_bytes_max: int = limit(MIB)  # bytes in one frame; beyond it: the same, after one message at least
    outbox_bytes_max: int = limit(1 << 30)  # bytes one peer has not acknowledged; beyond it: OutboxFull for its keys
    outbox_alarm_percent: int = limit(50, most=100)  # percent of that; beyond it: an alarm
    heartbeat_ms: int = limit(200, most=60_000)  # ms that a link is idle; beyond it: a heartbeat
    peer_silent_ms: int = limit(5_000)  # ms without a word from a peer; beyond it: an alarm
    clock_skew_max_ms: int = limit(2_000)  # ms ahead of the peers' clocks; beyond it: ClockSkew for client writes

    watches_max: int = limit(1024)  # open watches; beyond it: TooManyWaiting
    event_backlog_max: int = limit(10_000)  # events that one reader has not taken; beyond it: lost, and counted
    changes_max: int = limit(100_000)  # changes kept for watches; beyond it: the oldest go, PositionTooOld for them
    snapshots_max: int = limit(16)  # snapshots leased at once; beyond it: TooManyWaiting
    snapshot_lease_max_ms: int = limit(60_000)  # ms that a snapshot is pinned; beyond it: it is given up
    trace_segment_rows_max: int = limit(50_000)  # rows of a trace segment; beyond it: it is sealed
    trace_segment_ms_max: int = limit(10_000)  # ms that a trace segment stays open; beyond it: it is sealed

    @property
    def frame_bytes_max(self) -> int:
        """What a replica takes in one frame of a link. Stamps and columns come to the updates."""
        return 2 * self.message_bytes_max + FRAME_OVERHEAD

    def __post_init__(self) -> None:
        for one in fields(self):
            value, least, most = getattr(self, one.name), one.metadata["least"], one.metadata["most"]
            if type(value) is not int or not least <= value <= most:
                raise wrong(f"limits.{one.name}", f"{value!r} is not a whole number from {least} to {most}")
        largest = self.key_max + self.value_max + MESSAGE_OVERHEAD
        if self.message_bytes_max < largest:
            raise wrong("limits.message_bytes_max", f"the largest key and value alone take {largest}")
        if self.link_batch_bytes_max > self.frame_bytes_max:
            raise wrong(
                "limits.link_batch_bytes_max", f"no peer takes a frame of more than {self.frame_bytes_max} bytes"
            )
        if self.outbox_bytes_max < self.message_bytes_max:
            raise wrong("limits.outbox_bytes_max", "it must hold at least one message of limits.message_bytes_max")
