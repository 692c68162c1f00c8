"""Why messages wait here: which message each of them waits for, and how that became part of its past.

A stamp says what its sender knew of every site when it sent. So a held message x *knows* a message m when its stamp, or
that of an earlier message of the same sender, names m or something later from m's sender. The chain from a missing
message m to a held message h goes through those who knew m first: of each site the first message that knows m. The
longest such way tells most: a had sent m, b delivered it and wrote, c delivered that and wrote h.

Protocols that prune their stamps name only the last link of such a chain: h waits for a message that is here and
waits itself. What h really waits for is the end of that row, the message that has not come; so it is the same under all
protocols, and the row is a part of the chain.

A message that lies between the two *and* is meant for this site too is held here as well, or has not come. Under causal
order it cannot be delivered here, for it would have had to wait for m. `false-causality` can deliver it: it waits only
for what was meant. So for that one protocol the messages that were delivered lately are asked too.

What the stamps do not tell is not told: a site that knows m has delivered it where m surely went to that site; where
messages go to some sites only, it may have heard of m from others, or from a session that came from elsewhere. Nor do
they tell whether a message was *meant* to follow what its site had seen (holds.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

from causal.links import LinkStamp
from causal.model import Dot, Held, Message, Missing, Site
from causal.multicast import Multicast
from causal.protocols.extra_message import ExtraMessage, default_threshold
from causal.protocols.false_causality import FalseCausality, MeantStamp
from kvstore.config import Cluster
from kvstore.placement import Placement
from kvstore.update import Update

HOLDS_DEFAULT = 100  # explained when nobody says how many
HOLDS_MAX = 1000  # explained in one answer; beyond it: only counted
FACTS_MAX = 20_000  # numbers read off stamps for one answer; beyond it: further messages are not asked
CHAIN_MAX = 32  # sites in one chain; beyond it: the way is shown with gaps
MAYBES_MAX = 3  # messages named that may stand between two steps; beyond it: they are not named


class Why(Enum):
    """Why a message is in the past of the next one in a chain."""

    UNSPECIFIED = auto()  # not known here
    MISSING = auto()  # the chain begins with it
    SENT_BEFORE = auto()
    DELIVERED_BEFORE = auto()
    ADOPTED = auto()
    LINK_ORDER = auto()


class ChainStep(NamedTuple):
    dot: Dot
    why: Why  # the one before it is in its past
    sentence: str


class Explained(NamedTuple):
    """Why one message is held."""

    dot: Dot
    since_ms: int
    missing: Missing  # it has not come
    chain: list[ChainStep]  # from the missing message to the held one
    cause: str  # whether it really needs the missing one: true, false or unknown
    updates: int


class Transit(Protocol):
    """A message that waits, as the replica keeps it."""

    @property
    def updates(self) -> list[Update]: ...

    @property
    def since_ms(self) -> int: ...


class Holder(Protocol):
    """What is asked of a replica."""

    @property
    def cluster(self) -> Cluster: ...

    @property
    def ordering(self) -> Multicast[Any]: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def held(self) -> Mapping[Dot, Transit]: ...

    @property
    def recent(self) -> deque[Message]: ...

    def cause_of(self, dot: Dot, missing: Missing) -> str: ...


def explain(holder: Holder, *, dot: Dot | None = None, limit: int = 0) -> list[Explained]:
    """The messages that have waited longest, or only this one if it is held, each with its reason."""
    waiting = {held.message.dot: held for held in holder.ordering.held}
    if dot is not None:
        wanted = [waiting[dot]] if dot in waiting else []
    else:
        wanted = list(waiting.values())[: min(limit or HOLDS_DEFAULT, HOLDS_MAX)]
    if not wanted:
        return []
    messages = [held.message for held in (*wanted, *waiting.values())]
    if isinstance(holder.ordering, FalseCausality):
        messages += reversed(holder.recent)
    teller = Teller(holder, waiting, Knowledge(messages, holder.ordering.sites))
    return [teller.explain(held) for held in wanted]


class Knowledge:
    """What messages know of other messages, by their stamps; of the first so many of them."""

    def __init__(self, messages: Iterable[Message], sites: int) -> None:
        self.messages: dict[Dot, Message] = {}
        for message in messages:
            self.messages.setdefault(message.dot, message)
            if len(self.messages) * sites >= FACTS_MAX:
                break
        self._numbers: dict[Site, list[int]] = {}  # by sender, rising
        for site, seq in sorted(self.messages):
            self._numbers.setdefault(site, []).append(seq)
        self._first: dict[Dot, dict[Site, Dot]] = {}
        self._known = {sender: self._columns(sender, sites) for sender in self._numbers}

    def _columns(self, sender: Site, sites: int) -> list[list[int]]:
        """By site: the newest number that each message of the sender knows. What a site knew once, it knows."""
        columns: list[list[int]] = [[] for _ in range(sites)]
        newest = [0] * sites
        for seq in self._numbers[sender]:
            stamp = self.messages[Dot(sender, seq)].stamp
            for site, column in enumerate(columns):
                newest[site] = max(newest[site], stamp.highest(site))
                column.append(newest[site])
        return columns

    def newest(self, dot: Dot, site: Site) -> int:
        """The newest message of a site that this one knows; 0 also for a message that was not asked."""
        if dot not in self.messages:
            return 0
        return self._known[dot.site][site][bisect_left(self._numbers[dot.site], dot.seq)]

    def knows(self, later: Dot, earlier: Dot) -> bool:
        if later.site == earlier.site:
            return later.seq > earlier.seq
        return self.newest(later, earlier.site) >= earlier.seq

    def first_to_know(self, start: Dot) -> dict[Site, Dot]:
        """Of each site the first message that knows `start`, by itself or through others."""
        if start in self._first:
            return self._first[start]
        first = self._first[start] = {start.site: start}
        is_new = True
        while is_new:
            is_new = False
            for sender, numbers in self._numbers.items():
                for known in list(first.values()):
                    place = bisect_left(self._known[sender][known.site], known.seq)
                    if sender in (known.site, start.site) or place == len(numbers):
                        continue
                    if sender not in first or numbers[place] < first[sender].seq:
                        first[sender] = Dot(sender, numbers[place])
                        is_new = True
        return first

    def chain(self, start: Dot, end: Dot) -> list[Dot]:
        """The longest way from one to the other through those who knew first; if there is none, the two themselves.

        Whoever had known it before has it from himself.
        """
        first = self.first_to_know(start)
        if end.site == start.site:
            return [start, end]
        if first.get(end.site, end).seq < end.seq:
            return [*self.chain(start, first[end.site]), end]
        between = [dot for dot in first.values() if dot != end][:CHAIN_MAX]
        ways: dict[Dot, list[Dot]] = {start: [start]}

        def way(dot: Dot) -> list[Dot]:
            if dot not in ways:
                ways[dot] = []  # stamps that know each other in a circle are lies, and lead nowhere
                ways_there = (way(one) for one in between if self.knows(dot, one))
                longest = max(ways_there, key=len, default=[])
                ways[dot] = [*longest, dot] if longest else []
            return ways[dot]

        return way(end) or [start, end]


class Teller:
    """Tells of held messages in sentences."""

    def __init__(self, holder: Holder, waiting: Mapping[Dot, Held], knowledge: Knowledge) -> None:
        self._holder = holder
        self._ordering = holder.ordering
        self._waiting = waiting
        self._knowledge = knowledge
        self._ends: dict[Dot, Held] = {}
        self._on_link = {(dot.site, _link_number(held.message)): dot for dot, held in waiting.items()}

    def explain(self, held: Held) -> Explained:
        message, waits_for = held
        last, missing = self._last(held)
        start = Dot(missing.site, missing.seq)
        chain = [ChainStep(start, Why.MISSING, self._not_here(missing))]
        if not missing.by_link:
            chain += self._steps(start, message.dot)
        else:
            chain.append(self._link_step(f"number {missing.seq}", last.dot))
            if message.dot != last.dot and waits_for.by_link:
                chain.append(self._link_step(f"message {last.dot.seq}", message.dot))
            elif message.dot != last.dot:
                chain += self._steps(last.dot, message.dot)
        transit = self._holder.held[message.dot]
        cause = self._cause(message.dot, waits_for, missing)
        return Explained(message.dot, transit.since_ms, missing, chain, cause, len(transit.updates))

    def _cause(self, dot: Dot, waits_for: Missing, missing: Missing) -> str:
        """Whether it needs what has not come, which may be at the end of a row of others that wait."""
        if waits_for.by_link:
            return self._holder.cause_of(dot, waits_for)
        if missing.by_link:
            # Which message has that number is known only where all go to all. Else there is none to look for, and
            # the question becomes: does it need anything that has not come?
            missing = Missing(missing.site, missing.seq if self._holder.placement.is_full else 0)
        return self._holder.cause_of(dot, missing)

    def _last(self, held: Held) -> Held:
        """At the end of the row in which each waits for the next: the one whose missing message is not here."""
        row: set[Dot] = set()
        while held.message.dot not in self._ends:
            row.add(held.message.dot)
            site, seq, by_link = held.missing
            dot = self._on_link.get((site, seq)) if by_link else Dot(site, seq)
            if dot is None or dot not in self._waiting or dot in row:
                break
            held = self._waiting[dot]
        last = self._ends.get(held.message.dot, held)
        self._ends.update(dict.fromkeys(row, last))
        return last

    def _steps(self, start: Dot, end: Dot) -> list[ChainStep]:
        """All but the first of the way from one to the other."""
        way = self._knowledge.chain(start, end)
        return [self._step(earlier, later) for earlier, later in pairwise(way)]

    def _step(self, earlier: Dot, later: Dot) -> ChainStep:
        site, what = self._name(later.site), self._called(earlier)
        sent = f"before it sent {self._kind(later)} {later.seq}"
        if earlier.site == later.site:
            return ChainStep(later, Why.SENT_BEFORE, f"{site} had sent {self._kind(earlier)} {earlier.seq} {sent}")
        if not self._knowledge.knows(later, earlier):
            sentence = f"{self._called(later)} comes after {what}, through messages that were not looked at"
            return ChainStep(later, Why.UNSPECIFIED, sentence)
        maybe = self._maybe_between(earlier, later)
        went = self._went(earlier, later.site)
        if went:
            return ChainStep(later, Why.DELIVERED_BEFORE, f"{site} had delivered {what} {sent}{maybe}")
        if went is None:
            how = "it had delivered it, or a message that came after it"
        else:
            how = f"it did not go to {site}, but a message that came after it did, or a session brought it there"
        return ChainStep(later, Why.UNSPECIFIED, f"{site} knew of {what} {sent}: {how}{maybe}")

    def _went(self, dot: Dot, site: Site) -> bool | None:
        """Whether a site that knew this message had it delivered; None: that cannot be told here."""
        if not self._ordering.is_causal or isinstance(self._ordering, FalseCausality):
            return None
        message = self._knowledge.messages.get(dot)
        if message is not None:
            return bool(message.to >> site & 1)
        return True if self._holder.placement.is_full and not _may_make_extras(self._ordering) else None

    def _maybe_between(self, earlier: Dot, later: Dot) -> str:
        """What the later one knows, the earlier one does not, and has not come either."""
        ends = (earlier.site, later.site, self._ordering.site)
        absent = []
        for site in (site for site in range(self._ordering.sites) if site not in ends):
            dot = Dot(site, self._knowledge.newest(later, site))
            came_before = max(self._ordering.delivered[site], self._knowledge.newest(earlier, site))
            if dot.seq > came_before and dot not in self._waiting:
                absent.append(self._called(dot))
        if not absent or len(absent) > MAYBES_MAX:
            return ""
        has = "which has" if len(absent) == 1 else "which have"
        return f"; {' and '.join(absent)}, {has} not come here, may stand between"

    def _link_step(self, earlier: str, dot: Dot) -> ChainStep:
        keeps = f"{self._ordering.name} keeps the order of links"
        return ChainStep(dot, Why.LINK_ORDER, f"{self._called(dot)} comes behind {earlier} on its link, and {keeps}")

    def _not_here(self, missing: Missing) -> str:
        site, seq, by_link = missing
        if by_link:
            return f"what {self._name(site)} sent here as number {seq} has not come"
        return f"{self._called(Dot(site, seq))} has not come here"

    def _called(self, dot: Dot) -> str:
        return f"{self._kind(dot)} {dot.seq} of {self._name(dot.site)}"

    def _kind(self, dot: Dot) -> str:
        message = self._knowledge.messages.get(dot)
        return "extra message" if message is not None and message.is_extra else "message"

    def _name(self, site: Site) -> str:
        return self._holder.cluster.sites[site].name


def _may_make_extras(ordering: Multicast[Any]) -> bool:
    """An extra message goes to one site only, wherever the keys are."""
    return isinstance(ordering, ExtraMessage) and ordering.threshold < default_threshold(ordering.sites)


def _link_number(message: Message) -> int:
    """Of a copy, where the protocol counts them; else 0, which is nobody's."""
    match message.stamp:
        case MeantStamp(_, link):
            return link
        case LinkStamp(number, _):
            return number
    return 0
