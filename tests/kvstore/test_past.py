"""The past of a session as a value: merging two is seeing both, and what is too much to tell is everything."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal import PROTOCOLS, CausalError, make_site
from causal.blocks import Reader, pack_numbers
from causal.model import Dot
from kvstore.past import SEEN_MAX, Past, merged_seen, merged_witness, pack_dots, some_dots, unpack_dots

SITES = 3
CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]

dots = st.builds(Dot, st.integers(0, SITES - 1), st.integers(1, 1 << 40))
seens = st.one_of(st.none(), st.lists(dots, max_size=SEEN_MAX, unique=True).map(tuple))


@given(seens)
def test_what_was_seen_travels(seen: tuple[Dot, ...] | None) -> None:
    assert unpack_dots(pack_dots(seen), SITES) == seen


def test_nothing_seen_is_not_the_same_as_everything() -> None:
    assert pack_dots(()) != pack_dots(None) == b""
    assert unpack_dots(pack_dots(()), SITES) == ()


@given(seens, seens)
def test_who_has_seen_both_has_seen_each_and_too_much_is_everything(
    one: tuple[Dot, ...] | None, other: tuple[Dot, ...] | None
) -> None:
    merged = merged_seen(one, other)
    if one is None or other is None or len({*one, *other}) > SEEN_MAX:
        assert merged is None
    else:
        assert merged is not None and set(merged) == {*one, *other} and len(merged) == len(set(merged))


def test_the_bound_is_the_bound() -> None:
    many = [Dot(0, seq) for seq in range(1, SEEN_MAX + 1)]
    assert some_dots([*many, *many]) == tuple(many)
    assert some_dots([*many, Dot(1, 1)]) is None
    assert merged_seen(tuple(many), (Dot(1, 1),)) is None
    assert merged_seen(tuple(many), tuple(many[3:])) == tuple(many)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_dots_are_refused(data: bytes) -> None:
    try:
        found = unpack_dots(data, SITES)
    except CausalError:
        return
    assert found is None or all(dot.site < SITES and dot.seq for dot in found)


@pytest.mark.parametrize("bad", [[Dot(SITES, 1)], [Dot(0, 0)], [Dot(0, n) for n in range(1, SEEN_MAX + 2)]])
def test_dots_that_nobody_has_are_refused(bad: list[Dot]) -> None:
    with pytest.raises(CausalError):
        unpack_dots(pack_dots(tuple(bad)), SITES)


clocks = st.lists(st.integers(0, 1 << 50), min_size=SITES, max_size=SITES)


@given(clocks, clocks)
def test_witnesses_merge_as_vector_clocks_do(one: list[int], other: list[int]) -> None:
    merged = merged_witness(pack_numbers(one), pack_numbers(other))
    assert Reader(merged).numbers(SITES) == list(map(max, one, other))


def test_no_witness_is_the_beginning() -> None:
    clock = pack_numbers([1, 2, 300])
    assert merged_witness(b"", clock) == merged_witness(clock, b"") == merged_witness(clock, clock) == clock
    assert merged_witness(b"", b"") == b""


@pytest.mark.parametrize("protocol", CAUSAL)
def test_merging_loses_nothing_and_does_not_care_for_the_order(protocol: str) -> None:
    rng = random.Random(protocol)
    sites = [make_site(protocol, number, SITES) for number in range(SITES)]
    pasts = []
    for step in range(40):
        sender = rng.randrange(SITES)
        (outgoing, *_) = sites[sender].send(0b111 & ~(1 << sender))
        for peer, message in outgoing.copies():
            if rng.random() < 0.7:
                sites[peer].receive(message)
        at = sites[rng.randrange(SITES)]
        pasts.append(Past(at.token(), rng.randrange(1 << 40), (Dot(sender, step + 1),)))
    # Only later states can be judged: a context leaves out what it knows to be delivered somewhere.
    states = [(number, tuple(site.delivered)) for number, site in enumerate(sites)]
    for _ in range(60):
        one, other = rng.sample(pasts, 2)
        both = one.merged(other)
        assert both.context == other.merged(one).context
        assert both.time == max(one.time, other.time)
        for number, delivered in states:
            lacks = [past.context.first_missing(number, delivered) for past in (one, other)]
            assert (both.context.first_missing(number, delivered) is None) == (lacks == [None, None])
        assert both.merged(one).context == both.context
        assert both.merged(both) == both


@pytest.mark.parametrize("protocol", CAUSAL)
def test_of_two_pasts_of_one_replica_the_later_is_both(protocol: str) -> None:
    site = make_site(protocol, 0, SITES)
    earlier = Past(site.token(), 9, (Dot(0, 1),), home=(0, 1))
    site.send(0b110)
    later = Past(site.token(), 5, (Dot(0, 2),), home=(0, 2))
    for both in (earlier.merged(later), later.merged(earlier)):
        assert (both.context, both.time, both.home) == (later.context, 9, (0, 2))
        assert both.seen is not None and set(both.seen) == {Dot(0, 1), Dot(0, 2)}
        assert both.context == earlier._replace(home=None).merged(later).context, "as if both had been looked at"
    for elsewhere in (None, (1, 7)):
        both = earlier.merged(later._replace(home=elsewhere))
        assert both.home is None, "what came from elsewhere is not known to be here"
