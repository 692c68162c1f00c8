"""One site's end of a causal multicast: send, receive, hold, release, and drop what comes twice.

Everything that all protocols share is here, once. A variant says only what it stamps on a message, what a message
with that stamp misses here, and what a delivery teaches. Steps return what should happen, in the order in which it
should happen; nothing here talks to a network, a disk or a clock.

Holding. A held message is filed under the one message it misses first. A delivery from site s wakes what is filed
under s and has come within reach; each of those is due now or filed again under the next thing it misses, so nothing
is ever rescanned. Of the messages that are due, the one that arrived first is delivered first.

Repeats. Every protocol but `unordered` delivers the messages from one sender in the order of their numbers, so a
number at or below the newest delivered one is a repeat. Dropping repeats is the core's work: a replayed packet has
broken a verified causal store before.

The past. What a site knows is one immutable value, its *context*. A token is such a value: taking one costs nothing,
two can be merged, and another site judges it by the same rule as a message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from causal.blocks import Reader
from causal.errors import BadDestinations, BadOption, FromTheFuture, Malformed, NoSessions, NotDue, NotForUs
from causal.model import Dot, Duplicate, Held, Mask, Message, Missing, Site, sites_of

SITES_MAX = 1024  # sites in one system; beyond it: BadOption


class Context(Protocol):
    """A causal past, as far as it still matters: what a site knows, a session carries, a stamp conveys."""

    def merged(self, other: Self) -> Self:
        """Both pasts in one."""

    def joined(self, other: Self, at: Site) -> Self:
        """Both pasts in one, at a site where everything that `other` names for it is delivered."""

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        """The unmet need of the lowest-numbered site, for a site that has delivered this much; None when due."""

    def highest(self, site: Site) -> int:
        """The number of the newest message of `site` that is named."""

    def units(self) -> int:
        """Its size in the protocol's own measure."""


class Outgoing(NamedTuple):
    """A message to put on the links. The copies differ only in their stamps: `stamps.at(site)` is one copy's."""

    dot: Dot
    to: Mask
    stamps: Any
    payload: bytes = b""
    is_extra: bool = False

    def copy(self, site: Site) -> Message:
        return Message(self.dot, self.to, self.stamps.at(site), self.payload, self.is_extra)

    def copies(self) -> Iterator[tuple[Site, Message]]:
        return ((site, self.copy(site)) for site in sites_of(self.to))


Effect = Message | Outgoing | Held | Duplicate
C = TypeVar("C", bound=Context)


