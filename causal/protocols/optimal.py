"""`optimal`: Kshemkalyani and Singhal, Distributed Computing 11(2), 1998, section 4.3.

A fact "message (i, a) goes to d" is worth carrying until one of two things is in the past: its delivery at d (PC1), or
a later message to d, whose own delivery will then stand for it (PC2). The algorithm carries exactly the facts that
neither has ended, on every copy and in every log; `causal.log` keeps them. Each copy is written by itself, with the
facts about its receiver folded into the entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from causal.blocks import Reader, pack_numbers
from causal.log import Log, LogStamp, LogStamps
from causal.logbytes import block_head, in_narrowest, layout, pack_log, unpack_log
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
        newest, pending, _ = unpack_log(reader, self.sites)
        return Log(newest, pending)


class Optimal(LogMulticast):
    name = "optimal"
    number = 1
    paper = "Kshemkalyani and Singhal 1998, section 4.3"
    carries = "the log entries (sender, time, remaining destinations), pruned for this destination"

    def _pack_stamps(self, stamps: LogStamps | LogStamp, to: Sequence[Site]) -> Iterable[bytes]:
        return in_narrowest(lambda width: _pack_copies(stamps, to, width))

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> LogStamp:
        return LogStamp(*unpack_log(reader, self.sites, to, 1 << self.site))


def _pack_copies(stamps: LogStamps | LogStamp, to: Sequence[Site], width: int) -> list[bytes]:
    """The entries of one message, packed once; a copy replaces or adds those that name its receiver."""
    newest, pending, _ = stamps
    pack = layout(len(newest), width).pack
    times = pack_numbers(newest)
    packed = {name: pack(name[0], newest[name[0]] - name[1], mask) for name, mask in pending.items()}
    common = b"".join((times, block_head(len(packed), width), *packed.values()))
    copies = []
    for receiver in to:
        needs = stamps.needs_of(receiver)
        if not needs:
            copies.append(common)
            continue
        own = packed.copy()
        bit = 1 << receiver
        for name in needs:
            site, seq = name
            own[name] = pack(site, newest[site] - seq, pending[name] | bit if name in pending else bit)
        copies.append(b"".join((times, block_head(len(own), width), *own.values())))
    return copies
