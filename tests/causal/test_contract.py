"""One contract, every protocol: whatever a variant stamps and learns, this is what all of them owe their callers."""

from __future__ import annotations

from itertools import permutations, product
from typing import Any

import pytest

from causal.codec import decode, decode_token, dump, encode, encode_token, load
from causal.errors import NoSessions, NotDue
from causal.execution import Sent
from causal.model import Dot, Duplicate, Held, Message, Missing, mask_of, sites_of
from causal.multicast import Outgoing
from causal.oracle import judge
from causal.protocols import PROTOCOLS, make_site
from tests.causal.network import (
    Network,
    judgements,
    make_rescanning,
    multicast,
    new_sites,
    outline,
    questions_asked,
    schedule,
    tightest,
    to_the_end,
    value,
    values,
    walk,
)

CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
CONTROLS = [name for name in PROTOCOLS if name not in CAUSAL]
HOLDING = [name for name in PROTOCOLS if name != "unordered"]  # the one that never holds
FREE = [name for name in CAUSAL if name != "vector"]  # the ones that may choose destinations

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)
every_holding_protocol = pytest.mark.parametrize("protocol", HOLDING)
every_causal_protocol = pytest.mark.parametrize("protocol", CAUSAL)


# Delivering


@every_protocol
@pytest.mark.parametrize("seed", range(10))
def test_everyone_delivers_everything_exactly_once_whatever_the_arrival_order(protocol, seed):
    network, steps = walk(protocol, seed)
    network.run(steps)
    sent = [record for record in network.execution.records if isinstance(record, Sent)]
    assert sorted(network.delivered) == sorted((site, record.dot) for record in sent for site in sites_of(record.to))
    assert not network.left_held


@every_protocol
def test_all_120_orders_of_five_arrivals_end_in_the_same_deliveries(protocol):
    a, b, c, _ = new_sites(protocol, 4)
    question = multicast(a)
    b.receive(question.copy(1))
    c.receive(question.copy(2))
    reply, other_reply = multicast(b), multicast(c)
    b.receive(other_reply.copy(1))
    thanks, aside = multicast(b), multicast(a)
    messages = [outgoing.copy(3) for outgoing in (question, reply, other_reply, thanks, aside)]
    before = [(0, 1), (0, 2), (0, 4), (1, 3), (2, 3)]  # cause and effect
    for order in permutations(messages):
        d = make_site(protocol, 3, 4)
        delivered = [effect for message in order for effect in d.receive(message) if isinstance(effect, Message)]
        assert sorted(message.dot for message in delivered) == sorted(message.dot for message in messages)
        if protocol in CAUSAL:
            places = [delivered.index(message) for message in messages]
            assert all(places[cause] < places[effect] for cause, effect in before)


@every_causal_protocol
def test_a_reply_waits_for_its_question(protocol):
    a, b, c = new_sites(protocol, 3)
    question = multicast(a, payload=b"why?")
    assert b.receive(question.copy(1)) == [question.copy(1)]
    reply = multicast(b, payload=b"because")

    assert c.receive(reply.copy(2)) == [Held(reply.copy(2), Missing(0, 1))]
    assert c.held == [Held(reply.copy(2), Missing(0, 1))]
    assert c.receive(question.copy(2)) == [question.copy(2), reply.copy(2)]
    assert c.held == []


@every_causal_protocol
def test_a_held_message_names_the_lowest_site_that_it_waits_for_and_then_the_next(protocol):
    a, b, c, d = new_sites(protocol, 4)
    one, other = multicast(a).copy, multicast(b).copy
    c.receive(one(2))
    c.receive(other(2))
    both = multicast(c).copy(3)

    assert d.receive(both) == [Held(both, Missing(0, 1))]
    assert d.receive(one(3)) == [one(3)]
    assert d.held == [Held(both, Missing(1, 1))]
    assert d.receive(other(3)) == [other(3), both]


@every_holding_protocol
def test_a_message_that_overtook_its_predecessor_waits_for_it(protocol):
    a, b, _ = new_sites(protocol, 3)
    first, second = multicast(a).copy(1), multicast(a).copy(1)
    assert b.receive(second) == [Held(second, Missing(0, 1, by_link=protocol == "fifo"))]
    assert b.receive(first) == [first, second]


ORDERS = {  # as they arrive at d, and as q then releases them: r and s both reply to q, and t follows r
    "s r q": "q s r",
    "r s q": "q r s",
    "t s r q": "q s r t",
    "t r s q": "q r t s",  # t arrived first and is due as soon as r is delivered, before s
    "r t s q": "q r t s",
    "s t r q": "q s r t",
}


