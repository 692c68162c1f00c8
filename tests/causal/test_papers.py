"""The papers' own examples and claims, section by section.

KS is Kshemkalyani and Singhal 1998, Jang is Jang, Park, Cho and Yoon 1997, Gambhire is Gambhire and Kshemkalyani 2000,
Sanchez is Sanchez and Alvarez. A claim about every execution is watched on random ones, step by step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from itertools import chain
from typing import Any

import pytest

from causal.codec import decode, dump, encode, load
from causal.execution import Sent
from causal.log import Log, LogStamp
from causal.model import Dot, Held, Message, Missing, mask_of, sites_of
from causal.multicast import Multicast, Outgoing
from causal.oracle import HappensBefore, judge
from causal.protocols import PROTOCOLS, make_site
from causal.protocols.extra_message import ColumnStamp
from causal.simulation import simulate
from causal.workload import Workload
from tests.causal.figure3 import SideBySide, added, side_by_side

PRUNING = ("optimal", "pruning")
SEEDS = range(6)
Check = Callable[[Any, Any, list[Any]], None]  # of a site, its context before a step, and what the step returned


def watch(protocol: str, workload: Workload, check: Check, **options: int) -> Any:
    """A random execution whose every step is checked."""

    def make(_: str, site: int, sites: int, **options: int) -> Multicast[Any]:
        made = PROTOCOLS[protocol](site, sites, **options)
        for name in ("send", "receive", "adopt"):
            setattr(made, name, partial(checked, made, getattr(made, name)))
        return made

    def checked(site: Multicast[Any], step: Callable[..., list[Any]], *arguments: Any, **named: Any) -> list[Any]:
        before = site.context
        made = step(*arguments, **named)
        check(site, before, made)
        return made

    return simulate(workload, protocol, options, record=True, make=make).execution


# --- KS 4.4: the worked examples ----------------------------------------------------------------------------------

NODES = 24
FROM, HERE = 1, 0  # the paper's node i, whose messages the entries name, and its node j, where all happens


def log_of(entries: dict[int, set[int]]) -> Log:
    """A log with entries about messages of node i only."""
    newest = (0, max(entries), *[0] * (NODES - 2))
    return Log(newest, {Dot(FROM, time): mask_of(to) for time, to in entries.items() if to})


def entries_of(log: Log | LogStamp) -> dict[int, set[int]]:
    """The paper's entries about messages of node i: the newest one in any case, and those with destinations."""
    newest = {log.newest[FROM]: set[int]()}
    return newest | {seq: set(sites_of(mask)) for (site, seq), mask in log.pending.items() if site == FROM}


L_DESTS, M_DESTS = {2, 3, 4, 6, 8}, {3, 4, 7, 8, 11}


@pytest.mark.parametrize(("node", "dests"), [(3, {2, 3, 6}), (4, {2, 4, 6}), (8, {2, 6, 8}), (7, {2, 6}), (11, {2, 6})])
def test_ks_4_4_example_snd_2_each_destination_learns_of_itself_and_of_no_other(node: int, dests: set[int]) -> None:
    stamps, _ = log_of({5: L_DESTS}).sent(Dot(HERE, 1), mask_of(M_DESTS))
    assert stamps.at(node).facts(node) == {(FROM, 5, d) for d in dests}


def test_ks_4_4_examples_snd_3_and_4_the_log_forgets_what_is_replaced_and_gains_the_message() -> None:
    _, log = log_of({5: L_DESTS}).sent(Dot(HERE, 1), mask_of(M_DESTS))
    assert (entries_of(log), log.newest[HERE], log.pending[Dot(HERE, 1)]) == ({5: {2, 6}}, 1, mask_of(M_DESTS))


def test_ks_4_4_snd_5_an_older_entry_without_destinations_goes_and_the_newest_stays() -> None:
    stamps, log = log_of({4: {3, 7}, 5: {4}}).sent(Dot(HERE, 1), mask_of(M_DESTS))
    assert entries_of(log) == {5: set()}
    assert entries_of(stamps.at(11)) == {5: set()}, "SND(2): neither does a copy carry older ones"
    assert stamps.at(3).facts(3) == {(FROM, 4, 3)}


