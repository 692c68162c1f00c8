"""An execution as it was recorded: the only thing the oracle sees.

Records stand in one global order in which every site's own events keep their order and a delivery follows its
send. They hold what happened and what each copy carried, never a protocol's own state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from causal.model import Dot, Mask, Site

Fact = tuple[Site, int, Site]  # "message `seq` of `site` goes to `destination`": KS's unit of control information


class Carried(NamedTuple):
    """What one copy carried: its units, and for the protocols that prune, the facts one by one."""

    units: int
    facts: frozenset[Fact] | None = None


class Sent(NamedTuple):
    site: Site
    dot: Dot
    to: Mask
    carried: Mapping[Site, Carried]  # by destination
    semantic: bool = True
    is_extra: bool = False


class Delivered(NamedTuple):
    site: Site
    dot: Dot


class TokenTaken(NamedTuple):
    """A session took a snapshot of everything `site` knew at this moment."""

    site: Site
    token: int


class TokenMerged(NamedTuple):
    """A session joined two tokens into a new one. No site takes part."""

    token: int
    parts: tuple[int, int]


class TokenLanded(NamedTuple):
    """`site` judged the token due: everything in its past that was sent to `site` should be delivered here."""

    site: Site
    token: int


class TokenAdopted(NamedTuple):
    """A write took the token into the past of `site`: all that `site` sends from now on depends on it."""

    site: Site
    token: int


Record = Sent | Delivered | TokenTaken | TokenMerged | TokenLanded | TokenAdopted


@dataclass(slots=True)
class Execution:
    """One run: who took part, under which protocol, and what happened in order."""

    sites: int
    protocol: str
    options: Mapping[str, Any] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
