"""What a replica asks of its disk: ordered tables of bytes, changed by one atomic batch at a time, each with a number.

One thread writes. It hands over everything that a step of the replica changed (keys, outbox, counters, clock) as one
Batch, and either all of it is there afterwards or nothing. Batches are numbered without a gap, and a reader finds the
number of the newest commit it can see *inside* its own read transaction. So data, and everything that is remembered
about "the state after commit N", can be taken from the same N (SAFETY 1); a number kept beside the store would be a
little older or newer than the data, sometimes.

A snapshot is a read transaction: cheap, of any thread, and blind to later commits. It holds up the recycling of space
while it is open, so it is closed soon.

`number` and `durable` are two things. A commit is seen by readers when it returns; a power loss cannot take it when
it is durable. In mode `sync` that is the same moment. In the relaxed modes only the answer to the client may go out
between the two: sends, acks and tokens wait for `durable` (SAFETY 2).

A store that failed to write or to sync stops for good: every later call is StorageFailed. After a failed fsync nobody
knows what is on disk, the next one may well report success, and only a restart reads what is really there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

TABLES = ("keys", "meta", "outbox", "changes", "requests", "tombstones")
TABLE_KEY_MAX = 511  # bytes of a key in a table, at least one; beyond it: ValueError, nothing of the batch is done
BAD_SHOWN_MAX = 10  # bad records that a VerifyReport names; beyond it: they are only counted


class SnapshotEnded(Exception):
    """A read from a snapshot that is closed, or that was ended because the store could not wait for it any longer."""


@dataclass(slots=True)
class Batch:
    """What one commit changes: first everything is dropped, then deleted, then put, so a put always stays.

    Of two puts to one key the later one stays. What is not there can be deleted.
    """

    number: int  # of the commit: one more than the last
    puts: list[tuple[str, bytes, bytes]] = field(default_factory=list)  # table, key, value
    deletes: list[tuple[str, bytes]] = field(default_factory=list)  # table, key
    drops: list[tuple[str, bytes, bytes]] = field(default_factory=list)  # table, start, stop: all of [start, stop)


class Bad(NamedTuple):
    """A record that cannot be trusted; without a key, it is the table itself that cannot be read on."""

    table: str
    key: bytes
    why: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    number: int  # of the commit that was looked at
    records: Mapping[str, int]  # good ones, by table
    bad: tuple[Bad, ...]  # the first few
    bad_count: int

    @property
    def is_sound(self) -> bool:
        return not self.bad_count


class Compacted(NamedTuple):
    before_bytes: int
    after_bytes: int


class Snapshot(ABC):
    """One read transaction; a context manager. It belongs to one thread at a time."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Of the newest commit that can be seen here."""

    @abstractmethod
    def get(self, table: str, key: bytes) -> bytes | None:
        """The value, or None. A record that does not pass its check is CorruptRecord, never a value."""

    @abstractmethod
    def scan(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of [start, stop) in order of the keys, or against it; without `stop`, to the end."""

    @abstractmethod
    def count(self, table: str) -> int:
        """How many records the table has, at once, however many there are."""

    @abstractmethod
    def close(self) -> None:
        """Free it. Closing twice does no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Storage(ABC):
    """The tables of one replica. commit, sync and compact are called by the one writer thread, the rest by any."""

    @property
    @abstractmethod
    def number(self) -> int:
        """Of the newest commit that returned; 0 before the first."""

    @property
    @abstractmethod
    def durable(self) -> int:
        """Of the newest commit that no power loss can take."""

    @abstractmethod
    def commit(self, batch: Batch) -> None:
        """All of it or nothing; in mode `sync` durable when it returns."""

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """What the newest commit that returned left, or a newer one."""

    @abstractmethod
    def sync(self) -> None:
        """Make everything durable that is committed."""

    @abstractmethod
    def verify(self) -> VerifyReport:
        """Read everything and check it."""

    @abstractmethod
    def backup(self, target: Path) -> None:
        """A consistent, compact copy while the store is in use: a new data directory. BadRequest where one exists.

        When the copy fails, that is StorageFailed naming the target; this store itself goes on.
        """

    @abstractmethod
    def compact(self) -> Compacted:
        """Give back the space of what was deleted. Readers wait meanwhile, so it is work for quiet hours."""

    @abstractmethod
    def size_bytes(self) -> int:
        """What the store takes now, with what could be given back."""

    @abstractmethod
    def close(self) -> None:
        """Sync and free everything, when no commit is under way. Snapshots still open end; closing twice is no harm."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
