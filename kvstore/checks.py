"""What a caller can get wrong, said before anything is sent.

A wrong type is a TypeError, as everywhere in Python; a value that can never work is the error that a replica would
give. Limits that a cluster sets for itself are the replica's to judge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from kvstore.errors import BadRange, BadRequest, BadToken, BadTtl, BadVersion, KeyEmpty, KeyTooLong
from kvstore.update import KEY_MAX, SITE_MAX, escape
from kvstore.values import ABSENT, Delete, Entry, Get, Position, Put, Replaces, Version

REQUEST_ID_MAX = 64
TTL_MAX_MS = 1 << 48
TIME_MAX = (1 << 64) - 1
AGE_MAX_MS = (1 << 32) - 1
TOKEN_BYTES_MAX = 16 << 20  # of a session's token; whether it is one, and not too long, is the replica's to judge
FRESHNESS = ("any", "session")

Operation = Get | Put | Delete
Checked = TypeVar("Checked", bound=Operation)


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
    if expect != ABSENT:
        check_version(expect)


def check_version(version: Version) -> None:
    if not 0 < version.time <= TIME_MAX or not 0 <= version.site <= SITE_MAX:
        raise BadVersion(text=repr(tuple(version)))


def check(operation: Checked) -> Checked:
    """The same operation; nothing in it can fail any more before it is sent."""
    check_key(operation.key)
    if isinstance(operation, Get):
        return operation
    if isinstance(operation, Put):
        if type(operation.value) is not bytes:
            check_bytes("a value", operation.value)
        if operation.ttl_ms is not None:
            check_ttl(operation.ttl_ms)
    if operation.expect is not None:
        check_expect(operation.expect)
        if isinstance(operation, Delete) and operation.expect == ABSENT:
            raise BadRequest(why="a delete cannot expect the key to be absent")
    if operation.replaces is None:
        return operation
    return cast("Checked", operation._replace(replaces=replaced_versions(operation.replaces)))


def replaced_versions(replaces: Replaces) -> tuple[Version, ...]:
    """An entry is a tuple too, and stands for all of its versions."""
    return replaces.versions if isinstance(replaces, Entry) else checked_versions("replaces", replaces)


def checked_versions(what: str, given: object) -> tuple[Version, ...]:
    if isinstance(given, Version):
        raise TypeError(f"{what} is a list of versions, not one alone: [version]")
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a list of versions, not {type(given).__name__}")
    found = tuple(given)
    for one in found:
        if not isinstance(one, Version):
            raise TypeError(f"{what} is a list of versions, not of {type(one).__name__}; Version.parse reads a text")
        check_version(one)
    return found


def checked_dependencies(
    depends_on: Iterable[Version] | None, *, independent: bool, writes: Sequence[Put | Delete]
) -> tuple[Version, ...]:
    """The versions that a write says to depend on; none: it says nothing, or that it is independent."""
    if not isinstance(independent, bool):
        raise TypeError(f"independent is True or False, not {type(independent).__name__}")
    if independent and depends_on is not None:
        raise BadRequest(why="a write that depends on versions is not independent")
    if independent and any(one.expect is not None or one.replaces for one in writes):
        raise BadRequest(why="a write that expects or replaces a version depends on it; it is not independent")
    found = () if depends_on is None else checked_versions("depends_on", depends_on)
    if depends_on is not None and not found:
        raise BadRequest(why="depends_on names no version; a write that depends on nothing is independent=True")
    return found


def check_freshness(freshness: str | None, max_age_ms: int | None, *, has_session: bool) -> None:
    if freshness is not None and freshness not in FRESHNESS:
        raise BadRequest(why=f"there is no freshness {freshness!r}; there are {', '.join(FRESHNESS)}, and max_age_ms")
    if freshness is not None and max_age_ms is not None:
        raise BadRequest(why="freshness or max_age_ms, not both; max_age_ms in a session includes what it has seen")
    if freshness == "session" and not has_session:
        raise BadRequest(why="the freshness of a session needs a session: kv.session()")
    check_count("max_age_ms", max_age_ms, AGE_MAX_MS)


def checked_token(token: bytes | None) -> bytes:
    """What a session goes on with; nothing begins a new one."""
    if token is None:
        return b""
    check_bytes("a token", token)
    if len(token) > TOKEN_BYTES_MAX:
        raise BadToken(why=f"{len(token)} bytes; at most {TOKEN_BYTES_MAX} are possible")
    return token


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
