"""Figure 3 of Gambhire and Kshemkalyani, "Reducing False Causality in Causal Message Ordering", line by line.

The paper's algorithm as it stands there: matrices of *counts*, PREV and CONC apart, a wait that is a scan of everything
held, and no link numbers, so that it needs FIFO links. One thing is added, because the figure sends to one process: a
message tells about all of its destinations (E7, R3). Lines carry the figure's own labels. `Figure3` shares no code with
`causal.protocols.false_causality`.

Below it what is needed to compare the two: a schedule of sends and arrivals, decided by one seed and by no protocol,
and `SideBySide`, which takes both through it and keeps the causal pasts as plain sets of messages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from causal.execution import Delivered, Execution, Sent
from causal.model import Dot, Mask, Message, Site, sites_of
from causal.protocols import make_site

Counts = list[list[int]]


class CountedMessage(NamedTuple):
    dot: Dot
    to: Mask
    prev: Counts  # SP_M
    conc: Counts  # SC_M


class Figure3:
    """Process P_i."""

    def __init__(self, site: Site, sites: int) -> None:
        self.site = site
        self.clock = 0
        self.deliv = [0] * sites  # D1
        self.prev = [[0] * sites for _ in range(sites)]  # D2
        self.conc = [[0] * sites for _ in range(sites)]  # D3
        self.held: list[CountedMessage] = []  # in order of arrival

    def send(self, to: Mask, *, semantic: bool) -> CountedMessage:
        self.clock += 1
        n = len(self.deliv)
        if semantic:  # E1
            for k in range(n):  # E2
                for m in range(n):  # E3
                    self.prev[k][m] = self.prev[k][m] + self.conc[k][m]  # E4
                    self.conc[k][m] = 0  # E5
        message = CountedMessage(Dot(self.site, self.clock), to, _copied(self.prev), _copied(self.conc))  # E6
        for j in sites_of(to):
            self.conc[self.site][j] += 1  # E7
        return message

    def receive(self, message: CountedMessage) -> list[CountedMessage]:
        """What is delivered now, in order: always the first to arrive of those that need not wait."""
        self.held.append(message)
        delivered = []
        while due := next(filter(self._is_due, self.held), None):
            self.held.remove(due)
            self._deliver(due)
            delivered.append(due)
        return delivered

    def _is_due(self, message: CountedMessage) -> bool:
        return all(message.prev[k][self.site] <= count for k, count in enumerate(self.deliv))  # R1

    def _deliver(self, message: CountedMessage) -> None:  # R2
        i, sp, sc = message.dot.site, message.prev, _copied(message.conc)
        for j in sites_of(message.to):
            sc[i][j] += 1  # R3
        self.deliv[i] += 1  # R4
        for k in range(len(self.deliv)):  # R5
            for m in range(len(self.deliv)):  # R6
                all_sent = max(self.conc[k][m] + self.prev[k][m], sp[k][m] + sc[k][m])
                self.conc[k][m] = all_sent - max(self.prev[k][m], sp[k][m])  # R7
                self.prev[k][m] = max(self.prev[k][m], sp[k][m])  # R8


def _copied(counts: Counts) -> Counts:
    return [list(row) for row in counts]


def added(one: Counts, other: Counts) -> Counts:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


class Send(NamedTuple):
    dot: Dot
    to: Mask
    semantic: bool


class Arrive(NamedTuple):
    dot: Dot
    at: Site


def schedule(sites: int, *, messages: int, seed: int, fifo: bool, dependent: float = 0.3) -> Iterator[Send | Arrive]:
    """Sends and arrivals at random, until every copy has arrived. A link keeps order, or any copy may come next."""
    rng = random.Random(seed)
    clocks = [0] * sites
    links: dict[tuple[Site, Site], list[Dot]] = {}  # copies under way
    while messages or links:
        if messages and rng.random() < 0.4:
            messages -= 1
            sender = rng.randrange(sites)
            others = [site for site in range(sites) if site != sender]
            to = sum(1 << site for site in rng.sample(others, rng.randint(1, len(others))))
            clocks[sender] += 1
            dot = Dot(sender, clocks[sender])
            for site in sites_of(to):
                links.setdefault((sender, site), []).append(dot)
            yield Send(dot, to, rng.random() < dependent)
        elif links:
            link = rng.choice(list(links))
            dot = links[link].pop(0 if fifo else rng.randrange(len(links[link])))
            if not links[link]:
                del links[link]
            yield Arrive(dot, link[1])


class SideBySide:
    """Figure 3 with its counts, and ours with message numbers, on one schedule."""

    def __init__(self, sites: int) -> None:
        self.counted = [Figure3(site, sites) for site in range(sites)]
        self.ours = [make_site("false-causality", site, sites) for site in range(sites)]
        self.executions = Execution(sites, "false-causality"), Execution(sites, "false-causality")
        self.copies: dict[tuple[Dot, Site], tuple[CountedMessage, Message]] = {}
        self.link = [[[0] for _ in range(sites)] for _ in range(sites)]  # message numbers by link number
        self.pasts: list[set[Dot]] = [set() for _ in range(sites)]  # by brute force
        self.past_of: dict[Dot, set[Dot]] = {}
        self.to: dict[Dot, Mask] = {}

    def send(self, step: Send) -> None:
        site = step.dot.site
        counted = self.counted[site].send(step.to, semantic=step.semantic)
        (made,) = self.ours[site].send(step.to, semantic=step.semantic)
        for execution in self.executions:
            execution.records.append(Sent(site, made.dot, step.to, {}, step.semantic))
        self.to[made.dot], self.past_of[made.dot] = step.to, set(self.pasts[site])
        self.pasts[site].add(made.dot)
        for receiver, copy in made.copies():
            self.copies[made.dot, receiver] = counted, copy
            self.link[site][receiver].append(made.dot.seq)

    def arrive(self, step: Arrive) -> tuple[list[Dot], list[Dot]]:
        """What either delivers because of this arrival."""
        counted, copy = self.copies[step.dot, step.at]
        one = [message.dot for message in self.counted[step.at].receive(counted)]
        other = [effect.dot for effect in self.ours[step.at].receive(copy) if isinstance(effect, Message)]
        for execution, delivered in zip(self.executions, (one, other), strict=True):
            execution.records += [Delivered(step.at, dot) for dot in delivered]
        for dot in other:
            self.pasts[step.at] |= self.past_of[dot] | {dot}
        return one, other

    def numbered(self, counts: list[list[int]]) -> list[list[int]]:
        """Counts of messages on each link, as the numbers of the messages they count up to."""
        return [[self.link[k][m][count] for m, count in enumerate(row)] for k, row in enumerate(counts)]


def side_by_side(
    seed: int, *, fifo: bool, check: Callable[[SideBySide, Site], None] = lambda both, site: None
) -> SideBySide:
    """Both through 120 messages among 5 sites, with a check after every step. On FIFO links they must not differ."""
    both = SideBySide(5)
    for step in schedule(5, messages=120, seed=seed, fifo=fifo):
        if isinstance(step, Send):
            both.send(step)
            check(both, step.dot.site)
        else:
            counted, ours = both.arrive(step)
            assert counted == ours or not fifo, "both hold and deliver the same copies"
            check(both, step.at)
    return both
