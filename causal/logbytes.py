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
from typing import TypeVar

from causal.blocks import TYPECODES, Reader, mask_bytes, pack_count, pack_numbers
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


def pack_log(newest: Sequence[int], entries: Mapping[Name, Mask]) -> bytes:
    def packed(width: int) -> bytes:
        pack = layout(len(newest), width).pack
        rows = [pack(name[0], newest[name[0]] - name[1], mask) for name, mask in entries.items()]
        return block_head(len(rows), width) + b"".join(rows)

    return pack_numbers(newest) + in_narrowest(packed)


def block_head(count: int, width: int) -> bytes:
    """What stands in front of entries or names: how many, and how wide their ages are. None: one byte."""
    if 0 < count < 255:
        return bytes((count, width))
    return pack_count(count) + bytes((width,)) if count else b"\0"


def unpack_log(
    reader: Reader, sites: int, to: Mask = 0, receiver: Mask = 0
) -> tuple[tuple[int, ...], dict[Name, Mask], list[Name]]:
    """The newest times, the entries, and apart from them the messages that `receiver` must wait for.

    `to` are the destinations of the message that carries the log: what it goes to itself, it does not name.
    """
    newest = tuple(reader.numbers(sites))
    entries: dict[Name, Mask] = {}
    needs: list[Name] = []
    settled = 0  # entries that name only the receiver
    impossible = -1 << sites | to & ~receiver  # sites that no entry names
    count = reader.count(sites * (sites - 1))
    shape = layout(sites, reader.width() if count else 1)
    try:
        for site, age, mask in shape.unpack(reader.take(count * shape.size)):
            seq = newest[site] - age
            if seq < 1 or not mask or mask & impossible or mask >> site & 1:
                raise Malformed(f"an entry for message {seq} of site {site} to {mask:#x} makes no sense here")
            if mask & receiver:
                needs.append((site, seq))
                mask ^= receiver
                if not mask:
                    settled += 1
                    continue
            entries[site, seq] = mask
    except IndexError:
        raise Malformed(f"an entry names a site that does not exist; there are {sites}") from None
    if len(entries) + settled != count:
        raise Malformed("two entries for one message")
    check_needs(needs)
    return newest, entries, needs


def check_needs(needs: Sequence[Name]) -> None:
    """KS Lemma 1: of each sender, the newest message that is needed stands for all."""
    if len({site for site, _ in needs}) != len(needs):
        raise Malformed("a receiver is told to wait for two messages of one sender")


def pack_names(newest: Sequence[int], names: Sequence[Name]) -> bytes:
    def packed(width: int) -> bytes:
        pack = name_struct(len(newest), width).pack
        return block_head(len(names), width) + b"".join([pack(site, newest[site] - seq) for site, seq in names])

    return in_narrowest(packed)


def unpack_names(reader: Reader, newest: Sequence[int]) -> list[Name]:
    count = reader.count(len(newest))
    shape = name_struct(len(newest), reader.width() if count else 1)
    names: list[Name] = []
    for site, age in shape.iter_unpack(reader.take(count * shape.size)):
        if site >= len(newest) or age >= newest[site]:
            raise Malformed(f"site {site} or its message of age {age} cannot exist")
        names.append((site, newest[site] - age))
    check_needs(names)
    return names
