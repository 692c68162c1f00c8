"""Updates and records as bytes: what was written is read again, and nothing else is read.

Whatever comes in as a payload may be wrong; then MalformedUpdate comes out, or CorruptRecord for a record, and no claim
in it takes memory that its bytes do not pay for.
"""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from causal.blocks import pack_count, pack_numbers
from causal.model import Dot
from kvstore.clock import TIME_MAX
from kvstore.errors import BadVersion, CorruptRecord, MalformedUpdate
from kvstore.limits import MESSAGE_OVERHEAD
from kvstore.update import (
    KEY_MAX,
    REPLACES_MAX,
    SITE_MAX,
    UPDATES_MAX,
    VALUE_MAX,
    Change,
    Record,
    Update,
    Version,
    escape,
    living,
    pack_change,
    pack_record,
    pack_updates,
    records_of,
    row_of,
    unescape,
    unpack_change,
    unpack_record,
    unpack_updates,
)

TIMES = st.integers(0, TIME_MAX) | st.integers(0, 300).map(lambda age: (1_763_000_000_000 << 16) + age)
VERSIONS = st.builds(Version, TIMES, st.integers(0, 9) | st.integers(0, SITE_MAX))
KEYS = st.binary(min_size=1, max_size=20) | st.binary(min_size=KEY_MAX, max_size=KEY_MAX)
VALUES = st.none() | st.binary(max_size=300)
DEADLINES = st.just(0) | st.integers(0, (1 << 64) - 1)
REPLACED = st.just(()) | st.lists(VERSIONS, max_size=5).map(tuple)
PLAIN_UPDATES = st.builds(Update, KEYS, VALUES, VERSIONS, DEADLINES, st.just(()))
UPDATES = st.builds(Update, KEYS, VALUES, VERSIONS, DEADLINES, REPLACED)
NUMBERS = st.integers(0, (1 << 64) - 1)
DOTS = st.builds(Dot, st.integers(0, SITE_MAX), NUMBERS)
INDEXES = st.integers(0, UPDATES_MAX - 1)
RECORDS = st.builds(Record, VERSIONS, VALUES, NUMBERS, DOTS, INDEXES, NUMBERS, st.just(()))
SIBLINGS = st.builds(Record, VERSIONS, st.binary(max_size=40), NUMBERS, DOTS, INDEXES, NUMBERS, st.just(()))
ROWS = st.lists(SIBLINGS, min_size=1, max_size=5, unique_by=lambda one: one.version).map(
    lambda records: row_of(records, commit=records[0].commit)
)
EDITS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255) | st.integers(0, 9)), min_size=1, max_size=4)

VERSION = Version(1_763_000_000_000 << 16, 2)
BATCH = [Update(b"user/%04d" % n, bytes(100), Version(VERSION.time + n, 2)) for n in range(100)]
RECORD = Record(VERSION, b"value", 0, Dot(2, 7), 3, 99)


def sibling(time: int, value: bytes = b"v", *, expires_ms: int = 0, commit: int = 1) -> Record:
    return Record(Version(time, 1), value, expires_ms, Dot(1, time), 0, commit)


# Versions


@given(VERSIONS, VERSIONS)
def test_versions_are_ordered_alike_as_tuples_and_as_bytes(one: Version, other: Version) -> None:
    assert (one < other) == (one.pack() < other.pack()) == ((one.time, one.site) < (other.time, other.site))


@given(VERSIONS)
def test_a_version_is_what_its_text_and_its_bytes_say(version: Version) -> None:
    assert Version.parse(str(version)) == version == Version.unpack(version.pack())
    assert len(version.pack()) == 10


