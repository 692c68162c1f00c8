"""Messages that no honest peer sends, and what an honest one cannot help: nothing changes, and the replica goes on."""

from __future__ import annotations

from collections.abc import Sequence

from causal.blocks import pack_numbers
from kvstore.effects import Arrived, Envelope, Heard, Input, Operation, Step, Tick, Write, Written
from kvstore.errors import Amnesia, ClockSkew, ClusterMismatch, LinkGap
from kvstore.persist import open_replica
from kvstore.replica import Replica
from kvstore.storage.memory import MemoryStorage
from tests.simulation.cluster import make_cluster

NOW_MS = 1_700_000_000_000


class Site:
    def __init__(self, number: int) -> None:
        self.storage = MemoryStorage()
        with self.storage.snapshot() as view:
            self.replica: Replica = open_replica(make_cluster(3, "optimal"), number, view)

    def do(self, *inputs: Input, now_ms: int = NOW_MS) -> Step:
        with self.storage.snapshot() as view:
            step = self.replica.step(inputs, now_ms, view)
        if step.changed:
            self.storage.commit(step.batch)
        return step


def put(key: bytes = b"k") -> Write:
    return Write((Operation(key, b"v"),))


def message_of(site: Site, to: int) -> Envelope:
    return site.do(put()).sends[to][0]


def refusal_of(at: Site, peer: int, envelopes: Sequence[Envelope]) -> object:
    step = at.do(*(Arrived(peer, envelope) for envelope in envelopes))
    assert not step.changed
    return step.refused[peer]


def test_a_time_that_leaves_no_later_one_is_refused_and_writes_go_on() -> None:
    b = Site(1)
    envelope = message_of(Site(0), 1)._replace(time=(1 << 64) - 1)
    assert isinstance(refusal_of(b, 0, [envelope]), ClusterMismatch)
    assert isinstance(b.do(put()).answers[0], Written)


def test_updates_newer_than_their_message_are_refused() -> None:
    assert isinstance(refusal_of(Site(1), 0, [message_of(Site(0), 1)._replace(time=1)]), ClusterMismatch)


def test_a_malformed_witness_is_refused_where_it_would_be_read() -> None:
    b = Site(1)
    b.replica.notes.start_witness(delivered=[0, 0, 0], clock=0)
    envelope = message_of(Site(0), 1)
    assert isinstance(refusal_of(b, 0, [envelope._replace(witness=b"\xff")]), ClusterMismatch)
    assert not b.do(Arrived(0, envelope._replace(witness=pack_numbers([1, 0, 0])))).refused


def test_a_message_that_names_what_we_never_sent_says_that_we_forgot() -> None:
    a, b = Site(0), Site(1)
    b.do(Arrived(0, message_of(a, 1)))
    reply = b.do(put()).sends[0]
    forgetful = Site(0)
    refused = refusal_of(forgetful, 1, reply)
    assert isinstance(refused, Amnesia) and refused.details["site"] == "a"


def test_the_first_reason_is_the_one_that_is_told() -> None:
    a, b = Site(0), Site(1)
    first, second = message_of(a, 1), message_of(a, 1)
    assert isinstance(refusal_of(b, 0, [first._replace(control=b"?"), second]), ClusterMismatch)
    assert isinstance(refusal_of(b, 0, [second]), LinkGap)


def test_a_heartbeat_that_waited_long_refuses_nobody_for_long() -> None:
    """It measures the way it came as well; and a peer that is gone sends no better one."""
    a = Site(0)
    late = Heard(1, 0, NOW_MS - 3000)
    a.do(late)
    assert isinstance(a.do(put()).answers[0], ClockSkew), "one reading is all we have"
    a.do(Heard(1, 0, NOW_MS - 10))
    assert isinstance(a.do(put()).answers[0], Written), "of two readings the lesser is nearer to the truth"
    b = Site(0)
    b.do(late)
    b.do(Tick(), now_ms=NOW_MS + 6000)
    assert isinstance(b.do(put(), now_ms=NOW_MS + 6000).answers[0], Written), "silence proves nothing"
