"""`pruning`: Jang, Park, Cho and Yoon, "An Efficient Causal Order Algorithm for Message Delivery", 1997, section 4.2.

Four kinds of information are redundant: about messages just delivered, already delivered, just replaced and already
replaced. Pruning them leaves the very facts of `optimal`, in another wrapping: one control vector CI for all copies
(what the message replaces taken out, step S2) and for each copy its delivery constraint DC, the messages that it must
wait for. CI is written once a multicast; DC repeats the names of some entries of CI.

Step R8, which drops a destination from the older of two entries of one sender, never finds anything to do: no log
ever holds two such entries (KS Lemma 1).
"""

from __future__ import annotations

from causal.blocks import Reader
from causal.errors import Malformed
from causal.log import LogStamp, LogStamps, pack_log, pack_names, unpack_log, unpack_names
from causal.model import Message, Site
from causal.protocols.optimal import LogMulticast


class Pruning(LogMulticast):
    name = "pruning"
    number = 2
    paper = "Jang, Park, Cho and Yoon 1997, section 4.2"
    carries = "one control vector CI for all copies, and for each copy its delivery constraint DC"

    def _pack_common(self, stamp: LogStamps | LogStamp) -> bytes:
        return pack_log(stamp.newest, stamp.pending)

    def _pack_own(self, stamp: LogStamp, receiver: Site) -> bytes:
        return pack_names(stamp.newest, stamp.needs)

    def _unpack_stamp(self, reader: Reader, message: Message) -> LogStamp:
        newest, pending = unpack_log(reader, self.sites)
        if any(mask & message.to for mask in pending.values()):
            raise Malformed("an entry names a destination of its carrier")
        needs = unpack_names(reader, newest, self.sites)
        if len({dot.site for dot in needs}) != len(needs):
            raise Malformed("two delivery constraints for one sender")
        return LogStamp(newest, pending, needs)
