"""Why messages wait: told from stamps alone, the same under every protocol, and never more than the stamps tell."""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from causal import PROTOCOLS, Dot, Held, Message, make_site
from causal.model import Missing, mask_of
from causal.multicast import Multicast
from causal.protocols.extra_message import ColumnStamp
from kvstore import explain as module
from kvstore.explain import Explained, Knowledge, Why, explain
from kvstore.holds import FALSE, UNKNOWN
from kvstore.placement import Placement
from kvstore.replica import Replica
from tests.kvstore.stage import CAN_SEND_TO_SOME, CAUSAL, Stage
from tests.simulation.cluster import make_cluster

A, B, C, D, E = range(5)


def sentences(explained: Explained) -> list[str]:
    return [step.sentence for step in explained.chain]


def dots(explained: Explained) -> list[Dot]:
    return [step.dot for step in explained.chain]


def told(protocol: str) -> bool:
    """Whether the stamps of a protocol tell that a site had delivered what it knew."""
    return protocol != "false-causality"


def overtaken(protocol: str) -> Stage:
    """a asks, b has heard it and replies, and c hears the reply first."""
    stage = Stage(3, protocol)
    stage.write(A, b"question")
    stage.carry(A, B)
    stage.write(B, b"reply")
    stage.carry(B, C)
    return stage


# A reply overtakes its question


@pytest.mark.parametrize("protocol", CAUSAL)
def test_the_reply_waits_for_the_question_because_its_sender_had_delivered_it(protocol: str) -> None:
    stage = overtaken(protocol)
    (held,) = explain(stage.replicas[C])
    assert (held.dot, held.missing, held.updates) == (Dot(B, 1), Missing(A, 1), 1)
    assert held.since_ms == stage.now_ms
    assert dots(held) == [Dot(A, 1), Dot(B, 1)]
    assert held.chain[0][1:] == (Why.MISSING, "message 1 of a has not come here")
    if told(protocol):
        assert held.chain[1][1:] == (Why.DELIVERED_BEFORE, "b had delivered message 1 of a before it sent message 1")
    else:
        assert held.chain[1][1:] == (
            Why.UNSPECIFIED,
            "b knew of message 1 of a before it sent message 1: it had delivered it, or a message that came after it",
        )


@pytest.mark.parametrize("protocol", CAUSAL)
def test_when_the_question_has_come_nothing_is_left_to_explain(protocol: str) -> None:
    stage = overtaken(protocol)
    stage.carry(A, C)
    assert explain(stage.replicas[C]) == []


@pytest.mark.parametrize("protocol", CAUSAL)
def test_whether_the_reply_really_needs_the_question_a_stamp_does_not_say(protocol: str) -> None:
    assert [held.cause for held in explain(overtaken(protocol).replicas[C])] == [UNKNOWN]


@pytest.mark.parametrize("protocol", CAUSAL)
def test_the_next_message_of_the_same_sender_waits_because_its_sender_had_known_before(protocol: str) -> None:
    stage = overtaken(protocol)
    stage.write(B)
    stage.carry(B, C)
    _, second = explain(stage.replicas[C])
    assert (second.missing, dots(second)) == (Missing(A, 1), [Dot(A, 1), Dot(B, 1), Dot(B, 2)])
    assert second.chain[2][1:] == (Why.SENT_BEFORE, "b had sent message 1 before it sent message 2")


# Longer ways


def three_hops(protocol: str, **settings: Any) -> Stage:
    """a, then b, then c, then d write, each having seen the one before; e hears d first, c next, b last, never a."""
    stage = Stage(5, protocol, **settings)
    for site in (A, B, C, D):
        stage.write(site, b"k%d" % site)
        stage.carry(site, *range(site + 1, E))
    for site in (D, C, B):
        stage.carry(site, E)
    return stage


@pytest.mark.parametrize("protocol", CAUSAL)
def test_the_chain_leads_through_all_that_is_known_in_between(protocol: str) -> None:
    held = explain(three_hops(protocol).replicas[E])
    assert [one.dot for one in held] == [Dot(D, 1), Dot(C, 1), Dot(B, 1)]  # the one that came first first
    assert {one.missing for one in held} == {Missing(A, 1)}
    assert [dots(one) for one in held] == [
        [Dot(A, 1), Dot(B, 1), Dot(C, 1), Dot(D, 1)],
        [Dot(A, 1), Dot(B, 1), Dot(C, 1)],
        [Dot(A, 1), Dot(B, 1)],
    ]
    if told(protocol):
        assert sentences(held[0]) == [
            "message 1 of a has not come here",
            "b had delivered message 1 of a before it sent message 1",
            "c had delivered message 1 of b before it sent message 1",
            "d had delivered message 1 of c before it sent message 1",
        ]


