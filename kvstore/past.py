"""What a session has seen, as a value: the past that its token carries from replica to replica.

The heart is a *context* of the ordering protocol, which another site judges by the same rule as a message. Beside it
travels the hybrid clock, or a session could read version 101 at one site and write version 51 at the next (SAFETY 9).

`seen` is finer than the context: the messages whose updates the session has *really* read or written, back to its last
write, which stands for all before it. A context cannot tell these apart from what its sites merely knew; whoever wants
to say whether a wait was needed has to. Where it is not known, or too much, it is None: everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from causal.blocks import Reader, pack_count, pack_numbers
from causal.errors import Malformed
from causal.model import Dot, Site

SEEN_MAX = 16  # messages that a session remembers to have seen since its last write; beyond it: None, everything

Seen = tuple[Dot, ...] | None


class Past(NamedTuple):
    context: Any  # of the protocol; the whole of it is what a dependent message to any site would need
    time: int = 0  # hybrid clock
    seen: Seen = None
    witness: bytes = b""  # a plain vector clock, only where tracing is on
    name: str = ""  # of the token it came in, for traces
    home: tuple[Site, int] | None = None  # all of it is in this commit of this site; None: not known. It is not packed

    def merged(self, other: Past) -> Past:
        """What a session has seen that has seen both. Of two pasts of one replica the later has all of the other."""
        if not self.time:  # it has seen nothing yet
            return other._replace(name=self.name)
        time, seen = max(self.time, other.time), merged_seen(self.seen, other.seen)
        if self.home and other.home and self.home[0] == other.home[0]:
            later = self if self.home > other.home else other
            return later._replace(time=time, seen=seen, name=self.name)
        witness = merged_witness(self.witness, other.witness)
        return Past(self.context.merged(other.context), time, seen, witness, self.name)


def merged_seen(one: Seen, other: Seen) -> Seen:
    if one is None or other is None:
        return None
    both = tuple(dict.fromkeys(one + other))
    return both if len(both) <= SEEN_MAX else None


def merged_witness(one: bytes, other: bytes) -> bytes:
    """Two packed vector clocks of the same sites; none is the beginning."""
    if not one or not other or one == other:
        return one or other
    sites = max(_clocks_in(one), _clocks_in(other))
    return pack_numbers(list(map(max, Reader(one).numbers(sites), Reader(other).numbers(sites))))


def _clocks_in(witness: bytes) -> int:
    return (len(witness) - 1) // witness[0]


def pack_dots(dots: Seen) -> bytes:
    """Nothing at all for None: not known."""
    if dots is None:
        return b""
    return pack_count(len(dots)) + pack_numbers([dot.site for dot in dots]) + pack_numbers([dot.seq for dot in dots])


def unpack_dots(data: bytes, sites: int) -> Seen:
    """What `pack_dots` wrote; Malformed for anything that it cannot have written."""
    if not data:
        return None
    reader = Reader(data)
    count = reader.count(SEEN_MAX)
    dots = tuple(map(Dot, reader.numbers(count), reader.numbers(count)))
    reader.finish()
    if any(dot.site >= sites or not dot.seq for dot in dots):
        raise Malformed(f"a message of a site that does not exist; there are {sites}")
    return dots


def some_dots(dots: Iterable[Dot]) -> Seen:
    """Different ones, if they are not too many to be told."""
    found = tuple(dict.fromkeys(dots))
    return found if len(found) <= SEEN_MAX else None
