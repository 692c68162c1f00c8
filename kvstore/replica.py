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
from typing import Any

from causal import Dot, Duplicate, Held, Message, Missing, Outgoing, encode
from causal.model import Mask, Site
from causal.multicast import Multicast
from kvstore.clock import COUNTER_BITS, TIME_BELIEVED, HybridClock, time_ms
from kvstore.config import Cluster
from kvstore.effects import (
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
from kvstore.errors import CorruptRecord, KvError, LinkGap
from kvstore.holds import FALSE, UNKNOWN, cause_of
from kvstore.keys import Keys
from kvstore.layout import outbox_key
from kvstore.link import Link
from kvstore.meaning import EVERYTHING, NOTHING, Meaning, Messages, meaning_of
from kvstore.notes import Notes
from kvstore.opening import opened
from kvstore.past import Past, pack_dots
from kvstore.placement import Placement, merges_of
from kvstore.refusal import refusal_of_key, refusal_of_past, refusal_of_site, replaced, taken_unnamed
from kvstore.requests import Requests
from kvstore.storage.contract import Batch, Snapshot
from kvstore.sweep import sweep
from kvstore.transit import InTransit, OpenMessage
from kvstore.update import UPDATES_MAX, Record, Update, Version, pack_updates

CLOCK_RESERVE_MS = 2_000  # that the clock on disk runs ahead; an idle site commits when half of it is used up
RECENT_MAX = 4096  # delivered messages remembered, to explain by them why others wait; beyond it: the oldest go


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
        self.messages = Messages()
        self._merges = merges_of(cluster)
        self.reserved = 0  # hybrid time that a restart begins behind, so that heartbeats may promise up to it

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
        time, past = self.clock.latest, None
        if self.ordering.is_causal:
            past = Past(self.ordering.token(), time, None, self.notes.witness_now(), home=(self.site, number))
        return Committed(number, past, delivered, time, self.keys.changes)

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

    def cause_of(self, dot: Dot, missing: Missing) -> str:
        """Whether a held message needs what it waits for (holds.py)."""
        if missing.by_link:
            return FALSE if self.ordering.heeds_meaning else UNKNOWN
        # Where independent messages pass others by, a number says nothing of messages that went elsewhere.
        is_counted = self.placement.is_full or not self.ordering.heeds_meaning
        here = [*self.ordering.delivered]
        here[self.site] = self.ordering.clock
        return cause_of(missing, self.held[dot].meant, self.held, lambda one: is_counted and one.seq <= here[one.site])

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
        meaning = meaning_of(write, self.messages, taken_unnamed(self, write))
        if write.past is not None:
            self._land(write.past, adopts=meaning.semantic or not self.ordering.heeds_meaning)
        run = self._run(to, write.size, len(write.operations))
        version = Version(
            self.clock.tick(self._now_ms), self.site
        )  # one for all: of two writes the same wins everywhere
        updates: dict[bytes, Update] = {}
        for one in write.operations:
            replaces = replaced(self, one, updates.get(one.key)) if self.keys.is_siblings(one.key) else ()
            expires_ms = self._clock_ms() + one.ttl_ms if one.ttl_ms else 0
            updates[one.key] = Update(
                one.key, one.value, version, expires_ms, replaces
            )  # of two on a key the later stays
        run.updates += updates.values()
        run.meaning = meaning if run.meaning is None else run.meaning.also(meaning)
        run.places.append(place)
        written = Written((version,) * len(write.operations), self._step.batch.number)
        self._step.answers[place] = written
        self.requests.remember(write.request_id, written, self._step.batch)

    def _land(self, past: Past, *, adopts: bool) -> None:
        """A session that came from elsewhere writes here: what it has seen becomes part of this site's past.

        What is part of it already needs nothing: sessions that stay do not keep writes from sharing a message.
        """
        self.clock.merge(past.time)
        is_here = past.home is not None and past.home[0] == self.site
        if is_here or not adopts or self.ordering.context.joined(past.context, self.site) == self.ordering.context:
            return
        self._close()
        self.notes.adopted(past, self.ordering.clock)
        for outgoing in self.ordering.adopt(past.context):
            self._post(outgoing, [], NOTHING)  # in the same commit as what made it (SAFETY 4)
        self._step.changed = True

    def _destinations(self, write: Write) -> Mask:
        if self.placement.is_full:
            return self.placement.everyone & ~(1 << self.site)
        to = 0
        for one in write.operations:
            to |= self.placement.sites_of(one.key)
        return to & ~(1 << self.site)

    def _refusal(self, write: Write, to: Mask) -> KvError | None:
        """Why a client's write cannot be taken now; nothing has changed yet."""
        refusal = refusal_of_site(self, write, to) or refusal_of_past(self, write)
        for one in write.operations:
            if refusal is None and (one.expect is not None or self.keys.is_siblings(one.key)):
                self._close()  # what this step has written so far is under its keys only then
                refusal = refusal_of_key(self, one, write.past, self._clock_ms())
        return refusal

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
        meaning = run.meaning or EVERYTHING
        if not run.to:
            dot = self.ordering.take_dot()
        else:
            for outgoing in self.ordering.send(run.to, semantic=meaning.semantic):
                if outgoing.is_extra:
                    self._post(outgoing, [], NOTHING)
                else:
                    dot = outgoing.dot
                    self._post(outgoing, run.updates, meaning)
        mine = [update for update in run.updates if self._is_held_here(update.key)]
        self._apply(mine, dot)
        self.notes.applied(dot, self.site, mine, 0, self.clock.latest)
        self._step.updates += len(run.updates)
        self._step.changed = True
        for place in run.places:
            written = self._step.answers[place]
            assert isinstance(written, Written)
            self._step.answers[place] = written._replace(dot=dot)

    def _apply(self, updates: list[Update], dot: Dot) -> list[Update]:
        """What a message brings, under its keys; the updates that changed something."""
        won = []
        commit = self._step.batch.number
        for index, update in enumerate(updates):
            key, value, version, expires_ms, replaces = update
            row: Record | None = Record(version, value, expires_ms, dot, index, commit)
            if dot.site != self.site or self.keys.is_siblings(key):
                stored = self.keys.record(key)
                row = self._merges.find(key)(stored, Record(version, value, expires_ms, dot, index, commit), replaces)
                if row is stored:
                    continue
            self.keys.put(key, row) if row is not None else self.keys.remove(key)
            won.append(update)
        self.messages.remember([update.version for update in updates], dot)
        self.keys.note_change(dot, won)
        return won

    def _post(self, outgoing: Outgoing, updates: list[Update], meaning: Meaning) -> None:
        """Number a message on each of its links and lay it into the outbox."""
        everything = pack_updates(updates) if self.placement.is_full else b""
        witness, meant = self.notes.witness_of(outgoing.dot), pack_dots(meaning.meant)
        for peer, control in encode(self.ordering, outgoing).items():
            payload = everything if self.placement.is_full else pack_updates(self._for(peer, updates))
            link = self.links[peer]
            envelope = Envelope(link.sent + 1, self.clock.latest, control, payload, witness, meant)
            packed = envelope.pack()
            link.post(len(packed))
            self._step.batch.puts.append(("outbox", outbox_key(peer, envelope.number), packed))
            self._step.sends.setdefault(peer, []).append(envelope)
            units = self.ordering.units(outgoing.copy(peer))
            self.notes.note("sent", outgoing, peer, envelope, units=units, updates=len(updates), meaning=meaning)
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
            message, updates, meant = opened(envelope, peer, self.ordering, self.cluster, self._is_held_here)
            self.notes.check_witness(envelope.witness)
            for update in updates:  # what cannot be compared is found now, not in the middle of a delivery
                self.keys.record(update.key)
        except KvError as error:
            self._step.refused[peer] = error
            return
        link.received = envelope.number
        if message.dot not in self.held:  # else a peer repeats itself under a new number
            self.held[message.dot] = InTransit(envelope, message, updates, self._now_ms, meant)
        self.notes.note("received", message, peer, envelope, updates=len(updates))
        for effect in self.ordering.receive(message):
            match effect:
                case Message():
                    self._deliver(effect, is_released=effect.dot != message.dot)
                case Outgoing():
                    self._post(effect, [], NOTHING)
                case Held(_, missing):
                    link.held_bytes += envelope.size
                    cause = self.cause_of(message.dot, missing)
                    self.notes.note("held", message, peer, envelope, missing=missing, cause=cause)
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
        envelope, _, updates, _, _ = self.held.pop(message.dot)
        peer = message.dot.site
        if is_released:
            self.links[peer].held_bytes -= envelope.size
            self.notes.note("released", message, peer, envelope)
        self.notes.note("delivered", message, peer, envelope, updates=len(updates))
        self.recent.append(message)
        self.notes.witness_delivery(message, envelope.witness)
        self.clock.merge(envelope.time)
        won = self._apply(updates, message.dot)
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
        is_late = time_ms(self.reserved) < self._now_ms + CLOCK_RESERVE_MS // 2
        self._step.changed |= trims or bool(self._step.batch.deletes) or (is_late and bool(self.links))

    def _clock_ms(self) -> int:
        """The site's clock, by which things expire: never behind what this site has already seen."""
        return max(self._now_ms, time_ms(self.clock.latest))

    def _finish(self) -> Step:
        step = self._step
        if step.changed:
            self.reserved = max(self.clock.latest, self._now_ms + CLOCK_RESERVE_MS << COUNTER_BITS)
            for peer, link in self.links.items():
                if link.trimmed < link.acked:
                    step.batch.drops.append(("outbox", outbox_key(peer, 0), outbox_key(peer, link.acked + 1)))
                    link.trimmed = link.acked
        return step
