"""The corridor between the doors and the disk, with a disk that can be stopped in the middle of a commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvstore.effects import Arrived, Envelope, Happened, Operation, Write, Written
from kvstore.errors import InboxFull, KvError, LinkGap, Stopping, StorageFailed
from kvstore.limits import Limits
from kvstore.loop import Loop, Outlet, Results
from kvstore.persist import open_replica
from kvstore.storage.contract import Batch
from kvstore.storage.memory import MemoryStorage
from kvstore.update import unpack_record
from tests.simulation.cluster import make_cluster


class SlowStorage(MemoryStorage):
    """Commits wait for the test's permission, or fail."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.go.set()
        self.sizes: list[int] = []
        self.broken = False

    def commit(self, batch: Batch) -> None:
        self.go.wait(10)
        if self.broken:
            raise StorageFailed(path="memory", why="the test broke it")
        self.sizes.append(len([put for put in batch.puts if put[0] == "keys"]))
        super().commit(batch)


class RelaxedStorage(SlowStorage):
    """A commit is durable only after the next one, or a sync."""

    def __init__(self) -> None:
        super().__init__()
        self.synced = 0
        self.may_sync = True

    @property
    def durable(self) -> int:
        return max(self.synced, self.number - 1)

    def sync(self) -> None:
        if not self.may_sync:
            raise StorageFailed(path="memory", why="the test broke it")
        self.synced = self.number


class Replica:
    """A loop with its storage, and what it said."""

    def __init__(self, storage: SlowStorage | None = None, **limits: int) -> None:
        self.storage = storage or SlowStorage()
        self.said: list[tuple[Any, ...]] = []
        cluster = make_cluster(3, "optimal", limits=Limits(**limits))
        with self.storage.snapshot() as view:
            replica = open_replica(cluster, 0, view)
        self.loop = Loop(replica, self.storage, self._outlet(), lambda: 1_700_000_000_000)

    def _outlet(self) -> Outlet:
        def send(peer: int, envelopes: list[Envelope]) -> None:
            self.said.append(("send", peer, [envelope.number for envelope in envelopes]))

        def ack(peer: int, up_to: int) -> None:
            self.said.append(("ack", peer, up_to))

        def refuse(peer: int, error: KvError) -> None:
            self.said.append(("refuse", peer, error))

        def happened(happened: Happened) -> None:
            self.said.append(("happened", happened.commit))

        return Outlet(send, ack, refuse, happened)

    def write(self, write: Write) -> asyncio.Future[Results]:
        return self.loop.ask((write,))


def put(key: bytes, value: bytes = b"v", request_id: bytes = b"") -> Write:
    return Write((Operation(key, value),), request_id)


def drive(replica: Replica, story: Callable[[Replica], Awaitable[None]]) -> None:
    """Run a story beside the loop, then stop it."""

    async def both() -> None:
        running = asyncio.create_task(replica.loop.run())
        try:
            await story(replica)
            replica.loop.stop()
            await asyncio.wait_for(running, 10)
        finally:
            replica.storage.go.set()
            running.cancel()

    asyncio.run(both())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


def test_nothing_is_said_before_the_commit_and_everything_after() -> None:
    async def story(replica: Replica) -> None:
        replica.storage.go.clear()
        answer = replica.write(put(b"k"))
        await asyncio.sleep(0.05)
        assert not answer.done() and replica.said == []
        replica.storage.go.set()
        (written,) = await answer
        assert isinstance(written, Written) and written.commit == 1
        assert [said for said in replica.said if said[0] == "send"] == [("send", 1, [1]), ("send", 2, [1])]
        with replica.storage.snapshot() as view:
            data = view.get("keys", b"k")
            assert data is not None and unpack_record(data).version == written.versions[0]

    drive(Replica(), story)


def test_writes_that_come_during_a_commit_share_the_next_one_and_one_stamp() -> None:
    async def story(replica: Replica) -> None:
        replica.storage.go.clear()
        first = replica.write(put(b"first"))
        await asyncio.sleep(0.05)
        rest = [replica.write(put(b"k%d" % number)) for number in range(100)]
        replica.storage.go.set()
        await asyncio.gather(first, *rest)
        assert replica.storage.sizes == [1, 100]
        assert ("send", 1, [2]) in replica.said, "a hundred writes, one message"

    drive(Replica(), story)


