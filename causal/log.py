"""The log of Kshemkalyani and Singhal: which facts "message (i, a) goes to d" are still worth knowing.

The paper keeps entries (i, a, Dests) and, for each sender, its newest entry even when Dests is empty: what is older
than that entry and absent is *implied* to be delivered, or guaranteed to be delivered in order (KS 4.2). Here the two
roles are two fields. `newest[i]` is the time of i's newest entry; `pending` holds the entries with destinations left.
Merging two logs is then one rule, RCV(4) of the paper: a fact stays if both sides hold it, or if only one side holds
it and the other has not yet heard of its message. The same device is known elsewhere as an observed-remove set with a
version vector.

A log is a value: `pending` is never changed once made, so a snapshot of a site's past costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from causal.execution import Fact
from causal.model import Dot, Mask, Missing, Site, sites_of

Name = tuple[Site, int]  # a dot, or what equals one: a log read from bytes makes plain pairs, which is faster


class LogStamp(NamedTuple):
    """One copy's control information, O_M of the paper, with what concerns its receiver set apart (KS 4.5)."""

    newest: tuple[int, ...]
    pending: Mapping[Name, Mask]  # without the destinations of this message: SND(2)
    needs: Sequence[Name]  # the entries that name the receiver

    def at(self, site: Site) -> LogStamp:
        return self

    def needs_of(self, site: Site) -> Sequence[Name]:
        return self.needs

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        return _first_missing(self.needs, delivered) if self.needs else None

    def highest(self, site: Site) -> int:
        return self.newest[site]

    def units(self) -> int:
        return sum(map(int.bit_count, self.pending.values())) + len(self.needs)

    def facts(self, receiver: Site) -> frozenset[Fact]:
        others = {(*dot, site) for dot, mask in self.pending.items() for site in sites_of(mask)}
        return frozenset(others | {(*dot, receiver) for dot in self.needs})


class LogStamps(NamedTuple):
    """The stamps of one multicast: a common part, and for each destination the entries that name it."""

    newest: tuple[int, ...]
    pending: Mapping[Name, Mask]
    needs: Mapping[Mask, Sequence[Name]]  # by the destination's bit

    def at(self, site: Site) -> LogStamp:
        return LogStamp(self.newest, self.pending, self.needs_of(site))

    def needs_of(self, site: Site) -> Sequence[Name]:
        return self.needs.get(1 << site, [])


class Log(NamedTuple):
    newest: tuple[int, ...]  # by sender; 0 when nothing is known
    pending: Mapping[Name, Mask]  # remaining destinations, never empty

    @staticmethod
    def empty(sites: int) -> Log:
        return Log((0,) * sites, {})

    def sent(self, dot: Dot, to: Mask) -> tuple[LogStamps, Log]:
        """SND(2) to SND(5): the stamps of a message to `to`, and the log after it.

        One pass makes all copies: what this message replaces is taken out of the common part, and handed only to the
        destination that it concerns.
        """
        newest, pending = self
        remaining: dict[Name, Mask] = {}
        needs: dict[Mask, list[Name]] = {}
        for named, mask in pending.items():
            replaced = mask & to
            if replaced:
                mask ^= replaced
                while replaced:
                    bit = replaced & -replaced
                    replaced ^= bit
                    if bit in needs:
                        needs[bit].append(named)
                    else:
                        needs[bit] = [named]
                if not mask:
                    continue
            remaining[named] = mask
        site, seq = dot
        after = Log((*newest[:site], seq, *newest[site + 1 :]), {**remaining, dot: to})
        return LogStamps(newest, remaining, needs), after

    def delivered(self, stamp: LogStamp, dot: Dot, remaining: Mask) -> Log:
        """RCV(3) to RCV(5): the log after the delivery of `dot`, which goes to `remaining` as well.

        The stamp's common part names no destination of its message, so it does not name this site either.
        """
        newest, merged = _merge(self, stamp)
        site, seq = dot
        if seq > newest[site]:  # always, unless somebody lied to us about its sender
            newest[site] = seq
        if remaining:
            merged[dot] = remaining
        return Log(tuple(newest), merged)

    def merged(self, other: Log) -> Log:
        newest, merged = _merge(self, other)
        return Log(tuple(newest), merged)

    def joined(self, other: Log, at: Site) -> Log:
        """RCV(3): what named `at` has served its purpose."""
        others = ~(1 << at)
        theirs = {dot: mask & others for dot, mask in other.pending.items() if mask & others}
        return self.merged(Log(other.newest, theirs))

    def first_missing(self, at: Site, delivered: Sequence[int]) -> Missing | None:
        bit = 1 << at
        return _first_missing([dot for dot, mask in self.pending.items() if mask & bit], delivered)

    def highest(self, site: Site) -> int:
        return self.newest[site]

    def units(self) -> int:
        return sum(map(int.bit_count, self.pending.values()))


def _merge(ours: Log, theirs: Log | LogStamp) -> tuple[list[int], dict[Name, Mask]]:
    """RCV(4): what both pasts together still have to say. Compares against the sets as they were."""
    newest, pending = ours
    their_newest, their_pending = theirs[0], theirs[1]
    merged: dict[Name, Mask] = {}
    for dot, mask in their_pending.items():
        if dot in pending:
            mask &= pending[dot]
            if mask:
                merged[dot] = mask
        elif dot[1] > newest[dot[0]]:  # we had not heard of it
            merged[dot] = mask
    for dot, mask in pending.items():
        if dot[1] > their_newest[dot[0]]:  # they had not heard of it
            merged[dot] = mask
    return [a if a > b else b for a, b in zip(newest, their_newest, strict=False)], merged


def _first_missing(needs: Sequence[Name], delivered: Sequence[int]) -> Missing | None:
    """The need of the lowest-numbered site that is not met. By Lemma 1 there is one need a site at most."""
    lowest: Name | None = None
    for dot in needs:
        if dot[1] > delivered[dot[0]] and (lowest is None or dot < lowest):
            lowest = dot
    return None if lowest is None else Missing(*lowest)
