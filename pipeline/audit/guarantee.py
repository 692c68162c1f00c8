"""The four promises to a session, each judged by itself.

Terry et al., *Session guarantees for weakly consistent replicated data* (PDIS 1994), in terms of what a read lacks
(timeline.py). Let w be a write or delete that was acknowledged, r a read that was answered, all of whatever key.

- `ReadYourWrites`: a session that wrote w does not later read a state that lacks w.
- `MonotonicReads`: a session that saw w does not later read a state that lacks w.
- `MonotonicWrites`: one session wrote w1, then w2 (or both in one transaction). Nobody who saw w2 reads, then or
  later, a state that lacks w1. And on an lww key w2 gets the greater version, or it would lose against w1.
- `WritesFollowReads`: one session saw w1, then wrote w2. Nobody who saw w2 reads, then or later, a state that lacks
  w1. And on an lww key w2 gets a greater version than w1.

*Lacks* is where deletes, deadlines and siblings are taken care of: on an lww key a newer version in w's place is no
violation, nor is an absent key that a newer delete, also one in doubt, may have removed, nor the absence of a value
with a deadline. A write of unknown outcome promises its session nothing; but once it was seen, what its session did
before must be seen with it. In histories by value "newer" means causally later, so that a violation here is one of
CC too.

"Then": reads of one transaction share one state, so the order among them does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

from pipeline.audit.graph import Operations, numbers
from pipeline.audit.history import Kind
from pipeline.audit.register import Merge
from pipeline.audit.source import is_answered_read
from pipeline.audit.timeline import Timeline
from pipeline.audit.violation import Violation


def read_your_writes(timeline: Timeline) -> Iterator[Violation]:
    for read in timeline.reads():
        own = timeline.earlier_in_session(read) & timeline.acknowledged
        for write in numbers(timeline.lacked(read, own)):
            yield _violation(timeline, "ReadYourWrites", write, read)


def monotonic_reads(timeline: Timeline) -> Iterator[Violation]:
    for session in _sessions(timeline):
        seen: Operations = 0
        for read in _reads_of(timeline, session):
            for write in numbers(timeline.lacked(read, seen)):
                earlier = next(number for number in session if write in timeline.seen[number])
                yield _violation(timeline, "MonotonicReads", write, earlier, read)
            seen |= _set(timeline.seen[read])


def monotonic_writes(timeline: Timeline) -> Iterator[Violation]:
    for session in _sessions(timeline):
        yield from _losing_writes(timeline, session, "MonotonicWrites", is_own=True)

    def with_it(write: int) -> Operations:
        earlier = timeline.earlier_in_session(write) & timeline.acknowledged
        return (earlier | timeline.transaction_of(write)) & ~(1 << write)

    yield from _seen_by_others(timeline, "MonotonicWrites", with_it)


def writes_follow_reads(timeline: Timeline) -> Iterator[Violation]:
    seen_before: dict[int, Operations] = {}
    for session in _sessions(timeline):
        yield from _losing_writes(timeline, session, "WritesFollowReads", is_own=False)
        seen: Operations = 0
        for number in session:
            if is_answered_read(timeline.operations[number]):
                seen |= _set(timeline.seen[number])
            else:
                seen_before[number] = seen
    yield from _seen_by_others(timeline, "WritesFollowReads", seen_before.__getitem__)


GUARANTEES: Mapping[str, Callable[[Timeline], Iterator[Violation]]] = {
    "ReadYourWrites": read_your_writes,
    "MonotonicReads": monotonic_reads,
    "MonotonicWrites": monotonic_writes,
    "WritesFollowReads": writes_follow_reads,
}


def _sessions(timeline: Timeline) -> Iterator[range]:
    """The operations of each session. What belongs to no session is one by itself, a transaction at a time."""
    for _, group in groupby(range(len(timeline.operations)), key=timeline.session_start.__getitem__):
        members = list(group)
        yield range(members[0], members[-1] + 1)


def _reads_of(timeline: Timeline, session: range) -> Iterator[int]:
    return (number for number in session if is_answered_read(timeline.operations[number]))


def _seen_by_others(timeline: Timeline, pattern: str, comes_with: Callable[[int], Operations]) -> Iterator[Violation]:
    """Readers who saw a write of another session, and lack what comes with it, then or later."""
    for session in _sessions(timeline):
        wanted: Operations = 0
        met: list[int] = []  # the writes of others that this session saw
        for _, group in groupby(_reads_of(timeline, session), key=timeline.nodes.node_of.__getitem__):
            reads = list(group)
            for write in (write for read in reads for write in timeline.seen[read] if write not in session):
                wanted |= comes_with(write)
                met.append(write)
            for read in reads:
                for lacked in numbers(timeline.lacked(read, wanted)):
                    later = next(write for write in met if comes_with(write) >> lacked & 1)
                    yield _violation(timeline, pattern, lacked, later, read)


def _losing_writes(timeline: Timeline, session: range, pattern: str, *, is_own: bool) -> Iterator[Violation]:
    """Writes to an lww key that lose against what their session wrote (or saw) before."""
    before: dict[bytes, Operations] = {}
    for number in session:
        one, register = timeline.operations[number], timeline.register(number)
        if register.merge is not Merge.LWW:
            continue
        known = before.get(one.key, 0)
        if timeline.acknowledged >> number & register.writes >> number & 1:
            for winner in numbers(register.newer[number] & known):
                yield _violation(timeline, pattern, winner, number)
            known |= 1 << number if is_own else 0
        elif one.kind is Kind.READ and not is_own:
            known |= _set(timeline.seen[number])
        before[one.key] = known


def _set(operations: tuple[int, ...]) -> Operations:
    return sum(1 << number for number in operations)


def _violation(timeline: Timeline, pattern: str, *operations: int) -> Violation:
    return Violation(pattern, tuple(str(timeline.operations[number]) for number in operations))
