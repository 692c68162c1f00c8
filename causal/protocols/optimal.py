"""`optimal`: Kshemkalyani and Singhal, Distributed Computing 11(2), 1998, section 4.3.

A fact "message (i, a) goes to d" is worth carrying until one of two things is in the past: its delivery at d (PC1), or
a later message to d, whose own delivery will then stand for it (PC2). The algorithm carries exactly the facts that
neither has ended, on every copy and in every log; `causal.log` keeps them. Each copy is written by itself, with the
facts about its receiver folded into the entries.
"""

from __future__ import annotations

from causal.blocks import Reader, pack_numbers
from causal.errors import Malformed
from causal.log import Log, LogStamp, LogStamps, pack_entries, pack_log, unpack_log
from causal.model import Dot, Mask, Message, Site
from causal.multicast import Multicast


class LogMulticast(Multicast[Log]):
    """What `optimal` and `pruning` share: all but the way a stamp is written."""

    promise = "causal order"

    def _origin(self) -> Log:
        return Log.empty(self.sites)

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> LogStamps:
        stamps, self.context = self.context.sent(dot, to)
        return stamps

    def _learn(self, message: Message) -> None:
        self.context = self.context.delivered(message.stamp, message.dot, message.to & ~(1 << self.site))

    def _pack_context(self, context: Log) -> bytes:
        return pack_log(context.newest, context.pending)

    def _unpack_context(self, reader: Reader) -> Log:
        return Log(*unpack_log(reader, self.sites))


class Optimal(LogMulticast):
    name = "optimal"
    number = 1
    paper = "Kshemkalyani and Singhal 1998, section 4.3"
    carries = "the log entries (sender, time, remaining destinations), pruned for this destination"

    def _pack_common(self, stamp: LogStamps | LogStamp) -> bytes:
        return pack_numbers(stamp.newest)

    def _pack_own(self, stamp: LogStamp, receiver: Site) -> bytes:
        entries = stamp.pending
        if stamp.needs:
            bit = 1 << receiver
            entries = {**entries, **{dot: entries.get(dot, 0) | bit for dot in stamp.needs}}
        return pack_entries(stamp.newest, entries)

    def _unpack_stamp(self, reader: Reader, message: Message) -> LogStamp:
        newest, entries = unpack_log(reader, self.sites)
        bit = 1 << self.site
        pending: dict[Dot, Mask] = {}
        needs: list[Dot] = []
        for dot, mask in entries.items():
            if mask & bit:
                needs.append(dot)
                mask ^= bit
            if mask & message.to:
                raise Malformed(f"the entry for message {dot.seq} of site {dot.site} names a site that replaces it")
            if mask:
                pending[dot] = mask
        return LogStamp(newest, pending, needs)
