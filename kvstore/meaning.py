"""What a write is meant to follow: the dependence that its session means, not the one that its site merely has.

A write depends on what its session has really read or written. A client can say less (`independent`), or say it
exactly (the versions). Without a session nothing is known, and everything is assumed. Two uses are made of it: a
protocol that heeds meaning (`false-causality`) stamps a write that follows nothing as independent; and every message
tells its receivers what it was meant to follow, so that they can say whether a wait was needed (holds.py).

A compare-and-set, a write that names what it replaces and a delete of siblings depend on what they are compared with or
take away, whatever is said (SAFETY 13): a value that comes after its replacement would come back to life.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from causal.model import Dot
from kvstore.effects import Write
from kvstore.past import Seen, merged_seen, some_dots
from kvstore.update import Version

DOTS_KEPT = 1 << 16  # writes whose message is remembered; beyond it: who names an older one depends on everything


class Meaning(NamedTuple):
    semantic: bool  # it may depend on something
    meant: Seen  # on these messages; None: not known

    def also(self, other: Meaning) -> Meaning:
        """Of a message that carries both."""
        return Meaning(self.semantic or other.semantic, merged_seen(self.meant, other.meant))


NOTHING = Meaning(False, ())
EVERYTHING = Meaning(True, None)


class Messages:
    """Which message carried a write, for the newest so many writes: clients know versions, protocols know dots."""

    def __init__(self) -> None:
        self._dots: OrderedDict[Version, Dot] = OrderedDict()

    def remember(self, versions: Iterable[Version], dot: Dot) -> None:
        dots = self._dots
        for version in versions:
            dots[version] = dot
        while len(dots) > DOTS_KEPT:
            dots.popitem(last=False)

    def of(self, versions: Iterable[Version]) -> Seen:
        """None, if one of them is not known here."""
        found = [self._dots.get(version) for version in versions]
        return some_dots(dot for dot in found if dot is not None) if all(found) else None


def meaning_of(write: Write, messages: Messages, taken: Iterable[Version] = ()) -> Meaning:
    """`taken`: what it takes away without naming it."""
    compared = {version for one in write.operations for version in (one.expect, *one.replaces) if version is not None}
    compared.update(taken)
    if write.independent or write.depends:
        named = compared.union(write.depends)
        return Meaning(True, messages.of(named)) if named else NOTHING
    if write.past is None:
        return EVERYTHING
    seen = merged_seen(write.past.seen, messages.of(compared)) if compared else write.past.seen
    return Meaning(seen != (), seen)
