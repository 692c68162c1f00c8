"""What explain says, against what happened: random executions whose every happens-before is written down.

Networks overtake, messages go to some sites only, some are not meant to follow anything. Whatever a site then says of
its held messages must be true: the missing message has not come and lies in the past of the held one, each step of the
chain comes before the next, and who is said to have delivered something had.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from causal import PROTOCOLS, Dot, Message, make_site, mask_of
from causal.multicast import Outgoing
from kvstore import explain as module
from kvstore.explain import Explained, Why, explain
from kvstore.placement import Placement
from kvstore.replica import Replica
from tests.kvstore.stage import CAUSAL
from tests.simulation.cluster import make_cluster

SITES = 4
STEPS = 80
OPTIONS = {"extra-message": {"threshold": SITES + 1}}


class World:
    """Sites of the causal core on a network that overtakes, and the whole truth about them."""

    def __init__(self, protocol: str, seed: int, *, to_all: bool) -> None:
        self.rng = random.Random(f"explain {protocol} {seed}")
        self.to_all = to_all
        self.sites = [make_site(protocol, site, SITES, **OPTIONS.get(protocol, {})) for site in range(SITES)]
        self.under_way: list[tuple[int, Message]] = []
        self.seen: list[dict[Dot, None]] = [{} for _ in range(SITES)]  # sent and delivered, in order
        self.past: dict[Dot, frozenset[Dot]] = {}
        self.delivered_before: dict[Dot, frozenset[Dot]] = {}  # by its sender
        cluster = make_cluster(SITES, protocol)
        if not to_all:
            object.__setattr__(cluster, "placement", {**cluster.placement, b"some": ("a", "b")})
        self.holders = [self._holder(site, cluster) for site in range(SITES)]

    def _holder(self, site: int, cluster: Any) -> Any:
        held = defaultdict[Dot, Any](lambda: SimpleNamespace(updates=[], since_ms=0, meant=None))
        holder: Any = SimpleNamespace(cluster=cluster, site=site, ordering=self.sites[site], held=held)
        holder.placement, holder.recent = Placement(cluster), deque[Message](maxlen=64)
        holder.cause_of = partial(Replica.cause_of, holder)
        return holder

    def step(self) -> None:
        if self.under_way and self.rng.random() < 0.6:
            site, message = self.under_way.pop(self.rng.randrange(len(self.under_way)))
            for effect in self.sites[site].receive(message):
                if isinstance(effect, Message):
                    self.seen[site][effect.dot] = None
                    self.holders[site].recent.append(effect)
                elif isinstance(effect, Outgoing):
                    self._send(site, effect)
        else:
            site = self.rng.randrange(SITES)
            others = [other for other in range(SITES) if other != site]
            to = others if self.to_all else self.rng.sample(others, self.rng.randint(1, len(others)))
            for outgoing in self.sites[site].send(mask_of(to), semantic=self.rng.random() < 0.5):
                self._send(site, outgoing)

    def _send(self, site: int, outgoing: Outgoing) -> None:
        seen = self.seen[site]
        self.past[outgoing.dot] = frozenset(seen).union(*(self.past[dot] for dot in seen))
        self.delivered_before[outgoing.dot] = frozenset(dot for dot in seen if dot.site != site)
        seen[outgoing.dot] = None
        self.under_way += outgoing.copies()

    def explained(self) -> list[tuple[int, Explained]]:
        return [(site, one) for site, holder in enumerate(self.holders) for one in explain(holder)]

    def check(self, site: int, told: Explained) -> None:
        steps = told.chain
        assert steps[0].why is Why.MISSING and steps[-1].dot == told.dot
        assert steps[0].dot == Dot(told.missing.site, told.missing.seq)
        if not told.missing.by_link:
            missing = steps[0].dot
            assert missing in self.past[told.dot]
            assert missing not in self.seen[site]
            assert missing not in {held.message.dot for held in self.sites[site].held}
        for earlier, later in pairwise(steps):
            self._check_step(earlier.dot, later, is_link=told.missing.by_link)

    def _check_step(self, earlier: Dot, later: Any, *, is_link: bool) -> None:
        match later.why:
            case Why.SENT_BEFORE:
                assert earlier.site == later.dot.site and earlier.seq < later.dot.seq
            case Why.DELIVERED_BEFORE:
                assert earlier in self.delivered_before[later.dot]
            case Why.LINK_ORDER:
                assert is_link and earlier.site == later.dot.site
            case _:
                assert earlier in self.past[later.dot]


def check_what_is_said(protocol: str, *, to_all: bool, seeds: int = 25) -> Counter[Why]:
    whys: Counter[Why] = Counter()
    for seed in range(seeds):
        world = World(protocol, seed, to_all=to_all)
        for number in range(STEPS):
            world.step()
            if number % 8 == 0:
                for site, told in world.explained():
                    world.check(site, told)
                    whys.update(step.why for step in told.chain)
    return whys


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_said_is_true_where_everything_goes_everywhere(protocol: str) -> None:
    whys = check_what_is_said(protocol, to_all=True)
    if protocol in CAUSAL:
        assert whys[Why.MISSING] > 100
    if protocol in ("vector", "matrix", "optimal", "pruning", "direct"):
        assert whys[Why.DELIVERED_BEFORE] > 100 and not whys[Why.UNSPECIFIED]


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "vector"])
def test_what_is_said_is_true_where_messages_go_to_some_sites_only(protocol: str) -> None:
    whys = check_what_is_said(protocol, to_all=False)
    if protocol in ("matrix", "optimal", "pruning", "direct"):
        assert whys[Why.DELIVERED_BEFORE] and whys[Why.UNSPECIFIED] > 20


# Planted bugs


@pytest.mark.parametrize(
    ("protocol", "to_all"), [("optimal", False), ("false-causality", True), ("extra-message", True)]
)
def test_saying_of_everybody_who_knew_that_it_had_delivered_is_caught(
    monkeypatch: pytest.MonkeyPatch, protocol: str, to_all: bool
) -> None:
    monkeypatch.setattr(module.Teller, "_went", lambda *_: True)
    with pytest.raises(AssertionError):
        check_what_is_said(protocol, to_all=to_all, seeds=200)


def test_a_chain_through_anything_that_is_held_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Knowledge, "knows", lambda *_: True)
    with pytest.raises(AssertionError):
        check_what_is_said("vector", to_all=True)


def test_taking_the_first_thing_a_message_misses_for_what_has_not_come_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module.Teller, "_last", lambda _, held: held)
    with pytest.raises(AssertionError):
        check_what_is_said("optimal", to_all=True)
