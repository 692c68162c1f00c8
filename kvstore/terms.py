"""On what terms a call is made: how fresh the answer must be, what a write depends on, in which session.

Requests have the same fields for these, whatever they ask; here they are filled in, by whoever has such a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from kvstore.checks import check_freshness, checked_dependencies
from kvstore.values import Delete, Put, Version

OpenWrite = tuple[Put | Delete, Any]  # a write that leaves open what it replaces, and its place in the request


class Level(IntEnum):
    """As in kvstore.v1.Freshness."""

    ANY = 1
    BOUNDED = 2
    SESSION = 3


@dataclass(frozen=True, slots=True)
class Fresh:
    """How much an answer must contain. Where nothing is said: the past of the session, if there is one."""

    freshness: str | None = None
    max_age_ms: int | None = None
    has_session: bool = False

    def fill(self, request: Any) -> None:
        if self.freshness is None and self.max_age_ms is None:
            return
        check_freshness(self.freshness, self.max_age_ms, has_session=self.has_session)
        if self.max_age_ms is not None:
            request.freshness.level, request.freshness.bound_ms = Level.BOUNDED, self.max_age_ms
        elif self.freshness == "any":
            request.freshness.level = Level.ANY


@dataclass(frozen=True, slots=True)
class Depends:
    """What a write says to depend on."""

    depends_on: Iterable[Version] | None = None
    independent: bool = False

    def fill(self, request: Any, writes: Sequence[Put | Delete]) -> None:
        if self.depends_on is None and self.independent is False:
            return
        versions = checked_dependencies(self.depends_on, independent=self.independent, writes=writes)
        request.dependencies.independent = self.independent
        fill_versions(request.dependencies.versions, versions)

    def open_ones(self, writes: Iterable[OpenWrite]) -> Sequence[OpenWrite]:
        """Those that leave it to their session what they replace.

        A condition replaces all that is there; who is independent has seen nothing.
        """
        if self.independent:
            return ()
        return [(one, place) for one, place in writes if one.replaces is None and one.expect is None]


def fill_versions(place: Any, versions: Iterable[Version]) -> None:
    for time, site in versions:
        place.add(time=time, site=site)


def carry(request: Any, token: bytes) -> None:
    """Make a request one of a session. The first has no token, and says that it wants one."""
    request.session = token
    if not token:
        request.freshness.level = Level.SESSION


def is_bounded(request: Any) -> bool:
    """It asks for a freshness of its own, so it cannot be the one that says that a session wants a token."""
    return bool(request.freshness.level == Level.BOUNDED)


def is_unordered(request: Any) -> bool:
    """It does not wait for what its session has seen, or was said not to follow it."""
    has_less = "dependencies" in request.DESCRIPTOR.fields_by_name and request.HasField("dependencies")
    return bool(has_less or request.freshness.level == Level.ANY)


def named_versions(request: Any) -> list[list[str]]:
    """The versions that each write of a request replaces, as it was sent; nothing for a read."""
    fields = request.DESCRIPTOR.fields_by_name
    if "operations" in fields:
        writes = [getattr(one, one.WhichOneof("operation")) for one in request.operations]
    else:
        writes = [request] if "replaces" in fields else []
    return [[str(Version(version.time, version.site)) for version in one.replaces] for one in writes]
