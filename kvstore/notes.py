"""What happened to messages in a step, for traces and metrics; and the witness that travels with traced messages.

The witness is a plain vector clock: the newest message of each site in the causal past. It travels only where tracing
is on, beside the control information and not counted with it; a judge compares what the protocols did with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from causal import CausalError
from causal.blocks import Reader, pack_numbers
from causal.model import Dot, Message, Missing, Site
from causal.multicast import Outgoing
from kvstore.effects import Envelope, Event, Happened, Moment
from kvstore.errors import ClusterMismatch
from kvstore.meaning import EVERYTHING, Meaning
from kvstore.past import Past
from kvstore.update import Update


class Notes:
    def __init__(self, site: Site, sites: int) -> None:
        self._site = site
        self._sites = sites
        self.witness: list[int] | None = None  # while tracing is on
        self._events: list[Event] = []

    def begin(self, events: list[Event]) -> None:
        self._events = events

    def start_witness(self, *, delivered: Sequence[int], clock: int) -> None:
        """Tracing is on from now on. What was not witnessed so far is taken from the deliveries."""
        if self.witness is None:
            self.witness = list(delivered)
            self.witness[self._site] = clock

    def note(
        self,
        kind: str,
        message: Message | Outgoing,
        peer: Site,
        envelope: Envelope,
        *,
        missing: Missing | None = None,
        units: int = 0,
        updates: int = 0,
        meaning: Meaning = EVERYTHING,
        cause: str = "",
    ) -> None:
        self._events.append(
            Event(
                kind,
                message.dot,
                peer,
                envelope.number,
                missing,
                message.to,
                message.is_extra,
                control_bytes=len(envelope.control),
                units=units,
                payload_bytes=len(envelope.payload),
                updates=updates,
                time=envelope.time,
                witness=envelope.witness,
                semantic=meaning.semantic,
                depends_on=meaning.meant,
                cause=cause,
            )
        )

    def adopted(self, past: Past, clock: int) -> None:
        """A session's past became part of this site's, behind this message of ours."""
        if self.witness is not None and past.witness:
            self.witness[:] = map(max, self.witness, Reader(past.witness).numbers(self._sites))
        dot = Dot(self._site, clock)
        self._events.append(
            Event(
                "adopted",
                dot,
                self._site,
                witness=past.witness,
                session=past.name,
                depends_on=past.seen,
                time=past.time,
            )
        )

    def applied(self, dot: Dot, peer: Site, updates: Sequence[Update], number: int, time: int) -> None:
        """These updates of a message changed keys. Which keys, only a trace may want to know."""
        keys = () if self.witness is None else tuple(update.key for update in updates)
        self._events.append(Event("applied", dot, peer, number, updates=len(updates), keys=keys, time=time))

    def restarted(self, clock: int, commit: int, now: Moment) -> Happened:
        """The process started again with its data, after this commit and this message."""
        event = Event("restarted", Dot(self._site, clock), self._site, witness=self.witness_now())
        return Happened(commit, [event], now, now, 0, 0)

    def witness_now(self) -> bytes:
        return b"" if self.witness is None else pack_numbers(self.witness)

    def witness_of(self, dot: Dot) -> bytes:
        """Of a message that is sent now."""
        if self.witness is None:
            return b""
        self.witness[self._site] = dot.seq
        return pack_numbers(self.witness)

    def check_witness(self, carried: bytes) -> None:
        """ClusterMismatch, if it could not be taken in."""
        if self.witness is not None and carried:
            try:
                Reader(carried).numbers(self._sites)
            except CausalError as error:
                raise ClusterMismatch(str(error), what="witness", here="-", there="-") from None

    def witness_delivery(self, message: Message, carried: bytes) -> None:
        if self.witness is None or message.is_extra:  # one that the protocol made for itself carries no order on
            return
        if carried:
            self.witness[:] = map(max, self.witness, Reader(carried).numbers(self._sites))
        site, seq = message.dot
        self.witness[site] = max(self.witness[site], seq)
