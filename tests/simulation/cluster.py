"""A whole cluster in one process, decided by one seed: real replicas, a network that breaks, a disk that forgets.

The replicas are the pure parts of the product on the memory storage. A step and its commit are two events; a crash
between them loses the step, as it must, and nothing it would have said is said. Links are FIFO while they last; a crash
of either end loses what is under way, and the next connection starts with "I have up to k".
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from causal.execution import Carried, Delivered, Execution, Sent
from causal.model import Site, sites_of
from kvstore.config import Cluster, SiteConfig
from kvstore.effects import Acked, Arrived, Envelope, Heard, Input, Operation, Step, Tick, Write, Written
from kvstore.errors import KvError
from kvstore.layout import outbox_key, outbox_number
from kvstore.persist import open_replica, save
from kvstore.replica import Replica
from kvstore.storage.memory import MemoryStorage
from kvstore.update import Record, Version, unpack_record

LOST_ANSWERS = 0.1  # share of answers that do not reach the client, who asks again


def make_cluster(sites: int, protocol: str, **settings: Any) -> Cluster:
    names = "abcdefghijklmnop"[:sites]
    configs = tuple(
        SiteConfig(name, number, f"127.0.0.1:{4000 + number}", f"127.0.0.1:{5000 + number}", name)
        for number, name in enumerate(names)
    )
    return Cluster("simulated", configs, {b"": tuple(names)}, protocol=protocol, **settings)


@dataclass(slots=True)
class Asked:
    """A client's write, until it is answered; a client that gets no answer asks again."""

    write: Write
    answer: Written | KvError | None = None


@dataclass(slots=True)
class Node:
    """One replica and its disk. `replica` is None while it is down."""

    storage: MemoryStorage = field(default_factory=MemoryStorage)
    replica: Replica | None = None
    inbox: list[tuple[Input, Asked | None]] = field(default_factory=list)
    pending: tuple[Step, list[Asked | None]] | None = None  # stepped, not committed


