"""Bugs planted into the protocols, one at a time: each must be caught, and by the promise that it breaks.

A broken protocol is the real one with a method replaced. It runs on a fixed family of seeds until the oracle objects;
the table at the end says to what. Without the patch the same seeds are clean, or the catch would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from causal.columns import Columns
from causal.log import Log, LogStamp, LogStamps
from causal.model import Dot, Mask, Message, Missing, Site, mask_of
from causal.multicast import Effect, Multicast, Outgoing
from causal.oracle import judge
from causal.protocols import make_site
from causal.protocols.direct import Direct
from causal.protocols.extra_message import ExtraMessage
from causal.protocols.false_causality import FalseCausality, Meant
from causal.protocols.matrix import MatrixMulticast
from causal.protocols.optimal import Optimal
from causal.protocols.vector import Vector
from causal.simulation import simulate
from causal.workload import Workload
from tests.causal.network import Arrive, Network, Send, Step

# The base: holding, releasing, repeats, tokens


class DeliversRepeats(MatrixMulticast):
    def _is_repeat(self, message: Message) -> bool:
        return message.dot in self._held


class WakesOnlyOne(MatrixMulticast):
    def _wake(self, site: Site) -> Iterator[tuple[int, Message]]:
        return islice(super()._wake(site), 1)


class WokenIsDue(MatrixMulticast):
    def _missing(self, message: Message) -> Missing | None:
        return None if message.dot in self._held else super()._missing(message)


class ForgetsToJoin(MatrixMulticast):
    def adopt(self, token: Any) -> list[Outgoing]:
        assert self.first_missing(token) is None
        return []


class KeepsOneToken(MatrixMulticast):
    def merge(self, one: Any, other: Any) -> Any:
        return other


class StaleToken(MatrixMulticast):
    """The token of the state before the newest delivery: SAFETY 1's "token older than the data"."""

    before: Any = None

    def _learn(self, message: Message) -> None:
        self.before = self.context
        super()._learn(message)

    def token(self) -> Any:
        return self.before or super().token()


class AdmitsEveryToken(Optimal):
    def first_missing(self, token: Any) -> Missing | None:
        return None


# The matrices


class TellsOnlyItsOwnCell(MatrixMulticast):
    def _learn(self, message: Message) -> None:
        self.context = self.context.merged(message.stamp).with_message(message.dot, 1 << self.site)


class IgnoresThirdParties(Vector):
    def _missing(self, message: Message) -> Missing | None:
        sender = message.dot.site
        behind = message.stamp.times[sender] > self.delivered[sender]
        return Missing(sender, message.stamp.times[sender]) if behind else None


class SkipsTheLinkOrder(FalseCausality):
    """Repeats are then known by name, or the overtaken copy would pass for one."""

    def __init__(self, site: Site, sites: int) -> None:
        super().__init__(site, sites)
        self._names: set[Dot] = set()

    def _missing(self, message: Message) -> Missing | None:
        missing: Missing | None = message.stamp.past.first_missing(self.site, self.delivered)
        return missing

    def _is_repeat(self, message: Message) -> bool:
        return message.dot in self._names or message.dot in self._held

    def _learn(self, message: Message) -> None:
        super()._learn(message)
        self._names.add(message.dot)
        sender = message.dot.site
        self.delivered[sender] = max(seq for site, seq in self._names if site == sender)


class JudgesTokensByPrevious(FalseCausality):
    def token(self) -> Meant:
        return self.context


class ForgetsWhatWasNotMeant(FalseCausality):
    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> Any:
        if not semantic:
            self.context = Meant(self.context.previous, self.context.previous)
        return super()._stamp(dot, to, semantic)


# The columns


class DropsTheWholeSet(Direct):
    def _learn(self, message: Message) -> None:
        super()._learn(message)
        self.context = self.context.replaced(message.to & ~(1 << self.site), {message.dot.site: message.dot.seq})


class LosesAnEntryOnTheWire(Direct):
    def _unpack_stamp(self, *arguments: Any) -> Columns:
        columns = super()._unpack_stamp(*arguments).columns
        return Columns(tuple(dict(list(column.items())[1:]) for column in columns))


class ClearsWithoutMarker(ExtraMessage):
    def _make_room(self, to: Mask) -> list[Outgoing]:
        made = super()._make_room(to)
        for extra in made:
            self.context = self.context.replaced(extra.to, {})
        return made


class DoesNotMakeRoomFirst(ExtraMessage):
    def _make_room(self, to: Mask) -> list[Outgoing]:
        return [] if to else super()._make_room(to)


class LosesExtrasOfDeliveries(ExtraMessage):
    def _deliver(self, message: Message) -> list[Effect]:
        return [effect for effect in super()._deliver(message) if not isinstance(effect, Outgoing)]


