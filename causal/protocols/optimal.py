"""`optimal`: Kshemkalyani and Singhal, Distributed Computing 11(2), 1998, section 4.3.

A fact "message (i, a) goes to d" is worth carrying until one of two things is in the past: its delivery at d (PC1), or
a later message to d, whose own delivery will then stand for it (PC2). The algorithm carries exactly the facts that
neither has ended, on every copy and in every log; `causal.log` keeps them. Each copy is written by itself, with the
facts about its receiver folded into the entries.
"""

from __future__ import annotations

from collections.abc import Callable

from causal.blocks import Reader, pack_numbers
from causal.log import Log, LogStamp, LogStamps
from causal.logbytes import age_width, check_width, pack_entries, pack_log, unpack_entries, unpack_log
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

    def _pack_stamps(self, stamps: LogStamps | LogStamp) -> Callable[[Site], bytes]:
        newest, pending, _ = stamps
        width = age_width(newest, [*pending, *stamps.needed()])
        packed = pack_entries(newest, pending, width)
        head = pack_numbers(newest) + bytes((width,))
        common = head + b"".join(packed.values())

        def pack(site: Site) -> bytes:
            needs = stamps.at(site).needs
            if not needs:
                return common
            own = {name: pending.get(name, 0) | 1 << site for name in needs}
            return head + b"".join({**packed, **pack_entries(newest, own, width)}.values())

        return pack

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> LogStamp:
        newest = tuple(reader.numbers(self.sites))
        width = reader.byte()
        check_width(width)
        pending, needs = unpack_entries(reader.take(reader.left()), newest, width, to, 1 << self.site)
        return LogStamp(newest, pending, needs)
