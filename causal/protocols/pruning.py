"""`pruning`: Jang, Park, Cho and Yoon, "An Efficient Causal Order Algorithm for Message Delivery", 1997, section 4.2.

Four kinds of information are redundant: about messages just delivered, already delivered, just replaced and already
replaced. Pruning them leaves the very facts of `optimal`, in another wrapping: one control vector CI for all copies
(what the message replaces taken out, step S2) and for each copy its delivery constraint DC, the messages that it must
wait for. CI is written once a multicast; DC repeats the names of some entries of CI.

Step R8, which drops a destination from the older of two entries of one sender, never finds anything to do: no log
ever holds two such entries (KS Lemma 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from causal.blocks import Reader
from causal.errors import Malformed
from causal.log import LogStamp, LogStamps
from causal.logbytes import pack_log, pack_names, unpack_log, unpack_names
from causal.model import Mask, Site
from causal.protocols.optimal import LogMulticast


class Pruning(LogMulticast):
    name = "pruning"
    number = 2
    paper = "Jang, Park, Cho and Yoon 1997, section 4.2"
    carries = "one control vector CI for all copies, and for each copy its delivery constraint DC"

    def _pack_stamps(self, stamps: LogStamps | LogStamp, to: Sequence[Site]) -> Iterable[bytes]:
        newest = stamps.newest
        common = pack_log(newest, stamps.pending)
        return [common + pack_names(newest, stamps.needs_of(site)) for site in to]

    def _unpack_stamp(self, reader: Reader, to: Mask, is_extra: bool) -> LogStamp:
        newest, pending, _ = unpack_log(reader, self.sites, to)
        needs = unpack_names(reader, newest)
        if any(site == self.site for site, _ in needs):
            raise Malformed("a delivery constraint on a message of the receiver itself")
        return LogStamp(newest, pending, needs)