@pytest.mark.parametrize("protocol", ["vector", "matrix"])
def test_what_has_not_come_either_may_stand_between_and_is_named(protocol: str) -> None:
    stage = Stage(4, protocol)
    stage.write(A)
    stage.carry(A, B, C)
    stage.write(B)
    stage.carry(B, C)
    stage.write(C)
    stage.carry(C, D)
    (held,) = explain(stage.replicas[D])
    assert (held.missing, dots(held)) == (Missing(A, 1), [Dot(A, 1), Dot(C, 1)])
    assert sentences(held)[1] == (
        "c had delivered message 1 of a before it sent message 1; "
        "message 1 of b, which has not come here, may stand between"
    )


def test_a_protocol_that_prunes_names_the_last_of_those_that_have_not_come() -> None:
    stage = Stage(4, "optimal")
    stage.write(A)
    stage.carry(A, B, C)
    stage.write(B)
    stage.carry(B, C)
    stage.write(C)
    stage.carry(C, D)
    (held,) = explain(stage.replicas[D])
    assert (held.missing, dots(held)) == (Missing(B, 1), [Dot(B, 1), Dot(C, 1)])


def test_of_many_messages_of_one_site_only_the_first_that_knew_is_told() -> None:
    stage = Stage(4, "vector")
    stage.write(A)
    stage.carry(A, B)
    for _ in range(20):
        stage.write(B)
    stage.carry(A, C)
    stage.carry(B, C)
    stage.write(C)
    stage.carry(B, D)
    stage.carry(C, D)
    last = explain(stage.replicas[D])[-1]
    assert dots(last) == [Dot(A, 1), Dot(B, 1), Dot(C, 1)]


# Where messages go to some sites only


SOME = {b"": ("a", "b", "c", "d"), b"ab": ("a", "b"), b"ad": ("a", "d"), b"bc": ("b", "c"), b"cd": ("c", "d")}


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_a_way_through_messages_that_do_not_come_here_is_not_made_up(protocol: str) -> None:
    """a → {a, d}; a → {a, b}; b → {b, c}; c → {c, d}: d hears the last one first, and sees nothing of the way."""
    stage = Stage(4, protocol)
    object.__setattr__(stage.cluster, "placement", SOME)
    for replica in stage.replicas:
        replica.placement = Placement(stage.cluster)
    stage.write(A, b"ad")
    stage.write(A, b"ab")
    stage.carry(A, B)
    stage.write(B, b"bc")
    stage.carry(B, C)
    stage.write(C, b"cd")
    stage.carry(C, D)
    (held,) = explain(stage.replicas[D])
    assert (held.missing, dots(held)) == (Missing(A, 1), [Dot(A, 1), Dot(C, 1)])
    assert held.chain[1].why is Why.UNSPECIFIED
    assert "it had delivered it, or a message that came after it" in held.chain[1].sentence


def test_a_message_that_did_not_go_to_the_next_sender_was_not_delivered_there() -> None:
    """a → {b, d}, b → {c, d} twice: c cannot have delivered a's, and b's went to both."""
    sites = [make_site("optimal", site, 4) for site in range(4)]
    (first,) = sites[A].send(mask_of([B, D]))
    sites[B].receive(first.copy(B))
    (second,) = sites[B].send(mask_of([D]))
    (third,) = sites[B].send(mask_of([C, D]))
    sites[C].receive(third.copy(C))
    (fourth,) = sites[C].send(mask_of([D]))
    for outgoing in (second, third, fourth):
        sites[D].receive(outgoing.copy(D))
    holder = holder_of(sites[D], {b"": ("a", "b", "d"), b"x": ("a", "b", "c", "d")})
    last = explain(holder)[-1]
    assert [step.dot for step in last.chain] == [Dot(A, 1), Dot(B, 1), Dot(C, 1)]
    assert last.chain[2].why is Why.UNSPECIFIED
    assert last.chain[2].sentence == (
        "c knew of message 1 of b before it sent message 1: "
        "it did not go to c, but a message that came after it did, or a session brought it there"
    )