def test_a_version_reads_as_sixteen_digits_and_a_site() -> None:
    assert str(Version(0x18BCFE568000003, 2)) == "018bcfe568000003-2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "018bcfe568000003",
        "018bcfe568000003-",
        "18bcfe568000003-2",
        "0018bcfe568000003-2",
        "018BCFE568000003-2",
        "018bcfe56800000g-2",
        "018bcfe568000003-02",
        "018bcfe568000003--2",
        "018bcfe568000003-65536",
        "018bcfe568000003-100000",
        "018bcfe568000003-2\n",
        " 018bcfe568000003-2",
        "018bcfe568000003-٢",
    ],
)
def test_no_other_text_is_a_version(text: str) -> None:
    with pytest.raises(BadVersion):
        Version.parse(text)


@given(st.binary(max_size=30).filter(lambda data: len(data) != 10))
def test_no_other_length_is_a_version(data: bytes) -> None:
    with pytest.raises(BadVersion):
        Version.unpack(data)


# Updates


@given(st.lists(UPDATES, max_size=20))
@example([])
@example([Update(b"k", None, Version(0, 0)), Update(b"k", b"", Version(TIME_MAX, SITE_MAX), 1)])
@example([*BATCH, *BATCH, *BATCH])
@example([BATCH[0], BATCH[1]._replace(replaces=tuple(one.version for one in BATCH) * 10), BATCH[2]])
def test_updates_come_back_as_they_were(updates: list[Update]) -> None:
    again = unpack_updates(pack_updates(updates))
    assert again == updates
    assert all(type(one) is Update and type(one.version) is Version for one in again)
    assert all(type(version) is Version for one in again for version in one.replaces)


def test_no_updates_are_no_bytes() -> None:
    assert pack_updates([]) == b""
    assert unpack_updates(b"") == []


def test_an_update_in_a_batch_takes_four_bytes_beside_its_key_and_value() -> None:
    bare = sum(len(one.key) + len(one.value or b"") for one in BATCH)
    assert len(pack_updates(BATCH)) <= bare + 4 * len(BATCH) + 20


def test_what_replaces_nothing_has_the_bytes_that_it_always_had() -> None:
    """They lie in outboxes, and peers of another version send them."""
    updates = [Update(b"k1", b"v", Version(258, 1)), Update(b"k2", None, Version(257, 300), 5)]
    assert pack_updates(updates).hex() == "02010102020102000201010101000201002c010100056b316b3276"


@given(PLAIN_UPDATES)
def test_an_update_alone_takes_no_more_than_the_limits_count_on(update: Update) -> None:
    assert len(pack_updates([update])) <= len(update.key) + len(update.value or b"") + MESSAGE_OVERHEAD


@given(UPDATES)
def test_a_replaced_version_takes_at_most_ten_bytes(update: Update) -> None:
    alone = len(update.key) + len(update.value or b"") + MESSAGE_OVERHEAD
    assert len(pack_updates([update])) <= alone + 10 * len(update.replaces) + 14


@pytest.mark.parametrize(
    "update",
    [
        Update(b"k", b"v", VERSION, 0, (VERSION,) * (REPLACES_MAX + 1)),
        Update(b"k", b"v", VERSION, 0, (Version(TIME_MAX + 1, 0),)),
        Update(b"k", b"v", VERSION, 0, (Version(0, SITE_MAX + 1),)),
        Update(b"", b"v", VERSION),
        Update(bytes(KEY_MAX + 1), b"v", VERSION),
        Update(b"k", b"v", Version(TIME_MAX + 1, 0)),
        Update(b"k", b"v", Version(0, SITE_MAX + 1)),
    ],
)
def test_packing_what_no_door_lets_in_is_our_own_mistake(update: Update) -> None:
    with pytest.raises(AssertionError):
        pack_updates([update])


def forged(
    *,
    count: int = 1,
    flags: int = 0,
    keys: tuple[int, ...] = (1,),
    values: tuple[int, ...] = (2,),
    least: int = 5,
    ages: tuple[int, ...] = (0,),
    sites: tuple[int, ...] = (1,),
    deadlines: tuple[int, ...] = (),
    replaced: tuple[tuple[int, ...], ...] = (),
    body: bytes = b"kv",
) -> bytes:
    """A payload as a liar would write it; as it stands here, an honest one. Replaced: counts, least, ages, sites."""
    numbers = (keys, values, (least,), ages, sites, deadlines, *replaced)
    return pack_count(count) + bytes((flags,)) + b"".join(map(pack_numbers, numbers)) + body


