"""The values everyone passes: dots, messages, and what a step makes happen.

A *site* is a number 0..n-1. A set of sites is an `int` used as a bit mask, so that union, difference,
intersection and "contains" are one machine operation each. A multicast is one event with a set of destinations
that never includes the sender; each destination gets its own *copy*, which differs only in its stamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

Site = int
Mask = int  # a set of sites


class Dot(NamedTuple):
    """A message's name: the `seq`-th message (from 1) of `site`. A tuple, because it is hashed on every step."""

    site: Site
    seq: int

    def __str__(self) -> str:
        return f"message {self.seq} of site {self.site}"


class Missing(NamedTuple):
    """The one thing a held message is filed under: message number `seq` of `site` must be delivered first.

    With `by_link` the number counts the copies from `site` to the holder instead of the messages of `site`: the hold
    only restores the order of the link.
    """

    site: Site
    seq: int
    by_link: bool = False


class Message(NamedTuple):
    """One copy, as it arrives at one destination. Returned from a step it means: this one is delivered now."""

    dot: Dot
    to: Mask  # every destination of the multicast, not only this copy's
    stamp: Any  # what this destination must know; its type belongs to the protocol
    payload: bytes = b""
    is_extra: bool = False  # made by the protocol, carries no user data


class Held(NamedTuple):
    """A copy came too early; `missing` is the first thing it waits for."""

    message: Message
    missing: Missing


class Duplicate(NamedTuple):
    """A copy came again, and was dropped."""

    message: Message


def mask_of(sites: Iterable[Site]) -> Mask:
    mask = 0
    for site in sites:
        mask |= 1 << site
    return mask


def sites_of(mask: Mask) -> Iterator[Site]:
    """The members of a set of sites, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
