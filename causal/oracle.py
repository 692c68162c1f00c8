"""The judge: what a recorded execution did, held against the whole happens-before graph.

A protocol decides by its clocks; the oracle never sees them. It rebuilds from the record alone who could have known
what, and then asks of every delivery whether something that came before it is still missing. *Happens before*: events
of one site in their order, a send before each of its deliveries, the taking of a token before its adoption, and what
follows by transitivity. Extra messages do not belong to the relation: they order nothing and are ordered by nothing.
The *semantic* order (Gambhire-Kshemkalyani, section 2) keeps only what a send says it depends on: a dependent send
on all earlier events of its site, an independent one on nothing, a delivery on its send alone.

A set of messages is an `int`: bit i is the i-th user message of the record. The past of an event is then one number,
to join two pasts is one `|`, and the messages a site has missed are one `&` away. Records stand in an order that every
edge follows, so one walk builds the graph, and in any set the highest bit is a message that nothing else in it follows.

Optimality is Kshemkalyani-Singhal's, section 3.3: a fact "M goes to x" must ride on a message unless M's delivery to x,
or a later message to x, lies in the past of the send. The later message will bring M along: so of all past messages
to x only the *newest*, those with no other one after them, can be necessary. They are read off the graph for
each send anew; what earlier messages carried plays no part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from causal.execution import Delivered, Execution, Fact, Sent, TokenAdopted, TokenLanded, TokenMerged, TokenTaken
from causal.model import Dot, Mask, Site, sites_of

Messages = int  # a set of user messages: bit i is the i-th one of the record
members = sites_of  # a set of messages has the shape of a set of sites


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise as a value. No named tuple: those equal any other with the same fields, whatever it accuses."""

    sentence: ClassVar[str]

    def __str__(self) -> str:
        return self.sentence.format(self)


@dataclass(frozen=True, slots=True)
class OutOfOrder(Violation):
    site: Site
    first: Dot
    second: Dot
    sentence = "site {0.site} delivered {0.second} without {0.first}, which comes before it and goes there too"


@dataclass(frozen=True, slots=True)
class BadCopy(Violation):
    site: Site
    dot: Dot


class NeverDelivered(BadCopy):
    sentence = "site {0.site} never delivered {0.dot}"


class DeliveredTwice(BadCopy):
    sentence = "site {0.site} delivered {0.dot} again"


class DeliveredToStranger(BadCopy):
    sentence = "site {0.site} delivered {0.dot}, which was not sent to it"


class DeliveredUnsent(BadCopy):
    sentence = "site {0.site} delivered {0.dot}, which nobody had sent"


class SentTwice(BadCopy):
    sentence = "site {0.site} gave the name {0.dot} to a second message"


@dataclass(frozen=True, slots=True)
class LandedTooEarly(Violation):
    site: Site
    token: int
    dot: Dot
    sentence = "token {0.token} landed at site {0.site} before {0.dot}, which lies in its past and goes there"


@dataclass(frozen=True, slots=True)
class TooLarge(Violation):
    dot: Dot
    destination: Site
    units: int
    sentence = "the copy of {0.dot} to site {0.destination} carried {0.units} units"


@dataclass(frozen=True, slots=True)
class WrongFacts(Violation):
    dot: Dot
    destination: Site
    lacking: frozenset[Fact]  # necessary, and not carried
    surplus: frozenset[Fact]  # carried, and not necessary
    sentence = "the copy of {0.dot} to site {0.destination} lacks {0.lacking} and needs no {0.surplus}"


@dataclass(frozen=True, slots=True)
class Unrecorded(Violation):
    """Units or facts that nobody wrote down: silence must not pass for a good answer."""

    dot: Dot
    destination: Site
    sentence = "nobody recorded what the copy of {0.dot} to site {0.destination} carried"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Everything found wrong, by the promise it breaks. Both orders are judged; one of them is the protocol's."""

    protocol: str
    safety: tuple[OutOfOrder, ...] = ()
    semantic_safety: tuple[OutOfOrder, ...] = ()
    exactly_once: tuple[BadCopy, ...] = ()
    liveness: tuple[NeverDelivered, ...] = ()
    tokens: tuple[LandedTooEarly, ...] = ()
    bound: tuple[TooLarge | Unrecorded, ...] = ()
    optimality: tuple[WrongFacts | Unrecorded, ...] = ()

    @property
    def promised_order(self) -> tuple[OutOfOrder, ...]:
        return self.semantic_safety if self.protocol == "false-causality" else self.safety

    @property
    def violations(self) -> tuple[Violation, ...]:
        """All that counts against the protocol."""
        return (*self.promised_order, *self.exactly_once, *self.liveness, *self.tokens, *self.bound, *self.optimality)

    @property
    def ok(self) -> bool:
        return not self.violations

    def explain(self, most: int = 10) -> str:
        """A sentence for each of the first `most` violations."""
        if self.ok:
            return f"{self.protocol}: nothing to object to"
        first = [f"  {violation}" for violation in self.violations[:most]]
        return "\n".join([f"{self.protocol}: {len(self.violations)} violations; the first {len(first)}:", *first])

    __str__ = explain


