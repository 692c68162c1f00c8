"""One replica, without its outside: inputs become effects on keys, peers and the asker.

A step takes what waits, in order, and decides in memory what happens; the caller then commits, and only then speaks
(effects.py). Reads do not come here: they look at the last commit.

Writes of clients that stand next to each other and go to the same sites share one message, so one stamp: a delivery, an
extra message or a write to other sites ends the run (SAFETY 14). A version is the hybrid clock at the moment of the
write, greater than everything this site has seen, so a local write always replaces what is here.

What a delivery asks for is never refused. Limits are asked of client writes alone (SAFETY 6).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from causal import Dot, Duplicate, Held, Message, Outgoing, encode
from causal.model import Mask, Site, sites_of
from causal.multicast import Multicast
from kvstore.clock import TIME_BELIEVED, HybridClock, time_ms
from kvstore.config import Cluster
from kvstore.effects import (
    ABSENT,
    Acked,
    Arrived,
    Committed,
    Envelope,
    Greeted,
    Heard,
    Input,
    Step,
    Tick,
    Write,
    Written,
)
from kvstore.errors import (
    ClockSkew,
    CorruptRecord,
    KvError,
    LinkGap,
    OutboxFull,
    Restored,
    VersionMismatch,
)
from kvstore.keys import Keys
from kvstore.layout import outbox_key
from kvstore.link import Link
from kvstore.notes import Notes
from kvstore.opening import opened
from kvstore.placement import Placement, merges_of
from kvstore.requests import Requests
from kvstore.storage.contract import Batch, Snapshot
from kvstore.sweep import sweep
from kvstore.update import UPDATES_MAX, Record, Update, Version, escape, pack_updates

RECENT_MAX = 4096  # delivered messages remembered, to explain by them why others wait; beyond it: the oldest go


class InTransit(NamedTuple):
    """An envelope that is taken and not yet delivered."""

    envelope: Envelope
    message: Message
    updates: list[Update]
    since_ms: int


@dataclass(slots=True)
class OpenMessage:
    """Writes that will share a stamp."""

    to: Mask
    updates: list[Update] = field(default_factory=list)
    bytes: int = 0


class Replica:
    """The state of one site between two commits. `persist.py` reads and writes it."""

    def __init__(self, cluster: Cluster, site: Site, ordering: Multicast[Any]) -> None:
        self.cluster = cluster
        self.site = site
        self.ordering = ordering
        self.incarnation = 1
        self.clock = HybridClock()
        self.links = {peer.number: Link() for peer in cluster.sites if peer.number != site}
        self.requests = Requests(cluster.limits.requests_max)
        self.hashes = cluster.hashes()
        self.placement = Placement(cluster)
        self.held: dict[Dot, InTransit] = {}  # between two steps; within one also what is being delivered
        self.recent: deque[Message] = deque(maxlen=RECENT_MAX)  # delivered here, newest last
        self.unproven: set[Site] = set()  # after a restore: peers who have not said yet that nothing is lost
        self._proofs: set[tuple[Site, bool]] = set()  # of those peers: who has answered whose hello
        self.fence: KvError | None = None  # why no client may write here, if none may
        self.keys = Keys(cluster)
        self.notes = Notes(site, len(cluster.sites))
        self._merges = merges_of(cluster)

    # One step: these live from its beginning to its end

    _view: Snapshot
    _step: Step
    _now_ms: int
    _open: OpenMessage | None

    def step(self, inputs: Sequence[Input], now_ms: int, view: Snapshot) -> Step:
        """Decide what these inputs make happen. `view` is the last commit; nothing is written."""
        self._view, self._now_ms = view, now_ms
        self._step = Step(Batch(view.number + 1))
        self._open = None
        self.keys.begin(view, self._step)
        self.notes.begin(self._step.events)
        for place, one in enumerate(inputs):
            match one:
                case Write():
                    self._write(place, one)
                case Arrived():
                    self._arrived(one)
                case Heard():
                    self._heard(one)
                case Acked():
                    self._acked(one)
                case Greeted():
                    self._greeted(one)
                case Tick():
                    self._tick()
        self._close()
        return self._finish()

    def committed(self, number: int) -> Committed:
        """The state after the last step, as the record of the commit that makes it true."""
        delivered = tuple(self.ordering.delivered)
        return Committed(number, self.ordering.context, delivered, self.clock.latest, self.keys.changes)

    def ordering_units(self) -> int:
        """How much the protocol remembers now, as its paper counts."""
        units: int = self.ordering.context.units()
        return units

    def known_seq(self, site: Site) -> int:
        """The newest message of a site that we have heard of, from anyone."""
        known: list[int] = [self.ordering.delivered[site], self.ordering.context.highest(site)]
        known += [transit.message.stamp.highest(site) for transit in self.held.values()]
        known += [dot.seq for dot in self.held if dot.site == site]
        return max(known)

    # Writes

    def _write(self, place: int, write: Write) -> None:
        done = self.requests.answer(write.request_id)
        if done is not None:
            self._step.answers[place] = done
            return
        to = self._destinations(write)
        try:
            refusal = self._refusal(write, to)
        except CorruptRecord as error:  # of a key that the write is to be compared with
            refusal = error
        if refusal is not None:
            self._step.answers[place] = refusal
            return
        run = self._run(to, write.size, len(write.operations))
        versions = []
        for one in write.operations:
            version = Version(self.clock.tick(self._now_ms), self.site)
            expires_ms = self._clock_ms() + one.ttl_ms if one.ttl_ms else 0
            run.updates.append(Update(one.key, one.value, version, expires_ms))
            versions.append(version)
        written = Written(tuple(versions), self._step.batch.number)
        self._step.answers[place] = written
        self.requests.remember(write.request_id, written, self._step.batch)

    def _destinations(self, write: Write) -> Mask:
        if self.placement.is_full:
            return self.placement.everyone & ~(1 << self.site)
        to = 0
        for one in write.operations:
            to |= self.placement.sites_of(one.key)
        return to & ~(1 << self.site)

    def _refusal(self, write: Write, to: Mask) -> KvError | None:
        """Why a client's write cannot be taken now; nothing has changed yet."""
        limits = self.cluster.limits
        if self.fence is not None:
            return self.fence
        if self.unproven:
            peers = ", ".join(self.cluster.sites[peer].name for peer in sorted(self.unproven))
            return Restored(site=self.cluster.sites[self.site].name, peers=peers)
        ahead = [link.wall_ahead_ms for link in self.links.values() if link.wall_ahead_ms is not None]
        if ahead and min(ahead) > limits.clock_skew_max_ms:
            name = self.cluster.sites[self.site].name
            return ClockSkew(site=name, ahead_ms=min(ahead), limit=limits.clock_skew_max_ms)
        for peer in sites_of(to):
            if self.links[peer].outbox_bytes >= limits.outbox_bytes_max:
                name = self.cluster.sites[peer].name
                return OutboxFull(peer=name, size=self.links[peer].outbox_bytes, limit=limits.outbox_bytes_max)
        for one in write.operations:
            if one.expect is not None:
                self._close()  # what this step has written so far is under its keys only then
                found = self.keys.record(one.key)
                version = found.version if found is not None and found.is_alive(self._clock_ms()) else ABSENT
                if version != one.expect:
                    shown = [str(v) if v != ABSENT else "none" for v in (version, one.expect)]
                    return VersionMismatch(key=escape(one.key), found=shown[0], expected=shown[1])
        return None

    def _run(self, to: Mask, size: int, updates: int) -> OpenMessage:
        """The open message for these destinations, with room for so many bytes and updates more."""
        run = self._open
        if run is not None:
            is_large = run.bytes + size > self.cluster.limits.message_bytes_max
            if run.to != to or is_large or len(run.updates) + updates > UPDATES_MAX:
                self._close()
                run = None
        if run is None:
            run = self._open = OpenMessage(to)
        run.bytes += size
        return run

    def _close(self) -> None:
        """Stamp the open message and put it on its links; its updates are applied here at once."""
        run, self._open = self._open, None
        if run is None:
            return
        if not run.to:
            dot = self.ordering.take_dot()
        else:
            for outgoing in self.ordering.send(run.to):
                if not outgoing.is_extra:
                    dot = outgoing.dot
                self._post(outgoing, [] if outgoing.is_extra else run.updates)
        mine = []
        for index, update in enumerate(run.updates):
            if self._is_held_here(update.key):
                self.keys.keep(update, dot, index)
                mine.append(update)
        self.keys.note_change(dot, mine)
        self.notes.applied(dot, self.site, mine, 0, self.clock.latest)
        self._step.updates += len(run.updates)

    def _post(self, outgoing: Outgoing, updates: list[Update]) -> None:
        """Number a message on each of its links and lay it into the outbox."""
        everything = pack_updates(updates) if self.placement.is_full else b""
        witness = self.notes.witness_of(outgoing.dot)
        for peer, control in encode(self.ordering, outgoing).items():
            payload = everything if self.placement.is_full else pack_updates(self._for(peer, updates))
            link = self.links[peer]
            envelope = Envelope(link.sent + 1, self.clock.latest, control, payload, witness)
            packed = envelope.pack()
            link.post(len(packed))
            self._step.batch.puts.append(("outbox", outbox_key(peer, envelope.number), packed))
            self._step.sends.setdefault(peer, []).append(envelope)
            units = self.ordering.units(outgoing.copy(peer))
            self.notes.note("sent", outgoing, peer, envelope, units=units, updates=len(updates))
        self._step.changed = True

    def _for(self, peer: Site, updates: list[Update]) -> list[Update]:
        """No site receives what it does not hold (SAFETY 15)."""
        return [update for update in updates if self.placement.sites_of(update.key) >> peer & 1]

    # Messages of peers

    def _arrived(self, arrived: Arrived) -> None:
        peer, envelope = arrived
        link = self.links[peer]
        if envelope.number <= link.received:
            self._step.acks[peer] = link.applied  # sent again after a broken connection
            return
        if envelope.number != link.received + 1:
            name = self.cluster.sites[peer].name
            gap = LinkGap(peer=name, found=envelope.number, expected=link.received + 1)
            self._step.refused.setdefault(peer, gap)  # what follows a refused message comes too early, of course
            return
        self._close()
        try:
            message, updates = opened(envelope, peer, self.ordering, self.cluster)
            self.notes.check_witness(envelope.witness)
            for update in updates:  # what cannot be compared is found now, not in the middle of a delivery
                self.keys.record(update.key)
        except KvError as error:
            self._step.refused[peer] = error
            return
        link.received = envelope.number
        if message.dot not in self.held:  # else a peer repeats itself under a new number
            self.held[message.dot] = InTransit(envelope, message, updates, self._now_ms)
        self.notes.note("received", message, peer, envelope, updates=len(updates))
        for effect in self.ordering.receive(message):
            match effect:
                case Message():
                    self._deliver(effect, is_released=effect.dot != message.dot)
                case Outgoing():
                    self._post(effect, [])
                case Held(_, missing):
                    link.held_bytes += envelope.size
                    self.notes.note("held", message, peer, envelope, missing=missing)
                case Duplicate(repeated):
                    self._drop(repeated, peer, envelope)

    def _drop(self, repeated: Message, peer: Site, envelope: Envelope) -> None:
        """A message that came twice: an honest peer on an honest link never does that."""
        if repeated.dot.seq <= self.ordering.delivered[repeated.dot.site]:
            held = self.held.pop(repeated.dot, None)
            if held is not None and held.envelope.number != envelope.number:
                self.links[peer].held_bytes -= held.envelope.size
            self.links[peer].apply(envelope.number, envelope.time)
        self.notes.note("duplicate", repeated, peer, envelope)

    def _deliver(self, message: Message, *, is_released: bool) -> None:
        envelope, _, updates, _ = self.held.pop(message.dot)
        peer = message.dot.site
        if is_released:
            self.links[peer].held_bytes -= envelope.size
            self.notes.note("released", message, peer, envelope)
        self.notes.note("delivered", message, peer, envelope, updates=len(updates))
        self.recent.append(message)
        self.notes.witness_delivery(message.dot, envelope.witness)
        self.clock.merge(envelope.time)
        won = []
        for index, update in enumerate(updates):
            incoming = Record(
                update.version, update.value, update.expires_ms, message.dot, index, self._step.batch.number
            )
            if self._merges.find(update.key)(self.keys.record(update.key), incoming) is incoming:
                self.keys.put(update.key, incoming)
                won.append(update)
        self.keys.note_change(message.dot, won)
        self.notes.applied(message.dot, peer, won, envelope.number, envelope.time)
        self.links[peer].apply(envelope.number, envelope.time)
        self._step.acks[peer] = envelope.number
        self._step.updates += len(updates)
        self._step.changed = True

    # The rest

    def _is_held_here(self, key: bytes) -> bool:
        return self.placement.is_full or bool(self.placement.sites_of(key) >> self.site & 1)

    def _heard(self, heard: Heard) -> None:
        link = self.links[heard.peer]
        link.compare_clocks(ahead_ms=self._now_ms - heard.wall_ms, now_ms=self._now_ms)
        link.hear(heard.time)

    def _acked(self, acked: Acked) -> None:
        """Forget what the peer has. Not worth a commit of its own: it goes along with the next one."""
        self.links[acked.peer].ack(acked.up_to)

    def _greeted(self, greeted: Greeted) -> None:
        link = self.links[greeted.peer]
        if link.incarnation != greeted.incarnation:
            link.incarnation = greeted.incarnation
            self._step.changed = True
        self.clock.merge(min(greeted.time, TIME_BELIEVED))
        if greeted.peer in self.unproven:
            # Its answer shows that we forgot nothing we said; its own hello, nothing that we acknowledged (SAFETY 3).
            self._proofs.add((greeted.peer, greeted.is_accepted_by_peer))
            if self._proofs >= {(greeted.peer, True), (greeted.peer, False)}:
                self.unproven.remove(greeted.peer)
                self._step.changed = True

    def _tick(self) -> None:
        self._close()
        for link in self.links.values():
            link.forget_clock(now_ms=self._now_ms, silent_ms=self.cluster.limits.peer_silent_ms)
        sweep(self.keys, self.links.values(), self._view, self._step.batch, self._clock_ms())
        trims = any(link.trimmed < link.acked for link in self.links.values())
        self._step.changed |= trims or bool(self._step.batch.deletes)

    def _clock_ms(self) -> int:
        """The site's clock, by which things expire: never behind what this site has already seen."""
        return max(self._now_ms, time_ms(self.clock.latest))

    def _finish(self) -> Step:
        step = self._step
        if step.changed:
            for peer, link in self.links.items():
                if link.trimmed < link.acked:
                    step.batch.drops.append(("outbox", outbox_key(peer, 0), outbox_key(peer, link.acked + 1)))
                    link.trimmed = link.acked
        return step