class TellsOnlyItsOwnColumn(ExtraMessage):
    def _learn(self, message: Message) -> None:
        if not message.is_extra:
            merged: Columns = self.context.merged(message.stamp.common)
            self.context = merged.replaced(1 << self.site, {})


# The log


def newest_of(pending: Mapping[Any, Mask], sites: int) -> tuple[int, ...]:
    return tuple(max((seq for site, seq in pending if site == sender), default=0) for sender in range(sites))


class ForgetsTheEmptyEntry(Optimal):
    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> LogStamps:
        pending = self.context.pending
        self.context = Log(newest_of(pending, self.sites), pending)
        return super()._stamp(dot, to, semantic)

    def _learn(self, message: Message) -> None:
        super()._learn(message)
        self.context = Log(newest_of(self.context.pending, self.sites), self.context.pending)


class KeepsWhatItReplaces(Optimal):
    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> Any:
        before = self.context.pending
        return UnprunedStamps(*super()._stamp(dot, to, semantic), before)


@dataclass(frozen=True)
class UnprunedStamps:
    newest: tuple[int, ...]
    pending: Mapping[Any, Mask]
    needs: Mapping[Mask, Any]
    before: Mapping[Any, Mask]

    def at(self, site: Site) -> LogStamp:
        others = {dot: mask & ~(1 << site) for dot, mask in self.before.items() if mask & ~(1 << site)}
        return LogStamp(self.newest, others, self.needs.get(1 << site, ()))


class DropsTheNeeds(Optimal):
    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> LogStamps:
        return super()._stamp(dot, to, semantic)._replace(needs={})


class MergesByUnion(Optimal):
    """Keeps a destination that one of two logs still names, though the other has heard that it is settled."""

    def _learn(self, message: Message) -> None:
        before = self.context.pending
        super()._learn(message)
        theirs = message.stamp.pending
        both = {dot: before[dot] | theirs[dot] for dot in before.keys() & theirs.keys()}
        self.context = Log(self.context.newest, {**self.context.pending, **both})


class ComparesWithWhatItChanged(Optimal):
    """RCV(4) in one go: an entry just taken over makes its sender's older ones look heard of (trap 7)."""

    def _learn(self, message: Message) -> None:
        newest, taken = list(self.context.newest), {}
        for site, seq in sorted(message.stamp.pending, reverse=True):
            if (site, seq) in self.context.pending or seq > newest[site]:
                taken[site, seq] = message.stamp.pending[site, seq]
                newest[site] = max(newest[site], seq)
        super()._learn(message._replace(stamp=message.stamp._replace(pending=taken)))


# The table

CROWDED: list[Step] = [  # trap 3: 2, 3, 4 and 5 each unicast to 1, then to 0; 0 multicasts to all
    *[Send(sender, mask_of([to])) for sender in (2, 3, 4, 5) for to in (1, 0)],
    *[Arrive(number, 0) for number in (1, 3, 5, 7)],
    Send(0, mask_of([1, 2, 3, 4, 5])),
    *[Arrive(number, 1) for number in (0, 2, 4, 6)],
    *[Arrive(8, site) for site in (1, 2, 3, 4, 5)],
]


@dataclass(frozen=True)
class Bug:
    protocol: str
    broken: type[Multicast[Any]]
    sentence: str
    caught_by: str  # a list of the verdict, or what is left at the end
    circumstances: Mapping[str, Any] = field(default_factory=dict)  # of the workload, where the usual ones hide it
    options: Mapping[str, Any] = field(default_factory=dict)
    wire: bool = False
    steps: list[Step] | None = None  # taken instead of random executions, which do not find it

    def make(self, protocol: str, site: Site, sites: int, **options: Any) -> Multicast[Any]:
        return self.broken(site, sites, **options)