class Past(NamedTuple):
    """What lies before an event."""

    sent: Messages = 0  # by happens-before
    meant: Messages = 0  # by the semantic order
    heard: int = 0  # the deliveries before it: bit i is the i-th one of the record

    def join(self, other: Past) -> Past:
        return Past(self.sent | other.sent, self.meant | other.meant, self.heard | other.heard)


class HappensBefore:
    """The relation between the user messages of an execution. A message stands for its send."""

    def __init__(self, execution: Execution) -> None:
        self.sites = execution.sites
        self.dots: list[Dot] = []  # in record order: their places are the bits
        self.index: dict[Dot, int] = {}
        self.goes_to: defaultdict[Site, Messages] = defaultdict(int)
        self.tokens: dict[int, Past] = {}
        self._sent_by: defaultdict[Site, Messages] = defaultdict(int)
        self._to: list[Mask] = []
        self._pasts: list[Past] = []  # of each message's send, itself not included
        self._heard_as: dict[tuple[Site, int], int] = {}  # (site, message) to the number of that delivery
        self._known: defaultdict[Site, Past] = defaultdict(Past)  # while walking: the past of the site's next event
        self._walk(execution)

    def before(self, earlier: Dot, later: Dot) -> bool:
        return bool(self.past_of(later).sent >> self.index[earlier] & 1)

    def concurrent(self, one: Dot, other: Dot) -> bool:
        return one != other and not self.before(one, other) and not self.before(other, one)

    def semantically_before(self, earlier: Dot, later: Dot) -> bool:
        return bool(self.past_of(later).meant >> self.index[earlier] & 1)

    def past(self, dot: Dot) -> frozenset[Dot]:
        return frozenset(self.dots[i] for i in members(self.past_of(dot).sent))

    def past_of(self, dot: Dot) -> Past:
        return self._pasts[self.index[dot]]

    def sent_counts(self, dot: Dot) -> list[list[int]]:
        """How many messages each site (row) had sent to each (column) before this one: Gambhire's SENT_ECV."""
        past, sites = self.past_of(dot).sent, range(self.sites)
        return [[(past & self._sent_by[j] & self.goes_to[x]).bit_count() for x in sites] for j in sites]

    def necessary_facts(self, dot: Dot, destination: Site) -> frozenset[Fact]:
        return self.facts_by_copy(dot)[destination]

    def facts_by_copy(self, dot: Dot) -> dict[Site, frozenset[Fact]]:
        """What each copy must carry, and all it may carry: KS section 3.3."""
        to = self._to[self.index[dot]]
        own: dict[Site, list[Fact]] = {destination: [] for destination in sites_of(to)}
        common: list[Fact] = []
        for x in self.goes_to:
            # To a destination of this message the news of older ones rides only on its own copy: whoever hears of this
            # message later learns from it alone that x will have them.
            own.get(x, common).extend((*self.dots[i], x) for i in self._unsettled(dot, x))
        return {destination: frozenset(common + facts) for destination, facts in own.items()}

    def _unsettled(self, dot: Dot, x: Site) -> Iterator[int]:
        """Past messages to `x` that this send neither knows delivered nor knows another message to `x` to follow."""
        past = self.past_of(dot)
        rest = past.sent & self.goes_to[x]
        while rest:
            newest = rest.bit_length() - 1
            rest &= ~(self._pasts[newest].sent | 1 << newest)
            delivery = self._heard_as.get((x, newest))
            if delivery is None or not past.heard >> delivery & 1:
                yield newest

    def _walk(self, execution: Execution) -> None:
        """Landing is no case: it is a read, the session goes on with its token and the site learns nothing."""
        for record in execution.records:
            match record:
                case Sent():
                    if not record.is_extra and record.dot not in self.index:
                        self._take_send(record)
                case Delivered():
                    if record.dot in self.index:
                        self._take_delivery(record.site, self.index[record.dot])
                case TokenTaken():
                    self._name_token(record.token, self._known[record.site])
                case TokenMerged():
                    one, other = record.parts
                    self._name_token(record.token, self.tokens[one].join(self.tokens[other]))
                case TokenAdopted():
                    self._known[record.site] = self._known[record.site].join(self.tokens[record.token])

    def _take_send(self, sent: Sent) -> None:
        i, known = len(self.dots), self._known[sent.site]
        self.index[sent.dot] = i
        self.dots.append(sent.dot)
        self._to.append(sent.to)
        self._pasts.append(known if sent.semantic else known._replace(meant=0))
        self._sent_by[sent.site] |= 1 << i
        for destination in sites_of(sent.to):
            self.goes_to[destination] |= 1 << i
        self._known[sent.site] = known.join(Past(1 << i, 1 << i))

    def _take_delivery(self, site: Site, i: int) -> None:
        number = self._heard_as.setdefault((site, i), len(self._heard_as))
        self._known[site] = self._known[site].join(self._pasts[i]).join(Past(1 << i, 1 << i, 1 << number))

    def _name_token(self, token: int, past: Past) -> None:
        if token in self.tokens:
            raise ValueError(f"the record makes token {token} twice")
        self.tokens[token] = past


