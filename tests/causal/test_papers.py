"""The papers' own examples and claims, section by section.

KS is Kshemkalyani and Singhal 1998, Jang is Jang, Park, Cho and Yoon 1997, Gambhire is Gambhire and Kshemkalyani 2000,
Sanchez is Sanchez and Alvarez. A claim about every execution is watched on random ones, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from causal.codec import decode, encode
from causal.execution import Carried, Delivered, Execution, Sent
from causal.log import Log, LogStamp
from causal.model import Dot, Held, Message, Missing, mask_of, sites_of
from causal.multicast import Multicast, Outgoing
from causal.oracle import HappensBefore, judge
from causal.protocols import PROTOCOLS, make_site
from causal.protocols.extra_message import ColumnStamp, ExtraMessage
from causal.simulation import Simulation, simulate
from causal.workload import Workload
from tests.causal.figure3 import Arrive, CountedMessage, Figure3, Send, schedule

PRUNING = ("optimal", "pruning")
SEEDS = range(6)


def watched(protocol: str, check: Callable[[Multicast[Any], Any], None]) -> Callable[..., Multicast[Any]]:
    """A maker of sites that call `check(site, context before)` after every step."""

    class Watched(PROTOCOLS[protocol]):  # type: ignore[misc]
        def send(self, *arguments: Any, **named: Any) -> Any:
            return self.checked(super().send, *arguments, **named)

        def receive(self, *arguments: Any) -> Any:
            return self.checked(super().receive, *arguments)

        def adopt(self, *arguments: Any) -> Any:
            return self.checked(super().adopt, *arguments)

        def checked(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            before = self.context
            made = step(*arguments, **named)
            check(self, before)
            return made

    return lambda _, site, sites, **options: Watched(site, sites, **options)


def watch(protocol: str, workload: Workload, check: Callable[[Multicast[Any], Any], None], **options: int) -> Execution:
    outcome = Simulation(workload, protocol, options, record=True, make=watched(protocol, check)).run()
    assert outcome.execution is not None
    return outcome.execution


# --- KS 4.4: the worked examples ----------------------------------------------------------------------------------

NODES = 24
I, J = 1, 0  # the paper's i, whose messages the entries name, and j, where all happens


def log_of(entries: dict[int, set[int]]) -> Log:
    """A log with entries about messages of node i only."""
    newest = [0] * NODES
    newest[I] = max(entries)
    return Log(tuple(newest), {Dot(I, time): mask_of(to) for time, to in entries.items() if to})


def entries_of(log: Log | LogStamp) -> dict[int, set[int]]:
    """The paper's entries about messages of node i: those with destinations, and the newest one in any case."""
    entries = {seq: set(sites_of(mask)) for (site, seq), mask in log.pending.items() if site == I}
    return {log.newest[I]: set(), **entries}


def received(log: Log, stamp: dict[int, set[int]]) -> Log:
    """The log after j has delivered a unicast of node 8 with such entries."""
    their = log_of(stamp)
    return log.delivered(LogStamp(their.newest, their.pending, ()), Dot(8, 1), 0)


L_DESTS, M_DESTS = {2, 3, 4, 6, 8}, {3, 4, 7, 8, 11}


@pytest.mark.parametrize(("node", "dests"), [(3, {2, 3, 6}), (4, {2, 4, 6}), (8, {2, 6, 8}), (7, {2, 6}), (11, {2, 6})])
def test_ks_4_4_example_snd_2_each_destination_learns_of_itself_and_of_no_other(node: int, dests: set[int]) -> None:
    stamps, _ = log_of({5: L_DESTS}).sent(Dot(J, 1), mask_of(M_DESTS))
    assert stamps.at(node).facts(node) == {(I, 5, d) for d in dests}
    assert stamps.at(node).newest[I] == 5


def test_ks_4_4_examples_snd_3_and_4_the_log_forgets_what_is_replaced_and_gains_the_message() -> None:
    _, log = log_of({5: L_DESTS}).sent(Dot(J, 1), mask_of(M_DESTS))
    assert entries_of(log) == {5: {2, 6}}
    assert log.pending[Dot(J, 1)] == mask_of(M_DESTS)
    assert log.newest[J] == 1


def test_ks_4_4_snd_5_an_older_entry_without_destinations_goes_and_the_newest_stays() -> None:
    stamps, log = log_of({4: {3, 7}, 5: {4}}).sent(Dot(J, 1), mask_of(M_DESTS))
    assert entries_of(log) == {5: set()}
    assert entries_of(stamps.at(11)) == {5: set()}, "SND(2): neither does a copy carry older ones"
    assert stamps.at(3).facts(3) == {(I, 4, 3)}