def test_the_honest_forgery_is_read() -> None:
    assert unpack_updates(forged()) == [Update(b"k", b"v", Version(5, 1))]
    replacing = forged(flags=2, replaced=((2,), (3,), (1, 0), (7, 1)))
    assert unpack_updates(replacing) == [Update(b"k", b"v", Version(5, 1), 0, (Version(4, 7), Version(3, 1)))]


FORGED = {
    "no updates": (forged(count=0, keys=(), values=(), ages=(), sites=(), body=b""), "entries|0 updates|flags"),
    "an unknown flag": (forged(flags=4), "flags 4"),
    "replaced that are none": (forged(flags=2, replaced=((0,), (3,))), "replaces 0 versions"),
    "too many replaced": (
        forged(flags=2, replaced=((REPLACES_MAX + 1,), (3,), (0,) * 1001, (0,) * 1001)),
        "replaces 1001 versions",
    ),
    "more replaced than bytes": (forged(flags=2, replaced=((9,), (3,), (0,), (0,))), "cut short"),
    "a least replaced that is not": (forged(flags=2, replaced=((1,), (3,), (1,), (0,))), "times or sites"),
    "a replaced time beyond all times": (forged(flags=2, replaced=((2,), (TIME_MAX,), (0, 1), (0, 0))), "times"),
    "a replaced site beyond all sites": (forged(flags=2, replaced=((1,), (3,), (0,), (SITE_MAX + 1,))), "sites"),
    "an empty key": (forged(keys=(0,), body=b"v"), "keys of 0 to 0 bytes"),
    "a long key": (forged(keys=(KEY_MAX + 1,), body=bytes(KEY_MAX + 2)), f"to {KEY_MAX + 1} bytes"),
    "a huge value": (forged(values=(VALUE_MAX + 2,)), "a value of"),
    "values beyond the end": (forged(values=(3,)), "keys and values of 3 bytes in 2"),
    "bytes too many": (forged(body=b"kvx"), "keys and values of 2 bytes in 3"),
    "a delete with a value": (forged(values=(0,)), "keys and values of 1 bytes in 2"),
    "a time beyond all times": (
        forged(least=TIME_MAX, count=2, keys=(1, 1), values=(1, 1), ages=(0, 1), sites=(1, 1)),
        "times",
    ),
    "a least time that is not": (forged(ages=(1,)), "times"),
    "a site beyond all sites": (forged(sites=(SITE_MAX + 1,)), "sites"),
    "deadlines that are none": (forged(flags=1, deadlines=(0,)), "deadlines"),
    "more updates than bytes": (forged(count=200), "too many entries: 200"),
    "more updates than an index counts": (pack_count(UPDATES_MAX + 1) + bytes(6 * UPDATES_MAX), "too many entries"),
}


@pytest.mark.parametrize(("data", "why"), FORGED.values(), ids=FORGED)
def test_a_payload_that_nobody_writes_is_malformed(data: bytes, why: str) -> None:
    with pytest.raises(MalformedUpdate, match=why):
        unpack_updates(data)


@pytest.mark.parametrize(
    "updates",
    [
        BATCH[:1],
        BATCH[:3],
        [Update(b"k", None, VERSION, 5), *BATCH[:2]],
        [Update(b"k", None, VERSION, 5, (VERSION, Version(1, 1))), *BATCH[:2]],
    ],
)
def test_a_payload_cut_short_or_too_long_is_malformed(updates: list[Update]) -> None:
    data = pack_updates(updates)
    for wrong in [*(data[:end] for end in range(1, len(data))), data + b"\0", data + data]:
        with pytest.raises(MalformedUpdate):
            unpack_updates(wrong)