class _Replay:
    """A second walk over the record, now that all pasts are known: what was where when it had to be?"""

    def __init__(self, graph: HappensBefore) -> None:
        self.graph = graph
        self.sends: dict[Dot, Sent] = {}
        self.arrived: defaultdict[Dot, Mask] = defaultdict(int)  # where each message was delivered, extra ones too
        self.has: defaultdict[Site, Messages] = defaultdict(int)  # the same from the side of the site
        self.safety: list[OutOfOrder] = []
        self.semantic_safety: list[OutOfOrder] = []
        self.exactly_once: list[BadCopy] = []
        self.tokens: list[LandedTooEarly] = []

    def walk(self, execution: Execution) -> None:
        for record in execution.records:
            match record:
                case Sent():
                    if record.dot in self.sends:
                        self.exactly_once.append(SentTwice(record.site, record.dot))
                    self.sends.setdefault(record.dot, record)
                case Delivered():
                    self._take_delivery(record.site, record.dot)
                case TokenLanded() | TokenAdopted():
                    missing = self._missing(record.site, self.graph.tokens[record.token].sent)
                    self.tokens += [LandedTooEarly(record.site, record.token, dot) for dot in missing]

    def _take_delivery(self, site: Site, dot: Dot) -> None:
        sent = self.sends.get(dot)
        if sent is None:
            self.exactly_once.append(DeliveredUnsent(site, dot))
        elif not sent.to >> site & 1:
            self.exactly_once.append(DeliveredToStranger(site, dot))
        elif self.arrived[dot] >> site & 1:
            self.exactly_once.append(DeliveredTwice(site, dot))
        else:
            self.arrived[dot] |= 1 << site
            if not sent.is_extra:
                self._judge_order(site, dot)

    def undelivered(self) -> list[NeverDelivered]:
        left = ((dot, sent.to & ~self.arrived[dot]) for dot, sent in self.sends.items())
        return [NeverDelivered(site, dot) for dot, sites in left for site in sites_of(sites)]

    def _judge_order(self, site: Site, dot: Dot) -> None:
        past = self.graph.past_of(dot)
        self.safety += [OutOfOrder(site, first, dot) for first in self._missing(site, past.sent)]
        self.semantic_safety += [OutOfOrder(site, first, dot) for first in self._missing(site, past.meant)]
        self.has[site] |= 1 << self.graph.index[dot]

    def _missing(self, site: Site, past: Messages) -> list[Dot]:
        return [self.graph.dots[i] for i in members(past & self.graph.goes_to[site] & ~self.has[site])]


def judge(
    execution: Execution, *, bound: int | None = None, optimality: bool = False, complete: bool = True
) -> Verdict:
    """Hold an execution against its promises. `complete=False`: it was cut short, so nothing is called undelivered."""
    graph = HappensBefore(execution)
    replay = _Replay(graph)
    replay.walk(execution)
    return Verdict(
        execution.protocol,
        tuple(replay.safety),
        tuple(replay.semantic_safety),
        tuple(replay.exactly_once),
        tuple(replay.undelivered()) if complete else (),
        tuple(replay.tokens),
        () if bound is None else tuple(_too_large(replay.sends.values(), bound)),
        tuple(_wrong_facts(graph, replay.sends.values())) if optimality else (),
    )


def _too_large(sends: Iterable[Sent], bound: int) -> Iterator[TooLarge | Unrecorded]:
    for sent in sends:
        for destination in () if sent.is_extra else sites_of(sent.to):
            carried = sent.carried.get(destination)
            if carried is None:
                yield Unrecorded(sent.dot, destination)
            elif carried.units > bound:
                yield TooLarge(sent.dot, destination, carried.units)


def _wrong_facts(graph: HappensBefore, sends: Iterable[Sent]) -> Iterator[WrongFacts | Unrecorded]:
    for sent in sends:
        for destination, necessary in {} if sent.is_extra else graph.facts_by_copy(sent.dot).items():
            carried = sent.carried.get(destination)
            if carried is None or carried.facts is None:
                yield Unrecorded(sent.dot, destination)
            elif carried.facts != necessary:
                yield WrongFacts(sent.dot, destination, necessary - carried.facts, carried.facts - necessary)