O_M = {7: {5}, 9: {7, 11}, 12: {6}, 20: {15, 16}}
LOG = {9: {2, 7, 13}, 10: {5}, 14: {6}, 20: {3}, 21: {4}}


def test_ks_4_4_examples_rcv_4_and_5_both_loops_and_the_purge() -> None:
    """Loop 1 deletes o7, o12, l10 and l14; loop 2 leaves {7} of 9 and nothing of 20; RCV(5) purges 20, as 21 exists."""
    log = received(log_of(LOG), O_M)
    assert entries_of(log) == {9: {7}, 21: {4}}
    assert log.newest[8] == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        pytest.param({9: {2}, 10: {5}}, {9: {2}, 20: {3}}, {9: {2}, 20: {3}}, id="loop-1-ours-is-implied-gone"),
        pytest.param({9: {2}, 20: {3}}, {9: {2}, 10: {5}}, {9: {2}, 20: {3}}, id="loop-1-theirs-is-implied-gone"),
        pytest.param({9: {2, 7, 13}}, {9: {7, 11}}, {9: {7}}, id="loop-2-intersection"),
        pytest.param({20: {3}}, {20: {15, 16}}, {20: set()}, id="rcv-5-the-newest-stays-although-empty"),
        pytest.param({9: {2}}, {9: {2}, 10: {5}}, {9: {2}, 10: {5}}, id="what-only-they-can-know-is-added"),
        pytest.param({9: set()}, {7: {5}, 8: set()}, {9: set()}, id="an-empty-newest-entry-prunes"),
        pytest.param({7: {5}}, {9: set()}, {9: set()}, id="an-empty-newest-entry-prunes-here-too"),
        pytest.param({7: {5}, 9: {6}}, {8: {4}}, {9: {6}}, id="sets-as-they-were"),
    ],
)
def test_ks_4_4_rcv_4_merges(ours: dict[int, set[int]], theirs: dict[int, set[int]], merged: dict[int, set]) -> None:
    assert entries_of(received(log_of(ours), theirs)) == merged
    assert entries_of(log_of(ours).merged(log_of(theirs))) == merged, "two tokens merge by the same rule"
    assert entries_of(log_of(theirs).merged(log_of(ours))) == merged


def test_ks_4_4_rcv_1_to_3_a_message_waits_for_what_names_its_receiver_and_then_forgets_it() -> None:
    sender, site = make_site("optimal", I, 4), make_site("optimal", J, 4)
    (first,), (second,) = sender.send(0b1101), sender.send(0b0101)
    assert site.receive(second.copy(J)) == [Held(second.copy(J), Missing(I, 1))]
    assert [effect.dot.seq for effect in site.receive(first.copy(J))] == [1, 2]
    assert site.delivered[I] == 2
    assert entries_of(site.context) == {1: {3}, 2: {2}}, "2 is replaced in the older entry, J is gone from both"


# --- KS 5.1, 5.4, 7.1 and Jang 4.2 on random executions --------------------------------------------------------------


def dests_by_sender(pairs: Iterable[tuple[tuple[int, int], int]]) -> dict[int, list[int]]:
    masks: dict[int, list[int]] = {}
    for (site, _), mask in pairs:
        masks.setdefault(site, []).append(mask)
    return masks


@pytest.mark.parametrize("protocol", PRUNING)
@pytest.mark.parametrize("seed", SEEDS)
def test_ks_lemma_1_and_jang_r8_no_two_entries_of_one_sender_share_a_destination(protocol: str, seed: int) -> None:
    """So step R8 of Jang, which takes a destination out of the older of two such entries, finds nothing to do."""

    def check(site: Multicast[Any], before: Log) -> None:
        for masks in dests_by_sender(site.context.pending.items()).values():
            assert sum(map(int.bit_count, masks)) == mask_of(d for mask in masks for d in sites_of(mask)).bit_count()

    workload = Workload(7, 150, seed, fifo=bool(seed % 2), sessions=seed % 3)
    for sent in watch(protocol, workload, check).records:
        if isinstance(sent, Sent):
            for carried in sent.carried.values():
                named = [(site, d) for site, _, d in carried.facts or ()]
                assert len(named) == len(set(named)), "likewise for the entries of O_M"