def test_a_full_inbox_refuses_at_once_and_definitely() -> None:
    async def story(replica: Replica) -> None:
        replica.storage.go.clear()
        answers = [replica.write(put(b"first"))]
        await asyncio.sleep(0.05)
        answers += [replica.write(put(b"k%d" % number)) for number in range(3)]
        with pytest.raises(InboxFull) as refused:
            replica.write(put(b"one too many"))
        assert refused.value.definite
        replica.storage.go.set()
        await asyncio.gather(*answers)

    drive(Replica(inbox_max=3), story)


def test_a_peer_is_not_refused_but_waits_while_its_queue_is_full() -> None:
    async def story(replica: Replica) -> None:
        replica.storage.go.clear()
        answer = replica.write(put(b"k"))
        await asyncio.sleep(0.05)
        envelope = Envelope(7, 0, b"", b"")  # out of order: refused by the step, but taken by the door
        await replica.loop.offer(1, [Arrived(1, envelope)])
        second = asyncio.create_task(replica.loop.offer(1, [Arrived(1, envelope)]))
        await asyncio.sleep(0.05)
        assert not second.done()
        replica.storage.go.set()
        await asyncio.gather(answer, second)
        await until(lambda: len([said for said in replica.said if said[0] == "refuse"]) == 2)
        assert all(isinstance(said[2], LinkGap) for said in replica.said if said[0] == "refuse")

    drive(Replica(link_queue_max=1), story)


def test_a_failed_commit_ends_the_loop_and_tells_the_client_that_nobody_knows() -> None:
    replica = Replica()
    replica.storage.broken = True

    async def story() -> None:
        running = asyncio.create_task(replica.loop.run())
        answer = replica.write(put(b"k"))
        with pytest.raises(StorageFailed) as failed:
            await answer
        assert not failed.value.definite
        with pytest.raises(StorageFailed):
            await running

    asyncio.run(story())
    assert replica.said == []


def test_the_record_of_a_commit_is_there_before_anybody_can_read_the_commit() -> None:
    async def story(replica: Replica) -> None:
        replica.storage.go.clear()
        answer = replica.write(put(b"k"))
        await asyncio.sleep(0.05)
        assert replica.loop.committed(1).changes == 1
        assert replica.loop.committed(0).changes == 0
        replica.storage.go.set()
        await answer
        with replica.storage.snapshot() as view:
            assert replica.loop.committed(view.number).number == view.number == 1

    drive(Replica(), story)


def test_stopping_finishes_what_waits_and_refuses_what_comes_after() -> None:
    async def story(replica: Replica) -> None:
        answers = [replica.write(put(b"k%d" % number)) for number in range(10)]
        replica.loop.stop()
        with pytest.raises(Stopping):
            replica.write(put(b"late"))
        assert all(isinstance(answer, Written) for (answer,) in await asyncio.gather(*answers))

    drive(Replica(), story)


def test_a_write_that_nobody_waits_for_any_more_is_not_done() -> None:
    async def story(replica: Replica) -> None:
        replica.storage.go.clear()
        first, second = replica.write(put(b"first")), None
        await asyncio.sleep(0.05)
        second = replica.write(put(b"second"))
        second.cancel()
        replica.storage.go.set()
        await first
        await asyncio.sleep(0.05)
        assert replica.storage.sizes == [1]

    drive(Replica(), story)


def test_peers_hear_of_a_commit_only_when_it_is_durable_and_clients_at_once() -> None:
    """With the sync broken the client has its answer, and nobody else has heard of anything."""
    storage = RelaxedStorage()
    storage.may_sync = False
    replica = Replica(storage)

    async def story() -> None:
        running = asyncio.create_task(replica.loop.run())
        (written,) = await replica.write(put(b"k"))
        assert isinstance(written, Written)
        with pytest.raises(StorageFailed):
            await running

    asyncio.run(story())
    assert replica.said == []


def test_an_idle_replica_syncs_by_itself_and_then_speaks() -> None:
    async def story(replica: Replica) -> None:
        await replica.write(put(b"k"))
        await until(lambda: ("send", 1, [1]) in replica.said)

    drive(Replica(RelaxedStorage()), story)
