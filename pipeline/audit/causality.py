"""Causal consistency, weak and convergent, by bad patterns.

Bouajjani, Enea, Guerraoui, Hamza, *On verifying causal consistency* (POPL 2017), section 5, for histories in which
each value is written once. `CC`, every read can be explained by some order of its causal past, holds if none of
these is there:

- `ThinAirRead`, `AbortedRead`: a read saw what nobody wrote, or what surely did not happen (source.py).
- `CyclicCO`: the causal order has a cycle.
- `WriteCOInitRead`: a read saw nothing although a write to its key lies in its past (and nothing can have removed
  it).
- `WriteCORead`: a read saw a write although another write to that key lies causally between the two.

`CCv`, one order explains all reads, asks in addition that there is no `CyclicCF`. A read that saw w1 and had w2 of
the same key in its past shows that w2 was ordered before w1 (the *conflict* order); the causal and the conflict
order together have no cycle. Where the last writer wins, versions say how writes were ordered, so the order of
versions joins in, and it is single writes that are ordered: of two concurrent batches one may win on one key and the
other on another.

Transactions count as one step, as Biswas and Enea (OOPSLA 2019) and the tools Plume and AWDIT have it; each read
must be explained by whole transactions of its past, and by what its own transaction wrote before. Hence four more,
of Plume's names: `FutureRead` saw a later write of its own transaction, `NotMyOwnWrite` another's write although
its own transaction had written, `NotMyLastWrite` not the last of its own, `IntermediateRead` a write that its
transaction had overwritten.

Keys with siblings have no conflict order. There, `WriteCORead` is a read that saw a version together with, or
after, a write that replaced it, and `LostSibling` one that did not see a value in its past that nobody replaced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from pipeline.audit.graph import Node, Nodes, Operations, lowest, numbers, shortest_cycle, walk
from pipeline.audit.history import Kind
from pipeline.audit.register import Merge
from pipeline.audit.timeline import Timeline
from pipeline.audit.violation import Violation


def weak_violations(timeline: Timeline) -> Iterator[Violation]:
    """What contradicts CC, beside thin air and aborted reads. With a cycle in the order the rest means nothing."""
    yield from _within_transactions(timeline)
    if timeline.cycle is not None:
        yield Violation("CyclicCO", _tell_cycle(timeline, timeline.nodes, timeline.before, timeline.cycle[0]))
        return
    yield from _unexplained_absences(timeline)
    yield from _overwritten_reads(timeline)
    yield from _lost_siblings(timeline)


def convergence_violation(timeline: Timeline) -> Violation | None:
    """What contradicts CCv beside the patterns of CC."""
    nodes, before = arbitration(timeline)
    _, cycle = walk(nodes, before)
    return Violation("CyclicCF", _tell_cycle(timeline, nodes, before, cycle[0])) if cycle else None


def arbitration(timeline: Timeline) -> tuple[Nodes, list[Operations]]:
    """What directly precedes what in an order that explains all reads: causal order, conflicts, versions."""
    has_versions = any(register.versions for register in timeline.registers.values())
    nodes = _single_operations(timeline) if has_versions else timeline.nodes
    before = [timeline.before[timeline.nodes.node_of[first]] for first in map(lowest, nodes.operations_of)]
    for read in _outside_reads(timeline):
        register = timeline.register(read)
        if register.merge is not Merge.SIBLINGS:
            for write in timeline.seen[read]:
                before[nodes.node_of[write]] |= register.writes & timeline.past_of(read)
    for register in timeline.registers.values():
        for older, newer in pairwise(register.versions):
            before[nodes.node_of[newer]] |= 1 << older
    return nodes, [those & ~own for those, own in zip(before, nodes.operations_of, strict=True)]


def _single_operations(timeline: Timeline) -> Nodes:
    count = len(timeline.operations)
    return Nodes(range(count), [1 << number for number in range(count)])


def _own_earlier_writes(timeline: Timeline, read: int) -> Operations:
    return timeline.register(read).writes & timeline.transaction_of(read) & ((1 << read) - 1)


def _outside_reads(timeline: Timeline) -> Iterator[int]:
    """Reads of keys that their own transaction had not written before: they saw others."""
    return (read for read in timeline.reads() if not _own_earlier_writes(timeline, read))


def _within_transactions(timeline: Timeline) -> Iterator[Violation]:
    for read in timeline.reads():
        own = _own_earlier_writes(timeline, read)
        if own:
            yield from _not_my_write(timeline, read, own.bit_length() - 1)
            continue
        for write in timeline.seen[read]:
            if timeline.transaction_of(write) == timeline.transaction_of(read):
                yield _violation(timeline, "FutureRead", read, write)
            elif not timeline.register(read).final >> write & 1:
                yield _violation(timeline, "IntermediateRead", write, read)


def _not_my_write(timeline: Timeline, read: int, write: int) -> Iterator[Violation]:
    seen, one = timeline.seen[read], timeline.operations[write]
    if write in seen or (not seen and (one.kind is Kind.DELETE or one.expires)):
        return
    if one.kind is Kind.DELETE and timeline.register(read).merge is Merge.SIBLINGS:
        return  # it takes away only what it names
    is_own = any(timeline.transaction_of(other) >> read & 1 for other in seen)
    yield _violation(timeline, "NotMyLastWrite" if is_own else "NotMyOwnWrite", write, read)


def _unexplained_absences(timeline: Timeline) -> Iterator[Violation]:
    for read in _outside_reads(timeline):
        if not timeline.seen[read]:
            lacked = timeline.lacked(read, timeline.past_of(read))
            if lacked:
                yield _violation(timeline, "WriteCOInitRead", lowest(lacked), read)


def _overwritten_reads(timeline: Timeline) -> Iterator[Violation]:
    for read in _outside_reads(timeline):
        register = timeline.register(read)
        for write in timeline.seen[read]:
            between = register.writes & timeline.past_of(read)
            if register.merge is Merge.SIBLINGS:
                between &= timeline.newer(write)
            else:
                between &= timeline.future_of(write)
            if between:
                yield _violation(timeline, "WriteCORead", write, lowest(between), read)


def _lost_siblings(timeline: Timeline) -> Iterator[Violation]:
    for read in _outside_reads(timeline):
        if timeline.register(read).merge is Merge.SIBLINGS and timeline.seen[read]:
            lacked = timeline.lacked(read, timeline.past_of(read))
            for write in timeline.seen[read]:
                lacked &= ~timeline.newer(write)  # those are told already
            if lacked:
                yield _violation(timeline, "LostSibling", lowest(lacked), read)


def _violation(timeline: Timeline, pattern: str, *operations: int) -> Violation:
    return Violation(pattern, tuple(str(timeline.operations[number]) for number in operations))


# Cycles, for people


def _tell_cycle(timeline: Timeline, nodes: Nodes, before: Sequence[Operations], start: Node) -> tuple[str, ...]:
    way = [nodes.operations_of[node] for node in shortest_cycle(nodes, before, start)]
    return tuple(_tell_step(timeline, first, second) for first, second in zip(way, [*way[1:], way[0]], strict=True))


def _tell_step(timeline: Timeline, first: Operations, second: Operations) -> str:
    """Why one transaction, or a write of it, comes before another."""
    sources, targets = (timeline.transaction_of(lowest(operations)) for operations in (first, second))
    for read in numbers(targets):
        for write in timeline.seen[read]:
            if sources >> write & 1 and sources != targets:
                return f"{timeline.operations[write]} -> {timeline.operations[read]}"
    if timeline.before[timeline.nodes.node_of[lowest(second)]] & sources:
        last, then = timeline.operations[sources.bit_length() - 1], timeline.operations[lowest(targets)]
        return f"{last} -> {then} (in one session)"
    return _tell_conflict(timeline, first, second)


def _tell_conflict(timeline: Timeline, first: Operations, second: Operations) -> str:
    for read in _outside_reads(timeline):
        known = timeline.register(read).writes & timeline.past_of(read) & first
        shown = [write for write in timeline.seen[read] if second >> write & 1]
        if known and shown:
            earlier, later = timeline.operations[lowest(known)], timeline.operations[shown[0]]
            return f"{earlier} -> {later} (both lay before {timeline.operations[read]})"
    for older in numbers(first):
        newer = timeline.register(older).newer.get(older, 0) & second
        if newer:
            return f"{timeline.operations[older]} -> {timeline.operations[lowest(newer)]} (by version)"
    raise AssertionError("a step of a cycle without a reason")