LOG, O_M = {9: {2, 7, 13}, 10: {5}, 14: {6}, 20: {3}, 21: {4}}, {7: {5}, 9: {7, 11}, 12: {6}, 20: {15, 16}}


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        pytest.param(LOG, O_M, {9: {7}, 21: {4}}, id="the-paper's-example"),
        pytest.param({9: {2}, 10: {5}}, {9: {2}, 20: {3}}, {9: {2}, 20: {3}}, id="loop-1-ours-is-implied-gone"),
        pytest.param({9: {2}, 20: {3}}, {9: {2}, 10: {5}}, {9: {2}, 20: {3}}, id="loop-1-theirs-is-implied-gone"),
        pytest.param({20: {3}}, {20: {15, 16}}, {20: set()}, id="rcv-5-the-newest-stays-although-empty"),
        pytest.param({9: {2}}, {9: {2}, 10: {5}}, {9: {2}, 10: {5}}, id="what-only-they-can-know-is-added"),
        pytest.param({9: set()}, {7: {5}, 8: set()}, {9: set()}, id="an-empty-newest-entry-prunes"),
        pytest.param({7: {5}}, {9: set()}, {9: set()}, id="an-empty-newest-entry-prunes-here-too"),
        pytest.param({7: {5}, 9: {6}}, {8: {4}}, {9: {6}}, id="sets-as-they-were"),
    ],
)
def test_ks_4_4_examples_rcv_4_and_5(ours: dict[int, set], theirs: dict[int, set], merged: dict[int, set]) -> None:
    """In the paper's: loop 1 deletes o7, o12, l10, l14; loop 2 leaves {7} of 9 and nothing of 20; RCV(5) purges 20."""
    assert entries_of(log_of(ours).delivered(LogStamp(*log_of(theirs), ()), Dot(8, 1), 0)) == merged
    assert entries_of(log_of(ours).merged(log_of(theirs))) == merged, "two tokens merge by the same rule"
    assert entries_of(log_of(theirs).merged(log_of(ours))) == merged


def test_ks_4_4_rcv_1_to_3_a_message_waits_for_what_names_its_receiver_and_then_forgets_it() -> None:
    sender, site = make_site("optimal", FROM, 4), make_site("optimal", HERE, 4)
    (first,), (second,) = sender.send(0b1101), sender.send(0b0101)
    assert site.receive(second.copy(HERE)) == [Held(second.copy(HERE), Missing(FROM, 1))]
    assert site.receive(first.copy(HERE)) == [first.copy(HERE), second.copy(HERE)]
    assert entries_of(site.context) == {1: {3}, 2: {2}}, "2 is replaced in the older entry, 0 is gone from both"


# --- KS 5.1, 6.1, 7.1 and Jang 4.2 on random executions ------------------------------------------------------------


@pytest.mark.parametrize("protocol", PRUNING)
@pytest.mark.parametrize("seed", SEEDS)
def test_ks_lemmas_1_2_and_7_and_jang_r8_that_finds_nothing_to_do(protocol: str, seed: int) -> None:
    """R8 would take a destination out of the older of two entries of one sender; by Lemma 1 there are no such two."""

    def check(site: Any, before: Log, made: list[Any]) -> None:
        newest, pending = site.context
        named = [(sender, d) for (sender, _), mask in pending.items() for d in sites_of(mask)]
        assert len(named) == len(set(named)), "Lemma 1: no two entries of one sender share a destination"
        assert all(now >= then for now, then in zip(newest, before.newest, strict=True)), "Lemma 2"
        for (sender, seq), mask in pending.items():
            assert mask and 0 < seq <= newest[sender], "Lemma 7: only the newest, which `newest` names, may be empty"

    workload = Workload(7, 150, seed, fifo=bool(seed % 2), sessions=seed % 3)
    for sent in watch(protocol, workload, check).records:
        for carried in sent.carried.values() if isinstance(sent, Sent) else ():
            named = [(site, d) for site, _, d in carried.facts or ()]
            assert len(named) == len(set(named)), "Lemma 1, likewise for the entries of O_M"


@pytest.mark.parametrize("protocol", PRUNING)
@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_ks_7_1_with_broadcasts_the_log_is_a_vector_clock(protocol: str, fifo: bool, seed: int) -> None:
    def check(site: Any, before: Log, made: list[Any]) -> None:
        newest, pending = site.context
        assert all(seq == newest[sender] for sender, seq in pending), "one entry a sender: its latest broadcast"

    workload = Workload(6, 150, seed, fan_out="broadcast", fifo=fifo)
    ours = watch(protocol, workload, check)
    clocks = watch("vector", workload, lambda *_: None)
    assert [record[:2] for record in ours.records] == [record[:2] for record in clocks.records]


