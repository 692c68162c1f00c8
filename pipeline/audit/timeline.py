"""Who could know what: the causal order of a history, and what a read lacks of it.

The *causal order* is the order of transactions in their sessions and from a write to its readers, closed under
transitivity (`past` and `future`). From it follows the one question that all checks ask: a read should have shown a
state with these writes in it; which of them does it *lack*?

- It saw a version: it lacks the writes that are newer than that version.
- It saw nothing: it lacks a lasting value that no remover can have taken away. A remover must be newer, and must
  not come causally after the read, which cannot have felt it.
- Siblings: it lacks a write that replaced what it saw; and a lasting value that it did not see, if no other write
  can have taken that away.

Where a read saw nothing, a value must have been there, and exactly one write can have removed it, then the read saw
that write's effect: it *reads from* it like from any other. That is done once, and the order is built again.

Every doubt is decided for the store. A violation that is reported is one; with several possible removers one may go
unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.audit.graph import Node, Nodes, Operations, futures, numbers, pasts, walk
from pipeline.audit.history import NO_SESSION, History, Kind, Operation, Outcome
from pipeline.audit.register import Merge, Register, registers
from pipeline.audit.source import Sources, is_answered_read

Seen = Sequence[tuple[int, ...]]  # by operation: the writes that a read saw


@dataclass(frozen=True, slots=True)
class Timeline:
    operations: Sequence[Operation]
    seen: Seen
    nodes: Nodes
    before: Sequence[Operations]  # by transaction: what directly precedes it causally
    cycle: list[Node] | None  # in the causal order, if there is one
    past: Sequence[Operations]
    future: Sequence[Operations]
    registers: dict[bytes, Register]
    session_start: Sequence[int]  # by operation: the first one of its session
    acknowledged: Operations  # writes that their session knows to have happened
    is_complete: bool
    replacers: dict[int, Operations] = field(default_factory=dict)  # by sibling, as far as somebody asked

    def reads(self) -> Iterator[int]:
        return (number for number, one in enumerate(self.operations) if is_answered_read(one))

    def register(self, number: int) -> Register:
        return self.registers[self.operations[number].key]

    def past_of(self, number: int) -> Operations:
        return self.past[self.nodes.node_of[number]]

    def future_of(self, number: int) -> Operations:
        return self.future[self.nodes.node_of[number]]

    def transaction_of(self, number: int) -> Operations:
        return self.nodes.operations_of[self.nodes.node_of[number]]

    def earlier_in_session(self, number: int) -> Operations:
        return (1 << number) - (1 << self.session_start[number])

    def newer(self, write: int) -> Operations:
        """The writes to the same key that are known to have come after this one."""
        register = self.register(write)
        if register.merge is Merge.VALUE:
            return register.writes & self.future_of(write) & ~self.past_of(write)
        return register.newer[write]

    def lacked(self, read: int, wanted: Operations) -> Operations:
        """Which of the wanted writes the state that was read cannot have had in it."""
        register = self.register(read)
        wanted &= register.writes
        lacked = 0
        for write in self.seen[read]:
            lacked |= wanted & self.newer(write)
            wanted &= ~(1 << write)
        if not self.is_complete or (self.seen[read] and register.merge is not Merge.SIBLINGS):
            return lacked
        return lacked | self._not_removed(read, wanted & register.lasting & ~lacked)

    def _not_removed(self, read: int, values: Operations) -> Operations:
        """Of these values that a read did not see, those that nothing can have taken away."""
        register = self.register(read)
        if register.merge is Merge.VALUE:
            return values
        if register.merge is Merge.LWW:
            newest = self.newest(register, values)
            return values if newest is not None and not self.removers(read, newest) else 0
        felt = ~self.future_of(read)
        return sum(1 << value for value in numbers(values) if not self._replacers(value) & felt)

    def newest(self, register: Register, writes: Operations) -> int | None:
        """The one of these writes to an lww key that wins over all others."""
        return next((number for number in reversed(register.versions) if writes >> number & 1), None)

    def removers(self, read: int, value: int) -> Operations:
        """What can have made this value of an lww key invisible to a read that saw nothing."""
        register = self.register(value)
        return register.removers & (register.newer[value] | register.doubtful) & ~self.future_of(read)

    def _replacers(self, value: int) -> Operations:
        """What can have taken this sibling away. Asked again and again, so the answer is kept."""
        if value not in self.replacers:
            register = self.register(value)
            others = (register.writes | register.doubtful) & ~(1 << value)
            may_name_it = register.unnamed | register.newer[value]
            self.replacers[value] = others & may_name_it & ~self.past_of(value)
        return self.replacers[value]


def build(history: History, sources: Sources) -> Timeline:
    timeline = _build(history, sources.operations, sources.seen)
    if timeline.cycle or not history.is_complete:
        return timeline  # the past means nothing; or somebody we do not know of may have deleted it
    explained = [_with_remover(timeline, number) for number in range(len(sources.operations))]
    return timeline if explained == list(sources.seen) else _build(history, sources.operations, explained)


def _with_remover(timeline: Timeline, number: int) -> tuple[int, ...]:
    """What a read saw; and if it saw nothing, the only write that can be the reason."""
    seen, register = timeline.seen[number], timeline.register(number)
    if seen or register.merge is not Merge.LWW or not is_answered_read(timeline.operations[number]):
        return seen
    value = timeline.newest(register, timeline.past_of(number) & register.lasting)
    if value is None:
        return seen
    removers = timeline.removers(number, value)
    is_the_only_one = removers and not removers & (removers - 1)
    return tuple(numbers(removers)) if is_the_only_one and removers & register.writes else seen


def _build(history: History, operations: Sequence[Operation], seen: Seen) -> Timeline:
    nodes, session_start = _nodes(history, len(operations))
    before = _session_order(operations, nodes)
    observed = 0
    for number, writes in enumerate(seen):
        for write in writes:
            observed |= 1 << write
            before[nodes.node_of[number]] |= nodes.operations_of[nodes.node_of[write]]
    before = [those & ~own for those, own in zip(before, nodes.operations_of, strict=True)]
    order, cycle = walk(nodes, before)
    return Timeline(
        operations=operations,
        seen=seen,
        nodes=nodes,
        before=before,
        cycle=cycle,
        past=pasts(nodes, before, order),
        future=futures(nodes, before, order),
        registers=registers(history, operations, node_of=nodes.node_of, observed=observed),
        session_start=session_start,
        acknowledged=sum(
            1 << number
            for number, one in enumerate(operations)
            if one.outcome is Outcome.OK and one.kind is not Kind.READ
        ),
        is_complete=history.is_complete,
    )


def _nodes(history: History, count: int) -> tuple[Nodes, list[int]]:
    """The transactions, and for each operation where its session begins. A stranger is a transaction of its own."""
    sizes = [len(transaction) for transaction in history.transactions()]
    sizes += [1] * (count - sum(sizes))
    node_of: list[Node] = []
    operations_of: list[Operations] = []
    session_start: list[int] = []
    for node, size in enumerate(sizes):
        first = len(node_of)
        node_of += [node] * size
        operations_of.append(((1 << size) - 1) << first)
        is_same = 0 < first < len(history.operations) and _is_one_session(history, first)
        session_start += [session_start[-1] if is_same else first] * size
    return Nodes(node_of, operations_of), session_start


def _is_one_session(history: History, number: int) -> bool:
    session = history.operations[number].session
    return session != NO_SESSION and session == history.operations[number - 1].session


def _session_order(operations: Sequence[Operation], nodes: Nodes) -> list[Operations]:
    """The previous transaction of each session. One in doubt comes after it too, but nothing comes after the doubt."""
    before = [0] * len(nodes.operations_of)
    last: dict[str, Node] = {}
    for number, node in enumerate(nodes.node_of):
        one = operations[number]
        if one.session == NO_SESSION:
            continue
        if one.session in last and last[one.session] != node:
            before[node] |= nodes.operations_of[last[one.session]]
        if one.outcome is not Outcome.UNKNOWN:
            last[one.session] = node
    return before