def read_or_refuse(data: bytes) -> None:
    try:
        updates = unpack_updates(data)
    except MalformedUpdate:
        return
    assert unpack_updates(pack_updates(updates)) == updates, "what was read once is read again"


@given(updates=st.lists(UPDATES, min_size=1, max_size=5), edits=EDITS)
def test_a_mutated_payload_is_read_or_malformed_and_nothing_else(
    updates: list[Update], edits: list[tuple[int, int]]
) -> None:
    data = bytearray(pack_updates(updates))
    for place, value in edits:
        data[place % len(data)] = value
    read_or_refuse(bytes(data))


@given(keep=st.integers(0, 30), noise=st.binary(max_size=200))
def test_noise_is_read_or_malformed_and_nothing_else(keep: int, noise: bytes) -> None:
    read_or_refuse(pack_updates(BATCH[:3])[:keep] + noise)  # some sense first, to get past the door


def test_a_claim_of_many_or_long_things_takes_no_memory() -> None:
    replacing = BATCH[2]._replace(replaces=(VERSION,) * 3)
    data, chance = pack_updates([*BATCH[:2], replacing])[:200], random.Random(1)
    huge = (b"\xff\xff\xff\xff\xff", b"\x08" + b"\xff" * 8, b"\x04" + b"\xff" * 4, b"\x02\xff\xff")
    inputs = [data[:place] + claim + data[place:] for place in range(len(data)) for claim in huge]
    inputs += [data[: chance.randrange(20)] + chance.randbytes(200) for _ in range(2000)]
    tracemalloc.start()
    for wrong in inputs:
        read_or_refuse(wrong)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


# Changes


@given(st.lists(UPDATES, min_size=1, max_size=5), DOTS)
def test_a_change_comes_back_without_what_it_replaced(updates: list[Update], dot: Dot) -> None:
    found, changes = unpack_change(pack_change(dot, updates))
    assert (found, changes) == (dot, [Change(*one[:4]) for one in updates])
    assert type(found) is Dot and all(type(one) is Change for one in changes)


def test_a_change_that_nobody_writes_is_malformed() -> None:
    replacing = BATCH[0]._replace(replaces=(VERSION,))
    head = pack_change(Dot(1, 2), BATCH[:1])[:10]
    for wrong in (b"", head, head[:9], head + pack_updates([replacing]), head + b"noise"):
        with pytest.raises(MalformedUpdate):
            unpack_change(wrong)


# Records


@given(RECORDS | ROWS)
@example(RECORD._replace(value=b""))
@example(RECORD._replace(value=None))
@example(RECORD._replace(others=(RECORD._replace(version=Version(1, 1), value=b""),)))
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    again = unpack_record(pack_record(record))
    assert again == record
    assert (type(again), type(again.version), type(again.dot)) == (Record, Version, Dot)


@pytest.mark.parametrize(
    ("value", "expires_ms", "alive"),
    [(b"v", 0, True), (b"", 0, True), (None, 0, False), (b"v", 101, True), (b"v", 100, False), (b"v", 99, False)],
)
def test_a_record_lives_until_it_is_deleted_or_its_deadline_is_reached(
    value: bytes | None, expires_ms: int, alive: bool
) -> None:
    record = RECORD._replace(value=value, expires_ms=expires_ms)
    assert record.is_alive(100) is alive
    assert living(record, 100) == ((record,) if alive else ())


def test_a_record_alone_has_the_bytes_that_it_always_had() -> None:
    tail = "00020007000000000000000300" + "6300000000000000"
    assert pack_record(RECORD).hex() == "010000001efd7a9a010200" + "0" * 14 + tail + b"value".hex()
    tombstone = pack_record(RECORD._replace(value=None, expires_ms=9))
    assert tombstone.hex() == "000000001efd7a9a01020009" + "0" * 12 + tail


