"""What a caller can get wrong, said before anything is sent.

A wrong type is a TypeError, as everywhere in Python; a value that can never work is the error that a replica would
give. Limits that a cluster sets for itself are the replica's to judge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from kvstore.errors import BadRange, BadRequest, BadTtl, BadVersion, KeyEmpty, KeyTooLong
from kvstore.update import KEY_MAX, SITE_MAX, escape
from kvstore.values import ABSENT, Delete, Get, Position, Put, Version

REQUEST_ID_MAX = 64
TTL_MAX_MS = 1 << 48
TIME_MAX = (1 << 64) - 1

Operation = Get | Put | Delete


def endpoints_of(endpoints: str | Iterable[str]) -> tuple[str, ...]:
    """One address or several, the preferred one first."""
    found = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
    if not found:
        raise BadRequest(why="there is no endpoint to connect to")
    for one in found:
        match = re.fullmatch(r"(?:[^:\[\]\s/]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", one) if isinstance(one, str) else None
        if match is None or not 0 < int(match[1]) < 1 << 16:
            raise BadRequest(why=f"the endpoint {one!r} is not host:port")
    return found


def refuse_security(*, auth: object, tls: object) -> None:
    """Ignoring them would send in the clear what the caller believes to be protected."""
    for name, given in (("auth", auth), ("tls", tls)):
        if given is not None:
            raise BadRequest(why=f"{name} is not in this version; without it, connections are open and in the clear")


def checked_timeout(timeout_s: float | None, default_s: float) -> float:
    if timeout_s is None:
        return default_s
    if not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s is a number of seconds, not {type(timeout_s).__name__}")
    if not 0 < timeout_s < math.inf:
        raise BadRequest(why=f"a timeout of {timeout_s} s; every call needs one, and it must be positive")
    return float(timeout_s)


def check_bytes(what: str, given: object) -> None:
    if not isinstance(given, bytes):
        hint = "; a text needs an encoding: text.encode()" if isinstance(given, str) else ""
        raise TypeError(f"{what} is bytes, not {type(given).__name__}{hint}")


def check_key(key: bytes) -> None:
    if type(key) is bytes and 0 < len(key) <= KEY_MAX:
        return  # nearly always, and this runs for every call
    check_bytes("a key", key)
    if not key:
        raise KeyEmpty
    if len(key) > KEY_MAX:
        raise KeyTooLong(length=len(key), limit=KEY_MAX)


def check_request_id(request_id: bytes) -> None:
    check_bytes("a request id", request_id)
    if len(request_id) > REQUEST_ID_MAX:
        raise BadRequest(why=f"a request id of {len(request_id)} bytes; at most {REQUEST_ID_MAX} are possible")


def check_expect(expect: Version) -> None:
    if not isinstance(expect, Version):
        raise TypeError(f"expect is a Version or ABSENT, not {type(expect).__name__}; a text is read by Version.parse")
    if not 0 <= expect.time <= TIME_MAX or not 0 <= expect.site <= SITE_MAX:
        raise BadVersion(text=repr(tuple(expect)))


def check(operation: Operation) -> None:
    """Afterwards nothing in it can fail before it is sent."""
    check_key(operation.key)
    if isinstance(operation, Get):
        return
    if isinstance(operation, Put):
        if type(operation.value) is not bytes:
            check_bytes("a value", operation.value)
        if operation.ttl_ms is not None:
            check_ttl(operation.ttl_ms)
    if operation.expect is not None:
        check_expect(operation.expect)
        if isinstance(operation, Delete) and operation.expect == ABSENT:
            raise BadRequest(why="a delete cannot expect the key to be absent")


def check_ttl(ttl_ms: int) -> None:
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int):
        raise TypeError(f"ttl_ms is a whole number of milliseconds, not {type(ttl_ms).__name__}")
    if not 0 < ttl_ms <= TTL_MAX_MS:
        raise BadTtl(ttl_ms=ttl_ms, limit=TTL_MAX_MS)


def check_several(what: str, given: object) -> None:
    """One key where several belong would be taken for its bytes, one by one."""
    if isinstance(given, bytes | str):
        raise TypeError(f"{what} is a list of bytes, not {type(given).__name__}")


def check_range(*, prefix: bytes, start: bytes, end: bytes, after: bytes) -> None:
    for what, given in (("a prefix", prefix), ("a start", start), ("an end", end), ("after", after)):
        check_bytes(what, given)
    if prefix and (start or end):
        raise BadRequest(why="a scan has a prefix or a range, not both")
    if end and start >= end:
        raise BadRange(start=escape(start), stop=escape(end), why="the end is not after the start")


def check_count(what: str, given: int | None, most: int) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
        raise TypeError(f"{what} is a whole number, not {type(given).__name__}")
    if given is not None and not 0 < given <= most:
        raise BadRequest(why=f"{what} is {given}; it must be from 1 to {most}")


def check_position(position: Position | None) -> None:
    if position is not None and not isinstance(position, Position):
        raise TypeError(f"a position is a Position, as a watch gave it, not {type(position).__name__}")