class Multicast(ABC, Generic[C]):
    """One site among `sites`, under one protocol."""

    name: ClassVar[str]
    number: ClassVar[int]  # names the protocol in tokens and dumps; never reused
    paper: ClassVar[str]
    carries: ClassVar[str]  # what a stamp is made of, in a phrase
    promise: ClassVar[str]
    is_causal: ClassVar[bool] = True
    makes_extras: ClassVar[bool] = False
    heeds_meaning: ClassVar[bool] = False  # whether `semantic` makes a difference

    def __init__(self, site: Site, sites: int) -> None:
        if not 1 <= sites <= SITES_MAX:
            raise BadOption(f"{sites} sites; 1 to {SITES_MAX} are possible")
        if not 0 <= site < sites:
            raise BadOption(f"site {site} does not exist among {sites} sites")
        self.site = site
        self.sites = sites
        self.clock = 0  # number of this site's newest message
        self.delivered = [0] * sites  # number of the newest message delivered here, by sender
        self.context = self._origin()
        self._held: dict[Dot, Message] = {}  # in order of arrival
        self._waiting: dict[tuple[Site, bool], list[tuple[int, int, Message]]] = {}  # heaps: number, arrival, message
        self._arrivals = 0

    @property
    def options(self) -> dict[str, int]:
        """What this site was made with beyond its number, as keyword arguments."""
        return {}

    # Steps

    def send(self, to: Mask, *, payload: bytes = b"", semantic: bool = True) -> list[Outgoing]:
        """Multicast to the set `to`. The result goes out in this order; extra messages may stand around the message.

        `semantic=False` says that this message depends on nothing that this site sent or delivered; only
        `false-causality` makes use of it.
        """
        self._check_destinations(to)
        made = self._make_room(to) if self.makes_extras else []
        dot = self.take_dot()
        made.append(Outgoing(dot, to, self._stamp(dot, to, semantic), payload))
        if self.makes_extras:
            made += self._make_room(0)
        return made

    def take_dot(self) -> Dot:
        """The next message number. On its own: a name for an update that goes to nobody else."""
        self.clock += 1
        return Dot(self.site, self.clock)

    def receive(self, message: Message) -> list[Effect]:
        """A copy arrived. What happens because of it: messages delivered, extra messages made, or why nothing is."""
        self._check_message(message)
        if self._is_repeat(message):
            return [Duplicate(message)]
        missing = self._missing(message)
        if missing is not None:
            self._hold(message, missing)
            return [Held(message, missing)]
        return self._deliver(message)

    @property
    def held(self) -> list[Held]:
        """What waits here, in order of arrival, each with the first thing it misses."""
        return [Held(message, missing) for message in self._held.values() if (missing := self._missing(message))]

    # Tokens

    def token(self) -> C:
        """A snapshot of everything that this site knows, for a session to carry elsewhere."""
        self._check_sessions()
        return self.context

    def merge(self, one: C, other: C) -> C:
        self._check_sessions()
        return one.merged(other)

    def first_missing(self, token: C) -> Missing | None:
        """None when the token is due here; else the first message that has to be delivered here before."""
        self._check_sessions()
        if token.highest(self.site) > self.clock:
            raise FromTheFuture(
                f"the token names message {token.highest(self.site)} of site {self.site}, "
                f"which has sent {self.clock} so far"
            )
        return token.first_missing(self.site, self.delivered)

    def adopt(self, token: C) -> list[Outgoing]:
        """Take a due token into this site's past: whatever is sent from now on depends on it."""
        missing = self.first_missing(token)
        if missing is not None:
            raise NotDue(f"message {missing.seq} of site {missing.site} is not delivered at site {self.site} yet")
        self.context = self.context.joined(token, self.site)
        return self._make_room(0) if self.makes_extras else []

    # What a variant is

    @abstractmethod
    def _origin(self) -> C:
        """The past of a site that has seen nothing."""

    @abstractmethod
    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> Any:
        """What it stamps: the stamps of a new message, which joins this site's past."""

    def _missing(self, message: Message) -> Missing | None:
        """What it misses here, or None when it is due."""
        missing: Missing | None = message.stamp.first_missing(self.site, self.delivered)
        return missing

    @abstractmethod
    def _learn(self, message: Message) -> None:
        """What it learns: a message that is due joins this site's past."""

    def _make_room(self, to: Mask) -> list[Outgoing]:
        """Extra messages that must go out before a message to `to` is stamped, or (to nobody) after any other step."""
        raise NotImplementedError  # unless makes_extras

    def units(self, message: Message) -> int:
        """How much control information this copy carries, in the protocol's own measure."""
        units: int = message.stamp.units()
        return units

    # Its bytes: numbers and sets in blocks, put together by the codec

    def _pack_stamps(self, stamps: Any, to: Sequence[Site]) -> Iterable[bytes]:
        """The stamps of one message as bytes, for each of these destinations. What the copies share is packed once.

        For a single destination its stamp alone will do: `at` gives itself. Here, as in the simplest protocols, a stamp
        is the sender's whole context.
        """
        return [self._pack_context(stamps)] * len(to)

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> Any:
        """The stamp of a copy that arrived here, of a message to `to`."""
        return self._unpack_context(reader)

    @abstractmethod
    def _pack_context(self, context: C) -> bytes: ...

    @abstractmethod
    def _unpack_context(self, reader: Reader) -> C: ...

    def _pack_state(self) -> bytes:
        """What a variant keeps beside clock, deliveries and context."""
        return b""

    def _unpack_state(self, reader: Reader) -> None: ...

    # Holding and releasing

    def _deliver(self, message: Message) -> list[Effect]:
        """Deliver a message that is due, then all that it releases, in order of arrival."""
        effects: list[Effect] = []
        due: list[tuple[int, Message]] = []
        while True:
            site, seq = message.dot
            if seq > self.delivered[site]:  # only `unordered` delivers older ones later
                self.delivered[site] = seq
            self._learn(message)
            effects.append(message)
            if self.makes_extras:
                effects += self._make_room(0)
            if self._held:
                for arrival, woken in self._wake(site):
                    missing = self._missing(woken)
                    if missing is None:
                        del self._held[woken.dot]
                        heappush(due, (arrival, woken))
                    else:
                        self._file(missing, arrival, woken)
            while due:
                _, message = heappop(due)
                if not self._is_repeat(message):
                    break
                effects.append(Duplicate(message))  # a sender that lied about its order
            else:
                return effects

    def _hold(self, message: Message, missing: Missing) -> None:
        self._held[message.dot] = message
        self._arrivals += 1
        self._file(missing, self._arrivals, message)

    def _file(self, missing: Missing, arrival: int, message: Message) -> None:
        site, seq, by_link = missing
        heappush(self._waiting.setdefault((site, by_link), []), (seq, arrival, message))

    def _wake(self, site: Site) -> Iterator[tuple[int, Message]]:
        """What waits for a message of `site` that is delivered now."""
        for by_link, reached in self._reached(site):
            waiting = self._waiting.get((site, by_link), [])
            while waiting and waiting[0][0] <= reached:
                _, arrival, message = heappop(waiting)
                yield arrival, message

    def _reached(self, site: Site) -> list[tuple[bool, int]]:
        """How far the deliveries from `site` have come, by message number and, where it counts, by link number."""
        return [(False, self.delivered[site])]

    def _is_repeat(self, message: Message) -> bool:
        site, seq = message.dot
        return seq <= self.delivered[site] or message.dot in self._held

    # Checks

    def _check_destinations(self, to: Mask) -> None:
        if not to:
            raise BadDestinations("a message needs at least one destination")
        if to >> self.sites or to < 0:
            raise BadDestinations(f"a destination does not exist; there are {self.sites} sites")
        if to >> self.site & 1:
            raise BadDestinations(f"site {self.site} cannot be a destination of its own message")

    def _check_message(self, message: Message) -> None:
        """Refuse what no honest site can have sent. Other times that look too new are only early: they wait."""
        (site, seq), to, stamp, _, _ = message
        if not 0 <= site < self.sites or seq < 1 or to >> self.sites or to >> site & 1:
            raise Malformed(f"message {seq} of site {site} to the set {to:#x}, among {self.sites} sites")
        if not to >> self.site & 1:
            raise NotForUs(f"message {seq} of site {site} does not go to site {self.site}")
        if stamp.highest(site) >= seq:
            raise Malformed(f"message {seq} of site {site} names message {stamp.highest(site)} of its own sender")
        if stamp.highest(self.site) > self.clock:
            raise FromTheFuture(
                f"message {seq} of site {site} names message {stamp.highest(self.site)} of site {self.site}, "
                f"which has sent {self.clock} so far"
            )

    def _check_sessions(self) -> None:
        if not self.is_causal:
            raise NoSessions(f"{self.name} keeps no causal past, so it has no tokens")