@pytest.mark.parametrize("protocol", PRUNING)
@pytest.mark.parametrize("seed", SEEDS)
def test_ks_lemmas_2_and_7_newest_never_falls_and_only_the_newest_may_be_empty(protocol: str, seed: int) -> None:
    def check(site: Multicast[Any], before: Log) -> None:
        assert all(now >= then for now, then in zip(site.context.newest, before.newest, strict=True)), "Lemma 2"
        for (sender, seq), mask in site.context.pending.items():
            assert mask, "Lemma 7: an empty entry is the newest of its sender, so `newest` says it"
            assert 0 < seq <= site.context.newest[sender]

    watch(protocol, Workload(7, 150, seed, fifo=bool(seed % 2), sessions=seed % 3), check)


@pytest.mark.parametrize("protocol", PRUNING)
@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_ks_7_1_with_broadcasts_the_log_is_a_vector_clock(protocol: str, fifo: bool, seed: int) -> None:
    def check(site: Multicast[Any], before: Log) -> None:
        assert all(len(masks) == 1 for masks in dests_by_sender(site.context.pending.items()).values())
        assert all(seq == site.context.newest[sender] for sender, seq in site.context.pending), "its latest broadcast"

    workload = Workload(6, 150, seed, fan_out="broadcast", fifo=fifo)
    ours = watch(protocol, workload, check)
    clocks = watch("vector", workload, lambda site, before: None)
    assert [record[:2] for record in ours.records] == [record[:2] for record in clocks.records]


# --- Jang section 3: the kinds of redundant information, figure 1 ------------------------------------------------------


@dataclass
class Figure1:
    """Sites 0 (source of m1), 1 (its destination), 2 (p_k, which sends m2) and 3; copies travel as bytes."""

    protocol: str
    sites: list[Multicast[Any]] = field(init=False)
    facts: dict[str, dict[int, frozenset]] = field(default_factory=dict)  # what each copy carried
    copies: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sites = [make_site(self.protocol, site, 4) for site in range(4)]

    def play(self, story: str) -> None:
        """`m1:0>12` is a send, `m1@2` an arrival that is delivered at once."""
        for word in story.split():
            name, _, rest = word.partition(":")
            if rest:
                sender, to = self.sites[int(rest[0])], mask_of(map(int, rest[2:]))
                (made,) = sender.send(to)
                self.facts[name] = {site: copy.stamp.facts(site) for site, copy in made.copies()}
                self.copies |= {(name, site): data for site, data in encode(sender, made).items()}
            else:
                name, _, at = word.partition("@")
                message = decode(self.sites[int(at)], self.copies[name, int(at)])
                assert message.stamp.facts(int(at)) == self.facts[name][int(at)]
                assert self.sites[int(at)].receive(message) == [message]


ABOUT_M1 = (0, 1, 1)
FIGURE_1 = {
    "type-1-source": ("m1:0>1 m2:0>13", {1: {ABOUT_M1}, 3: set()}),
    "type-1-between": ("m1:0>1 m3:0>2 m3@2 m2:2>13", {1: {ABOUT_M1}, 3: set()}),
    "type-1-in-ci": ("m1:0>1 m3:0>2 m3@2 m2:2>3", {3: {ABOUT_M1}}),
    "type-2-just-delivered": ("m1:0>2 m1@2 m2:2>013", {0: set(), 1: set(), 3: set()}),
    "type-3-already-delivered": ("m1:0>1 m3:0>2 m3@2 m1@1 m4:1>2 m4@2 m2:2>13", {1: set(), 3: set()}),
    "type-3-other-order": ("m1:0>1 m1@1 m3:0>2 m4:1>2 m4@2 m3@2 m2:2>13", {1: set(), 3: set()}),
    "type-4-just-replaced": ("m1:0>1 m3:0>2 m3@2 m4:2>1 m2:2>3", {3: {(2, 1, 1)}}),
    "type-4-to-its-destination": ("m1:0>1 m3:0>2 m3@2 m4:2>1 m2:2>1", {1: {(2, 1, 1)}}),
    "type-5-already-replaced": ("m1:0>1 m3:0>23 m3@2 m3@3 m5:3>1 m6:3>2 m6@2 m2:2>01", {0: set(), 1: {(3, 1, 1)}}),
    "type-5-other-order": ("m1:0>1 m3:0>3 m3@3 m5:3>1 m6:3>2 m6@2 m2:2>0", {0: {(3, 1, 1)}}),
}


@pytest.mark.parametrize("protocol", PRUNING)
@pytest.mark.parametrize(("story", "carried"), FIGURE_1.values(), ids=FIGURE_1)
def test_jang_3_m2_carries_nothing_redundant(protocol: str, story: str, carried: dict[int, set]) -> None:
    """m3, where it goes to another site than m1, is news of its own; only what is said about site 1 counts here."""
    figure = Figure1(protocol)
    figure.play(story)
    assert {to: {fact for fact in facts if fact[2] == 1} for to, facts in figure.facts["m2"].items()} == carried
    if "m4:2>1" in story:
        assert ABOUT_M1 in figure.facts["m4"][1], "type 4: for m4 itself m1 is not redundant"
    if "m5" in story:
        assert ABOUT_M1 in figure.facts["m5"][1]


