"""The longest prefix says where a key lives and how it merges."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from causal.model import mask_of
from kvstore.config import Cluster, SiteConfig
from kvstore.merge import MERGES
from kvstore.placement import Placement, PrefixTable, merges_of

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


def test_every_key_has_a_merge() -> None:
    assert merges_of(cluster({b"": ("a",)})).find(b"any") is MERGES["lww"]
