"""Messages on their way through a replica: being made of writes, or taken from a link and not yet delivered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from causal.model import Mask, Message
from kvstore.effects import Envelope
from kvstore.meaning import Meaning
from kvstore.past import Seen
from kvstore.update import Update


class InTransit(NamedTuple):
    """An envelope that is taken and not yet delivered."""

    envelope: Envelope
    message: Message
    updates: list[Update]
    since_ms: int
    meant: Seen = None  # what its updates were meant to follow; None: not known


@dataclass(slots=True)
class OpenMessage:
    """Writes that will share a stamp."""

    to: Mask
    updates: list[Update] = field(default_factory=list)
    bytes: int = 0
    places: list[int] = field(default_factory=list)  # of its writes, among the inputs
    meaning: Meaning | None = None  # of all of them together (SAFETY 14)