def holder_of(site: Multicast[Any], placement: dict[bytes, tuple[str, ...]] | None = None) -> Any:
    """A site of the causal core with what a replica has around it."""
    cluster = make_cluster(site.sites, site.name)
    if placement is not None:
        object.__setattr__(cluster, "placement", placement)
    held = {one.message.dot: SimpleNamespace(updates=[], since_ms=0, meant=None) for one in site.held}
    holder: Any = SimpleNamespace(cluster=cluster, site=site.site, ordering=site, placement=Placement(cluster))
    holder.held, holder.recent = held, deque[Message]()
    holder.cause_of = partial(Replica.cause_of, holder)
    return holder


# The order of links


def asides(protocol: str, *, arrived: tuple[int, ...]) -> Multicast[Any]:
    """a sends b four messages that are not meant to follow each other; of these, some have come, out of order."""
    a, b = (make_site(protocol, site, 2) for site in range(2))
    sent = [a.send(mask_of([B]), semantic=False)[0] for _ in range(4)]
    for place in arrived:
        b.receive(sent[place].copy(B))
    return b


@pytest.mark.parametrize("protocol", ["false-causality", "fifo"])
def test_where_the_one_before_it_on_the_link_is_not_here_its_number_is_all_that_is_known(protocol: str) -> None:
    (held,) = explain(holder_of(asides(protocol, arrived=(2,))))
    assert (held.missing, dots(held)) == (Missing(A, 2, by_link=True), [Dot(A, 2), Dot(A, 3)])
    assert [step.why for step in held.chain] == [Why.MISSING, Why.LINK_ORDER]
    assert sentences(held) == [
        "what a sent here as number 2 has not come",
        f"message 3 of a comes behind number 2 on its link, and {protocol} keeps the order of links",
    ]


@pytest.mark.parametrize("protocol", ["false-causality", "fifo"])
def test_who_waits_behind_a_message_that_waits_for_its_turn_waits_for_the_same(protocol: str) -> None:
    _, last = explain(holder_of(asides(protocol, arrived=(2, 3))))
    assert (last.missing, dots(last)) == (Missing(A, 2, by_link=True), [Dot(A, 2), Dot(A, 3), Dot(A, 4)])
    assert last.chain[2][1:] == (
        Why.LINK_ORDER,
        f"message 4 of a comes behind message 3 on its link, and {protocol} keeps the order of links",
    )


def test_a_wait_for_the_link_alone_is_the_price_of_the_protocol_if_the_stamp_says_what_was_meant() -> None:
    assert [held.cause for held in explain(holder_of(asides("false-causality", arrived=(2, 3))))] == [FALSE] * 2
    assert [held.cause for held in explain(holder_of(asides("fifo", arrived=(2,))))] == [UNKNOWN]


def test_a_message_that_follows_one_on_the_link_and_was_meant_to_is_not_said_to_wait_for_the_link() -> None:
    """a's second message is meant to follow its first; b's has heard both. c has the second and b's."""
    a, b, c = (make_site("false-causality", site, 3) for site in range(3))
    both = [a.send(mask_of([B, C]), semantic=semantic)[0] for semantic in (True, False)]
    for outgoing in both:
        b.receive(outgoing.copy(B))
    c.receive(both[1].copy(C))
    c.receive(b.send(mask_of([A, C]))[0].copy(C))
    aside, reply = explain(holder_of(c))
    assert (aside.missing, aside.cause) == (Missing(A, 1, by_link=True), FALSE)
    assert (reply.missing, reply.cause) == (Missing(A, 1, by_link=True), UNKNOWN)
    assert [step.why for step in reply.chain] == [Why.MISSING, Why.LINK_ORDER, Why.UNSPECIFIED]