def test_what_lives_of_a_row_comes_greatest_first_with_the_commit_of_the_row() -> None:
    row = row_of([sibling(3), sibling(9, expires_ms=100), sibling(5, commit=7)], commit=8)
    assert row is not None and [one.version.time for one in records_of(row)] == [9, 5, 3]
    assert [(one.version.time, one.commit) for one in living(row, 99)] == [(9, 8), (5, 7), (3, 1)]
    assert [(one.version.time, one.commit) for one in living(row, 100)] == [(5, 8), (3, 1)], "9 took part in it"
    assert all(not one.others for one in (*records_of(row), *living(row, 99), *living(row, 100)))
    dead = row_of([sibling(3, expires_ms=1), sibling(4, expires_ms=2)], commit=8)
    assert living(dead, 100) == living(None, 100) == records_of(None) == ()
    assert row_of([], commit=8) is None


@given(ROWS)
def test_a_row_is_its_records_and_its_commit(row: Record) -> None:
    assert row_of(records_of(row), commit=row.commit) == row
    assert living(row, 0) == records_of(row)


def test_a_row_that_nobody_writes_is_corrupt() -> None:
    def packed(*records: Record) -> bytes:
        pieces = [pack_record(one) for one in records]
        return b"\x02" + b"".join(len(one).to_bytes(4, "little") + one for one in pieces)

    new, old = sibling(9), sibling(3)
    row = packed(new, old)
    assert unpack_record(row) == new._replace(others=(old,)), "the honest one"
    nested = b"\x02" + len(row).to_bytes(4, "little") + row + row[1:]
    wrongs = [packed(new), packed(old, new), packed(new, new), packed(new, old._replace(value=None)), nested, row + row]
    wrongs += [row[:end] for end in range(len(row))] + [row + b"\0" * more for more in range(1, 60)]
    for wrong in wrongs:
        with pytest.raises(CorruptRecord, match="record of k in table keys"):
            unpack_record(wrong, key=b"k")


def test_a_record_that_is_cut_or_of_no_known_kind_is_corrupt_and_says_whose() -> None:
    data, tombstone = pack_record(RECORD), pack_record(RECORD._replace(value=None))
    cut = [data[:end] for end in range(len(tombstone))]
    for wrong in [*cut, bytes((2,)) + data[1:], bytes((3,)) + data[1:], bytes((255,)) + data[1:], tombstone + b"x"]:
        with pytest.raises(CorruptRecord, match=r"record of user/\\xff in table keys") as caught:
            unpack_record(wrong, key=b"user/\xff")
        assert caught.value.details["key"] == r"user/\xff"


@given(st.binary(max_size=100) | st.binary(max_size=80).map(lambda noise: bytes((len(noise) % 3,)) + noise))
def test_noise_is_a_record_or_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        record = unpack_record(data)
    except CorruptRecord:
        return
    assert pack_record(record) == data


@given(record=RECORDS | ROWS, edits=EDITS)
def test_a_mutated_record_is_read_or_corrupt_and_nothing_else(record: Record, edits: list[tuple[int, int]]) -> None:
    data = bytearray(pack_record(record))
    for place, value in edits:
        data[place % len(data)] = value
    try:
        again = unpack_record(bytes(data))
    except CorruptRecord:
        return
    assert pack_record(again) == bytes(data)


# Keys as text


@given(st.binary(max_size=40))
@example(b"user/\xff\x00\\\n")
@example("clé".encode())
def test_a_key_comes_back_from_its_text(key: bytes) -> None:
    text = escape(key)
    assert unescape(text) == key
    assert text.isprintable()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (b"user/1", "user/1"),
        ("clé".encode(), "clé"),
        (b"a\\b", r"a\\b"),
        (b"\x00\xff", r"\x00\xff"),
        (b"a\n", r"a\x0a"),
    ],
)
def test_what_can_be_read_stays_as_it_is(key: bytes, text: str) -> None:
    assert escape(key) == text


@pytest.mark.parametrize("text", ["\\", "a\\", r"\n", r"\x", r"\x1", r"\xg0", r"\\\x"])
def test_a_backslash_that_stands_for_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="backslash"):
        unescape(text)
