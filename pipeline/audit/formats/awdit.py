"""AWDIT's format (Møldrup, Pavlogiannis: *AWDIT*, PLDI 2025): `r key value` or `w key value`, one operation a line.

A line of dashes ends a transaction, a line of equals signs a session. Nothing is implicit: value 0 is a value like
any other, and a read of it needs a write of it.
"""

from __future__ import annotations

from pipeline.audit.errors import Malformed, shown
from pipeline.audit.formats.text import lines, whole_number
from pipeline.audit.history import Kind, Operation

_SEPARATOR_MIN = 3


def read_awdit(data: bytes) -> list[Operation]:
    found: list[Operation] = []
    session = transaction = index = 0
    for line, text in lines(data):
        if len(text) >= _SEPARATOR_MIN and set(text) == {"="}:
            session, transaction, index = session + 1, 0, 0
        elif len(text) >= _SEPARATOR_MIN and set(text) == {"-"}:
            transaction += 1
        else:
            found.append(_operation(text, line, session, transaction, index))
            index += 1
    return found


def _operation(text: str, line: int, session: int, transaction: int, index: int) -> Operation:
    match text.split():
        case ["r" | "w" as kind, key, value]:
            name = str(whole_number(key, line, "the key")).encode()
            version = str(whole_number(value, line, "the value"))
        case _:
            raise Malformed(line, f"{shown(text)} is neither an operation like 'w 3 1' nor a line of - or =")
    if kind == "r":
        return Operation(str(session), index, transaction, Kind.READ, name, observed=(version,), line=line)
    return Operation(str(session), index, transaction, Kind.WRITE, name, version, line=line)