# --- Jang section 3, figure 1: the kinds of redundant information ---------------------------------------------------


def facts_in(story: str, protocol: str) -> dict[str, dict[int, frozenset]]:
    """What each copy carried. `m1:0>12` is a send, `m1@2` an arrival (as bytes) that is delivered at once.

    Sites: 0 is the source of m1, 1 its destination, 2 is p_k, which sends m2, and 3 another.
    """
    sites = [make_site(protocol, site, 4) for site in range(4)]
    facts: dict[str, dict[int, frozenset]] = {}
    copies: dict[str, dict[int, bytes]] = {}
    for word in story.split():
        name, _, rest = word.replace("@", ":").partition(":")
        site = sites[int(rest[0])]
        if "@" in word:
            message = decode(site, copies[name][site.site])
            assert message.stamp.facts(site.site) == facts[name][site.site]
            assert site.receive(message) == [message]
        else:
            (made,) = site.send(mask_of(map(int, rest[2:])))
            facts[name] = {to: copy.stamp.facts(to) for to, copy in made.copies()}
            copies[name] = encode(site, made)
    return facts


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
    facts = facts_in(story, protocol)
    assert {to: {fact for fact in said if fact[2] == 1} for to, said in facts["m2"].items()} == carried
    for replacing in ("m4", "m5"):
        if 1 in facts.get(replacing, {}):
            assert ABOUT_M1 in facts[replacing][1], "types 4 and 5: for what replaces m1, news of m1 is not redundant"


# --- Gambhire ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_gambhire_lemma_2_prev_and_conc_together_count_the_causal_past(seed: int) -> None:
    def check(both: SideBySide, site: int) -> None:
        one = both.counted[site]
        everything = added(one.prev, one.conc)
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
        assert added(counted.prev, counted.conc) == graph.sent_counts(dot), "the oracle counts the same"
    assert all(not site.held for site in both.counted)


