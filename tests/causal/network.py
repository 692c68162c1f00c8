"""A network moved by hand: a list of steps, the same for every protocol, taken one by one and recorded for the oracle.

A schedule names user messages by the order in which they are sent, so that one schedule fits all protocols. Extra
messages differ from protocol to protocol; steps of their own let the ones under way arrive, and do nothing if none is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from causal.codec import decode, encode
from causal.execution import Carried, Delivered, Execution, Sent, TokenAdopted, TokenTaken
from causal.log import LogStamp
from causal.model import Dot, Duplicate, Held, Mask, Message, Missing, Site, mask_of, sites_of
from causal.multicast import Effect, Multicast, Outgoing
from causal.protocols import PROTOCOLS, make_site
from causal.rows import Matrix


class Send(NamedTuple):
    site: Site
    to: Mask
    semantic: bool = True


class Arrive(NamedTuple):
    """The copy of the `message`-th user message (from 0) arrives; again, if it did before."""

    message: int
    at: Site


class ArriveExtra(NamedTuple):
    """One of the extra messages under way arrives."""

    draw: int


class Move(NamedTuple):
    """A session takes a token at one site; where it lands, the token is adopted if it is due."""

    leaves: Site
    lands: Site


Step = Send | Arrive | ArriveExtra | Move


def schedule(
    seed: object,
    sites: int,
    messages: int,
    *,
    fan_out_max: int | None = None,
    broadcast: bool = False,
    repeats: float = 0.0,
    moves: float = 0.0,
    dependent: float = 1.0,
) -> list[Step]:
    """Sends at random sites, and copies that arrive in any order between and after them."""
    rng = random.Random(f"schedule {seed}")
    steps: list[Step] = []
    under_way: list[Arrive] = []
    sent = 0
    while sent < messages or under_way:
        if sent < messages and rng.random() < 0.3:
            sender = rng.randrange(sites)
            others = [site for site in range(sites) if site != sender]
            count = len(others) if broadcast else rng.randint(1, min(fan_out_max or sites, len(others)))
            to = mask_of(rng.sample(others, count))
            steps.append(Send(sender, to, rng.random() < dependent))
            under_way += [Arrive(sent, site) for site in sites_of(to)]
            sent += 1
        elif under_way:
            copy = under_way.pop(rng.randrange(len(under_way)))
            steps += [copy, ArriveExtra(rng.getrandbits(32))]
            if rng.random() < repeats:
                under_way.append(copy)
        if rng.random() < moves:
            steps.append(Move(*rng.sample(range(sites), 2)))
    return steps


class Network:
    """Sites under one protocol, and everything that is under way between them."""

    def __init__(
        self,
        protocol: str,
        sites: int,
        *,
        wire: bool = False,
        make: Callable[..., Multicast[Any]] = make_site,
        **options: Any,
    ) -> None:
        self.sites = [make(protocol, site, sites, **options) for site in range(sites)]
        self.sent: list[Outgoing] = []  # user messages, as named by the steps
        self.copies: dict[tuple[Dot, Site], Message | bytes] = {}  # as they travel: values, or with `wire` bytes
        self.extras: list[tuple[Dot, Site]] = []  # under way
        self.execution = Execution(sites, protocol, options)
        self._wire = wire
        self._tokens = 0

    def run(self, steps: Iterable[Step]) -> Network:
        """Take all steps, then let every extra message arrive, oldest first."""
        for step in steps:
            self.take(step)
        while self.extras:
            self.take(ArriveExtra(0))
        return self

    def take(self, step: Step) -> list[Effect]:
        match step:
            case Send(site, to, semantic):
                made = self.sites[site].send(to, payload=b"%d" % len(self.sent), semantic=semantic)
                return self._launch(made, semantic)
            case Arrive(message, at):
                return self._arrive(self.sent[message].dot, at)
            case ArriveExtra(draw):
                return self._arrive(*self.extras.pop(draw % len(self.extras))) if self.extras else []
            case Move(leaves, lands):
                return self._move(self.sites[leaves], self.sites[lands])

    @property
    def left_held(self) -> list[Held]:
        return [held for site in self.sites for held in site.held]

    @property
    def delivered(self) -> list[tuple[Site, Dot]]:
        """Every delivery, with the receiver, in order of happening."""
        return [(record.site, record.dot) for record in self.execution.records if isinstance(record, Delivered)]

    def _launch(self, made: list[Outgoing], semantic: bool = True) -> list[Effect]:
        for outgoing in made:
            sender = self.sites[outgoing.dot.site]
            copies = dict(outgoing.copies())
            carried = {site: Carried(sender.units(copy), _facts(copy, site)) for site, copy in copies.items()}
            self.execution.records.append(
                Sent(sender.site, outgoing.dot, outgoing.to, carried, semantic, outgoing.is_extra)
            )
            travelling = encode(sender, outgoing) if self._wire else copies
            self.copies |= {(outgoing.dot, site): copy for site, copy in travelling.items()}
            if outgoing.is_extra:
                self.extras += [(outgoing.dot, site) for site in copies]
            else:
                self.sent.append(outgoing)
        return list(made)

    def _arrive(self, dot: Dot, at: Site) -> list[Effect]:
        copy, receiver = self.copies[dot, at], self.sites[at]
        if isinstance(copy, bytes):
            payload = next((outgoing.payload for outgoing in self.sent if outgoing.dot == dot), b"")
            copy = decode(receiver, copy, payload)
        effects = receiver.receive(copy)
        for effect in effects:
            if isinstance(effect, Message):
                self.execution.records.append(Delivered(at, effect.dot))
            elif isinstance(effect, Outgoing):
                self._launch([effect])
        return effects

    def _move(self, leaves: Multicast[Any], lands: Multicast[Any]) -> list[Effect]:
        token = leaves.token()
        if lands.first_missing(token) is not None:
            return []
        self._tokens += 1
        self.execution.records += [TokenTaken(leaves.site, self._tokens), TokenAdopted(lands.site, self._tokens)]
        return self._launch(lands.adopt(token))


def new_sites(protocol: str, count: int) -> list[Multicast[Any]]:
    return [make_site(protocol, site, count) for site in range(count)]


def multicast(site: Multicast[Any], *to: int, payload: bytes = b"") -> Outgoing:
    """A send that makes no extra messages. To everybody, unless told: that suits every protocol."""
    others = [other for other in range(site.sites) if other != site.site]
    (outgoing,) = site.send(mask_of(to or others), payload=payload)
    return outgoing


def tightest(protocol: str, sites: int) -> dict[str, Any]:
    """Options under which everything that a protocol can do is done."""
    return {"threshold": sites + 1} if protocol == "extra-message" else {}


def walk(protocol: str, seed: int, *, wire: bool = False, **circumstances: Any) -> tuple[Network, list[Step]]:
    """Five sites, and a schedule with all the trouble that the protocol must take."""
    moves = 0.1 if PROTOCOLS[protocol].is_causal else 0.0
    trouble = {"repeats": 0.1, "moves": moves, "dependent": 0.5, "broadcast": protocol == "vector", **circumstances}
    return Network(protocol, 5, wire=wire, **tightest(protocol, 5)), schedule(seed, 5, 30, **trouble)


def to_the_end(network: Network, steps: list[Step]) -> Iterator[Step]:
    """The steps, and as many more as it takes until no extra message is under way."""
    yield from steps
    while network.extras:
        yield ArriveExtra(0)


def rescanning(self: Multicast[Any], message: Message) -> list[Effect]:
    """The obvious way to release: after each delivery look at all that is held, earliest arrival first."""
    effects: list[Effect] = []
    due: Message | None = message
    while due is not None:
        self._held.pop(due.dot, None)
        self.delivered[due.dot.site] = due.dot.seq
        self._learn(due)
        effects += [due, *(self._make_room(0) if self.makes_extras else [])]
        due = next((held for held in self._held.values() if self._missing(held) is None), None)
    return effects


def make_rescanning(protocol: str, site: int, sites: int, **options: Any) -> Multicast[Any]:
    kind = type("Rescanning", (PROTOCOLS[protocol],), {"_deliver": rescanning})
    made: Multicast[Any] = kind(site, sites, **options)
    return made


class Shadow:
    """What `matrix` would know in an execution that another protocol decides."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._known = [Matrix.empty(len(network.sites))] * len(network.sites)
        self._stamps: dict[Dot, tuple[Matrix, Mask]] = {}
        self._tokens: dict[int, Matrix] = {}
        self._seen = 0

    def missing(self, step: Arrive) -> Missing | None:
        """What `matrix` would hold this copy for."""
        stamp, _ = self._stamps[self._network.sent[step.message].dot]
        return stamp.first_missing(step.at, self._network.sites[step.at].delivered)

    def follow(self) -> None:
        """Learn what has happened since the last time."""
        records = self._network.execution.records
        for record in records[self._seen :]:
            match record:
                case Sent(site, dot, to, is_extra=False):
                    self._stamps[dot] = self._known[site], to
                    self._known[site] = self._known[site].with_message(dot, to)
                case Delivered(site, dot) if dot in self._stamps:
                    stamp, to = self._stamps[dot]
                    self._known[site] = self._known[site].merged(stamp).with_message(dot, to)
                case TokenTaken(site, token):
                    self._tokens[token] = self._known[site]
                case TokenAdopted(site, token):
                    self._known[site] = self._known[site].merged(self._tokens[token])
        self._seen = len(records)