@every_causal_protocol
@pytest.mark.parametrize(("arrivals", "released"), ORDERS.items(), ids=ORDERS)
def test_what_a_delivery_releases_follows_in_order_of_arrival(protocol, arrivals, released):
    a, b, c, d = new_sites(protocol, 4)
    q = multicast(a)
    b.receive(q.copy(1))
    c.receive(q.copy(2))
    copies = {"q": q.copy(3), "r": multicast(b).copy(3), "s": multicast(c).copy(3), "t": multicast(b).copy(3)}
    *early, _ = arrivals.split()
    for name in early:
        assert isinstance(d.receive(copies[name])[0], Held)
    assert d.receive(copies["q"]) == [copies[name] for name in released.split()]


@every_protocol
def test_a_repeat_is_dropped_and_reported_and_changes_nothing(protocol):
    a, b, _ = new_sites(protocol, 3)
    first, second = multicast(a).copy(1), multicast(a).copy(1)
    for arrived, expected in [([second], [second]), ([second, first], [first, second])]:
        b = make_site(protocol, 1, 3)
        for message in arrived:
            b.receive(message)
        before = dump(b)
        assert [b.receive(message) for message in expected] == [[Duplicate(message)] for message in expected]
        assert dump(b) == before


# Holding without rescanning


@every_protocol
@pytest.mark.parametrize("seed", range(5))
def test_releasing_gives_the_very_effects_of_a_rescan_of_everything_held(protocol, seed):
    network, steps = walk(protocol, seed)
    obvious = Network(protocol, 5, make=make_rescanning, **tightest(protocol, 5))
    for step in to_the_end(network, steps):
        assert network.take(step) == obvious.take(step)


@every_holding_protocol
def test_a_release_looks_at_no_other_of_a_thousand_held_messages(protocol, monkeypatch):
    a, b, _ = new_sites(protocol, 3)
    many = [multicast(a).copy(2) for _ in range(1001)]
    cause, effect = multicast(b).copy(2), multicast(b).copy(2)
    c, rescanning = make_site(protocol, 2, 3), make_rescanning(protocol, 2, 3)
    for message in [*many[1:], effect]:
        assert c.receive(message) == rescanning.receive(message)
    assert questions_asked(rescanning, cause, monkeypatch) > 1000  # so the count would show it
    assert questions_asked(c, cause, monkeypatch) == 2  # about the cause itself, and about its effect
    assert len(c.held) == 1000
    assert questions_asked(c, many[0], monkeypatch) == 1001  # each of a chain of thousand once
    assert c.held == []


# Bytes


@every_protocol
@pytest.mark.parametrize("seed", range(3))
def test_a_site_replaced_by_its_own_dump_after_every_step_behaves_the_same(protocol, seed):
    untouched, steps = walk(protocol, seed, wire=True)
    restored, _ = walk(protocol, seed, wire=True)
    for step in to_the_end(untouched, steps):
        assert values(restored.take(step)) == values(untouched.take(step))
        dumps = [dump(site) for site in restored.sites]
        assert dumps == [dump(site) for site in untouched.sites]
        restored.sites = [load(data) for data in dumps]
    assert restored.copies == untouched.copies  # the same bytes on every link


@every_protocol
def test_a_decoded_copy_is_the_message_that_was_sent(protocol):
    network, steps = walk(protocol, 1)
    for step in to_the_end(network, steps):
        for outgoing in [effect for effect in network.take(step) if isinstance(effect, Outgoing)]:
            sender = network.sites[outgoing.dot.site]
            for site, data in encode(sender, outgoing).items():
                assert value(decode(network.sites[site], data, outgoing.payload)) == value(outgoing.copy(site))


@every_protocol
@pytest.mark.parametrize("seed", range(5))
def test_a_run_over_the_wire_is_the_run_with_values(protocol, seed):
    by_value, steps = walk(protocol, seed)
    by_wire, _ = walk(protocol, seed, wire=True)
    assert by_wire.run(steps).execution == by_value.run(steps).execution


@every_protocol
@pytest.mark.parametrize("sites", [64, 65, 130])
def test_large_systems_work(protocol, sites):
    network = Network(protocol, sites, wire=True, **tightest(protocol, sites))
    network.run(schedule(sites, sites, 12, fan_out_max=5, broadcast=protocol == "vector", repeats=0.1))
    assert not network.left_held
    assert judge(network.execution).ok or protocol in CONTROLS


@every_protocol
def test_a_dot_taken_for_an_update_that_goes_nowhere_leaves_a_gap_nobody_waits_for(protocol):
    a, b, c = new_sites(protocol, 3)
    assert a.take_dot() == Dot(0, 1)
    first = multicast(a)
    a.take_dot()
    a.take_dot()
    second = multicast(a)
    assert [first.dot, second.dot] == [Dot(0, 2), Dot(0, 5)]
    for site in (b, c):
        for outgoing in (first, second):
            assert site.receive(outgoing.copy(site.site)) == [outgoing.copy(site.site)]
    reply = multicast(b)
    assert [site.receive(reply.copy(site.site)) for site in (a, c)] == [[reply.copy(0)], [reply.copy(2)]]


