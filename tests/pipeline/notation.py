"""Histories as a few lines of text, for tests.

A line is a session, `name: operation, operation`; a name that begins with `-` stands for operations without session.
Square brackets around operations make them one transaction.

    w x 1     wrote x = 1             r x 1     read x, saw 1           d x 3     deleted x, version 3
    w x 1?    outcome unknown         r x -     read x, saw nothing     w x ?     unknown, and so is its version
    w x 1!    failed                  r x 1+2   saw two siblings        w x 3/1+2 named 1 and 2 as replaced (3/ none)
    w x 1~    with a deadline
"""

from __future__ import annotations

import re

from pipeline.audit.history import History, Kind, Operation, Outcome

KINDS = {"w": Kind.WRITE, "r": Kind.READ, "d": Kind.DELETE}
OUTCOMES = {"": Outcome.OK, "?": Outcome.UNKNOWN, "!": Outcome.FAIL}
_OPERATION = re.compile(r"([wrd]) (\w+) ([0-9+]*|-)(?:/([0-9+]*))?(~?)([?!]?)")


def by_version(text: str, *, siblings: tuple[bytes, ...] = (), is_complete: bool = True) -> History:
    """A history of the store: numbers are times of versions."""
    return History.of(operations(text, "{:016x}-0"), is_ordered=True, siblings=siblings, is_complete=is_complete)


def by_value(text: str) -> History:
    return History.of(operations(text, "{}"), is_ordered=False)


def operations(text: str, version: str) -> list[Operation]:
    found: list[Operation] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        session, _, rest = line.partition(": ")
        index = 0
        for group in re.findall(r"\[[^\]]*\]|[^,\[\]]+", rest):
            transaction = len(found)
            for one in filter(None, map(str.strip, group.strip(" []").split(","))):
                name = "" if session.startswith("-") else session
                found.append(_operation(one, name, index, transaction, version))
                index += 1
    return found


def _operation(text: str, session: str, index: int, transaction: int, version: str) -> Operation:
    match = _OPERATION.fullmatch(text)
    assert match is not None, text
    kind, key, what, replaces, expires, outcome = match.groups()
    versions = tuple(version.format(int(number)) for number in what.split("+") if number not in ("", "-"))
    named = None if replaces is None else tuple(version.format(int(one)) for one in replaces.split("+") if one)
    return Operation(
        session,
        index,
        transaction,
        KINDS[kind],
        key.encode(),
        version=versions[0] if versions and kind != "r" else None,
        observed=versions if kind == "r" else (),
        outcome=OUTCOMES[outcome],
        expires=bool(expires),
        replaces=named,
    )
