"""How long messages were held, and whether they had to be.

A protocol that orders by all that a site had seen when it sent makes a message wait also for what it has nothing to do
with. Who wants to know the price asks of each hold for its *cause*: does the held message need the missing one?

A message carries what its updates were *meant* to follow, as its sessions told (past.py). True: the missing message is
among these, or among what another held message of these was meant to follow, and so on. False: everything in that
closure is here already. Otherwise something in it has not come, or was not told, and may itself need the missing one:
unknown is then the only honest answer. Under `false-causality` a message that only waits for its turn on the link does
so for nothing.

What is here needs no further question: under causal order it would have had to wait for the missing one, too. And a
message is one thing: who depends on one of its updates depends on what any of them was meant to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from causal.model import Dot, Missing
from kvstore.effects import Event
from kvstore.past import Seen

TRUE, FALSE, UNKNOWN = CAUSES = ("true", "false", "unknown")
ASKED_MAX = 128  # messages that are looked at for one answer; beyond it: unknown


class Waiting(Protocol):
    """A message that waits."""

    @property
    def meant(self) -> Seen: ...


class Hold(NamedTuple):
    cause: str
    held_ns: int | None = None  # known when it is released


def cause_of(missing: Missing, meant: Seen, held: Mapping[Dot, Waiting], is_here: Callable[[Dot], bool]) -> str:
    """Whether a message that was meant to follow these needs the missing one. `held`: what else waits here."""
    wanted = Dot(missing.site, missing.seq)
    told, asked, is_sure = [meant], set[Dot](), True
    while told and len(asked) <= ASKED_MAX:
        dots = told.pop()
        is_sure &= dots is not None
        for dot in dots or ():
            if dot == wanted:
                return TRUE
            if dot in asked or is_here(dot):
                continue
            asked.add(dot)
            if dot in held:
                told.append(held[dot].meant)
            else:
                is_sure = False  # it has not come, and nobody knows what it was meant to follow
    return FALSE if is_sure and not told else UNKNOWN


class Holds:
    """The messages that are held now, since when by the monotonic clock. As many as the replica itself holds."""

    def __init__(self) -> None:
        self._since: dict[Dot, tuple[int, str]] = {}

    def begin(self, event: Event, mono_ns: int) -> Hold:
        since = self._since.setdefault(event.dot, (mono_ns, event.cause or UNKNOWN))
        return Hold(since[1])

    def end(self, dot: Dot, mono_ns: int) -> Hold | None:
        """None for one that was not seen to begin: tracing started in between."""
        since = self._since.pop(dot, None)
        return None if since is None else Hold(since[1], mono_ns - since[0])

    def copy(self) -> Holds:
        """For somebody who looks on from now on."""
        copy = Holds()
        copy._since.update(self._since)
        return copy
