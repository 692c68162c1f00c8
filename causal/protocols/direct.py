"""`direct`, a baseline: the direct predecessors of Prakash, Raynal and Singhal, ICDCS 1996, as other papers tell it.

A site keeps, for every site d, the messages that its next message to d must wait for. A send attaches all these sets
and then puts itself in the place of each destination's set. A delivery drops from a destination's set what the stamp
already lists there, because the delivered message stands for it, and takes the union everywhere else.
"""

from __future__ import annotations

from causal.blocks import Reader
from causal.columns import Column, Columns, merged_column, pack_columns, unpack_columns
from causal.model import Dot, Mask, Message
from causal.multicast import Multicast


class Direct(Multicast[Columns]):
    name = "direct"
    number = 6
    paper = "Prakash, Raynal and Singhal 1996"
    carries = "for every destination the direct predecessors (sender, time)"
    promise = "causal order"

    def _origin(self) -> Columns:
        return Columns.empty(self.sites)

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> Columns:
        before = self.context
        self.context = before.replaced(to, {dot.site: dot.seq})
        return before

    def _learn(self, message: Message) -> None:
        sender, seq = message.dot
        columns: list[Column] = []
        pairs = zip(self.context.columns, message.stamp.columns, strict=True)
        for destination, (ours, theirs) in enumerate(pairs):
            if destination == self.site:
                columns.append({})
            elif message.to >> destination & 1:
                kept = {site: time for site, time in ours.items() if theirs.get(site, 0) < time}
                columns.append({**kept, sender: seq})
            else:
                columns.append(merged_column(ours, theirs))
        self.context = Columns(tuple(columns))

    def _pack_context(self, context: Columns) -> bytes:
        return pack_columns(context.columns)

    def _unpack_context(self, reader: Reader) -> Columns:
        return unpack_columns(reader, self.sites)
