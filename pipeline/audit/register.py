"""What happened to one key, as sets of operations: who wrote, whose value lasts, what can make the key absent.

How values of a key get out of each other's way is its *merge*. In histories by value nothing is known: newer is
what comes causally after. `lww`: the greater version wins, so of two writes the newer one is always known.
`siblings`: a write takes away only what it names (`replaces`); where that was not recorded, any later write may
have taken anything away.

A read that saw nothing is the hard case, because a delete leaves nothing to see. A value that does not *last* (it
has a deadline) may go by itself; any other needs a *remover*: a delete that may have happened, or a value with a
deadline that replaced it first. Deletes in doubt (no answer came, or no version with it) could have had any
version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pipeline.audit.graph import Node, Operations, numbers
from pipeline.audit.history import History, Kind, Operation, Outcome, version_order


class Merge(Enum):
    VALUE = "value"
    LWW = "lww"
    SIBLINGS = "siblings"


@dataclass(slots=True)
class Register:
    merge: Merge
    writes: Operations = 0  # that happened, deletes too: acknowledged, or seen
    final: Operations = 0  # the last ones of their transaction, which is all that others may see of it
    lasting: Operations = 0  # final writes that happened, and that nothing but another write can take away
    removers: Operations = 0  # final ones that can make the key absent
    doubtful: Operations = 0  # that may have happened, and if so under an unknown version
    unnamed: Operations = 0  # writes and deletes of which nobody recorded what they replaced
    newer: dict[int, Operations] = field(default_factory=dict)  # by write: those that took it away, if they happened
    versions: list[int] = field(default_factory=list)  # lww: the writes by version, oldest first


def registers(
    history: History, operations: Sequence[Operation], *, node_of: Sequence[Node], observed: Operations
) -> dict[bytes, Register]:
    """All keys, by what was done to them. `observed` are the writes that somebody saw: they happened."""
    found: dict[bytes, Register] = {}
    final = _last_of_their_transaction(operations, node_of)
    for number, one in enumerate(operations):
        register = found.setdefault(one.key, Register(_merge(history, one.key)))
        if one.kind is Kind.READ or one.outcome is Outcome.FAIL:
            continue
        bit = 1 << number
        has_happened = one.version is not None and (one.outcome is Outcome.OK or bool(bit & observed))
        if has_happened:
            register.writes |= bit
        else:
            register.doubtful |= bit
        if bit & final:
            register.final |= bit
            if one.kind is Kind.DELETE or one.expires:
                register.removers |= bit
            elif has_happened:
                register.lasting |= bit
        if one.replaces is None:
            register.unnamed |= bit
    _put_in_order(found, operations)
    return found


def _merge(history: History, key: bytes) -> Merge:
    if key in history.siblings:
        return Merge.SIBLINGS
    return Merge.LWW if history.is_ordered else Merge.VALUE


def _last_of_their_transaction(operations: Sequence[Operation], node_of: Sequence[Node]) -> Operations:
    """Of two writes of one transaction to one key the later is all that others may see."""
    last = {(node_of[number], one.key): number for number, one in enumerate(operations) if one.kind is not Kind.READ}
    return sum(1 << number for number in last.values())


def _put_in_order(found: Mapping[bytes, Register], operations: Sequence[Operation]) -> None:
    for register in found.values():
        if register.merge is Merge.LWW:
            _order_by_version(register, operations)
        elif register.merge is Merge.SIBLINGS:
            _order_by_replacing(register, operations)


def _order_by_version(register: Register, operations: Sequence[Operation]) -> None:
    writes = numbers(register.writes)
    register.versions = sorted(writes, key=lambda number: version_order(operations[number].version or ""))
    newer = 0
    for number in reversed(register.versions):
        register.newer[number] = newer
        newer |= 1 << number


def _order_by_replacing(register: Register, operations: Sequence[Operation]) -> None:
    """One in doubt may have replaced what it names as well."""
    writer_of = {operations[number].version: number for number in numbers(register.writes)}
    register.newer = dict.fromkeys(writer_of.values(), 0)
    for number in numbers(register.writes | register.doubtful):
        for version in operations[number].replaces or ():
            if version in writer_of:
                register.newer[writer_of[version]] |= 1 << number
