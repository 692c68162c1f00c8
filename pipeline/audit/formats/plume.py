"""Plume's format (Liu et al.: *Plume*, OOPSLA 2024), also of IsoVista: `r(key,value,session,transaction)` or `w(…)`
a line.

A session is in the order of its lines; a transaction stands where it began. Transaction -1 was aborted: its writes
must not be seen, its reads mean nothing. Value 0 is what every key holds at first, and writes of it are ignored.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

from pipeline.audit.errors import Malformed, shown
from pipeline.audit.formats.text import lines, whole_number
from pipeline.audit.history import NO_SESSION, Kind, Operation, Outcome

ABORTED = -1
INITIAL = 0
_LINE = re.compile(r"([rw])\s*\(([^,()]*),([^,()]*),([^,()]*),([^,()]*)\)")
_FIELDS = ("the key", "the value", "the session", "the transaction")


def read_plume(data: bytes) -> list[Operation]:
    begun: dict[tuple[int, int], list[Operation]] = {}  # by session and transaction, in the order in which they began
    aborted: list[Operation] = []
    for line, text in lines(data):
        match = _LINE.fullmatch(text)
        if match is None:
            raise Malformed(line, f"{shown(text)} is no operation like 'w(3,1,0,0)'")
        key, value, session, transaction = (
            whole_number(field.strip(), line, what) for field, what in zip(match.groups()[1:], _FIELDS, strict=True)
        )
        one = _operation(is_read=match[1] == "r", key=key, value=value, line=line)
        if transaction == ABORTED:
            if one.kind is Kind.WRITE and value != INITIAL:
                aborted.append(replace(one, index=len(aborted), transaction=ABORTED, outcome=Outcome.FAIL))
        elif one.kind is Kind.READ or value != INITIAL:
            group = begun.setdefault((session, transaction), [])
            group.append(replace(one, session=str(session), transaction=transaction))
    return [*_in_session_order(begun), *aborted]


def _operation(*, is_read: bool, key: int, value: int, line: int) -> Operation:
    name = str(key).encode()
    if not is_read:
        return Operation(NO_SESSION, 0, 0, Kind.WRITE, name, str(value), line=line)
    observed = () if value == INITIAL else (str(value),)
    return Operation(NO_SESSION, 0, 0, Kind.READ, name, observed=observed, line=line)


def _in_session_order(begun: dict[tuple[int, int], list[Operation]]) -> list[Operation]:
    found: list[Operation] = []
    lengths: Counter[int] = Counter()
    for (session, _), group in begun.items():
        for one in group:
            found.append(replace(one, index=lengths[session]))
            lengths[session] += 1
    return found
