"""Numbers and sets of sites <-> bytes, strict on input.

A varint loop in Python costs more than everything else in a stamp, so numbers travel in *blocks*: one byte says how
wide the block's numbers are (1, 2, 4 or 8 bytes, the least that fits the greatest of them), then the whole block is
written or read by one call of `array`. How many numbers there are is known beforehand or stands in front, and is
checked against what is left of the input before anything is allocated: bytes from outside cannot make us hang, crash
or grow.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from causal.errors import Malformed
from causal.model import Dot, Mask

TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}
_LONG = 255  # a count's first byte when four more follow
_SWAP = sys.byteorder == "big"  # the wire is little-endian


def width_of(greatest: int) -> int:
    if greatest < 1 << 8:
        return 1
    if greatest < 1 << 16:
        return 2
    return 4 if greatest < 1 << 32 else 8


def _array_bytes(numbers: Sequence[int], width: int) -> bytes:
    block = array(TYPECODES[width], numbers)
    if _SWAP:
        block.byteswap()
    return block.tobytes()


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """A block of numbers whose count the reader knows. No numbers, no bytes."""
    if not numbers:
        return b""
    width = width_of(max(numbers))
    if width == 1:
        return b"\x01" + bytes(numbers)
    return bytes((width,)) + _array_bytes(numbers, width)


def pack_count(count: int) -> bytes:
    """How many things follow: one byte, or for 255 and more five."""
    return bytes((count,)) if count < _LONG else b"\xff" + count.to_bytes(4, "little")


def mask_bytes(sites: int) -> int:
    """How many bytes a set of sites takes."""
    return (sites + 7) // 8


@lru_cache(maxsize=256)
def _head(sites: int, width: int) -> Struct:
    return Struct(f"<B{TYPECODES[width]}{TYPECODES[width]}{mask_bytes(sites)}s")


def pack_head(kind: int, dot: Dot, to: Mask, sites: int) -> bytes:
    """A message's kind, name and destinations. The kind's byte says how wide the name's numbers are, too."""
    width = width_of(dot[1]) if sites <= 256 else max(2, width_of(dot[1]))
    return _head(sites, width).pack(kind << 4 | width, dot[0], dot[1], to.to_bytes(mask_bytes(sites), "little"))


class Reader:
    """Takes an input apart from the front; every method checks that what it takes is there."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._end = len(data)

    def head(self, sites: int) -> tuple[int, Dot, Mask]:
        """What `pack_head` wrote."""
        kind, width = divmod(self._data[0] if self._data else 0, 16)
        if width not in TYPECODES:
            raise Malformed("this is no message")
        struct = _head(sites, width)
        _, site, seq, to = struct.unpack(self.take(struct.size))
        mask = int.from_bytes(to, "little")
        if site >= sites or mask >> sites:
            raise Malformed(f"a sender or a destination does not exist; there are {sites} sites")
        return kind, Dot(site, seq), mask

    def take(self, size: int) -> bytes:
        start = self._position
        stop = start + size
        if stop > self._end:
            raise Malformed(f"cut short: {size} bytes wanted, {self._end - start} left")
        self._position = stop
        return self._data[start:stop]

    def byte(self) -> int:
        return self.take(1)[0]

    def width(self) -> int:
        width = self.byte()
        if width not in TYPECODES:
            raise Malformed(f"numbers {width} bytes wide")
        return width

    def numbers(self, count: int) -> list[int]:
        if not count:
            return []
        width = self.width()
        if width == 1:
            return list(self.take(count))
        block = array(TYPECODES[width])
        block.frombytes(self.take(count * width))
        if _SWAP:
            block.byteswap()
        return block.tolist()

    def number(self) -> int:
        return self.numbers(1)[0]

    def count(self, most: int) -> int:
        """A number of things to come, refused when it is beyond what can make sense."""
        count = self.byte()
        if count == _LONG:
            count = int.from_bytes(self.take(4), "little")
        if count > most:
            raise Malformed(f"too many entries: {count}, at most {most} make sense")
        return count

    def text(self) -> bytes:
        """Bytes whose length stands in front."""
        return self.take(self.count(self._end - self._position))

    def left(self) -> int:
        return self._end - self._position

    def finish(self) -> None:
        if self._position != self._end:
            raise Malformed(f"{self._end - self._position} bytes too many")


def pack_text(text: bytes) -> bytes:
    return pack_count(len(text)) + text