# --- Gambhire ------------------------------------------------------------------------------------------------------


def side_by_side(
    seed: int, *, fifo: bool, check: Callable[[SideBySide, int], None] = lambda both, site: None
) -> SideBySide:
    both = SideBySide(5)
    for step in schedule(5, messages=120, seed=seed, fifo=fifo):
        if isinstance(step, Send):
            both.send(step)
            check(both, step.dot.site)
        else:
            counted, ours = both.arrive(step)
            assert counted == ours or not fifo, "on FIFO links both hold and deliver the same copies"
            check(both, step.at)
    return both


@pytest.mark.parametrize("seed", range(12))
def test_gambhire_lemma_2_prev_and_conc_together_count_the_causal_past(seed: int) -> None:
    def check(both: SideBySide, site: int) -> None:
        one = both.counted[site]
        everything = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(one.prev, one.conc, strict=True)]
        counts = [[0] * 5 for _ in range(5)]
        for dot in both.pasts[site]:
            for receiver in sites_of(both.to[dot]):
                counts[dot.site][receiver] += 1
        assert everything == counts, "SENT_PREV + SENT_CONC = SENT_ECV"
        previous, sent = both.ours[site].context
        assert [list(row) for row in previous.rows] == both.numbered(one.prev), "a number names the last one counted"
        assert [list(row) for row in sent.rows] == both.numbered(everything)

    both = side_by_side(seed, fifo=True, check=check)
    graph = HappensBefore(both.executions[0])
    for (dot, _), (counted, _) in both.copies.items():
        carried = [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(counted.prev, counted.conc, strict=True)]
        assert carried == graph.sent_counts(dot), "the oracle counts the same"
    assert all(not site.held for site in both.counted)


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_gambhire_property_2_previous_never_falls(seed: int, fifo: bool) -> None:
    def check(site: Multicast[Any], before: Any) -> None:
        for now, then in zip(site.context.previous.rows, before.previous.rows, strict=True):
            assert all(a >= b for a, b in zip(now, then, strict=True))
        for sent, now in zip(site.context.sent.rows, site.context.previous.rows, strict=True):
            assert all(a >= b for a, b in zip(sent, now, strict=True)), "Definition 3, containment: MCV <= ECV"

    watch("false-causality", Workload(6, 150, seed, fifo=fifo, dependent=0.3, sessions=2), check)


@pytest.mark.parametrize("m2_is_dependent", [True, False])
@pytest.mark.parametrize("m3_is_dependent", [True, False])
def test_gambhire_figure_2_m3_waits_for_m1_only_if_it_is_meant_to(m2_is_dependent: bool, m3_is_dependent: bool) -> None:
    p1, p2, p3 = (make_site("false-causality", site, 3) for site in range(3))
    (m1,) = p1.send(0b100)
    (m2,) = p1.send(0b010, semantic=m2_is_dependent)
    assert p2.receive(m2.copy(1)) == [m2.copy(1)]
    (m3,) = p2.send(0b100, semantic=m3_is_dependent)
    held = m2_is_dependent or m3_is_dependent  # m2 depends on m1, and its PREV reaches p2 and m3 with it: the rest of
    # false causality that the paper's section 3.4 speaks of
    assert p3.receive(m3.copy(2)) == [Held(m3.copy(2), Missing(0, 1)) if held else m3.copy(2)]
    assert p3.receive(m1.copy(2)) == [m1.copy(2), *([m3.copy(2)] if held else [])]


def test_gambhire_2_counts_break_semantic_order_on_links_that_overtake_and_link_numbers_do_not() -> None:
    """Trap 2: the paper assumes FIFO links (section 2)."""
    runs = [side_by_side(seed, fifo=False).executions for seed in range(12)]
    counted, ours = ([judge(run[i]) for run in runs] for i in (0, 1))
    assert sum(bool(verdict.semantic_safety) for verdict in counted) > 6
    assert all(verdict.ok for verdict in ours)
    on_fifo_links = [judge(side_by_side(seed, fifo=True).executions[0]) for seed in range(12)]
    assert all(verdict.ok for verdict in on_fifo_links)
    assert any(verdict.safety for verdict in on_fifo_links), "and happens-before it need not keep"


