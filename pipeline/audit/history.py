"""A history is what clients did and saw: sessions of transactions of operations, and nothing about how it came to be.

A *write* creates a version of its key; a *delete* creates one too, which nobody can see. A *read* observed the
versions that the store returned: none when the key was absent, several when it keeps siblings. Two kinds of
histories are judged alike. In the store's own, versions have an order (a hybrid time, then a site) and the last
writer wins; in those of others a version is just the value written, each value is written once, and no order is
known beside the causal one.

Operations of one transaction (a batch, a get_many) take effect at once and read one state. Sessions are sequences
of transactions; operations with the session "" belong to none, and only those that stand together in one
transaction have anything to do with each other.

An *unknown* outcome is a write whose answer never came. It may have happened, early or much later. So what its
session did before precedes it, but it does not precede what its session did after: nobody waited for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise

from pipeline.audit.errors import Malformed, shown

NO_SESSION = ""
_VERSION = re.compile("([0-9a-f]{16})-(0|[1-9][0-9]{0,4})")
_SITE_MAX = (1 << 16) - 1


class Kind(StrEnum):
    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"  # it surely did not happen
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    session: str
    index: int  # its place in the session
    transaction: int  # shared by operations of one batch or get_many; a number of its own session
    kind: Kind
    key: bytes
    version: str | None = None  # that a write or delete created; a value in histories by value
    observed: tuple[str, ...] = ()  # that a read returned
    outcome: Outcome = Outcome.OK
    expires: bool = False  # a write with a deadline: the key may be absent later without a delete
    replaces: tuple[str, ...] | None = None  # versions that a write to a siblings key named; None: not recorded
    replica: str = ""
    start_ns: int = 0
    end_ns: int = 0
    run: str = ""
    line: int = 0  # where it stands in its file

    def __str__(self) -> str:
        text = f"session {self.session}, operation {self.index}" if self.session else f"no session, {self.index}"
        text += f" (line {self.line})" if self.line else ""
        key = key_text(self.key)
        if self.kind is Kind.READ:
            text += f": read {key}, saw {', '.join(self.observed) or 'nothing'}"
        else:
            text += f": {'deleted' if self.kind is Kind.DELETE else 'wrote'} {key}"
            text += f" = {self.version}" if self.version else ""
            text += "" if self.outcome is Outcome.OK else f" ({self.outcome})"
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)  # it may go to a terminal


@dataclass(frozen=True, slots=True)
class History:
    """Operations in session order, one session after another, transactions in one piece; `History.of` makes it so."""

    operations: tuple[Operation, ...]
    is_ordered: bool  # versions have an order; otherwise they are values
    siblings: frozenset[bytes] = frozenset()  # keys that keep concurrent writes side by side
    is_complete: bool = True  # every client that wrote is recorded from the start

    @classmethod
    def of(
        cls,
        operations: Iterable[Operation],
        *,
        is_ordered: bool,
        siblings: Collection[bytes] = (),
        is_complete: bool = True,
    ) -> History:
        """Sort and check them. `siblings` are prefixes of keys; a key that ever showed two versions has them too."""
        given = list(operations)
        alone = [one for one in given if one.session == NO_SESSION]
        rest = sorted((one for one in given if one.session != NO_SESSION), key=lambda one: (one.session, one.index))
        ordered = tuple(rest + alone)
        if not ordered:
            raise Malformed(0, "there are no operations in it")
        _check_run(ordered)
        _check_order(rest)
        _check_unique(ordered)
        keys = {one.key for one in ordered}
        kept = {one.key for one in ordered if len(one.observed) > 1}
        if is_ordered:
            kept |= {key for key in keys for prefix in siblings if key.startswith(prefix)}
        return cls(ordered, is_ordered, frozenset(kept), is_complete)

    def transactions(self) -> list[Sequence[Operation]]:
        groups = groupby(self.operations, key=lambda one: (one.session, one.transaction, one.outcome))
        return [tuple(group) for _, group in groups]


def _check_run(operations: Sequence[Operation]) -> None:
    first = operations[0].run
    for one in operations:
        if one.run != first:
            raise Malformed(one.line, f"it is of the run {shown(one.run)}, others are of {shown(first)}")


def _check_order(operations: Sequence[Operation]) -> None:
    """Every place in a session is taken once, and a transaction that ended does not go on."""
    seen: set[tuple[str, int]] = set()
    for last, one in pairwise(operations):
        if (last.session, last.index) == (one.session, one.index):
            line = max(last.line, one.line)
            raise Malformed(line, f"operation {one.index} of session {shown(one.session)} is there twice")
        if (last.session, last.transaction) != (one.session, one.transaction):
            seen.add((last.session, last.transaction))
            if (one.session, one.transaction) in seen:
                what = f"transaction {one.transaction} of session {shown(one.session)}"
                raise Malformed(one.line, f"{what} goes on after another one began")
        elif last.outcome is not one.outcome:
            what = f"transaction {one.transaction} of session {shown(one.session)}"
            raise Malformed(one.line, f"{what} is both {last.outcome} and {one.outcome}")


def _check_unique(operations: Sequence[Operation]) -> None:
    """A version is written once; otherwise nobody can tell which write a read saw. A failed write is no write."""
    writers: dict[tuple[bytes, str], Operation] = {}
    for one in operations:
        if one.version is None or one.outcome is not Outcome.OK:
            continue
        other = writers.setdefault((one.key, one.version), one)
        if other is not one:
            what = f"{one.version} of key {shown(key_text(one.key))}"
            first, second = sorted((one.line, other.line))
            raise Malformed(second, f"{what} is written again, after line {first}")


def version_order(text: str) -> tuple[int, int]:
    """The order of the store's own versions; ValueError for anything else."""
    match = _VERSION.fullmatch(text)
    if match is None or int(match[2]) > _SITE_MAX:
        raise ValueError(f"{shown(text)} is no version")
    return int(match[1], 16), int(match[2])


def key_text(key: bytes) -> str:
    """A key for people: text where it is text."""
    text = key.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else key.hex()
