"""How long messages were held, and whether they had to be.

A protocol that orders by all that a site had seen when it sent makes a message wait also for what it has nothing to do
with. Who wants to know the price asks of each hold for its *cause*. True: the message was said to depend on the missing
one. False: it was said to depend on nothing; or, under `false-causality`, everything that it was meant to follow is
here, and it waits only for its turn on the link. Otherwise nobody at this site can tell, and saying so is the only
honest answer: what it was said to depend on may itself depend on the missing one.
"""

from __future__ import annotations

from typing import NamedTuple

from causal.model import Dot
from kvstore.effects import Event

TRUE, FALSE, UNKNOWN = CAUSES = ("true", "false", "unknown")


class Hold(NamedTuple):
    cause: str
    held_ns: int | None = None  # known when it is released


def cause_of(event: Event, protocol: str) -> str:
    """Of a message that is held: whether it needs what it waits for."""
    missing = event.missing
    if not event.semantic:
        return FALSE
    if missing is None:
        return UNKNOWN
    if missing.by_link:
        return FALSE if protocol == "false-causality" else UNKNOWN
    return TRUE if Dot(missing.site, missing.seq) in event.depends_on else UNKNOWN


class Holds:
    """The messages that are held now, since when by the monotonic clock. As many as the replica itself holds."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._since: dict[Dot, tuple[int, str]] = {}

    def begin(self, event: Event, mono_ns: int) -> Hold:
        since = self._since.setdefault(event.dot, (mono_ns, cause_of(event, self._protocol)))
        return Hold(since[1])

    def end(self, dot: Dot, mono_ns: int) -> Hold | None:
        """None for one that was not seen to begin: tracing started in between."""
        since = self._since.pop(dot, None)
        return None if since is None else Hold(since[1], mono_ns - since[0])
