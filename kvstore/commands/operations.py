"""The operations of a batch, read from JSON lines: strict, and every mistake is named with its line.

{"put": "color", "value": "blue", "ttl": "30s", "if_absent": true}
{"delete": {"base64": "/wA="}, "if_version": "018bcfe568000003-2"}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from kvstore.errors import BadVersion
from kvstore.show import from_json, milliseconds
from kvstore.values import ABSENT, Delete, Put, Version

PUT_HAS = ("put", "value", "ttl", "if_version", "if_absent")
DELETE_HAS = ("delete", "if_version")


def operations_in(lines: Iterable[bytes]) -> Iterator[Put | Delete]:
    """ValueError with a sentence for a line that is no operation. Empty lines are left out."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"line {number}: this is no JSON") from None
        try:
            yield operation_of(given)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None


def operation_of(given: Any) -> Put | Delete:
    if not isinstance(given, dict) or ("put" in given) == ("delete" in given):
        raise ValueError('an operation is an object with "put" or "delete"')
    known = PUT_HAS if "put" in given else DELETE_HAS
    for name in given:
        if name not in known:
            raise ValueError(f"{name!r} is unknown; there are {', '.join(known)}")
    key = _bytes(given, known[0])
    expect = _version(given["if_version"]) if "if_version" in given else None
    if "delete" in given:
        return Delete(key, expect)
    if "if_absent" in given:
        if given["if_absent"] is not True or expect is not None:
            raise ValueError("if_absent must be true, and stands alone")
        expect = ABSENT
    ttl = given.get("ttl")
    if ttl is not None and not isinstance(ttl, str):
        raise ValueError('ttl must be a text like "30s"')
    return Put(key, _bytes(given, "value"), None if ttl is None else milliseconds(ttl), expect)


def _bytes(given: dict[str, object], name: str) -> bytes:
    if name not in given:
        raise ValueError(f"{name!r} is missing")
    try:
        return from_json(given[name])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _version(text: object) -> Version:
    try:
        return Version.parse(str(text))
    except BadVersion as error:
        raise ValueError(str(error)) from None
