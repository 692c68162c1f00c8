"""Jepsen's histories: one map in EDN a line, `{:type :ok, :f :write, :value [x 1], :process 0}`; other fields are
ignored.

An operation counts when it ended `:ok`. One that ended `:fail` did not happen, `:info` is Jepsen's word for an
unknown outcome, `:invoke` is only the beginning of another line. Program order is the order of lines of one
process; a process that is no number is none of the clients (`:nemesis`). A read of nil, -1 or 0 saw the initial
value; writes of those are ignored, for they could not be told from it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from pipeline.audit.errors import Malformed, shown
from pipeline.audit.formats.text import lines, whole_number
from pipeline.audit.history import Kind, Operation, Outcome

OUTCOMES = {":ok": Outcome.OK, ":fail": Outcome.FAIL, ":info": Outcome.UNKNOWN}
KINDS = {":read": Kind.READ, ":r": Kind.READ, ":write": Kind.WRITE, ":w": Kind.WRITE}
INITIAL = {"nil", "-1", "0"}

_DEPTH_MAX = 16  # of brackets within brackets
_TOKEN = re.compile(r'[\s,]+|;.*|([{}\[\]()]|"(?:[^"\\]|\\.)*"|[^\s,;{}\[\]()"]+)')
_CLOSING = {"{": "}", "[": "]", "(": ")"}


class Form(NamedTuple):
    """A piece of EDN: an atom as it is written, or a collection. Quotes keep "1" apart from 1."""

    opening: str  # of a collection; nothing for an atom
    atom: str = ""
    members: tuple[Form, ...] = ()

    def as_map(self) -> dict[str, Form]:
        keys = (key.atom for key in self.members[::2])
        return dict(zip(keys, self.members[1::2], strict=True))


def read_edn(data: bytes) -> list[Operation]:
    found: list[Operation] = []
    lengths: Counter[str] = Counter()
    for line, text in lines(data):
        form = parse(text, line)
        if form is None:
            continue
        if form.opening != "{" or len(form.members) % 2:
            raise Malformed(line, f"{shown(text)} is no map")
        one = _operation(form.as_map(), line, lengths)
        if one is not None:
            found.append(one)
            lengths[one.session] += 1
    return found


def _operation(fields: Mapping[str, Form], line: int, lengths: Counter[str]) -> Operation | None:
    process = _atom(fields, ":process", line)
    type_ = _atom(fields, ":type", line)
    if process.startswith(":") or type_ == ":invoke":
        return None
    if type_ not in OUTCOMES:
        raise Malformed(line, f"the type is {shown(type_)}; :invoke, {', '.join(OUTCOMES)} are known")
    function = _atom(fields, ":f", line)
    if function not in KINDS:
        raise Malformed(line, f"the function is {shown(function)}; :read and :write are known")
    session = str(whole_number(process, line, "the process"))
    kind, outcome = KINDS[function], OUTCOMES[type_]
    if kind is Kind.READ and outcome is not Outcome.OK:
        return None
    key, value = _pair(fields, line)
    index = lengths[session]
    if kind is Kind.READ:
        observed = () if value in INITIAL else (value,)
        return Operation(session, index, index, kind, key, observed=observed, line=line)
    return None if value in INITIAL else Operation(session, index, index, kind, key, value, outcome=outcome, line=line)


def _atom(fields: Mapping[str, Form], name: str, line: int) -> str:
    if name not in fields or not fields[name].atom:
        raise Malformed(line, f"there is no {name} in the map")
    return fields[name].atom


def _pair(fields: Mapping[str, Form], line: int) -> tuple[bytes, str]:
    match fields.get(":value"):
        case Form("[", _, (Form("", key), Form("", value))):
            return key.encode(), _plain(value)
        case _:
            raise Malformed(line, "the :value is no pair like [x 1]")


def _plain(value: str) -> str:
    """One way to write a number: +1, 01 and 1N are 1."""
    match = re.fullmatch(r"\+?(-?)0*([0-9]{1,19})N?", value)
    return value if match is None else str(int(match[1] + match[2]))


def parse(text: str, line: int) -> Form | None:
    """The one form that stands on a line; None for a comment."""
    open_: list[tuple[str, list[Form]]] = [("", [])]
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise Malformed(line, f"a text that does not end: {shown(text[at:])}")
        at = match.end()
        token = match[1]
        if token is None or (token.startswith("#") and token != "#"):
            continue  # white space, a comment; a tag says what class wrote it
        if token in _CLOSING:
            open_.append((token, []))
            if len(open_) > _DEPTH_MAX:
                raise Malformed(line, f"more than {_DEPTH_MAX} brackets within each other")
        elif token in _CLOSING.values():
            opening, members = open_.pop()
            if _CLOSING.get(opening) != token:
                raise Malformed(line, f"a {token} that closes nothing")
            open_[-1][1].append(Form(opening, members=tuple(members)))
        else:
            open_[-1][1].append(Form("", token))
    if len(open_) > 1:
        raise Malformed(line, f"a {open_[-1][0]} that is never closed")
    forms = open_[0][1]
    if len(forms) > 1:
        raise Malformed(line, "more than one map on a line")
    return forms[0] if forms else None
