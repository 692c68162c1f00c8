"""The longest prefix says where a key lives and how it merges."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from causal.model import mask_of
from kvstore.config import Cluster, SiteConfig
from kvstore.merge import MERGES
from kvstore.placement import Placement, PrefixTable, end_of_prefix, merges_of, siblings_of

SITES = tuple(
    SiteConfig(name, n, f"127.0.0.1:{7000 + n}", f"127.0.0.1:{8000 + n}", name) for n, name in enumerate("abc")
)
FEW = st.binary(max_size=6) | st.text("ab/", max_size=6).map(str.encode)


def cluster(placement: dict[bytes, tuple[str, ...]]) -> Cluster:
    return Cluster("test", SITES, placement)


@given(prefixes=st.dictionaries(FEW, st.integers()), key=FEW)
@example(prefixes={b"ab": 1, b"abc": 2}, key=b"ab")
@example(prefixes={b"a": 1, b"abc": 2}, key=b"ab")
def test_the_longest_prefix_wins(prefixes: dict[bytes, int], key: bytes) -> None:
    rows = {b"": -1} | prefixes
    longest = max((prefix for prefix in rows if key.startswith(prefix)), key=len)
    assert PrefixTable(rows).find(key) == rows[longest]


def test_keys_live_where_their_prefix_says() -> None:
    placement = Placement(cluster({b"": ("a", "b", "c"), b"eu/": ("a", "c"), b"eu/de/": ("c",), b"\xff": ("b",)}))
    assert placement.sites_of(b"user") == mask_of([0, 1, 2]) == placement.everyone
    assert placement.sites_of(b"eu/fr") == mask_of([0, 2])
    assert placement.sites_of(b"eu/de/berlin") == mask_of([2])
    assert placement.sites_of(b"eu") == placement.everyone
    assert placement.sites_of(b"\xff\x00") == mask_of([1])
    assert not placement.is_full


def test_replication_is_full_when_every_prefix_lives_everywhere() -> None:
    assert Placement(cluster({b"": ("c", "a", "b")})).is_full
    assert Placement(cluster({b"": ("a", "b", "c"), b"x": ("b", "c", "a")})).is_full
    assert not Placement(cluster({b"": ("a", "b")})).is_full
    assert not Placement(cluster({b"": ("a", "b", "c"), b"x": ("b",)})).is_full


# Who holds all keys of a prefix or a range


SHORT = st.text("ab\xff", max_size=3).map(lambda text: text.encode("latin-1"))
HOLDERS = st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple)
ROWS = st.dictionaries(SHORT, HOLDERS, max_size=5).map(lambda rows: {b"": ("a", "b", "c")} | rows)
KEYS = [bytes(key) for length in (1, 2, 3, 4) for key in itertools.product(b"\0ab\xff", repeat=length)]


def holders_by_hand(placement: Placement, rows: dict[bytes, tuple[str, ...]], is_in: Callable[[bytes], bool]) -> int:
    """Of each key that can matter one by one: short ones, and those where a prefix begins or ends."""
    holders = placement.everyone
    for key in filter(None, (*KEYS, *rows, *(end_of_prefix(prefix) for prefix in rows))):
        if is_in(key):
            holders &= placement.sites_of(key)
    return holders


@given(rows=ROWS, prefix=SHORT)
@example(rows={b"": ("b",), b"a": ("a",)}, prefix=b"a")
@example(rows={b"": ("a", "b"), b"ab": ("b", "c")}, prefix=b"a")
def test_who_holds_a_prefix_holds_each_of_its_keys(rows: dict[bytes, tuple[str, ...]], prefix: bytes) -> None:
    placement = Placement(cluster(rows))
    by_hand = holders_by_hand(placement, rows, lambda key: key.startswith(prefix))
    assert placement.holders(prefix) == by_hand


@given(rows=ROWS, start=SHORT, stop=st.none() | SHORT)
@example(rows={b"": ("a",), b"a": ("b",), b"b": ("b",)}, start=b"a", stop=b"c")
@example(rows={b"": ("a",), b"a": ("b",)}, start=b"b", stop=b"a")
@example(rows={b"": ("a",)}, start=b"", stop=b"\0")
def test_who_holds_a_range_holds_each_of_its_keys(
    rows: dict[bytes, tuple[str, ...]], start: bytes, stop: bytes | None
) -> None:
    placement = Placement(cluster(rows))
    by_hand = holders_by_hand(placement, rows, lambda key: start <= key and (stop is None or key < stop))
    assert placement.holders_of_range(start, stop) == by_hand


STORY = {b"": ("a", "b", "c"), b"eu/": ("a", "c"), b"eu/de/": ("c",), b"us/": ("b",), b"\xff": ("b", "c")}


@pytest.mark.parametrize(
    ("prefix", "sites"),
    [
        *((b"eu/de/x", "c"), (b"eu/de/", "c"), (b"eu/", "c"), (b"eu/fr/", "ac"), (b"e", "c")),
        *((b"us/", "b"), (b"", ""), (b"x", "abc"), (b"\xff", "bc"), (b"\xff\xff", "bc")),
    ],
)
def test_longer_prefixes_count_and_shorter_ones_do_not(prefix: bytes, sites: str) -> None:
    assert Placement(cluster(STORY)).holders(prefix) == mask_of("abc".index(name) for name in sites)


@pytest.mark.parametrize(
    ("start", "stop", "sites"),
    [
        *((b"", None, ""), (b"f", b"u", "abc"), (b"eu/e", b"us", "ac"), (b"eu/a", b"eu/de/", "ac")),
        *((b"us/", b"us0", "b"), (b"us0", None, "bc"), (b"eu/", b"eu/", "abc"), (b"eu/de/a", b"eu/de/b", "c")),
    ],
)
def test_a_range_counts_what_lies_in_it(start: bytes, stop: bytes | None, sites: str) -> None:
    placement = Placement(cluster(STORY))
    assert placement.holders_of_range(start, stop) == mask_of("abc".index(name) for name in sites)


def test_where_all_hold_all_everybody_holds_every_range() -> None:
    placement = Placement(cluster({b"": ("a", "b", "c"), b"x": ("c", "b", "a")}))
    assert placement.holders(b"") == placement.holders_of_range(b"w", None) == placement.everyone


# How keys merge


def test_every_key_has_a_merge() -> None:
    assert merges_of(cluster({b"": ("a",)})).find(b"any") is MERGES["lww"]
    assert siblings_of(cluster({b"": ("a",)})).find(b"any") is False


def test_the_longest_prefix_says_whether_a_key_has_siblings() -> None:
    merge = {b"": "lww", b"cart/": "siblings", b"cart/total/": "lww"}
    mixed = Cluster("test", SITES, {b"": ("a",)}, merge=merge)
    keys = {b"user": "lww", b"cart/1": "siblings", b"cart": "lww", b"cart/total/1": "lww"}
    assert {key: merges_of(mixed).find(key) for key in keys} == {key: MERGES[name] for key, name in keys.items()}
    assert {key: siblings_of(mixed).find(key) for key in keys} == {key: name != "lww" for key, name in keys.items()}
