"""What a client gives and gets: plain frozen values, without a trace of the wire.

Keys and values are bytes. A version names one write; `ABSENT` stands where a version could stand and means that there
must be nothing. `Put`, `Delete` and `Get` are calls as values, to hand over many at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from causal.model import Dot
from kvstore.effects import ABSENT
from kvstore.update import Version

__all__ = ["ABSENT", "Change", "Delete", "Dot", "Entry", "Get", "Position", "Put", "Read", "ReadMany", "Sibling"]
__all__ += ["Version", "Written", "WrittenBatch"]


class Sibling(NamedTuple):
    """Another value of the same key, written concurrently, that nobody has replaced yet."""

    value: bytes
    version: Version
    expires_ms: int = 0  # wall clock; 0 is never


class Entry(NamedTuple):
    """A key and what is stored under it."""

    key: bytes
    value: bytes
    version: Version
    expires_ms: int = 0  # wall clock; 0 is never
    siblings: tuple[Sibling, ...] = ()  # empty where keys merge by lww

    @property
    def versions(self) -> tuple[Version, ...]:
        """Its own and its siblings': all that a write that has seen this entry replaces."""
        return (self.version, *[one.version for one in self.siblings])


class Read(NamedTuple):
    """What a read found, where, and how old that may be."""

    entry: Entry | None  # None: there is nothing under the key
    site: str
    commit: int  # the newest of that site that it includes
    staleness_ms: int | None = None  # all that was written anywhere longer ago is included; None: nobody can say


class ReadMany(NamedTuple):
    """The same for many keys, all read at one moment; what is not there is left out."""

    entries: dict[bytes, Entry]
    site: str
    commit: int
    staleness_ms: int | None = None


Replaces = Entry | Iterable[Version]  # what a write replaces where keys merge by siblings: all that the writer has seen


class Written(NamedTuple):
    """The answer to a put or a delete: it is committed at this site, and on its way to the others."""

    version: Version
    site: str
    commit: int


class WrittenBatch(NamedTuple):
    """The answer to a batch."""

    versions: tuple[Version, ...]  # of its operations, in order
    site: str
    commit: int


class Get(NamedTuple):
    key: bytes


class Put(NamedTuple):
    key: bytes
    value: bytes
    ttl_ms: int | None = None  # None is for ever
    expect: Version | None = None  # only if the key has this version at the replica that is asked; ABSENT: nothing
    replaces: Replaces | None = None  # None: in a session what it last saw of the key, else nothing


class Delete(NamedTuple):
    key: bytes
    expect: Version | None = None
    replaces: Replaces | None = None  # None: in a session what it last saw of the key, else all that is there


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the changes of one site, to resume a watch from. At another site it means nothing."""

    site: int
    incarnation: int
    index: int


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one key."""

    key: bytes
    value: bytes | None  # None: it was deleted
    version: Version
    expires_ms: int  # wall clock; 0 is never
    index: int  # of the position right after it; the changes of one batch may share it
    dot: Dot  # the message that carried it between replicas; the changes of one batch share it
