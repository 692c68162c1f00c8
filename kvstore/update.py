"""An update is a client's write as a value; a record is what a site keeps of it under its key.

A message's payload is its updates, *by column*: a column of numbers is one block of causal/blocks.py, written and
read by one call, so an update in a batch costs about half a microsecond, and four bytes beside its key and value.
Everything is checked before memory is taken for it: no count and no length can ask for more than the bytes that came.

    count, flags | lengths of keys | lengths of values + 1, 0 deletes | least time | times - least | sites
    | deadlines, if there are any | replaced, if there are any | keys | values

    replaced: how many by each update | least time | times - least | sites

Nothing at all is no updates: the payload of a message that the protocol made for itself.

A record is one fixed head, read by one `struct` call, and the value behind it. It remembers which message brought it
(dot and index) and which local commit applied it (SAFETY 12: a session's token names what it saw, not all we know).

Where keys merge by `siblings` a key may have several records; together they are its row. The greatest version is in
front and carries the others, and its commit is that of the whole row: the last one that changed it, be it by adding or
by taking away. Whoever reads the row has seen that commit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice, pairwise
from struct import Struct
from typing import Any, NamedTuple

from causal.blocks import Reader, pack_count, pack_numbers
from causal.errors import Malformed
from causal.model import Dot
from kvstore.clock import TIME_MAX
from kvstore.errors import BadVersion, CorruptRecord, MalformedUpdate

KEY_MAX = 480  # bytes of a key; LMDB stops at 511, and a table may put something in front
VALUE_MAX = 1 << 30  # bytes of a value that the format allows; what a cluster allows is less: Limits
UPDATES_MAX = 1 << 16  # updates in one message: an index has two bytes in a record
REPLACES_MAX = 1000  # versions that one update replaces; beyond it: the door refuses the write
SITE_MAX = (1 << 16) - 1

_DEADLINES, _REPLACES = 1, 2  # the flags so far; any other is refused, so that no later column can be overlooked
_NOTHING_REPLACED: list[tuple[Version, ...]] = [()]  # in a column
_LEAST_BYTES = 5  # of one update: four columns of a byte, and a key of one
_VERSION = Struct(">QH")  # big-endian, so that packed versions are ordered like versions
_VERSION_TEXT = re.compile("([0-9a-f]{16})-(0|[1-9][0-9]{0,4})")
_HEAD = Struct("<BQHQHQHQ")  # kind, version, deadline, dot, index, commit
_TOMBSTONE, _VALUE, _SIBLINGS = 0, 1, 2  # the kinds of records so far; any other is refused
_LENGTH = Struct("<I")  # of each record of a row with siblings


class Version(NamedTuple):
    """When a value was written, by the hybrid clock, and where. The order of tuples is the order of `lww`."""

    time: int
    site: int

    def __str__(self) -> str:
        return f"{self.time:016x}-{self.site}"

    @classmethod
    def parse(cls, text: str) -> Version:
        """What `str` made, and nothing else."""
        match = _VERSION_TEXT.fullmatch(text)
        if match is None or int(match[2]) > SITE_MAX:
            raise BadVersion(text=repr(text[:40]))
        return cls(int(match[1], 16), int(match[2]))

    def pack(self) -> bytes:
        return _VERSION.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Version:
        if len(data) != _VERSION.size:
            raise BadVersion(text=f"a string of {len(data)} bytes")
        return cls(*_VERSION.unpack(data))


class Update(NamedTuple):
    key: bytes
    value: bytes | None  # None deletes
    version: Version
    expires_ms: int = 0  # a wall clock deadline; 0 is never
    replaces: tuple[Version, ...] = ()  # where keys merge by `siblings`: what its writer had seen and wants gone


class Change(NamedTuple):
    """What a watcher learns of an update that was applied."""

    key: bytes
    value: bytes | None  # None deletes
    version: Version
    expires_ms: int


class Record(NamedTuple):
    version: Version
    value: bytes | None  # None: a tombstone
    expires_ms: int
    dot: Dot  # of the message that brought it
    index: int  # type: ignore[assignment]  # its place in that message; tuple's own `index` has no use here
    commit: int  # number of the local commit that applied it; with siblings, the last one that changed the row
    others: tuple[Record, ...] = ()  # its siblings, greatest version first; each has none itself, and is no tombstone

    def is_alive(self, now_ms: int) -> bool:
        """Neither deleted nor expired. An expired record is a tombstone of the same version (SAFETY 17)."""
        return self.value is not None and (not self.expires_ms or self.expires_ms > now_ms)


def records_of(row: Record | None) -> tuple[Record, ...]:
    """Each record of a row by itself, greatest version first, dead ones too."""
    if row is None:
        return ()
    return (row._replace(others=()), *row.others) if row.others else (row,)


def row_of(records: Iterable[Record], *, commit: int) -> Record | None:
    """These records as one row, which this commit has changed; None when there are none."""
    ordered = sorted(records, key=lambda one: one.version, reverse=True)
    return ordered[0]._replace(commit=commit, others=tuple(ordered[1:])) if ordered else None


def living(row: Record | None, now_ms: int) -> tuple[Record, ...]:
    """All values that a row has now, greatest version first; the first has the row's commit. Under `lww`: one or none.

    The commit is the row's although its own front may be expired: what took something away was seen, too.
    """
    if row is None:
        return ()
    if not row.others:
        return (row,) if row.is_alive(now_ms) else ()
    alive = [one for one in records_of(row) if one.is_alive(now_ms)]
    return (alive[0]._replace(commit=row.commit), *alive[1:]) if alive else ()


# A named tuple's own constructor is a Python function; over a whole column this is more than twice as fast.
_to_version: Callable[[Iterable[Any]], Version] = partial(tuple.__new__, Version)
_to_update: Callable[[Iterable[Any]], Update] = partial(tuple.__new__, Update)
_to_change: Callable[[Iterable[Any]], Change] = partial(tuple.__new__, Change)


def pack_updates(updates: Sequence[Update], *, with_replaced: bool = True) -> bytes:
    """The payload of a message. The doors have checked keys and values; a wrong length here is our own mistake."""
    if not updates:
        return b""
    keys, values, versions, deadlines, replaced = zip(*updates, strict=True)
    times, sites = zip(*versions, strict=True)
    key_lengths = list(map(len, keys))
    value_lengths = [0 if value is None else len(value) + 1 for value in values]
    assert len(updates) <= UPDATES_MAX
    assert min(key_lengths) > 0 and max(key_lengths) <= KEY_MAX and max(value_lengths) <= VALUE_MAX + 1
    assert max(sites) <= SITE_MAX and max(times) <= TIME_MAX
    least = min(times)
    has_deadlines, has_replaced = any(deadlines), with_replaced and any(replaced)
    return b"".join(
        (
            pack_count(len(updates)),
            bytes((has_deadlines * _DEADLINES + has_replaced * _REPLACES,)),
            pack_numbers(key_lengths),
            pack_numbers(value_lengths),
            pack_numbers((least,)),
            pack_numbers([time - least for time in times]),
            pack_numbers(sites),
            pack_numbers(deadlines) if has_deadlines else b"",
            _pack_replaced(replaced) if has_replaced else b"",
            *keys,
            *filter(None, values),
        )
    )


def _pack_replaced(replaced: Sequence[Sequence[Version]]) -> bytes:
    counts = list(map(len, replaced))
    times, sites = zip(*chain.from_iterable(replaced), strict=True)
    assert max(counts) <= REPLACES_MAX and max(sites) <= SITE_MAX and max(times) <= TIME_MAX
    least = min(times)
    ages = [time - least for time in times]
    return b"".join(map(pack_numbers, (counts, (least,), ages, sites)))


def unpack_updates(data: bytes) -> list[Update]:
    """The updates that `pack_updates` wrote; MalformedUpdate for anything that it cannot have written."""
    if not data:
        return []
    try:
        return list(map(_to_update, zip(*_unpack_columns(data), strict=True)))
    except Malformed as error:
        raise MalformedUpdate(why=str(error)) from None


def _unpack_columns(data: bytes) -> tuple[Iterable[Any], ...]:
    """The fields of the updates, each as a column."""
    reader = Reader(data)
    count = reader.count(min(UPDATES_MAX, len(data) // _LEAST_BYTES))
    flags = reader.byte()
    if not count or flags > _DEADLINES | _REPLACES:
        raise Malformed(f"{count} updates with the flags {flags}")
    key_lengths, value_lengths = reader.numbers(count), reader.numbers(count)
    versions = _read_versions(reader, count)
    deadlines, replaced = [0] * count, _NOTHING_REPLACED * count
    if flags & _DEADLINES:
        deadlines = reader.numbers(count)
        if not any(deadlines):
            raise Malformed("deadlines that are none")
    if flags & _REPLACES:
        replaced = _read_replaced(reader, count)
    _check_lengths(key_lengths, value_lengths, reader.left())
    at = len(data) - reader.left()
    keys: list[bytes] = []
    for length in key_lengths:
        keys.append(data[at : at + length])
        at += length
    values: list[bytes | None] = []
    for length in value_lengths:
        values.append(data[at : at + length - 1] if length else None)
        at += length - 1 if length else 0
    return keys, values, versions, deadlines, replaced


def _read_versions(reader: Reader, count: int) -> Iterator[Version]:
    least, ages, sites = reader.number(), reader.numbers(count), reader.numbers(count)
    if min(ages) or least + max(ages) > TIME_MAX or max(sites) > SITE_MAX:
        raise Malformed("times or sites that nobody writes")
    return map(_to_version, zip([least + age for age in ages], sites, strict=True))


def _read_replaced(reader: Reader, count: int) -> list[tuple[Version, ...]]:
    counts = reader.numbers(count)
    if not 0 < max(counts) <= REPLACES_MAX:
        raise Malformed(f"an update that replaces {max(counts)} versions; 1 to {REPLACES_MAX} are possible")
    versions = _read_versions(reader, sum(counts))
    return [tuple(islice(versions, one)) for one in counts]


def _check_lengths(keys: Sequence[int], values: Sequence[int], left: int) -> None:
    """Keys and values fill exactly what is left of the input."""
    if min(keys) < 1 or max(keys) > KEY_MAX:
        raise Malformed(f"keys of {min(keys)} to {max(keys)} bytes; 1 to {KEY_MAX} are possible")
    if max(values) > VALUE_MAX + 1:
        raise Malformed(f"a value of {max(values) - 1} bytes; at most {VALUE_MAX} are possible")
    wanted = sum(keys) + sum(values) - (len(values) - values.count(0))
    if wanted != left:
        raise Malformed(f"keys and values of {wanted} bytes in {left}")


_CHANGE = Struct(">HQ")  # dot


def pack_change(dot: Dot, updates: Sequence[Update]) -> bytes:
    """What one message changed here, for whoever watches. What an update replaced is of no use to them."""
    return _CHANGE.pack(*dot) + pack_updates(updates, with_replaced=False)


def unpack_change(data: bytes) -> tuple[Dot, list[Change]]:
    if len(data) <= _CHANGE.size:
        raise MalformedUpdate(why=f"a change of {len(data)} bytes")
    try:
        *columns, replaced = _unpack_columns(data[_CHANGE.size :])
        if any(replaced):
            raise Malformed("a change that replaces")
    except Malformed as error:
        raise MalformedUpdate(why=str(error)) from None
    return Dot(*_CHANGE.unpack_from(data)), list(map(_to_change, zip(*columns, strict=True)))


def pack_record(record: Record) -> bytes:
    (time, site), value, expires_ms, (sender, seq), index, commit, others = record
    if others:
        return _pack_siblings(record)
    if value is None:
        return _HEAD.pack(_TOMBSTONE, time, site, expires_ms, sender, seq, index, commit)
    return _HEAD.pack(_VALUE, time, site, expires_ms, sender, seq, index, commit) + value


def _pack_siblings(row: Record) -> bytes:
    """The kind, and then each record as if it were alone, with its length in front."""
    packed = [pack_record(one) for one in records_of(row)]
    return bytes((_SIBLINGS,)) + b"".join(chain.from_iterable((_LENGTH.pack(len(one)), one) for one in packed))


def unpack_record(data: bytes, *, key: bytes = b"") -> Record:
    """The record that `pack_record` wrote. `key` only tells the error whose record is corrupt."""
    if len(data) < _HEAD.size:
        raise CorruptRecord(table="keys", key=escape(key), why=f"{len(data)} bytes are less than a head")
    kind, time, site, expires_ms, sender, seq, index, commit = _HEAD.unpack_from(data)
    value: bytes | None = data[_HEAD.size :]
    if kind == _TOMBSTONE and not value:
        value = None
    elif kind == _SIBLINGS:
        return _unpack_siblings(data, key)
    elif kind != _VALUE:
        raise CorruptRecord(table="keys", key=escape(key), why=f"kind {kind} with {len(data)} bytes")
    return Record(Version(time, site), value, expires_ms, Dot(sender, seq), index, commit)


def _unpack_siblings(data: bytes, key: bytes) -> Record:
    records: list[Record] = []
    at = 1
    while at < len(data):
        start = at + _LENGTH.size
        at = start + (_LENGTH.unpack_from(data, at)[0] if start <= len(data) else 0)
        if start >= len(data) or at > len(data) or data[start] != _VALUE:
            raise CorruptRecord(table="keys", key=escape(key), why=f"sibling {len(records) + 1} is cut or no value")
        records.append(unpack_record(data[start:at], key=key))
    versions = [one.version for one in records]
    if len(records) < 2 or any(one <= other for one, other in pairwise(versions)):
        raise CorruptRecord(table="keys", key=escape(key), why=f"{len(records)} siblings that are not in their order")
    return records[0]._replace(others=tuple(records[1:]))


# Keys as text, for people: in cluster files, errors and logs


_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(\\)|)")


def escape(key: bytes) -> str:
    r"""Readable text stays; a backslash becomes `\\`, any other byte `\x` and two digits."""
    return "".join(map(_escape_character, key.decode("utf-8", "surrogateescape")))


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def unescape(text: str) -> bytes:
    """The key that `escape` made readable; ValueError for a backslash that stands for nothing."""
    return _ESCAPE.sub(_unescaped, text.encode())


def _unescaped(match: re.Match[bytes]) -> bytes:
    if match[1] is None and match[2] is None:
        raise ValueError(r"a backslash must be followed by another one, or by x and two digits")
    return bytes.fromhex(match[1].decode()) if match[1] else b"\\"