# --- Sanchez section 3 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_sanchez_3_no_user_message_carries_more_than_k_entries(n: int) -> None:
    extras = []
    for k in range(n + 1, n * n + 1):
        outcome = simulate(
            Workload(n, 60, seed=k, fifo=bool(k % 2), sessions=k % 3), "extra-message", {"threshold": k}, record=True
        )
        assert outcome.execution is not None
        verdict = judge(outcome.execution, bound=k)
        assert verdict.ok, verdict
        assert outcome.largest_units <= k
        extras.append(outcome.extras)
    assert extras[-1] == 0, "k = n * n clears nothing"
    assert n < 4 or extras[0] > 0


@pytest.mark.parametrize("k", [7, 10, 20, 36])
@pytest.mark.parametrize("seed", SEEDS)
def test_sanchez_3_cells_are_zero_for_three_reasons(seed: int, k: int) -> None:
    class Watched(ExtraMessage):
        def checked(self, made: list[Any]) -> list[Any]:
            assert not self.context.columns[self.site], "one's own column is satisfied"
            assert self.context.units() <= k
            sent = [one for one in made if isinstance(one, Outgoing)]
            for column, one in {
                site: (self.context.columns[site], one) for one in sent for site in sites_of(one.to)
            }.values():
                assert column == {self.site: one.dot.seq}, "a message stands for all that its column held before"
            return made

        def send(self, *arguments: Any, **named: Any) -> Any:
            return self.checked(super().send(*arguments, **named))

        def receive(self, message: Message) -> Any:
            before, effects = self.context, super().receive(message)
            assert not message.is_extra or len(effects) > 1 or self.context == before, "it teaches nothing"
            return self.checked(effects)

        def adopt(self, token: Any) -> Any:
            return self.checked(super().adopt(token))

    workload = Workload(6, 120, seed, fifo=bool(seed % 2), sessions=2)
    Simulation(
        workload, "extra-message", {"threshold": k}, make=lambda _, *site, **options: Watched(*site, **options)
    ).run()


def gathered(*more: int) -> tuple[list[Multicast[Any]], list[Outgoing], list[Outgoing]]:
    """Sites 2 to 5 each unicast to 1 (and to one more site, if given), then to 0. n = 6, k = 7."""
    sites = [make_site("extra-message", site, 6, threshold=7) for site in range(6)]
    first: list[Outgoing] = []
    for site in (2, 3, 4, 5):
        first += sites[site].send(1 << 1)
        for other in more[site - 2 : site - 1]:
            first += sites[site].send(1 << other)
    return sites, first, [made for site in (2, 3, 4, 5) for made in sites[site].send(1 << 0)]


def test_sanchez_3_a_multicast_makes_room_before_it_is_stamped() -> None:
    """Trap 3: the copy to site 1 would have 8 entries."""
    sites, _, to_0 = gathered()
    for made in to_0:
        assert sites[0].receive(made.copy(0)) == [made.copy(0)]
    extra, user = sites[0].send(0b111110)
    assert (extra.is_extra, extra.to, extra.copy(1).stamp) == (True, 1 << 1, ColumnStamp({2: 1, 3: 1, 4: 1, 5: 1}))
    assert [sites[0].units(copy) for _, copy in user.copies()] == [5, 4, 4, 4, 4]
    assert user.copy(1).stamp.own == {0: extra.dot.seq}


def test_sanchez_3_a_delivery_can_make_an_extra_message_and_later_ones_wait_for_it() -> None:
    sites, to_1, to_0 = gathered(3, 4, 5, 2)
    *quiet, loud = [sites[0].receive(made.copy(0)) for made in to_0]
    assert all(len(effects) == 1 for effects in quiet)
    message, extra = loud
    assert message == to_0[-1].copy(0)
    assert (extra.is_extra, extra.to) == (True, 1 << 1)
    (user,) = sites[0].send(1 << 1)
    assert sites[1].receive(user.copy(1)) == [Held(user.copy(1), Missing(0, extra.dot.seq))]
    assert sites[1].receive(extra.copy(1)) == [Held(extra.copy(1), Missing(2, 1))]
    effects = [effect for made in to_1 if made.to == 1 << 1 for effect in sites[1].receive(made.copy(1))]
    assert [effect.dot.site for effect in effects] == [2, 3, 4, 5, 0, 0]
    assert effects[-2].is_extra


def test_sanchez_3_an_adopted_token_can_make_an_extra_message() -> None:
    sites, _, _ = gathered(3, 4, 5, 2)
    token = sites[0].token()
    for site in (2, 3, 4, 5):
        token = sites[0].merge(token, sites[site].token())
    assert sites[0].first_missing(token) == Missing(2, 3), "it names the unicasts to 0"