def test_under_false_causality_the_chain_may_lead_through_what_is_delivered_here() -> None:
    """b's aside names the question without being meant to follow it: it is delivered, and c's reply to it waits."""
    sites = [make_site("false-causality", site, 4) for site in range(4)]
    (question,) = sites[A].send(mask_of([B, C, D]))
    sites[B].receive(question.copy(B))
    (aside,) = sites[B].send(mask_of([A, C, D]), semantic=False)
    sites[C].receive(aside.copy(C))
    (reply,) = sites[C].send(mask_of([A, B, D]))
    (delivered,) = sites[D].receive(aside.copy(D))
    sites[D].receive(reply.copy(D))
    holder = holder_of(sites[D])
    assert [dots(held) for held in explain(holder)] == [[Dot(A, 1), Dot(C, 1)]]
    holder.recent.append(delivered)
    (held,) = explain(holder)
    assert dots(held) == [Dot(A, 1), Dot(B, 1), Dot(C, 1)]
    assert {step.why for step in held.chain[1:]} == {Why.UNSPECIFIED}  # c had not delivered the question, in fact


# What the protocol makes for itself


def test_an_extra_message_is_called_one() -> None:
    site = make_site("extra-message", D, 4)
    site.receive(Message(Dot(B, 1), mask_of([D]), ColumnStamp({A: 1}), is_extra=True))
    site.receive(Message(Dot(C, 1), mask_of([D]), ColumnStamp({B: 1}), is_extra=True))
    held = explain(holder_of(site))[-1]
    assert dots(held) == [Dot(A, 1), Dot(B, 1), Dot(C, 1)]
    assert held.chain[2].why is Why.UNSPECIFIED  # it did not go to c, although every key is held there
    assert sentences(held)[2].startswith("c knew of extra message 1 of b before it sent extra message 1: it did not go")


def test_a_missing_message_that_may_be_an_extra_one_is_not_said_to_be_delivered_elsewhere() -> None:
    site = make_site("extra-message", D, 4, threshold=5)
    site.receive(Message(Dot(B, 1), mask_of([D]), ColumnStamp({A: 1}), is_extra=True))
    assert explain(holder_of(site))[0].chain[1].why is Why.UNSPECIFIED


# Asking


def test_one_message_can_be_asked_for_by_its_name() -> None:
    replica = three_hops("optimal").replicas[E]
    assert [held.dot for held in explain(replica, dot=Dot(C, 1))] == [Dot(C, 1)]
    assert explain(replica, dot=Dot(A, 1)) == []


def test_a_limit_takes_those_that_have_waited_longest() -> None:
    assert [held.dot for held in explain(three_hops("optimal").replicas[E], limit=2)] == [Dot(D, 1), Dot(C, 1)]


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_thousand_held_cost_a_bounded_time_and_give_a_bounded_answer(protocol: str) -> None:
    stage = overtaken(protocol)
    for _ in range(3000):
        stage.write(B)
    stage.carry(B, C)
    before = time.process_time()
    held = explain(stage.replicas[C])
    assert time.process_time() - before < 2
    assert len(held) == module.HOLDS_DEFAULT
    assert {one.missing for one in held} == {Missing(A, 1)}
    assert len(explain(stage.replicas[C], limit=1 << 31)) == module.HOLDS_MAX


def test_stamps_beyond_the_bound_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way is then not known, and that is what is said."""
    stage = three_hops("optimal")
    monkeypatch.setattr(module, "FACTS_MAX", 1)
    held = explain(stage.replicas[E], dot=Dot(D, 1))[0]
    assert dots(held) == [Dot(A, 1), Dot(D, 1)]
    assert held.chain[1].why in (Why.UNSPECIFIED, Why.DELIVERED_BEFORE)


def test_stamps_that_name_each_other_in_a_circle_end_no_process() -> None:
    """Liars: b's message names c's and the other way round, and both name a's."""
    clock = make_site("vector", D, 4).context
    b = Message(Dot(B, 1), 0b1101, clock._replace(times=(1, 0, 1, 0)))
    c = Message(Dot(C, 1), 0b1011, clock._replace(times=(1, 1, 0, 0)))
    knowledge = Knowledge([b, c], 4)
    assert knowledge.chain(Dot(A, 1), Dot(B, 1))[0] == Dot(A, 1)
    site = make_site("vector", D, 4)
    assert site.receive(b) == [Held(b, Missing(A, 1))]
    assert site.receive(c) == [Held(c, Missing(A, 1))]
    assert len(explain(holder_of(site))) == 2


def test_every_protocol_is_explained_or_never_holds() -> None:
    assert set(CAUSAL) | {"fifo", "unordered"} == set(PROTOCOLS)
