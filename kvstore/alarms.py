"""What is wrong and wants an operator: each with a name that never changes, a sentence, and what to do about it.

An alarm is a state, not an event: it stands from when it began until it is over, and is logged at both moments, not
in between. Most are seen by looking: `check` takes the facts of a running replica every so often, and `alarms_of` says
what is wrong with them, which is a function of the facts alone. Some are told by those who know, like a link that was
refused.

What comes and goes with every look is one alarm: it is over when it was not seen for a while.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from kvstore.clock import time_ms
from kvstore.layout import TOMBSTONE, tombstone_of
from kvstore.limits import MIB, Limits

if TYPE_CHECKING:
    from kvstore.node import Node

QUIET_MS = 2_000  # without being seen, then an alarm is over
HELD_LONG_MS = 60_000  # that a message has waited; beyond it: an alarm
TOMBSTONES_KEPT_MS = 60_000  # that a delete could not be forgotten because of a peer; beyond it: an alarm
STORAGE_PERCENT = 90  # of the limit map_bytes_max; beyond it: an alarm
DISK_FREE_MIN_BYTES = 256 * MIB  # on the disk of the data; below it: the same alarm

# Every reason there is, and what to do about it.
REASONS: Mapping[str, str] = {
    "AMNESIA": "Stop this replica and give it its newest data back; until then clients cannot write here",
    "CLOCK_AHEAD": "Set the clocks of all sites right; until time has caught up, times to live run out early",
    "CLOCK_SKEW": "Set the clock of this machine right; until then clients cannot write here",
    "HELD_LONG": "See `kvstore explain`; the site that sent the missing message has to come back",
    "LINK_REFUSED": "One of the two sites is set up wrongly or has lost data; until then it gets nothing from here",
    "OUTBOX_FILLING": "Bring it back; at the limit outbox_bytes_max writes to keys that it holds are refused here",
    "OUTBOX_FULL": "Bring it back; until then writes to keys that it holds are refused here",
    "PEER_CLOCK": "Set the clock there right; until then its writes win over later ones of other sites",
    "PEER_REFUSED": "One of the two sites is set up wrongly or has lost data; until then nothing comes from it",
    "PEER_SILENT": "See whether it runs and whether this machine can reach it; what it misses waits here",
    "RESTORED": "Bring them back; until they have said that nothing is lost, clients cannot write here",
    "STORAGE_NEARLY_FULL": "Make room, or this replica ends when it is full",
    "TOMBSTONES_KEPT": "Bring it back; until then deletes take up space",
    "TRACE_LOST": "The disk of the trace is too slow for this load; the trace has a hole, the data has none",
    "TRACE_STOPPED": "Repair what the sentence names and start the replica again; the data are not concerned",
}

Key = tuple[str, str]  # reason and peer

log = logging.getLogger("kvstore.alarms")


class Alarm(NamedTuple):
    reason: str
    message: str  # what is wrong and what to do about it
    details: Mapping[str, str]

    @property
    def key(self) -> Key:
        return self.reason, self.details.get("peer", "")


class Standing(NamedTuple):
    """An alarm and since when it stands."""

    alarm: Alarm
    since_ms: int


# What is looked at


@dataclass(frozen=True, slots=True)
class PeerFacts:
    name: str
    silent_ms: int  # since it was last heard, or since we started
    trouble: str = ""  # why there is no connection
    outbox_bytes: int = 0
    outbox_messages: int = 0
    wall_ahead_ms: int | None = None  # our clock before its clock, when it last spoke
    promise_ms: int = 0  # nothing older than this will come from it
    is_absent: bool = False  # its link to us is not open


@dataclass(frozen=True, slots=True)
class Facts:
    site: str
    limits: Limits
    now_ms: int
    clock_ms: int = 0  # the hybrid clock
    peers: tuple[PeerFacts, ...] = ()
    fence: str = ""  # why no client may write here
    unproven: tuple[str, ...] = ()  # peers who have not said yet that nothing is lost
    held: int = 0
    held_oldest_ms: int = 0  # how long
    tombstone_oldest_ms: int | None = None  # when the oldest delete happened that is still remembered
    storage_bytes: int = 0
    disk_free_bytes: int | None = None
    trace_lost: int = 0
    trace_trouble: str = ""


def alarms_of(facts: Facts) -> list[Alarm]:
    """What is wrong, going by these facts."""
    found = [*_own_alarms(facts), *_clock_alarms(facts), *_trace_alarms(facts)]
    for peer in facts.peers:
        found += _peer_alarms(facts, peer)
    return found


def _own_alarms(facts: Facts) -> Iterator[Alarm]:
    if facts.fence:
        yield alarm("AMNESIA", facts.fence, site=facts.site)
    if facts.unproven:
        peers = ", ".join(facts.unproven)
        sentence = f"{facts.site} was restored from a backup; {peers} did not say yet whether anything is lost"
        yield alarm("RESTORED", sentence, site=facts.site, peers=peers)
    if facts.held_oldest_ms > HELD_LONG_MS:
        sentence = f"{facts.held} messages are held back, the oldest for {_seconds(facts.held_oldest_ms)}"
        yield alarm("HELD_LONG", sentence, held=facts.held, held_ms=facts.held_oldest_ms, limit=HELD_LONG_MS)
    size, limit = facts.storage_bytes, facts.limits.map_bytes_max
    if size * 100 >= limit * STORAGE_PERCENT:
        sentence = f"the data take {_mib(size)} of the {_mib(limit)} that map_bytes_max allows"
        yield alarm("STORAGE_NEARLY_FULL", sentence, size_bytes=size, limit=limit)
    elif facts.disk_free_bytes is not None and facts.disk_free_bytes < DISK_FREE_MIN_BYTES:
        sentence = f"the disk of the data has {_mib(facts.disk_free_bytes)} left"
        yield alarm("STORAGE_NEARLY_FULL", sentence, free_bytes=facts.disk_free_bytes, limit=DISK_FREE_MIN_BYTES)


def _clock_alarms(facts: Facts) -> Iterator[Alarm]:
    """Being ahead of everybody is our fault; being behind somebody is theirs (SAFETY 19)."""
    most = facts.limits.clock_skew_max_ms
    ahead = [peer.wall_ahead_ms for peer in facts.peers if peer.wall_ahead_ms is not None]
    if ahead and min(ahead) > most:
        sentence = f"the clock of {facts.site} is {min(ahead)} ms ahead of all peers; {most} ms are allowed"
        yield alarm("CLOCK_SKEW", sentence, site=facts.site, ahead_ms=min(ahead), limit=most)
    if facts.clock_ms - facts.now_ms > most:
        ahead_ms = facts.clock_ms - facts.now_ms
        sentence = f"the times of versions are {ahead_ms} ms ahead of the clock of {facts.site}"
        yield alarm("CLOCK_AHEAD", sentence, site=facts.site, ahead_ms=ahead_ms, limit=most)


def _trace_alarms(facts: Facts) -> Iterator[Alarm]:
    if facts.trace_trouble:
        yield alarm("TRACE_STOPPED", f"the trace has ended: {facts.trace_trouble}", site=facts.site)
    elif facts.trace_lost:
        yield alarm("TRACE_LOST", f"{facts.trace_lost} rows of the trace are lost", lost=facts.trace_lost)


def _peer_alarms(facts: Facts, peer: PeerFacts) -> Iterator[Alarm]:
    limits, name = facts.limits, peer.name
    size, most = peer.outbox_bytes, limits.outbox_bytes_max
    if size * 100 >= most * limits.outbox_alarm_percent:
        reason = "OUTBOX_FULL" if size >= most else "OUTBOX_FILLING"
        sentence = f"{peer.outbox_messages} messages wait for {name}, {_mib(size)} of the {_mib(most)} that may"
        yield alarm(reason, sentence, peer=name, size_bytes=size, messages=peer.outbox_messages, limit=most)
    if peer.silent_ms > limits.peer_silent_ms:
        why = f" ({peer.trouble})" if peer.trouble else ""
        sentence = f"nothing was heard from {name} for {_seconds(peer.silent_ms)}{why}"
        yield alarm("PEER_SILENT", sentence, peer=name, silent_ms=peer.silent_ms, limit=limits.peer_silent_ms)
    if peer.wall_ahead_ms is not None and -peer.wall_ahead_ms > limits.clock_skew_max_ms:
        sentence = f"the clock of {name} is {-peer.wall_ahead_ms} ms ahead of the one of {facts.site}"
        yield alarm("PEER_CLOCK", sentence, peer=name, ahead_ms=-peer.wall_ahead_ms, limit=limits.clock_skew_max_ms)
    oldest_ms = facts.tombstone_oldest_ms
    is_kept = oldest_ms is not None and peer.promise_ms <= oldest_ms < facts.now_ms - TOMBSTONES_KEPT_MS
    if oldest_ms is not None and is_kept and peer.is_absent:
        age = _seconds(facts.now_ms - oldest_ms)
        sentence = f"deletes cannot be forgotten, the oldest for {age}, because {name} is away"
        yield alarm("TOMBSTONES_KEPT", sentence, peer=name, since_ms=oldest_ms, limit=TOMBSTONES_KEPT_MS)


def alarm(reason: str, sentence: str, **details: str | int) -> Alarm:
    return Alarm(reason, f"{sentence}. {REASONS[reason]}", {name: str(value) for name, value in details.items()})


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:.0f} s"


# What stands


@dataclass(slots=True)
class Entry:
    alarm: Alarm
    since_ms: int
    seen_ms: int
    is_told: bool = False  # by somebody who will also say when it is over

    def standing(self) -> Standing:
        return Standing(self.alarm, self.since_ms)


@dataclass(slots=True)
class Alarms:
    """The alarms of one replica. All of it runs on the loop."""

    now_ms: Callable[[], int]
    _entries: dict[Key, Entry] = field(default_factory=dict)

    def raise_(self, reason: str, message: str, /, **details: str) -> None:
        """It stands until it is cleared."""
        self._see(alarm(reason, message, **details), is_told=True)

    def clear(self, reason: str, /, **details: str) -> None:
        """What was raised for this reason with these details is over."""
        for entry in list(self._entries.values()):
            found = entry.alarm
            if entry.is_told and found.reason == reason and details.items() <= found.details.items():
                self._end(entry)

    def check(self, node: Node) -> None:
        """Look at a running replica."""
        self.look(facts_of(node))

    def look(self, facts: Facts) -> None:
        for one in alarms_of(facts):
            self._see(one)
        now_ms = self.now_ms()
        for entry in list(self._entries.values()):
            if not entry.is_told and now_ms - entry.seen_ms > QUIET_MS:
                self._end(entry)

    def current(self) -> list[Standing]:
        """What stands now, the oldest first."""
        return sorted((entry.standing() for entry in self._entries.values()), key=lambda one: one.since_ms)

    def _see(self, seen: Alarm, *, is_told: bool = False) -> None:
        now_ms = self.now_ms()
        entry = self._entries.get(seen.key)
        if entry is None:
            self._entries[seen.key] = Entry(seen, now_ms, now_ms, is_told)
            log.warning("alarm %s: %s", seen.reason, seen.message)
        elif is_told or not entry.is_told:
            entry.alarm, entry.seen_ms = seen, now_ms
            entry.is_told = entry.is_told or is_told

    def _end(self, entry: Entry) -> None:
        del self._entries[entry.alarm.key]
        stood_s, (reason, peer) = (self.now_ms() - entry.since_ms) / 1000, entry.alarm.key
        log.warning("alarm %s%s is over, after %.0f s", reason, f" about {peer}" if peer else "", stood_s)


# From a running replica


def facts_of(node: Node) -> Facts:
    replica, now_ms = node.replica, node.now_ms()
    oldest = next(iter(replica.held.values()), None)
    return Facts(
        site=node.site.name,
        limits=node.cluster.limits,
        now_ms=now_ms,
        clock_ms=time_ms(replica.clock.latest),
        peers=tuple(_peer_facts(node, peer) for peer in replica.links),
        fence=str(replica.fence or ""),
        unproven=tuple(node.cluster.sites[peer].name for peer in sorted(replica.unproven)),
        held=len(replica.held),
        held_oldest_ms=max(0, now_ms - oldest.since_ms) if oldest is not None else 0,
        tombstone_oldest_ms=_oldest_tombstone_ms(node),
        storage_bytes=node.storage.size_bytes(),
        disk_free_bytes=_disk_free_bytes(node),
        trace_lost=node.trace.lost if node.trace is not None else 0,
        trace_trouble=node.trace.trouble if node.trace is not None else "",
    )


def _peer_facts(node: Node, peer: int) -> PeerFacts:
    link, heard = node.replica.links[peer], heard_ms(node, peer)
    return PeerFacts(
        name=node.cluster.sites[peer].name,
        silent_ms=node.now_ms() - node.started_ms if heard is None else heard,
        trouble=node.links.state(peer).trouble or node.peering.state(peer).trouble,
        outbox_bytes=link.outbox_bytes,
        outbox_messages=link.sent - link.acked,
        wall_ahead_ms=link.wall_ahead_ms,
        promise_ms=time_ms(link.promise),
        is_absent=not node.peering.state(peer).connected,
    )


def heard_ms(node: Node, peer: int) -> int | None:
    """How long ago a peer last said anything, on either link; None: never, since the process started."""
    heard = max(node.links.state(peer).heard_mono, node.peering.state(peer).heard_mono)
    return max(0, round((time.monotonic() - heard) * 1000)) if heard else None


def _oldest_tombstone_ms(node: Node) -> int | None:
    """Marks lie in the order of their versions: the first is the oldest."""
    with node.storage.snapshot() as view:
        for mark, _ in view.scan("tombstones", TOMBSTONE, limit=1):
            return time_ms(tombstone_of(mark)[0].time)
    return None


def _disk_free_bytes(node: Node) -> int | None:
    try:
        found = os.statvfs(node.cluster.data_of(node.site))
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
