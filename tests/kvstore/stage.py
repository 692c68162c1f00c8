"""Replicas on a stage: real ones on memory, whose messages come over when the test says so."""

from __future__ import annotations

from collections import deque
from typing import Any

from causal import PROTOCOLS
from causal.model import Dot, Site
from kvstore.effects import Arrived, Envelope, Input, Operation, Step, Write, Written
from kvstore.persist import open_replica, save
from kvstore.storage.memory import MemoryStorage
from tests.simulation.cluster import make_cluster

CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
CAN_SEND_TO_SOME = [name for name in CAUSAL if name != "vector"]


class Stage:
    def __init__(self, sites: int, protocol: str, **settings: Any) -> None:
        self.cluster = make_cluster(sites, protocol, **settings)
        self.storages = [MemoryStorage() for _ in range(sites)]
        self.replicas = []
        for site, storage in enumerate(self.storages):
            with storage.snapshot() as view:
                self.replicas.append(open_replica(self.cluster, site, view))
        self.under_way: dict[tuple[Site, Site], deque[Envelope]] = {}
        self.now_ms = 1_700_000_000_000

    def step(self, site: Site, *inputs: Input) -> Step:
        replica, storage = self.replicas[site], self.storages[site]
        with storage.snapshot() as view:
            step = replica.step(inputs, self.now_ms, view)
        assert not step.refused, step.refused
        if step.changed:
            save(replica, step.batch)
            storage.commit(step.batch)
        for peer, envelopes in step.sends.items():
            self.under_way.setdefault((site, peer), deque()).extend(envelopes)
        return step

    def write(self, site: Site, key: bytes = b"k", value: bytes = b"v") -> Dot:
        """One write, in a message of its own."""
        step = self.step(site, Write((Operation(key, value),)))
        assert isinstance(step.answers[0], Written), step.answers[0]
        return next(event.dot for event in step.events if event.kind == "applied")

    def carry(self, sender: Site, *receivers: Site, count: int | None = None) -> None:
        """What is under way from one to the others comes over; of each link all, or the first so many."""
        for receiver in receivers:
            wire = self.under_way.get((sender, receiver), deque())
            for _ in range(len(wire) if count is None else count):
                self.step(receiver, Arrived(sender, wire.popleft()))