@pytest.mark.parametrize("fifo", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_gambhire_property_2_previous_never_falls(seed: int, fifo: bool) -> None:
    def check(site: Any, before: Any, made: list[Any]) -> None:
        cells = zip(*(chain(*matrix.rows) for matrix in (before.previous, *site.context)), strict=True)
        assert all(then <= previous <= sent for then, previous, sent in cells), "nor is it more than all (Definition 3)"

    watch("false-causality", Workload(6, 150, seed, fifo=fifo, dependent=0.3, sessions=2), check)


@pytest.mark.parametrize("m2_is_dependent", [True, False])
@pytest.mark.parametrize("m3_is_dependent", [True, False])
def test_gambhire_figure_2_m3_waits_for_m1_only_if_it_is_meant_to(m2_is_dependent: bool, m3_is_dependent: bool) -> None:
    p1, p2, p3 = (make_site("false-causality", site, 3) for site in range(3))
    (m1,) = p1.send(0b100)
    (m2,) = p1.send(0b010, semantic=m2_is_dependent)
    assert p2.receive(m2.copy(1)) == [m2.copy(1)]
    (m3,) = p2.send(0b100, semantic=m3_is_dependent)
    held = m2_is_dependent or m3_is_dependent  # m2's PREV reaches m3: what remains of false causality (section 3.4)
    assert p3.receive(m3.copy(2)) == [Held(m3.copy(2), Missing(0, 1)) if held else m3.copy(2)]
    assert p3.receive(m1.copy(2)) == [m1.copy(2), *([m3.copy(2)] if held else [])]


def test_gambhire_lemma_2_a_late_message_takes_nothing_away() -> None:
    """Independent messages overtake their causes: m to {1, 2} comes to 1 when 1 has heard of a later one to 2."""
    s0, s1, s2 = (make_site("false-causality", site, 3) for site in range(3))
    (m,), (later,) = s0.send(0b110, semantic=False), s0.send(0b100, semantic=False)
    assert s2.receive(m.copy(2)) + s2.receive(later.copy(2)) == [m.copy(2), later.copy(2)]
    (news,) = s2.send(0b010, semantic=False)
    assert s1.receive(news.copy(1)) == [news.copy(1)]
    s1.send(0b100)
    assert s1.receive(m.copy(1)) == [m.copy(1)]
    assert s1.context.previous.rows[0] == s1.context.sent.rows[0] == (0, 1, 2)
    assert load(dump(s1)).context == s1.context


def test_gambhire_2_counts_break_semantic_order_on_links_that_overtake_and_link_numbers_do_not() -> None:
    """Trap 2: the paper assumes FIFO links (section 2)."""
    runs = [side_by_side(seed, fifo=False).executions for seed in range(12)]
    counted, ours = [judge(run) for run, _ in runs], [judge(run) for _, run in runs]
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
        workload = Workload(n, 60, seed=k, fifo=bool(k % 2), sessions=k % 3)
        outcome = simulate(workload, "extra-message", {"threshold": k}, record=True)
        assert outcome.execution is not None
        verdict = judge(outcome.execution, bound=k)
        assert verdict.ok, verdict
        assert outcome.largest_units <= k
        extras.append(outcome.extras)
    assert extras[-1] == 0 and (n < 4 or extras[0] > 0), "k = n * n clears nothing, k = n + 1 much"


@pytest.mark.parametrize("k", [7, 10, 20, 36])
@pytest.mark.parametrize("seed", SEEDS)
def test_sanchez_3_cells_are_zero_for_three_reasons(seed: int, k: int) -> None:
    def check(site: Any, before: Any, made: list[Any]) -> None:
        columns = site.context.columns
        assert not columns[site.site] and site.context.units() <= k, "one's own column is satisfied"
        sent = [one for one in made if isinstance(one, Outgoing)]
        if sent == made:  # no delivery, which may bring cells back
            last = {d: one.dot.seq for one in sent for d in sites_of(one.to)}
            assert all(columns[d] == {site.site: seq} for d, seq in last.items()), "it stands for what was there"
        if len(made) == 1 and isinstance(made[0], Message) and made[0].is_extra:
            assert site.context == before, "an extra message teaches nothing"

    watch("extra-message", Workload(6, 120, seed, fifo=bool(seed % 2), sessions=2), check, threshold=k)


def gathered(*more: int, tell: bool = True) -> tuple[list[Any], list[Outgoing], list[Outgoing]]:
    """Sites 2 to 5 each unicast to 1 (and to one more site, if given), then `tell` 0. n = 6, k = 7."""
    sites = [make_site("extra-message", site, 6, threshold=7) for site in range(6)]
    to_1 = [made for site in sites[2:] for made in site.send(1 << 1)]
    for site, other in zip(sites[2:], more, strict=False):
        site.send(1 << other)
    return sites, to_1, [made for site in sites[2:] if tell for made in site.send(1 << 0)]


def test_sanchez_3_a_multicast_makes_room_before_it_is_stamped() -> None:
    """Trap 3: the copy to site 1 would have 8 entries."""
    sites, _, to_0 = gathered()
    assert [sites[0].receive(made.copy(0)) for made in to_0] == [[made.copy(0)] for made in to_0]
    extra, user = sites[0].send(0b111110)
    assert (extra.is_extra, extra.to, extra.copy(1).stamp) == (True, 1 << 1, ColumnStamp({2: 1, 3: 1, 4: 1, 5: 1}))
    assert [sites[0].units(copy) for _, copy in user.copies()] == [5, 4, 4, 4, 4]
    assert user.copy(1).stamp.own == {0: extra.dot.seq}


def test_sanchez_3_a_delivery_can_make_an_extra_message_and_later_ones_wait_for_it() -> None:
    sites, to_1, to_0 = gathered(3, 4, 5, 2)
    *messages, extra = [effect for made in to_0 for effect in sites[0].receive(made.copy(0))]
    assert (messages, extra.is_extra, extra.to) == ([made.copy(0) for made in to_0], True, 1 << 1)
    (user,) = sites[0].send(1 << 1)
    assert sites[1].receive(user.copy(1)) == [Held(user.copy(1), Missing(0, extra.dot.seq))]
    assert sites[1].receive(extra.copy(1)) == [Held(extra.copy(1), Missing(2, 1))]
    effects = [effect for made in to_1 for effect in sites[1].receive(made.copy(1))]
    assert effects == [*(made.copy(1) for made in to_1), extra.copy(1), user.copy(1)]


def test_sanchez_3_an_adopted_token_can_make_an_extra_message() -> None:
    sites, _, _ = gathered(3, 4, 5, 2, tell=False)
    token = reduce(sites[0].merge, [site.token() for site in sites[2:]])
    assert sites[0].first_missing(token) is None
    (extra,) = sites[0].adopt(token)
    assert (extra.is_extra, extra.to, extra.copy(1).stamp) == (True, 1 << 1, ColumnStamp({2: 1, 3: 1, 4: 1, 5: 1}))
    assert sites[0].context.columns[1] == {0: extra.dot.seq}