MOVING = {"sessions": 8}
FAR = {**MOVING, "fan_out": "unicast", "delay_s": 0.5}
VAGUE = {"dependent": 0.3}
K6, K7 = {"threshold": 6}, {"threshold": 7}
MATRIX, GK, EXTRA = "matrix", "false-causality", "extra-message"
BUGS = [
    Bug(MATRIX, DeliversRepeats, "a repeat of a delivered message is delivered", "exactly_once", {"duplicates": 0.2}),
    Bug(MATRIX, WakesOnlyOne, "a delivery wakes only one of the messages that wait for it", "left held"),
    Bug(MATRIX, WokenIsDue, "a woken message is not asked what else it misses", "safety"),
    Bug(MATRIX, ForgetsToJoin, "a token is adopted without joining the site's past", "safety", MOVING),
    Bug(MATRIX, KeepsOneToken, "of two merged tokens only the newer one is kept", "tokens", FAR),
    Bug(MATRIX, StaleToken, "a token is taken from the context before the newest delivery", "tokens", MOVING),
    Bug(MATRIX, TellsOnlyItsOwnCell, "a multicast counts in the receiver's cell only (trap 1)", "safety"),
    Bug("vector", IgnoresThirdParties, "only the sender's counter is compared", "safety", {"fan_out": "broadcast"}),
    Bug(GK, SkipsTheLinkOrder, "an overtaking copy is not held (trap 2)", "semantic_safety", {**VAGUE, "fifo": False}),
    Bug(GK, JudgesTokensByPrevious, "a token is judged by PREV alone (SAFETY 13)", "tokens", {**VAGUE, **MOVING}),
    Bug(GK, ForgetsWhatWasNotMeant, "an independent send empties CONC", "semantic_safety", {"dependent": 0.7}),
    Bug("direct", DropsTheWholeSet, "a delivery drops all of a destination's set", "safety"),
    Bug("direct", LosesAnEntryOnTheWire, "one predecessor of each set is not decoded", "safety", wire=True),
    Bug(EXTRA, ClearsWithoutMarker, "a column is cleared without naming the extra message", "safety", options=K6),
    Bug(EXTRA, DoesNotMakeRoomFirst, "no room is made before stamping (trap 3)", "bound", options=K7, steps=CROWDED),
    Bug(EXTRA, LosesExtrasOfDeliveries, "an extra message made by a delivery is lost", "liveness", options=K6),
    Bug(EXTRA, TellsOnlyItsOwnColumn, "a copy does not tell of the other destinations (trap 1)", "safety"),
    Bug("optimal", AdmitsEveryToken, "a token is taken for due without asking", "tokens", MOVING),
    Bug("optimal", ForgetsTheEmptyEntry, "a sender's newest entry is forgotten once empty (trap 6)", "optimality"),
    Bug("optimal", KeepsWhatItReplaces, "SND(2) is skipped for the other destinations", "optimality"),
    Bug("optimal", DropsTheNeeds, "a copy does not say what its receiver must wait for", "safety"),
    Bug("optimal", MergesByUnion, "two logs are merged by union instead of intersection", "optimality"),
    Bug("optimal", ComparesWithWhatItChanged, "RCV(4) compares with sets it has changed (trap 7)", "optimality"),
]
SEEDS = range(40)
EVERY_BUG = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.broken.__name__)


def findings(bug: Bug, seed: int, make: Callable[..., Multicast[Any]]) -> set[str]:
    """The names of the promises that this execution breaks."""
    protocol = bug.protocol
    if bug.steps:
        network = Network(protocol, 6, make=make, **bug.options).run(bug.steps)
        execution, left_held, left_waiting = network.execution, len(network.left_held), 0
    else:
        workload = Workload(5, 60, seed=seed, **bug.circumstances)
        outcome = simulate(workload, protocol, bug.options, record=True, wire=bug.wire, make=make)
        assert outcome.execution is not None
        execution, left_held, left_waiting = outcome.execution, outcome.left_held, outcome.left_waiting
    optimality = protocol in ("optimal", "pruning")
    verdict = judge(execution, bound=bug.options.get("threshold"), optimality=optimality)
    order = "semantic_safety" if protocol == "false-causality" else "safety"
    lists = (order, "exactly_once", "liveness", "tokens", "bound", "optimality")
    left = {"left held": left_held, "left waiting": left_waiting}
    return {name for name in lists if getattr(verdict, name)} | {name for name, count in left.items() if count}


@EVERY_BUG
def test_a_planted_bug_is_caught_by_the_promise_that_it_breaks(bug):
    found = next(filter(None, (findings(bug, seed, bug.make) for seed in SEEDS)), set())
    assert bug.caught_by in found, f"{bug.protocol}: {bug.sentence}"


def test_the_table_is_long_enough_and_names_the_protocol_that_is_broken():
    assert len(BUGS) >= 14
    assert [bug.protocol for bug in BUGS] == [bug.broken.name for bug in BUGS]


@EVERY_BUG
def test_without_the_bug_the_same_seeds_are_clean(bug):
    for seed in SEEDS:
        assert findings(bug, seed, make_site) == set()


@pytest.mark.parametrize("broken", [ForgetsTheEmptyEntry, KeepsWhatItReplaces, MergesByUnion])
def test_what_costs_only_optimality_is_seen_by_no_other_judge(broken):
    (bug,) = [bug for bug in BUGS if bug.broken is broken]
    assert set().union(*(findings(bug, seed, bug.make) for seed in SEEDS)) == {"optimality"}
