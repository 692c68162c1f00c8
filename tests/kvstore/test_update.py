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
    SITE_MAX,
    UPDATES_MAX,
    VALUE_MAX,
    Record,
    Update,
    Version,
    escape,
    pack_record,
    pack_updates,
    unescape,
    unpack_record,
    unpack_updates,
)

TIMES = st.integers(0, TIME_MAX) | st.integers(0, 300).map(lambda age: (1_763_000_000_000 << 16) + age)
VERSIONS = st.builds(Version, TIMES, st.integers(0, 9) | st.integers(0, SITE_MAX))
KEYS = st.binary(min_size=1, max_size=20) | st.binary(min_size=KEY_MAX, max_size=KEY_MAX)
VALUES = st.none() | st.binary(max_size=300)
DEADLINES = st.just(0) | st.integers(0, (1 << 64) - 1)
UPDATES = st.builds(Update, KEYS, VALUES, VERSIONS, DEADLINES)
NUMBERS = st.integers(0, (1 << 64) - 1)
DOTS = st.builds(Dot, st.integers(0, SITE_MAX), NUMBERS)
RECORDS = st.builds(Record, VERSIONS, VALUES, NUMBERS, DOTS, st.integers(0, UPDATES_MAX - 1), NUMBERS)
EDITS = st.lists(st.tuples(st.integers(0, 999), st.integers(0, 255) | st.integers(0, 9)), min_size=1, max_size=4)

VERSION = Version(1_763_000_000_000 << 16, 2)
BATCH = [Update(b"user/%04d" % n, bytes(100), Version(VERSION.time + n, 2)) for n in range(100)]
RECORD = Record(VERSION, b"value", 0, Dot(2, 7), 3, 99)


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
def test_updates_come_back_as_they_were(updates: list[Update]) -> None:
    again = unpack_updates(pack_updates(updates))
    assert again == updates
    assert all(type(one) is Update and type(one.version) is Version for one in again)


def test_no_updates_are_no_bytes() -> None:
    assert pack_updates([]) == b""
    assert unpack_updates(b"") == []


def test_an_update_in_a_batch_takes_four_bytes_beside_its_key_and_value() -> None:
    bare = sum(len(one.key) + len(one.value or b"") for one in BATCH)
    assert len(pack_updates(BATCH)) <= bare + 4 * len(BATCH) + 20


@given(UPDATES)
def test_an_update_alone_takes_no_more_than_the_limits_count_on(update: Update) -> None:
    assert len(pack_updates([update])) <= len(update.key) + len(update.value or b"") + MESSAGE_OVERHEAD


@pytest.mark.parametrize(
    "update",
    [
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
    body: bytes = b"kv",
) -> bytes:
    """A payload as a liar would write it; as it stands here, an honest one."""
    numbers = (keys, values, (least,), ages, sites, deadlines)
    return pack_count(count) + bytes((flags,)) + b"".join(map(pack_numbers, numbers)) + body


def test_the_honest_forgery_is_read() -> None:
    assert unpack_updates(forged()) == [Update(b"k", b"v", Version(5, 1))]


FORGED = {
    "no updates": (forged(count=0, keys=(), values=(), ages=(), sites=(), body=b""), "entries|0 updates|flags"),
    "an unknown flag": (forged(flags=2), "flags 2"),
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


@pytest.mark.parametrize("updates", [BATCH[:1], BATCH[:3], [Update(b"k", None, VERSION, 5), *BATCH[:2]]])
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
    data, chance = pack_updates(BATCH[:3])[:200], random.Random(1)
    huge = (b"\xff\xff\xff\xff\xff", b"\x08" + b"\xff" * 8, b"\x04" + b"\xff" * 4, b"\x02\xff\xff")
    inputs = [data[:place] + claim + data[place:] for place in range(len(data)) for claim in huge]
    inputs += [data[: chance.randrange(20)] + chance.randbytes(200) for _ in range(2000)]
    tracemalloc.start()
    for wrong in inputs:
        read_or_refuse(wrong)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


# Records


@given(RECORDS)
@example(RECORD._replace(value=b""))
@example(RECORD._replace(value=None))
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
    assert RECORD._replace(value=value, expires_ms=expires_ms).is_alive(100) is alive


def test_a_record_that_is_cut_or_of_no_known_kind_is_corrupt_and_says_whose() -> None:
    data, tombstone = pack_record(RECORD), pack_record(RECORD._replace(value=None))
    cut = [data[:end] for end in range(len(tombstone))]
    for wrong in [*cut, bytes((2,)) + data[1:], bytes((255,)) + data[1:], tombstone + b"x"]:
        with pytest.raises(CorruptRecord, match=r"record of user/\\xff in table keys") as caught:
            unpack_record(wrong, key=b"user/\xff")
        assert caught.value.details["key"] == r"user/\xff"


@given(st.binary(max_size=100) | st.binary(max_size=80).map(lambda noise: bytes((len(noise) % 2,)) + noise))
def test_noise_is_a_record_or_corrupt_and_nothing_else(data: bytes) -> None:
    try:
        record = unpack_record(data)
    except CorruptRecord:
        return
    assert pack_record(record) == data


@given(record=RECORDS, edits=EDITS)
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
