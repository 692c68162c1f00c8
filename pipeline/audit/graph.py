"""Orders between transactions, as sets in one int: bit i is operation i.

To join two pasts is one `|`, to ask which writes of a key lie in a past is one `&`; ten thousand operations are ten
thousand numbers of a kilobyte. A node is a transaction, its name in a set is all of its operations' bits, and an
order is given by what stands directly before each node. A walk visits predecessors first. It costs two steps a node
however many edges there are, because a set of edges is one number too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Operations = int  # a set of operations
Node = int


def lowest(operations: Operations) -> int:
    return (operations & -operations).bit_length() - 1


def numbers(operations: Operations) -> Iterator[int]:
    """The members of a set, lowest first."""
    while operations:
        number = lowest(operations)
        yield number
        operations ^= 1 << number


@dataclass(frozen=True, slots=True)
class Nodes:
    """Which operations make up which node."""

    node_of: Sequence[Node]  # by operation
    operations_of: Sequence[Operations]  # by node

    def within(self, operations: Operations) -> Iterator[Node]:
        """The nodes that have an operation in this set, each once."""
        while operations:
            node = self.node_of[lowest(operations)]
            yield node
            operations &= ~self.operations_of[node]


def walk(nodes: Nodes, before: Sequence[Operations]) -> tuple[list[Node], list[Node] | None]:
    """Every node after all that stand before it, and the first cycle met, if any (then the order is broken)."""
    order: list[Node] = []
    cycle: list[Node] | None = None
    done = on_path = 0
    for root, own in enumerate(nodes.operations_of):
        if own & done:
            continue
        path = [root]
        on_path = own
        while path:
            node = path[-1]
            own = nodes.operations_of[node]
            back = before[node] & on_path & ~own
            if back and cycle is None:
                cycle = path[path.index(next(nodes.within(back))) :]
            ahead = before[node] & ~(done | on_path)
            if ahead:
                path.append(next(nodes.within(ahead)))
                on_path |= nodes.operations_of[path[-1]]
            else:
                path.pop()
                on_path &= ~own
                done |= own
                order.append(node)
    return order, cycle


def pasts(nodes: Nodes, before: Sequence[Operations], order: Sequence[Node]) -> list[Operations]:
    """All that stands before each node, directly or not. A second round is needed only where there are cycles."""
    past = [0] * len(before)
    is_changed = True
    while is_changed:
        is_changed = False
        for node in order:
            found = past[node]
            for earlier in nodes.within(before[node]):
                found |= nodes.operations_of[earlier] | past[earlier]
            is_changed = is_changed or found != past[node]
            past[node] = found
    return past


def futures(nodes: Nodes, before: Sequence[Operations], order: Sequence[Node]) -> list[Operations]:
    """All that stands after each node, directly or not."""
    future = [0] * len(before)
    is_changed = True
    while is_changed:
        is_changed = False
        for node in reversed(order):
            later = nodes.operations_of[node] | future[node]
            for earlier in nodes.within(before[node]):
                is_changed = is_changed or bool(later & ~future[earlier])
                future[earlier] |= later
    return future


def shortest_cycle(nodes: Nodes, before: Sequence[Operations], start: Node) -> list[Node]:
    """A shortest way from a node on a cycle back to itself, in the order of time."""
    after = {start: start}
    seen = home = nodes.operations_of[start]
    frontier = [start]
    while frontier:
        found = []
        for node in frontier:
            if node != start and before[node] & home:
                return _way(after, node, start)
            for earlier in nodes.within(before[node] & ~seen):
                after[earlier] = node
                seen |= nodes.operations_of[earlier]
                found.append(earlier)
        frontier = found
    raise AssertionError("asked for a cycle where there is none")


def _way(after: dict[Node, Node], node: Node, start: Node) -> list[Node]:
    way = [start]
    while node != start:
        way.append(node)
        node = after[node]
    return way
