"""A seeded discrete-event network: sites that multicast, links that take their time, sessions that move.

Time is simulated. A run keeps sums (`Outcome`), and on request the whole `Execution` for the oracle; copies travel as
values or, with `wire`, as the protocol's own bytes.

Sessions. A client carries a token to a random site and waits there until the token is due. Then it reads, or writes:
the site adopts the token and multicasts. It leaves with its old token and a snapshot of the site, merged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from causal.accounting import paper_size
from causal.codec import decode, encode
from causal.execution import Carried, Delivered, Execution, Sent, TokenAdopted, TokenLanded, TokenMerged, TokenTaken
from causal.log import LogStamp
from causal.model import Dot, Duplicate, Held, Message, Site
from causal.multicast import Multicast, Outgoing
from causal.protocols import make_site
from causal.workload import Planned, Workload

_SESSION_GAPS = 3  # a session stays this many of the sites' mean gaps between two visits


@dataclass(slots=True)
class Outcome:
    """Sums over the user messages after the warm-up, and over the extra messages made meanwhile."""

    sites: int
    messages: int = 0
    extras: int = 0
    copies: int = 0  # of user messages
    units: int = 0
    dependents: int = 0  # as Jang et al. count them
    paper_bytes: int = 0  # as Jang et al. count them: 4-byte times, 2-byte ids
    bytes: int = 0  # as they travel
    extra_bytes: int = 0
    held: int = 0  # copies of user messages
    held_s: list[float] = field(default_factory=list)
    duplicates: int = 0
    moves: int = 0
    moves_waited_s: list[float] = field(default_factory=list)
    left_held: int = 0  # copies, at the end
    left_waiting: int = 0  # sessions, at the end
    largest_units: int = 0  # of a user message's copy
    log_units: int = 0  # summed over sites, at the end
    seconds: float = 0.0  # of simulated time
    execution: Execution | None = None

    def summary(self) -> dict[str, float]:
        """The figures that people ask for, by name."""
        copies, messages = max(self.copies, 1), max(self.messages, 1)
        held_s = sorted(self.held_s)
        return {
            "messages": self.messages,
            "copies": self.copies,
            "units_a_copy": self.units / copies,
            "bytes_a_copy": self.bytes / copies,
            "bytes_on_paper_a_copy": self.paper_bytes / copies,
            "dependents_a_copy": self.dependents / copies,
            "largest_copy_units": self.largest_units,
            "extra_messages_a_message": self.extras / messages,
            "held_share": self.held / copies,
            "hold_mean_s": sum(held_s) / max(len(held_s), 1),
            "hold_p99_s": held_s[len(held_s) * 99 // 100] if held_s else 0.0,
            "duplicates_dropped": self.duplicates,
            "session_moves": self.moves,
            "move_wait_mean_s": sum(self.moves_waited_s) / max(self.moves, 1),
            "left_held": self.left_held,
            "left_waiting": self.left_waiting,
            "log_units_a_site": self.log_units / self.sites,
            "simulated_s": self.seconds,
        }


class Visit(NamedTuple):
    """A session at a site: the token it carries, under its number in the record (-1: none yet), and since when."""

    client: int
    token: Any
    number: int
    since: float


class Simulation:
    """One run of one protocol on one workload."""

    def __init__(
        self,
        workload: Workload,
        protocol: str,
        options: Mapping[str, Any] | None = None,
        *,
        record: bool = False,
        wire: bool = False,
        count_bytes: bool = False,
        make: Callable[..., Multicast[Any]] = make_site,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._workload = workload
        self._wire = wire
        self._progress = progress  # told after every planned send how many there were
        self._count_bytes = count_bytes or wire
        self._sites = [make(protocol, site, workload.sites, **options or {}) for site in range(workload.sites)]
        self._execution = Execution(workload.sites, protocol, dict(options or {})) if record else None
        self.outcome = Outcome(workload.sites, execution=self._execution)
        self._rng = random.Random(f"rest {workload.seed}")  # sessions, extra messages, repeats
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._event_count = 0
        self._now = 0.0
        self._link_free: dict[tuple[Site, Site], float] = {}  # FIFO links: when the last copy arrives
        self._held_since: dict[tuple[Site, Dot], float] = {}
        self._waiting: list[list[Visit]] = [[] for _ in range(workload.sites)]
        self._tokens = 0
        self._planned = workload.sends()
        self._planned_count = 0
        self._counting = False
        self._uncounted: list[int] = []  # the newest message of each site that belongs to the warm-up

    def run(self) -> Outcome:
        self._plan_next()
        for client in range(self._workload.sessions):
            self._travel(Visit(client, None, -1, 0.0))
        events = self._events
        while events:
            self._now, _, act, arguments = heappop(events)
            act(*arguments)
        outcome = self.outcome
        outcome.seconds = self._now
        outcome.left_held = sum(len(site.held) for site in self._sites)
        outcome.left_waiting = sum(map(len, self._waiting))
        outcome.log_units = sum(site.context.units() for site in self._sites)
        return outcome

    def _at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        self._event_count += 1
        heappush(self._events, (time, self._event_count, act, arguments))

    def _record(self, record: Any) -> None:
        if self._execution is not None:
            self._execution.records.append(record)

    # Sending

    def _plan_next(self) -> None:
        planned = next(self._planned, None)
        if planned is not None:
            self._at(planned.time, self._send, planned)

    def _send(self, planned: Planned) -> None:
        self._plan_next()
        self._planned_count += 1
        if self._progress is not None:
            self._progress(self._planned_count)
        if not self._counting and self._planned_count > self._workload.warm_up:
            self._counting = True
            self._uncounted = [site.clock for site in self._sites]
        made = self._sites[planned.sender].send(planned.to, semantic=planned.semantic)
        self._launch(made, planned.semantic, random.Random(planned.seed))

    def _launch(self, made: list[Outgoing], semantic: bool = True, rng: random.Random | None = None) -> None:
        """Put messages on their links. A planned message has delays of its own, so that all protocols meet them."""
        for outgoing in made:
            sender = self._sites[outgoing.dot.site]
            copies = dict(outgoing.copies())
            data = encode(sender, outgoing) if self._count_bytes else {}
            self._note_sent(sender, outgoing, copies, semantic)
            self._count_sent(sender, outgoing, copies, data)
            delays = self._rng if rng is None or outgoing.is_extra else rng
            for site, copy in copies.items():
                self._post(sender.site, site, data[site] if self._wire else copy, self._workload.delay_of(delays))

    def _post(self, sender: Site, receiver: Site, copy: Message | bytes, delay: float) -> None:
        time = self._now + delay
        if self._workload.fifo:
            time = max(time, self._link_free.get((sender, receiver), 0.0))
            self._link_free[sender, receiver] = time
        self._at(time, self._arrive, receiver, copy)
        if self._workload.duplicates and self._rng.random() < self._workload.duplicates:
            self._at(time + self._workload.delay_of(self._rng), self._arrive, receiver, copy)

    def _note_sent(
        self, sender: Multicast[Any], outgoing: Outgoing, copies: Mapping[Site, Message], semantic: bool
    ) -> None:
        if self._execution is None:
            return
        carried = {}
        for site, copy in copies.items():
            facts = copy.stamp.facts(site) if isinstance(copy.stamp, LogStamp) else None
            carried[site] = Carried(sender.units(copy), facts)
        self._record(Sent(sender.site, outgoing.dot, outgoing.to, carried, semantic, outgoing.is_extra))

    def _count_sent(
        self, sender: Multicast[Any], outgoing: Outgoing, copies: Mapping[Site, Message], data: Mapping[Site, bytes]
    ) -> None:
        if not self._counting:
            return
        outcome = self.outcome
        if outgoing.is_extra:
            outcome.extras += 1
            outcome.extra_bytes += sum(map(len, data.values()))
            return
        outcome.messages += 1
        outcome.copies += len(copies)
        outcome.bytes += sum(map(len, data.values()))
        for copy in copies.values():
            units = sender.units(copy)
            size = paper_size(sender.name, copy)
            outcome.units += units
            outcome.largest_units = max(outcome.largest_units, units)
            outcome.dependents += size.dependents
            outcome.paper_bytes += size.bytes

    # Arriving

    def _arrive(self, receiver: Site, copy: Message | bytes) -> None:
        site = self._sites[receiver]
        message = decode(site, copy) if isinstance(copy, bytes) else copy
        for effect in site.receive(message):
            match effect:
                case Message():
                    self._delivered(receiver, effect)
                case Held():
                    self._held_since[receiver, message.dot] = self._now
                case Duplicate():
                    self.outcome.duplicates += 1
                case Outgoing():
                    self._launch([effect])
        if self._waiting[receiver]:
            self._admit(receiver)

    def _delivered(self, receiver: Site, message: Message) -> None:
        self._record(Delivered(receiver, message.dot))
        since = self._held_since.pop((receiver, message.dot), None)
        site, seq = message.dot
        if since is not None and self._counting and not message.is_extra and seq > self._uncounted[site]:
            self.outcome.held += 1
            self.outcome.held_s.append(self._now - since)

    # Sessions

    def _travel(self, visit: Visit) -> None:
        """On to another site, unless the run is over."""
        if self._planned_count < self._workload.messages:
            time = self._now + self._rng.expovariate(1 / (_SESSION_GAPS * self._workload.gap_s))
            self._at(time, self._land, self._rng.randrange(self._workload.sites), visit)

    def _land(self, site: Site, visit: Visit) -> None:
        self._waiting[site].append(visit._replace(since=self._now))
        self._admit(site)

    def _admit(self, site: Site) -> None:
        """Let every session in whose token is due by now."""
        at = self._sites[site]
        waiting, self._waiting[site] = self._waiting[site], []
        for visit in waiting:
            if visit.token is not None and at.first_missing(visit.token) is not None:
                self._waiting[site].append(visit)
            else:
                self._visit(at, visit)

    def _visit(self, at: Multicast[Any], visit: Visit) -> None:
        self.outcome.moves += 1
        self.outcome.moves_waited_s.append(self._now - visit.since)
        token, number = visit.token, visit.number
        if token is not None:
            self._record(TokenLanded(at.site, number))
            if self._rng.random() < 0.5:
                self._record(TokenAdopted(at.site, number))
                self._launch(at.adopt(token))
                to = self._workload.destinations(self._rng, at.site)
                self._launch(at.send(to))
        snapshot, taken = at.token(), self._new_token()
        self._record(TokenTaken(at.site, taken))
        if token is not None:
            merged = self._new_token()
            self._record(TokenMerged(merged, (number, taken)))
            snapshot, taken = at.merge(token, snapshot), merged
        self._travel(Visit(visit.client, snapshot, taken, self._now))

    def _new_token(self) -> int:
        self._tokens += 1
        return self._tokens


def simulate(workload: Workload, protocol: str, options: Mapping[str, Any] | None = None, **settings: Any) -> Outcome:
    """Run one protocol on one workload, from a new network to an empty one."""
    return Simulation(workload, protocol, options, **settings).run()
