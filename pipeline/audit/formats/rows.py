"""The store's own history: what a row may hold, whatever file it came in. One file is of one run.

    column        type                  what it says
    run           text                  one value in a whole history
    session       text                  "" for an operation without session, or one that asked for no guarantee
    index         int64                 the operation's place in its session, from 0
    transaction   int64                 the same for operations of one batch or get_many; otherwise one each
    operation     text                  read, write or delete; a scan is a transaction of reads
    key           bytes
    value         bytes or null         what was written, or a digest of it; not judged
    version       text or null          that a write or delete created, like 018bcfe568000003-2; null if nobody knows
    observed      list of text          versions that a read returned: none, the key was absent; several are siblings
    replica       text                  who answered; not judged
    start_ns      int64                 not judged
    end_ns        int64                 not judged
    outcome       text                  ok, fail (it surely did not happen) or unknown
    token         text or null          digest of the session's token; not judged
    expires       bool, may be missing  a write with a deadline
    replaces      list of text, may be missing or null: versions that a write to a siblings key named

An acknowledged write has a version; a delete may lack it. Only reads observe, and they have no version of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pipeline.audit.errors import Malformed, shown
from pipeline.audit.history import Kind, Operation, Outcome, version_order

REQUIRED = ("run", "session", "index", "transaction", "operation", "key", "replica", "start_ns", "end_ns", "outcome")
NULLABLE = ("value", "version", "observed", "token", "expires", "replaces")
_INT64 = 1 << 63

Row = Mapping[str, Any]
Choice = TypeVar("Choice", Kind, Outcome)


def operation_of(row: Row, line: int) -> Operation:
    """The operation that a row records; Malformed for anything that is no row."""
    _check_names(row, line)
    kind = _one_of(Kind, row, "operation", line)
    outcome = _one_of(Outcome, row, "outcome", line)
    version = None if row.get("version") is None else _version(row["version"], line)
    observed = _versions(row, "observed", line) or ()
    _check_kind(kind, outcome, version, observed, line)
    _optional(row, "value", bytes, line)
    _optional(row, "token", str, line)
    return Operation(
        session=_typed(row, "session", str, line),
        index=_number(row, "index", line),
        transaction=_number(row, "transaction", line),
        kind=kind,
        key=_typed(row, "key", bytes, line),
        version=version,
        observed=observed,
        outcome=outcome,
        expires=bool(_optional(row, "expires", bool, line)),
        replaces=_versions(row, "replaces", line),
        replica=_typed(row, "replica", str, line),
        start_ns=_number(row, "start_ns", line),
        end_ns=_number(row, "end_ns", line),
        run=_typed(row, "run", str, line),
        line=line,
    )


def _check_names(row: Row, line: int) -> None:
    for name in REQUIRED:
        if row.get(name) is None:
            raise Malformed(line, f"it has no {name}")
    for name in row:
        if name not in REQUIRED and name not in NULLABLE:
            raise Malformed(line, f"it has a column {shown(name)} that nobody knows")


def _check_kind(kind: Kind, outcome: Outcome, version: str | None, observed: tuple[str, ...], line: int) -> None:
    if kind is Kind.READ and version is not None:
        raise Malformed(line, "a read creates no version: what it saw belongs into observed")
    if kind is not Kind.READ and observed:
        raise Malformed(line, f"a {kind} observes nothing")
    if kind is Kind.WRITE and outcome is Outcome.OK and version is None:
        raise Malformed(line, "an acknowledged write without its version")


def _typed(row: Row, name: str, wanted: type, line: int) -> Any:
    value = row[name]
    if type(value) is not wanted:
        raise Malformed(line, f"{name} is {shown(value)}, not of the type {wanted.__name__}")
    if isinstance(value, str) and not _is_text(value):
        raise Malformed(line, f"{name} is {shown(value)}, which is no text")
    return value


def _is_text(value: str) -> bool:
    """JSON can write half a character, which nobody can print."""
    return not any("\ud800" <= letter <= "\udfff" for letter in value)


def _optional(row: Row, name: str, wanted: type, line: int) -> Any:
    return None if row.get(name) is None else _typed(row, name, wanted, line)


def _number(row: Row, name: str, line: int) -> int:
    number: int = _typed(row, name, int, line)
    if not -_INT64 <= number < _INT64:
        raise Malformed(line, f"{name} does not fit into 64 bits")
    return number


def _one_of(choices: type[Choice], row: Row, name: str, line: int) -> Choice:
    try:
        return choices(row[name])
    except ValueError:
        known = ", ".join(choices)
        raise Malformed(line, f"{name} is {shown(row[name])}; known are {known}") from None


def _versions(row: Row, name: str, line: int) -> tuple[str, ...] | None:
    if row.get(name) is None:
        return None
    found = tuple(_version(text, line) for text in _typed(row, name, list, line))
    if len(set(found)) < len(found):
        raise Malformed(line, f"{name} names a version twice")
    return found


def _version(text: object, line: int) -> str:
    if not isinstance(text, str):
        raise Malformed(line, f"{shown(text)} is no version")
    try:
        version_order(text)
    except ValueError as error:
        raise Malformed(line, str(error)) from None
    return text