def judgements(protocol: str, *, seeds: int) -> set[tuple[bool, bool]]:
    """For every first arrival: does the protocol hold it, and would `matrix` in its place?"""
    found = set()
    for seed in range(seeds):
        network, steps = walk(protocol, seed, dependent=0.3)
        shadow = Shadow(network)
        for step in to_the_end(network, steps):
            missing = shadow.missing(step) if isinstance(step, Arrive) else None
            effects = network.take(step)
            shadow.follow()
            if isinstance(step, Arrive) and not isinstance(effects[0], Duplicate):
                found.add((isinstance(effects[0], Held), missing is not None))
    return found


def outline(network: Network, steps: list[Step]) -> list[list[tuple[str, Dot]]]:
    """What each step led to, told without stamps."""
    return [[(type(effect).__name__, _dot(effect)) for effect in network.take(step)] for step in steps]


def _dot(effect: Effect) -> Dot:
    return effect.message.dot if isinstance(effect, Held | Duplicate) else effect.dot


def questions_asked(site: Multicast[Any], message: Message, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often an arrival makes the site ask what some message misses."""
    asked: list[Message] = []
    ask = type(site)._missing

    def count(self: Multicast[Any], held: Message) -> Missing | None:
        asked.append(held)
        return ask(self, held)

    with monkeypatch.context() as patch:
        patch.setattr(type(site), "_missing", count)
        site.receive(message)
    return len(asked)


def _facts(copy: Message, receiver: Site) -> Any:
    return copy.stamp.facts(receiver) if isinstance(copy.stamp, LogStamp) else None


def value(effect: Effect) -> Any:
    """An effect in a form in which equal means equal. The needs of a log stamp are a set, listed in any order."""
    match effect:
        case Message(stamp=LogStamp() as stamp):
            return effect._replace(stamp=stamp._replace(needs=sorted(stamp.needs)))
        case Held(message, missing):
            return "held", value(message), missing
        case Duplicate(message):
            return "repeated", value(message)
    return effect


def values(effects: Iterable[Effect]) -> list[Any]:
    return list(map(value, effects))