class SimulatedCluster:
    """`run` does so many random things; `settle` heals everything and lets it come to rest."""

    def __init__(self, cluster: Cluster, seed: int, *, crashes: float = 0.01) -> None:
        self.cluster = cluster
        self.rng = random.Random(f"cluster {seed}")
        self.crashes = crashes
        self.now_ms = 1_700_000_000_000
        self.nodes = [Node() for _ in cluster.sites]
        self.wires: dict[tuple[Site, Site], deque[Input]] = {}  # what is under way, by sender and receiver
        self.execution = Execution(len(cluster.sites), cluster.protocol)
        self.acknowledged: dict[bytes, list[tuple[Version, bytes | None]]] = {}
        self.effects: dict[bytes, int] = {}  # how often each request was done
        self.expiring: set[bytes] = set()  # keys that were ever given a time to live
        self.unanswered: list[tuple[Site, Asked]] = []
        self.counts = {"writes": 0, "crashes": 0, "restarts": 0, "commits": 0, "repeats": 0, "held": 0}
        self._request = 0
        for site in range(len(self.nodes)):
            self.start(site)

    # What can happen

    def run(self, actions: int) -> None:
        for _ in range(actions):
            self.now_ms += self.rng.randint(0, 3)
            self._act()

    def _act(self) -> None:
        dice, site = self.rng.random(), self.rng.randrange(len(self.nodes))
        node = self.nodes[site]
        if dice < self.crashes:
            if node.replica is not None:
                self.crash(site)
        elif node.replica is None:
            if self.rng.random() < 0.2:
                self.start(site)
        elif dice < 0.2:
            self._client(site)
        elif dice < 0.5:
            self._step(site)
        elif dice < 0.7:
            self._commit(site)
        elif dice < 0.75:
            self._housekeeping(site)
        else:
            self._carry()

    def _client(self, site: Site) -> None:
        """A new write, or a retry of one whose replica did not answer."""
        if self.unanswered and self.rng.random() < 0.3:
            at, asked = self.unanswered[self.rng.randrange(len(self.unanswered))]
            if at == site:
                self.nodes[site].inbox.append((asked.write, asked))
            return
        self._request += 1
        count = self.rng.choice((1, 1, 1, 3))
        keys = self.rng.sample(range(12), count)
        operations = tuple(
            Operation(b"k%d" % key, None if self.rng.random() < 0.2 else b"v%d" % self._request, self._ttl())
            for key in keys
        )
        self.expiring |= {one.key for one in operations if one.ttl_ms}
        asked = Asked(Write(operations, b"r%d" % self._request))
        self.unanswered.append((site, asked))
        self.nodes[site].inbox.append((asked.write, asked))
        self.counts["writes"] += 1

    def _ttl(self) -> int:
        return self.rng.randint(1, 2000) if self.rng.random() < 0.1 else 0

    def _step(self, site: Site) -> None:
        node = self.nodes[site]
        if node.pending is not None or not node.inbox or node.replica is None:
            return
        taken, node.inbox = node.inbox, []
        with node.storage.snapshot() as view:
            step = node.replica.step([one for one, _ in taken], self.now_ms, view)
        assert not step.refused, step.refused
        if step.changed:
            save(node.replica, step.batch)
        node.pending = (step, [asked for _, asked in taken])

    def _commit(self, site: Site) -> None:
        """The disk has it: now the replica may speak."""
        node = self.nodes[site]
        if node.pending is None:
            return
        (step, asked), node.pending = node.pending, None
        if step.changed:
            node.storage.commit(step.batch)
            self.counts["commits"] += 1
        self._record(site, step)
        for peer, envelopes in step.sends.items():
            if (site, peer) in self.wires:
                self.wires[site, peer].extend(Arrived(site, envelope) for envelope in envelopes)
        for peer, up_to in step.acks.items():
            if (peer, site) in self.wires:
                self.nodes[peer].inbox.append((Acked(site, up_to), None))
        for place, answer in step.answers.items():
            one = asked[place]
            assert one is not None
            if isinstance(answer, Written) and not answer.is_repeat:
                self.effects[one.write.request_id] = self.effects.get(one.write.request_id, 0) + 1
            if self.rng.random() > LOST_ANSWERS:
                self._answered(site, one, answer)

    def _answered(self, site: Site, asked: Asked, answer: Written | KvError) -> None:
        if (site, asked) in self.unanswered:
            self.unanswered.remove((site, asked))
        if isinstance(answer, Written):
            self.counts["repeats"] += answer.is_repeat
            if asked.answer is not None:
                assert isinstance(asked.answer, Written) and asked.answer.versions == answer.versions, "one effect"
            for one, version in zip(asked.write.operations, answer.versions, strict=True):
                self.acknowledged.setdefault(one.key, []).append((version, one.value))
        asked.answer = answer

    def _housekeeping(self, site: Site) -> None:
        node = self.nodes[site]
        node.inbox.append((Tick(), None))
        if node.replica is not None and node.pending is None and not node.inbox[:-1]:
            for (sender, _), wire in self.wires.items():
                if sender == site:
                    wire.append(Heard(site, node.replica.clock.latest, self.now_ms))

    def _carry(self) -> None:
        """One link brings its next thing."""
        busy = [pair for pair, wire in self.wires.items() if wire]
        if busy:
            _, receiver = pair = self.rng.choice(busy)
            self.nodes[receiver].inbox.append((self.wires[pair].popleft(), None))

    # Crashes and connections

    def crash(self, site: Site) -> None:
        self.counts["crashes"] += 1
        node = self.nodes[site]
        node.replica, node.pending, node.inbox = None, None, []
        for pair in [pair for pair in self.wires if site in pair]:
            del self.wires[pair]
        for other in self.nodes:  # what a broken connection brought, but nobody has taken
            other.inbox = [(one, asked) for one, asked in other.inbox if getattr(one, "peer", None) != site]

    def start(self, site: Site) -> None:
        self.counts["restarts"] += 1
        node = self.nodes[site]
        with node.storage.snapshot() as view:
            node.replica = open_replica(self.cluster, site, view)
        for peer, other in enumerate(self.nodes):
            if peer != site and other.replica is not None:
                self._connect(site, peer)
                self._connect(peer, site)

    def _connect(self, sender: Site, receiver: Site) -> None:
        """ "I have up to k": the sender goes on from there, out of its outbox."""
        node, replica = self.nodes[sender], self.nodes[receiver].replica
        assert replica is not None
        have = replica.links[sender].received
        wire: deque[Input] = deque()
        self.wires[sender, receiver] = wire
        with node.storage.snapshot() as view:
            start, stop = outbox_key(receiver, have + 1), outbox_key(receiver + 1, 0)
            for key, packed in view.scan("outbox", start, stop):
                wire.append(Arrived(sender, Envelope.unpack(outbox_number(key), packed)))

    # The end

    def settle(self, rounds: int = 500) -> None:
        """Everybody is up, every link works, every client asks until it is answered; until nothing happens any more."""
        for site, node in enumerate(self.nodes):
            if node.replica is None:
                self.start(site)
        for _ in range(rounds):
            self.now_ms += 100
            for site, node in enumerate(self.nodes):
                node.inbox += [(asked.write, asked) for at, asked in self.unanswered if at == site]
                self._commit(site)
                self._housekeeping(site)
                self._step(site)
                self._commit(site)
            while any(self.wires.values()):
                self._carry()
            if self._is_quiet():
                return
        raise AssertionError("the cluster does not come to rest")

    def _is_quiet(self) -> bool:
        """Nothing is asked, under way, waiting, or kept for somebody."""
        replicas = [node.replica for node in self.nodes if node.replica is not None]
        kept = any(link.sent != link.acked for replica in replicas for link in replica.links.values())
        waiting = any(not isinstance(one, Heard) for node in self.nodes for one, _ in node.inbox)
        return not (self.unanswered or kept or waiting)

    def keys_at(self, site: Site) -> dict[bytes, Record]:
        with self.nodes[site].storage.snapshot() as view:
            return {key: unpack_record(data) for key, data in view.scan("keys")}

    def _record(self, site: Site, step: Step) -> None:
        """What this commit made true, for the oracle."""
        known = set()
        for event in step.events:
            if event.kind == "sent" and event.dot not in known:
                known.add(event.dot)
                carried = {peer: Carried(0) for peer in sites_of(event.to)}
                self.execution.records.append(Sent(site, event.dot, event.to, carried, True, event.is_extra))
            elif event.kind == "delivered":
                self.execution.records.append(Delivered(site, event.dot))
            elif event.kind == "held":
                self.counts["held"] += 1