# Holds, protocol against protocol


@pytest.mark.parametrize("protocol", ["optimal", "pruning", "direct", "false-causality", "vector"])
@pytest.mark.parametrize("seed", range(20))
def test_every_arrival_is_held_or_delivered_exactly_as_under_matrix(protocol, seed):
    network, steps = walk(protocol, seed, dependent=1.0)
    assert outline(network, steps) == outline(Network("matrix", 5), steps)


def test_extra_messages_cause_holds_and_never_save_one():
    assert judgements("extra-message", seeds=20) == {(False, False), (True, True), (True, False)}


def test_independent_sends_save_holds_under_false_causality_and_never_cause_one():
    assert judgements("false-causality", seeds=20) == {(False, False), (True, True), (False, True)}


# Tokens


@every_causal_protocol
def test_a_token_taken_earlier_does_not_change_when_its_site_goes_on(protocol):
    network, steps = walk(protocol, 2)
    taken = []
    for step in to_the_end(network, steps):
        network.take(step)
        taken += [(site.site, token := site.token(), encode_token(site, token)) for site in network.sites]
    for number, token, data in taken:
        site = network.sites[number]
        assert encode_token(site, token) == data
        assert decode_token(site, data) == token


@every_causal_protocol
@pytest.mark.parametrize("seed", range(3))
def test_a_token_is_due_where_it_was_taken(protocol, seed):
    network, steps = walk(protocol, seed, dependent=1.0)
    for step in to_the_end(network, steps):
        network.take(step)
        assert [site.first_missing(site.token()) for site in network.sites] == [None] * 5


def test_under_false_causality_a_token_waits_even_at_home_for_what_an_independent_message_was_let_past():
    a, b, c = new_sites("false-causality", 3)
    slow = multicast(b)
    c.receive(slow.copy(2))
    (independent,) = c.send(mask_of([0]), semantic=False)
    assert a.receive(independent.copy(0)) == [independent.copy(0)]
    token = a.token()
    assert a.first_missing(token) == Missing(1, 1)
    a.receive(slow.copy(0))
    assert a.first_missing(token) is None


@every_causal_protocol
@pytest.mark.parametrize("seed", range(3))
def test_merging_is_commutative_associative_and_idempotent_and_due_where_both_are(protocol, seed):
    network, steps = walk(protocol, seed)
    merge = network.sites[0].merge

    def due(token: Any) -> list[bool]:
        return [site.first_missing(token) is None for site in network.sites]

    tokens: list[Any] = []
    for number, step in enumerate(to_the_end(network, steps)):
        network.take(step)
        if number % 8 == 0:
            tokens = [*tokens, network.sites[number // 8 % 5].token()][-4:]
        for one, other, third in product(tokens, repeat=3) if number % 5 == 0 else ():
            both = merge(one, other)
            assert due(both) == due(merge(other, one)) == [a and b for a, b in zip(due(one), due(other), strict=True)]
            assert due(merge(both, third)) == due(merge(one, merge(other, third)))
            assert due(merge(both, both)) == due(merge(both, one)) == due(both)


@every_causal_protocol
def test_a_token_is_due_exactly_when_what_it_depends_on_is_delivered(protocol):
    a, b, c = new_sites(protocol, 3)
    question = multicast(a)
    token = a.token()
    assert c.first_missing(token) == Missing(0, 1)
    b.receive(question.copy(1))
    assert b.first_missing(token) is None
    reply = multicast(b)
    later = b.merge(token, b.token())
    c.receive(reply.copy(2))
    assert c.first_missing(later) in (Missing(0, 1), Missing(1, 1))  # the reply may stand for its question
    before = dump(c)
    with pytest.raises(NotDue):
        c.adopt(later)
    assert dump(c) == before
    c.receive(question.copy(2))
    assert c.first_missing(token) is None and c.first_missing(later) is None


@pytest.mark.parametrize("protocol", FREE)
def test_what_is_sent_after_adopting_a_token_depends_on_it(protocol):
    a, b, c = new_sites(protocol, 3)
    question = multicast(a, 1).copy(1)
    assert c.adopt(a.token()) == []  # due: the question does not go to c
    follow_up = multicast(c, 1).copy(1)
    assert b.receive(follow_up) == [Held(follow_up, Missing(0, 1))]
    assert b.receive(question) == [question, follow_up]


@pytest.mark.parametrize("protocol", CONTROLS)
def test_a_protocol_without_a_causal_past_has_no_tokens(protocol):
    site = make_site(protocol, 0, 3)
    steps = (site.token, lambda: site.merge(None, None), lambda: site.first_missing(None), lambda: site.adopt(None))
    for step in steps:
        with pytest.raises(NoSessions):
            step()
