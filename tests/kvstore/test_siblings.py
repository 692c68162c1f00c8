"""Keys with siblings: whatever the causal order, all sites keep the values that nobody replaced, and nothing else.

The merge is compared with a judge that knows the whole history and no order: what remains is what was put and what no
write names as replaced. Then the same through the tables of a replica: rows, marks and sweeps.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal.model import Dot
from kvstore.clock import TIME_MAX
from kvstore.effects import Step
from kvstore.keys import Keys
from kvstore.layout import EXPIRY, expiry_key, expiry_of
from kvstore.link import Link
from kvstore.merge import MERGES, Merge, keep_siblings, siblings_max
from kvstore.rpc import wire
from kvstore.storage.contract import Batch
from kvstore.storage.memory import MemoryStorage
from kvstore.sweep import sweep
from kvstore.update import REPLACES_MAX, Record, Version, living, records_of, row_of
from kvstore.v1 import model_pb2
from tests.simulation.cluster import SimulatedCluster, make_cluster

SITES = 3
KEY = b"cart/1"

# Histories: who wrote what, in the knowledge of what


class Written(NamedTuple):
    version: Version
    value: bytes | None
    replaces: tuple[Version, ...]
    seen: frozenset[int]  # places of the writes that its site had applied before, with all that those had seen


def record_of(written: Written, commit: int = 1) -> Record:
    return Record(written.version, written.value, 0, Dot(written.version.site, written.version.time), 0, commit)


def history_of(rng: random.Random, writes: int, *, values_max: int = 99) -> list[Written]:
    """Sites that write to one key, each knowing its own writes and, now and then, more of the others'."""
    history: list[Written] = []
    seen: list[set[int]] = [set() for _ in range(SITES)]
    for place in range(writes):
        site = rng.randrange(SITES)
        for other in rng.sample(range(place), rng.randint(0, min(place, 2))):
            seen[site] |= {other} | history[other].seen
        known = [history[one] for one in sorted(seen[site])]
        visible = sorted(remaining(known))
        time = max([one.version.time for one in known], default=0) + rng.randint(1, 3)
        replaces = visible if rng.random() < 0.5 else rng.sample(visible, rng.randint(0, len(visible)))
        is_full = len(visible) - len(replaces) >= values_max
        value = None if is_full or rng.random() < 0.25 else b"%d" % place
        history.append(Written(Version(time, site), value, tuple(replaces), frozenset(seen[site])))
        seen[site].add(place)
    return history


def remaining(writes: Sequence[Written]) -> dict[Version, bytes]:
    """The judge: what was put, and what none of these writes replaces."""
    gone = {version for one in writes for version in one.replaces}
    return {one.version: one.value for one in writes if one.value is not None and one.version not in gone}


def causal_order(rng: random.Random, history: Sequence[Written]) -> list[Written]:
    """Any order in which nothing comes before what it has seen."""
    order: list[int] = []
    while len(order) < len(history):
        due = [place for place, one in enumerate(history) if place not in order and one.seen <= set(order)]
        order.append(rng.choice(due))
    return [history[place] for place in order]


def rows(merge: Merge, order: Sequence[Written]) -> Iterator[Record | None]:
    """What the key holds after each of these writes."""
    stored: Record | None = None
    for commit, written in enumerate(order, start=1):
        stored = merge(stored, record_of(written, commit), written.replaces)
        yield stored


def faults(merge: Merge, order: Sequence[Written]) -> list[str]:
    """Where a site that applies the writes in this order holds something else than it should."""
    found = []
    for count, row in enumerate(rows(merge, order), start=1):
        records = records_of(row)
        versions = [one.version for one in records]
        if {one.version: one.value for one in records} != remaining(order[:count]):
            found.append(f"after {count}: {versions}")
        if versions != sorted(versions, reverse=True) or any(one.others for one in records):
            found.append(f"after {count}: {versions} are not in order")
    return found


# The merge


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_every_causal_order_leaves_what_nobody_replaced(rng: random.Random, writes: int) -> None:
    history = history_of(rng, writes)
    for _ in range(5):
        assert faults(keep_siblings, causal_order(rng, history)) == []


