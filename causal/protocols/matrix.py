"""`matrix`, a baseline: Raynal, Schiper and Toueg, Information Processing Letters 39, 1991.

Every copy carries the sender's whole matrix; a copy for j is due when column j is delivered here. Written for unicasts:
as a multicast it must tell every receiver about all destinations, or m to {1, 2}, relayed by 1 to 2, could overtake
itself.
"""

from __future__ import annotations

from causal.blocks import Reader
from causal.model import Dot, Mask, Message
from causal.multicast import Multicast
from causal.rows import Matrix, pack_rows, unpack_rows


class MatrixMulticast(Multicast[Matrix]):
    name = "matrix"
    number = 5
    paper = "Raynal, Schiper and Toueg 1991"
    carries = "one n x n matrix"
    promise = "causal order"

    def _origin(self) -> Matrix:
        return Matrix.empty(self.sites)

    def _stamp(self, dot: Dot, to: Mask, semantic: bool) -> Matrix:
        before = self.context
        self.context = before.with_message(dot, to)
        return before

    def _learn(self, message: Message) -> None:
        self.context = self.context.merged(message.stamp).with_message(message.dot, message.to)

    def _pack_context(self, context: Matrix) -> bytes:
        return pack_rows(context.rows)

    def _unpack_context(self, reader: Reader) -> Matrix:
        return Matrix(unpack_rows(reader, self.sites))
