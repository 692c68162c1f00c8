"""Causal consistency by its definition, for histories of a few operations: try every order there is.

Nothing here knows of bad patterns, of sets in an int, or of the lemma that the least causal order is the best. A
history is causally consistent if *some* order of transactions (`co`) has the session order in it and explains every
read:

- CC: for each read some sequence of its past, in agreement with co, ends with the write that it saw;
- CCv: one sequence of all transactions (`arbitration`), in agreement with co, does so for all reads at once.

By version, the sequence is given for each key, and every doubt may be resolved in favour of the store: which delete an
empty answer comes from, what version a write in doubt got.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby, permutations, product

from pipeline.audit.history import History, Kind, Operation, Outcome

Relation = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Read:
    node: int
    key: bytes
    value: str | None  # what it saw; None is the initial value


@dataclass(frozen=True)
class Tiny:
    size: int
    sessions: Relation  # the direct session order
    writes: tuple[dict[bytes, str], ...]  # by transaction: the last value of each key
    reads: tuple[Read, ...]  # of other transactions' writes
    is_sane: bool  # every transaction saw its own last writes


def tiny(history: History) -> Tiny:
    """The history without what happens inside transactions, which is judged on the way."""
    groups = [list(group) for _, group in groupby(history.operations, key=lambda one: (one.session, one.transaction))]
    sessions = frozenset(
        (first, first + 1)
        for first in range(len(groups) - 1)
        if groups[first][0].session == groups[first + 1][0].session
    )
    writes: list[dict[bytes, str]] = []
    reads: list[Read] = []
    is_sane = True
    for node, group in enumerate(groups):
        own: dict[bytes, str] = {}
        for one in group:
            if one.kind is Kind.WRITE:
                assert one.version is not None
                own[one.key] = one.version
                continue
            seen = one.observed[0] if one.observed else None
            if one.key in own:
                is_sane = is_sane and seen == own[one.key]
            else:
                reads.append(Read(node, one.key, seen))
        writes.append(own)
    return Tiny(len(groups), sessions, tuple(writes), tuple(reads), is_sane)


def closure(pairs: Iterable[tuple[int, int]]) -> Relation:
    found = set(pairs)
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return frozenset(found)
        found |= more


@cache
def all_orders(size: int) -> tuple[Relation, ...]:
    """Every transitive order without cycles of this many transactions; some come several times."""
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    subsets = (frozenset(chosen) for count in range(len(pairs) + 1) for chosen in combinations(pairs, count))
    return tuple(order for order in subsets if order == closure(order) and not any((b, a) in order for a, b in order))


def possible_orders(history: Tiny, *, is_thorough: bool) -> Iterator[Relation]:
    """Candidates for co: all of them, or only the least one that brings every write to its readers."""
    if is_thorough:
        yield from (order for order in all_orders(history.size) if order >= history.sessions)
        return
    seen = {
        (writer, read.node)
        for read in history.reads
        for writer, own in enumerate(history.writes)
        if read.value is not None and own.get(read.key) == read.value
    }
    order = closure(history.sessions | seen)
    if not any(a == b for a, b in order):
        yield order


def last_write(history: Tiny, sequence: Sequence[int], key: bytes) -> str | None:
    values = [history.writes[node][key] for node in sequence if key in history.writes[node]]
    return values[-1] if values else None


def agrees(sequence: Sequence[int], order: Relation) -> bool:
    return not any(
        (sequence[b], sequence[a]) in order for a in range(len(sequence)) for b in range(a + 1, len(sequence))
    )


def is_cc(history: History, *, is_thorough: bool) -> bool:
    one = tiny(history)

    def explains(order: Relation, read: Read) -> bool:
        past = [node for node in range(one.size) if (node, read.node) in order]
        return any(
            last_write(one, sequence, read.key) == read.value
            for sequence in permutations(past)
            if agrees(sequence, order)
        )

    orders = possible_orders(one, is_thorough=is_thorough)
    return one.is_sane and any(all(explains(order, read) for read in one.reads) for order in orders)


def is_ccv(history: History, *, is_thorough: bool) -> bool:
    one = tiny(history)

    def explains(order: Relation, arbitration: Sequence[int], read: Read) -> bool:
        past = [node for node in arbitration if (node, read.node) in order]
        return last_write(one, past, read.key) == read.value

    return one.is_sane and any(
        all(explains(order, arbitration, read) for read in one.reads)
        for order in possible_orders(one, is_thorough=is_thorough)
        for arbitration in permutations(range(one.size))
        if agrees(arbitration, order)
    )


# By version


@dataclass(frozen=True)
class Answer:
    """One way to resolve the doubts: versions of writes that happened, and the write behind each answer."""

    versions: dict[int, float]
    behind: dict[int, int | None]


def is_lww_consistent(history: History) -> bool:
    """Single operations, deletes, deadlines and unknown outcomes; every key is lww, every client is recorded."""
    operations = history.operations
    return any(_is_explained(operations, answer) for answer in _answers(operations))


def _number(version: str) -> float:
    return float(int(version.partition("-")[0], 16))


def _answers(operations: Sequence[Operation]) -> Iterator[Answer]:
    for versions in _possible_versions(operations):
        choices: list[list[int | None]] = []
        reads = [number for number, one in enumerate(operations) if one.kind is Kind.READ and one.outcome is Outcome.OK]
        for read in reads:
            one = operations[read]
            if one.observed:
                wanted = _number(one.observed[0])
                choices.append(
                    [
                        w
                        for w, v in versions.items()
                        if (operations[w].key, v) == (one.key, wanted) and _is_put(operations, w)
                    ]
                )
            else:
                reasons = [w for w in versions if operations[w].key == one.key]
                choices.append([None, *(w for w in reasons if not _is_put(operations, w) or operations[w].expires)])
        for chosen in product(*choices):
            yield Answer(versions, dict(zip(reads, chosen, strict=True)))


def _is_put(operations: Sequence[Operation], number: int) -> bool:
    return operations[number].kind is Kind.WRITE


def _possible_versions(operations: Sequence[Operation]) -> Iterator[dict[int, float]]:
    """What happened under which version. A write in doubt may have got any that was seen; a delete any at all."""
    known: dict[int, float] = {}
    doubtful: list[int] = []
    seen = {(one.key, _number(version)) for one in operations for version in one.observed}
    top = max([0.0, *(_number(one.version) for one in operations if one.version), *(number for _, number in seen)])
    for number, one in enumerate(operations):
        if one.kind is Kind.READ or one.outcome is Outcome.FAIL:
            continue
        if one.outcome is Outcome.OK and one.version:
            known[number] = _number(one.version)
        else:
            doubtful.append(number)

    def options(number: int) -> list[float | None]:
        one = operations[number]
        if one.kind is Kind.DELETE:
            return [None, *(slot + 0.5 for slot in range(int(top) + 1))]
        taken = {(one.key, _number(one.version)) for one in operations if one.version}
        return [None, *(version for key, version in seen - taken if key == one.key)]

    for chosen in product(*map(options, doubtful)):
        more = {number: version for number, version in zip(doubtful, chosen, strict=True) if version is not None}
        if len({(operations[number].key, version) for number, version in more.items()}) == len(more):
            yield known | more


def _is_explained(operations: Sequence[Operation], answer: Answer) -> bool:
    order = set(_session_pairs(operations))
    order |= {(write, read) for read, write in answer.behind.items() if write is not None}
    co = closure(order)
    versions = answer.versions
    by_version = {
        (a, b)
        for a in versions
        for b in versions
        if operations[a].key == operations[b].key and versions[a] < versions[b]
    }
    if any(a == b for a, b in closure(co | by_version)):
        return False
    for read, write in answer.behind.items():
        past = [w for w in versions if operations[w].key == operations[read].key and (w, read) in co]
        if write is None and past:
            return False
        if write is not None and any(versions[w] > versions[write] for w in past):
            return False
    return True


def _session_pairs(operations: Sequence[Operation]) -> Iterator[tuple[int, int]]:
    """A write in doubt comes after what its session did before, and before nothing."""
    for a, b in combinations(range(len(operations)), 2):
        if operations[a].session == operations[b].session and operations[a].outcome is not Outcome.UNKNOWN:
            yield a, b


# The guarantees


def broken_guarantees(history: History) -> set[str]:
    """All four by trying every pair and triple; single operations, no deletes, no deadlines, no doubts, lww keys."""
    operations = history.operations
    reads = [number for number, one in enumerate(operations) if one.kind is Kind.READ]
    writes = [number for number, one in enumerate(operations) if one.kind is Kind.WRITE]

    def follows(a: int, b: int) -> bool:
        return operations[a].session == operations[b].session and a < b

    def saw(read: int, write: int) -> bool:
        return operations[read].key == operations[write].key and operations[write].version in operations[read].observed

    def lacks(read: int, write: int) -> bool:
        if operations[read].key != operations[write].key:
            return False
        return not operations[read].observed or operations[read].observed[0] < (operations[write].version or "")

    def loses(later: int, earlier: int) -> bool:
        same = operations[later].key == operations[earlier].key
        return same and (operations[later].version or "") < (operations[earlier].version or "")

    def is_seen_without(later: int, earlier: int) -> bool:
        others = [read for read in reads if operations[read].session != operations[later].session]
        return any(
            saw(first, later) and lacks(second, earlier)
            for first in others
            for second in others
            if first == second or follows(first, second)
        )

    found = set()
    if any(follows(w, r) and lacks(r, w) for w in writes for r in reads):
        found.add("ReadYourWrites")
    if any(saw(a, w) and follows(a, b) and lacks(b, w) for w in writes for a in reads for b in reads):
        found.add("MonotonicReads")
    own = [(a, b) for a in writes for b in writes if follows(a, b)]
    if any(loses(b, a) or is_seen_without(b, a) for a, b in own):
        found.add("MonotonicWrites")
    read = [(a, b) for a in writes for b in writes if any(saw(r, a) and follows(r, b) for r in reads)]
    if any(loses(b, a) or is_seen_without(b, a) for a, b in read):
        found.add("WritesFollowReads")
    return found
