"""History rows (rows.py) as JSON, one object a line. Bytes are text where they are UTF-8, else `{"base64": "…"}`."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from pipeline.audit.errors import Malformed, shown
from pipeline.audit.formats.rows import operation_of
from pipeline.audit.formats.text import lines
from pipeline.audit.history import Operation

_BYTES = ("key", "value")


def read_jsonl(data: bytes) -> list[Operation]:
    last = data.count(b"\n") + 1
    try:
        return [_operation(text, line) for line, text in lines(data)]
    except Malformed as error:
        if error.line == last:  # there is no end of line behind it
            raise Malformed(
                last, "it is cut off: who wrote it was killed; without it the rest is --incomplete"
            ) from None
        raise


def _operation(text: str, line: int) -> Operation:
    try:
        row = json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise Malformed(line, f"{shown(text)} is no JSON object") from None
    if not isinstance(row, dict):
        raise Malformed(line, f"{shown(text)} is no JSON object")
    for name in _BYTES:
        if row.get(name) is not None:
            row[name] = _bytes(row[name], name, line)
    return operation_of(row, line)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which of two values is meant? JSON leaves it open; we do not guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def _bytes(value: object, name: str, line: int) -> bytes:
    try:
        match value:
            case str():
                return value.encode("utf-8")
            case {"base64": str() as text, **rest} if not rest:
                return base64.b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        pass
    raise Malformed(line, f"{name} is {shown(value)}, neither text nor an object with base64")