def forget_others(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    return keep_siblings(None if stored is None else stored._replace(others=()), incoming, replaces)


def greater_replaces(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    older = [one.version for one in records_of(stored) if one.version < incoming.version]
    return keep_siblings(stored, incoming, older)


def keep_tombstones(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    left = [one for one in records_of(stored) if one.version not in replaces]
    return row_of([*left, incoming], commit=incoming.commit)


def replace_nothing(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    return keep_siblings(stored, incoming, ())


def replace_all(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    return keep_siblings(None if replaces else stored, incoming, replaces)


def last_in_front(stored: Record | None, incoming: Record, replaces: Sequence[Version]) -> Record | None:
    left = tuple(one for one in records_of(stored) if one.version not in replaces)
    if incoming.value is not None:
        return incoming._replace(others=left)
    return left[0]._replace(others=left[1:]) if left else None


PLANTED = (forget_others, greater_replaces, keep_tombstones, replace_nothing, replace_all, last_in_front)


@pytest.mark.parametrize("merge", [*PLANTED, MERGES["lww"], keep_siblings])
def test_the_judge_sees_a_merge_that_is_wrong(merge: Merge) -> None:
    caught = 0
    for seed in range(40):
        rng = random.Random(f"planted {seed}")
        caught += bool(faults(merge, causal_order(rng, history_of(rng, 8))))
    assert caught == 0 if merge is keep_siblings else caught > 10, caught


def test_without_causal_order_a_replaced_value_comes_back() -> None:
    """Why a protocol that is not causal is refused."""
    first = Written(Version(1, 0), b"first", (), frozenset())
    second = Written(Version(2, 1), b"second", (first.version,), frozenset({0}))
    assert faults(keep_siblings, [first, second]) == []
    assert faults(keep_siblings, [second, first]) == ["after 2: [Version(time=2, site=1), Version(time=1, site=0)]"]


@given(st.randoms(use_true_random=False), st.integers(1, 10))
def test_the_same_update_again_changes_nothing(rng: random.Random, writes: int) -> None:
    order = causal_order(rng, history_of(rng, writes))
    *_, stored = rows(keep_siblings, order)
    assert keep_siblings(stored, record_of(order[-1], commit=99), order[-1].replaces) is stored


def test_a_delete_of_what_is_not_there_changes_nothing() -> None:
    row = row_of([record_of(Written(Version(3, 0), b"v", (), frozenset()))], commit=1)
    delete = record_of(Written(Version(9, 1), None, (), frozenset()))
    assert keep_siblings(row, delete, ()) is row and keep_siblings(row, delete, (Version(2, 2),)) is row
    assert keep_siblings(None, delete, (Version(2, 2),)) is None


@given(st.randoms(use_true_random=False), st.integers(1, 12))
def test_a_row_has_the_number_of_the_commit_that_changed_it_last(rng: random.Random, writes: int) -> None:
    """Also of one that only took something away: a session that saw less has seen the delete (SAFETY 12)."""
    before: Record | None = None
    order = causal_order(rng, history_of(rng, writes))
    for commit, row in enumerate(rows(keep_siblings, order), start=1):
        if row is not before and row is not None:
            assert row.commit == commit == living(row, 0)[0].commit
        assert all(one.commit <= commit for one in records_of(row))
        before = row


@given(st.randoms(use_true_random=False), st.integers(1, 25), st.integers(1, 3))
def test_where_each_site_stops_at_so_many_values_no_row_has_more_than_all_sites_together(
    rng: random.Random, writes: int, values_max: int
) -> None:
    order = causal_order(rng, history_of(rng, writes, values_max=values_max))
    assert all(len(records_of(row)) <= SITES * values_max for row in rows(keep_siblings, order))


def test_one_write_can_replace_all_that_a_row_can_have() -> None:
    for sites in (1, 3, 40, REPLACES_MAX - 1):
        assert siblings_max(sites) >= 1 and siblings_max(sites) * sites < REPLACES_MAX


# In the tables of a replica


class Tables:
    """The keys of one site on a disk in memory; each step is a commit."""

    def __init__(self) -> None:
        cluster = replace(make_cluster(SITES, "optimal"), merge={b"": "lww", b"cart/": "siblings"})
        self.keys = Keys(cluster)
        self.storage = MemoryStorage()

    def begin(self) -> Step:
        self.view = self.storage.snapshot()
        self.step = Step(Batch(self.view.number + 1))
        self.keys.begin(self.view, self.step)
        return self.step

    def commit(self) -> None:
        self.view.close()
        self.storage.commit(self.step.batch)

    def write(self, time: int, value: bytes | None, *replaces: int, expires_ms: int = 0, key: bytes = KEY) -> None:
        """As a replica applies an update, within a step."""
        incoming = Record(Version(time, 0), value, expires_ms, Dot(0, time), 0, self.step.batch.number)
        stored = self.keys.record(key)
        merged = keep_siblings(stored, incoming, [Version(one, 0) for one in replaces])
        if merged is None:
            self.keys.remove(key)
        elif merged is not stored:
            self.keys.put(key, merged)

    def sweep(self, now_ms: int) -> None:
        self.begin()
        sweep(self.keys, [Link(promise=TIME_MAX >> 1)], self.view, self.step.batch, now_ms)
        self.commit()

    def times(self, key: bytes = KEY) -> list[int]:
        """The versions under a key, as a step of their own reads them from disk."""
        self.begin()
        found = [one.version.time for one in self.keys.records(key)]
        self.view.close()
        return found

    def table(self, name: str) -> list[bytes]:
        with self.storage.snapshot() as view:
            return [key for key, _ in view.scan(name)]


def test_siblings_are_read_from_disk_as_they_were_put() -> None:
    tables = Tables()
    tables.begin()
    tables.write(3, b"three")
    tables.write(5, b"five")
    assert [one.value for one in tables.keys.records(KEY)] == [b"five", b"three"], "within the step"
    tables.commit()
    assert tables.times() == [5, 3]
    tables.begin()
    tables.write(7, b"seven", 3, 5)
    tables.commit()
    assert tables.times() == [7] and tables.table("tombstones") == []


def test_a_delete_of_all_leaves_nothing_at_all() -> None:
    tables = Tables()
    for time, value, replaced in ((3, b"three", ()), (5, b"five", ()), (7, None, (3,)), (8, None, (5,))):
        tables.begin()
        tables.write(time, value, *replaced)
        tables.commit()
    assert tables.times() == [] and tables.table("keys") == tables.table("tombstones") == []


def test_what_is_put_and_taken_away_in_one_step_is_not_there() -> None:
    """In a batch a put stays whatever is deleted; a replica that only deletes would bring the row back."""
    tables = Tables()
    tables.begin()
    for number in range(3):
        tables.write(10 + number, b"v", key=b"cart/%d" % number)
    tables.write(20, b"w", key=b"cart/0")
    tables.write(30, None, 11, key=b"cart/1")
    tables.write(40, None, 10, key=b"cart/0")
    tables.write(50, b"x", key=b"plain")
    tables.commit()
    assert tables.table("keys") == [b"cart/0", b"cart/2", b"plain"] and tables.times(b"cart/0") == [20]
    tables.sweep(now_ms=1)
    assert tables.table("tombstones") == [] and tables.times(b"cart/0") == [20]


def test_what_is_taken_away_and_put_again_in_one_step_is_there() -> None:
    tables = Tables()
    tables.begin()
    tables.write(3, b"three")
    tables.commit()
    tables.begin()
    tables.write(4, None, 3)
    tables.write(5, b"five")
    tables.write(6, None, 5)
    tables.write(7, b"seven", expires_ms=100)
    tables.commit()
    assert tables.times() == [7]
    assert expiry_key(100, KEY) in tables.table("tombstones")


@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_steps_of_any_length_end_in_the_same_rows(rng: random.Random, lengths: list[int]) -> None:
    tables = Tables()
    order = causal_order(rng, history_of(rng, sum(lengths)))
    done = 0
    for length in lengths:
        tables.begin()
        for written in order[done : done + length]:
            stored = tables.keys.record(KEY)
            merged = keep_siblings(stored, record_of(written, tables.step.batch.number), written.replaces)
            if merged is None:
                tables.keys.remove(KEY)
            elif merged is not stored:
                tables.keys.put(KEY, merged)
        tables.commit()
        done += length
        tables.begin()
        found = {one.version: one.value for one in tables.keys.records(KEY)}
        tables.view.close()
        assert found == remaining(order[:done])


# Expiry


def test_an_expired_sibling_goes_and_its_siblings_stay() -> None:
    tables = Tables()
    tables.begin()
    tables.write(3, b"three", expires_ms=500)
    tables.write(5, b"five")
    tables.write(7, b"seven", expires_ms=300)
    tables.commit()
    assert [expiry_of(mark)[0] for mark in tables.table("tombstones")] == [300, 500]
    tables.sweep(299)
    assert tables.times() == [7, 5, 3]
    tables.sweep(300)
    assert tables.times() == [5, 3]
    tables.sweep(500)
    assert tables.times() == [5] and tables.table("tombstones") == []


def test_a_sibling_that_is_not_in_front_expires_too() -> None:
    tables = Tables()
    for time, expires_ms in ((7, 0), (3, 500), (5, 600)):
        tables.begin()
        tables.write(time, b"v", expires_ms=expires_ms)
        tables.commit()
    tables.sweep(500)
    assert tables.times() == [7, 5]
    tables.sweep(600)
    assert tables.times() == [7]


def test_the_commit_of_a_row_outlives_the_sibling_that_brought_it() -> None:
    """The one that expires had replaced another: who sees the rest has seen that, too (SAFETY 12)."""
    tables = Tables()
    for time, replaced, expires_ms in ((3, (), 0), (5, (), 0), (7, (5,), 300)):
        tables.begin()
        tables.write(time, b"v", *replaced, expires_ms=expires_ms)
        tables.commit()
    tables.sweep(300)
    tables.begin()
    (left,) = tables.keys.records(KEY)
    tables.view.close()
    assert left.version.time == 3 and left.commit == 3


def test_when_the_last_sibling_expires_the_row_goes_without_a_tombstone() -> None:
    tables = Tables()
    tables.begin()
    tables.write(3, b"three", expires_ms=100)
    tables.write(5, b"five", expires_ms=200)
    tables.write(6, b"alone", expires_ms=100, key=b"cart/2")
    tables.commit()
    tables.sweep(1000)
    assert tables.table("keys") == tables.table("tombstones") == []


def test_a_mark_of_what_was_replaced_touches_nobody() -> None:
    tables = Tables()
    tables.begin()
    tables.write(3, b"three", expires_ms=100)
    tables.commit()
    tables.begin()
    tables.write(5, b"five", 3, expires_ms=900)
    tables.commit()
    tables.sweep(500)
    assert tables.times() == [5] and tables.table("tombstones") == [expiry_key(900, KEY)]


def test_beside_siblings_lww_expires_as_ever() -> None:
    tables = Tables()
    tables.begin()
    tables.keys.put(b"plain", Record(Version(3, 0), b"v", 100, Dot(0, 1), 0, 1))
    tables.commit()
    assert tables.table("tombstones")[0].startswith(EXPIRY)
    tables.begin()
    sweep(tables.keys, [Link(promise=1)], tables.view, tables.step.batch, 100)
    tables.commit()
    tables.begin()
    (tombstone,) = tables.keys.records(b"plain")
    tables.view.close()
    assert tombstone.value is None and tombstone.version == Version(3, 0)
    tables.sweep(101)
    assert tables.table("keys") == tables.table("tombstones") == []


# In a whole cluster


@pytest.mark.parametrize("protocol", ["optimal", "vector", "false-causality"])
@pytest.mark.parametrize("seed", range(4))
def test_after_crashes_and_delays_all_sites_have_the_same_siblings(protocol: str, seed: int) -> None:
    town = SimulatedCluster(make_cluster(SITES, protocol, merge={b"": "siblings"}), seed)
    town.run(3000)
    town.settle()
    town.now_ms += 10_000  # all that can expire has
    for _ in range(3):
        town.settle()
    held = [
        {key: {one.version: one.value for one in records_of(row)} for key, row in town.keys_at(site).items()}
        for site in range(SITES)
    ]
    assert held[0] == held[1] == held[2]
    assert all(value is not None for row in held[0].values() for value in row.values()), "no tombstones"
    assert any(len(row) > 1 for row in held[0].values()), "or the test shows nothing"
    acknowledged = {(key, version) for key, writes in town.acknowledged.items() for version, value in writes}
    assert {(key, version) for key, row in held[0].items() for version in row} <= acknowledged


# As clients get them


def test_an_entry_shows_the_greatest_value_with_its_siblings_behind_it() -> None:
    row = row_of(
        [
            Record(Version(5, 1), b"five", 900, Dot(1, 5), 0, 1),
            Record(Version(7, 0), b"seven", 0, Dot(0, 7), 0, 1),
            Record(Version(9, 2), b"nine", 100, Dot(2, 9), 0, 1),
        ],
        commit=1,
    )
    entry = wire.entry_of(KEY, *living(row, 100))
    seven, five = model_pb2.Version(time=7, site=0), model_pb2.Version(time=5, site=1)
    sibling = model_pb2.Sibling(value=b"five", version=five, expires_ms=900)
    assert entry == model_pb2.Entry(key=KEY, value=b"seven", version=seven, siblings=[sibling])
