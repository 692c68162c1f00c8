"""A record that cannot be trusted: whoever needs it is told, nothing is half done, and the replica goes on."""

from __future__ import annotations

from collections.abc import Iterator

from kvstore.effects import ABSENT, Arrived, Operation, Step, Tick, Write, Written
from kvstore.errors import CorruptRecord
from kvstore.persist import open_replica
from kvstore.replica import Replica
from kvstore.storage.contract import Snapshot
from kvstore.storage.memory import MemoryStorage
from tests.simulation.cluster import make_cluster

BAD = b"bad"
NOW_MS = 1_700_000_000_000


class Rotten(Snapshot):
    """A view in which one key does not pass its check."""

    def __init__(self, view: Snapshot) -> None:
        self._view = view

    @property
    def number(self) -> int:
        return self._view.number

    def get(self, table: str, key: bytes) -> bytes | None:
        if (table, key) == ("keys", BAD):
            raise CorruptRecord(table=table, key="bad", why="its checksum is wrong")
        return self._view.get(table, key)

    def count(self, table: str) -> int:
        return self._view.count(table)

    def scan(
        self,
        table: str,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, bytes]]:
        return self._view.scan(table, start, stop, limit=limit, reverse=reverse)

    def close(self) -> None:
        self._view.close()


def replica_of(site: int) -> tuple[Replica, MemoryStorage]:
    storage = MemoryStorage()
    with storage.snapshot() as view:
        return open_replica(make_cluster(3, "optimal"), site, view), storage


def step(replica: Replica, storage: MemoryStorage, *inputs: object, now_ms: int = NOW_MS) -> Step:
    with Rotten(storage.snapshot()) as view:
        done = replica.step(inputs, now_ms, view)  # type: ignore[arg-type]
    if done.changed:
        storage.commit(done.batch)
    return done


def test_a_condition_on_it_is_an_error_and_its_neighbours_are_done() -> None:
    replica, storage = replica_of(0)
    compared = Write((Operation(b"other", b"v"), Operation(BAD, b"v", expect=ABSENT)))
    done = step(replica, storage, compared, Write((Operation(b"good", b"v"),)))
    assert isinstance(done.answers[0], CorruptRecord) and done.answers[0].definite
    assert isinstance(done.answers[1], Written)
    assert [key for table, key, _ in done.batch.puts if table == "keys"] == [b"good"]


def test_a_plain_write_replaces_it() -> None:
    replica, storage = replica_of(0)
    assert isinstance(step(replica, storage, Write((Operation(BAD, b"new"),))).answers[0], Written)


def test_a_message_that_must_be_compared_with_it_stays_on_its_link() -> None:
    a, a_disk = replica_of(0)
    b, b_disk = replica_of(1)
    sent = step(a, a_disk, Write((Operation(BAD, b"from a"),))).sends[1]
    before = b.links[0].received, list(b.ordering.delivered)
    done = step(b, b_disk, *(Arrived(0, envelope) for envelope in sent))
    assert isinstance(done.refused[0], CorruptRecord)
    assert not done.changed and (b.links[0].received, list(b.ordering.delivered)) == before


def test_a_sweep_leaves_it_alone() -> None:
    replica, storage = replica_of(0)
    step(replica, storage, Write((Operation(BAD, b"short", ttl_ms=5),)))
    done = step(replica, storage, Tick(), now_ms=NOW_MS + 1000)
    assert [key for table, key, _ in done.batch.puts if table == "keys"] == []
