"""A log as bytes: the newest time of every sender, then entries of one size each.

An entry is a sender, an *age* (how far it is behind its sender's newest message: a small number) and a set of
destinations. One byte says how wide the ages are; sender and set are as wide as the number of sites asks for. Entries
of one size are read by `struct` in one go, and copies that differ in an entry or two share the bytes of all the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, TypeVar

from causal.blocks import TYPECODES, Reader, mask_bytes, pack_numbers
from causal.errors import Malformed
from causal.log import Name
from causal.model import Mask, Site

T = TypeVar("T")


class Layout:
    """How entries lie in memory, for so many sites and ages of this width."""

    __slots__ = ("pack", "size", "struct", "unpack")

    pack: Callable[[Site, int, Mask], bytes]
    unpack: Callable[[bytes], Iterable[tuple[Site, int, Mask]]]

    def __init__(self, sites: int, width: int) -> None:
        size = mask_bytes(sites)
        machine = TYPECODES.get(size)
        self.struct = Struct(f"<{_site_code(sites)}{TYPECODES[width]}{machine or f'{size}s'}")
        self.size = self.struct.size
        if machine:
            self.pack, self.unpack = self.struct.pack, self.struct.iter_unpack
        else:  # no machine number is as wide
            self.pack = lambda site, age, mask: self.struct.pack(site, age, mask.to_bytes(size, "little"))
            self.unpack = lambda data: (
                (site, age, int.from_bytes(mask, "little")) for site, age, mask in self.struct.iter_unpack(data)
            )


def _site_code(sites: int) -> str:
    return "B" if sites <= 1 << 8 else "H"


@lru_cache(maxsize=256)
def layout(sites: int, width: int) -> Layout:
    return Layout(sites, width)


@lru_cache(maxsize=256)
def name_struct(sites: int, width: int) -> Struct:
    return Struct(f"<{_site_code(sites)}{TYPECODES[width]}")


def in_narrowest(pack: Callable[[int], T]) -> T:
    """What `pack` makes with the narrowest ages that fit. Nearly always that is one byte, so just try."""
    for width in TYPECODES:
        try:
            return pack(width)
        except struct.error:
            continue
    raise AssertionError("message numbers are below 2 ** 64")


def unpack_entries(
    data: bytes, newest: Sequence[int], width: int, to: Mask, receiver: Mask = 0
) -> tuple[dict[Name, Mask], list[Name]]:
    """The entries in `data`, and apart from them the messages that `receiver` must wait for.

    `to` are the destinations of the message that carries the entries: what it goes to itself, it does not name.
    """
    shape = layout(len(newest), width)
    if len(data) % shape.size:
        raise Malformed("the last entry is cut short")
    entries: dict[Name, Mask] = {}
    needs: list[Name] = []
    for site, age, mask in shape.unpack(data):
        if site >= len(newest) or age >= newest[site] or mask >> len(newest):
            raise Malformed(f"an entry names a site or a message that cannot exist: site {site}, age {age}")
        name = (site, newest[site] - age)
        if not mask or mask >> site & 1 or name in entries:
            raise Malformed(f"the entry for message {name[1]} of site {site} is empty, twice there, or for its sender")
        if mask & receiver:
            needs.append(name)
            mask ^= receiver
        if mask & to:
            raise Malformed("an entry names a destination of the message that carries it")
        if mask:
            entries[name] = mask
    return entries, needs


def pack_log(newest: Sequence[int], entries: Mapping[Name, Mask]) -> bytes:
    def packed(width: int) -> bytes:
        pack = layout(len(newest), width).pack
        rows = [pack(name[0], newest[name[0]] - name[1], mask) for name, mask in entries.items()]
        return pack_numbers((len(entries), width)) + b"".join(rows)

    return pack_numbers(newest) + in_narrowest(packed)


def unpack_log(reader: Reader, sites: int, to: Mask = 0) -> tuple[tuple[int, ...], dict[Name, Mask]]:
    newest = tuple(reader.numbers(sites))
    count, width = reader.numbers(2)
    if count > sites * (sites - 1):
        raise Malformed(f"too many entries: {count}, at most {sites * (sites - 1)} make sense")
    check_width(width)
    entries, _ = unpack_entries(reader.take(count * layout(sites, width).size), newest, width, to)
    return newest, entries


def check_width(width: int) -> None:
    if width not in TYPECODES:
        raise Malformed(f"numbers of {width} bytes")


def pack_names(newest: Sequence[int], names: Sequence[Name]) -> bytes:
    """Names alone, to the end of a stamp. None, no bytes."""

    def packed(width: int) -> bytes:
        pack = name_struct(len(newest), width).pack
        return bytes((width,)) + b"".join([pack(site, newest[site] - seq) for site, seq in names])

    return in_narrowest(packed) if names else b""


def unpack_names(reader: Reader, newest: Sequence[int]) -> list[Name]:
    if not reader.left():
        return []
    width = reader.byte()
    check_width(width)
    shape = name_struct(len(newest), width)
    data = reader.take(reader.left())
    if len(data) % shape.size or not data:
        raise Malformed("the last name is cut short")
    names: list[Any] = []
    for site, age in shape.iter_unpack(data):
        if site >= len(newest) or age >= newest[site]:
            raise Malformed(f"site {site} or its message of age {age} cannot exist")
        names.append((site, newest[site] - age))
    return names
