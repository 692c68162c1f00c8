"""Many small clusters, each decided by a seed, with crashes between step and commit; then the books are checked."""

from __future__ import annotations

import pytest

from causal.oracle import judge
from causal.protocols import PROTOCOLS
from tests.simulation.cluster import SimulatedCluster, make_cluster

SEEDS = 12


def run(protocol: str, seed: int, *, sites: int | None = None, crashes: float = 0.01) -> SimulatedCluster:
    cluster = SimulatedCluster(make_cluster(sites or 2 + seed % 4, protocol), seed, crashes=crashes)
    cluster.run(1500)
    cluster.settle()
    return cluster


def visible(cluster: SimulatedCluster, site: int) -> dict[bytes, tuple[object, ...]]:
    """What all replicas must agree on. Tombstones may go earlier here than there; the applying commit is local."""
    alive = {key: one for key, one in cluster.keys_at(site).items() if one.is_alive(cluster.now_ms)}
    return {key: (one.version, one.value, one.expires_ms, one.dot, one.index) for key, one in alive.items()}


def complaints(cluster: SimulatedCluster) -> list[str]:
    """Everything that is wrong with a cluster at rest."""
    found = []
    states = [visible(cluster, site) for site in range(len(cluster.nodes))]
    if any(state != states[0] for state in states):
        found.append("the replicas differ")
    for key, written in cluster.acknowledged.items():
        final = [state.get(key) for state in states]
        newest = max(version for version, _ in written)
        deleted = dict(written)[newest] is None
        if any(record is None for record in final) and not deleted and key not in cluster.expiring:
            found.append(f"{key!r}: an acknowledged write is gone")
        if any(record is not None and record[0] < newest for record in final):  # type: ignore[operator]
            found.append(f"{key!r}: an acknowledged write was replaced by an older one")
    if any(count != 1 for count in cluster.effects.values()):
        found.append("a request was done more than once")
    if any(node.replica is not None and node.replica.ordering.held for node in cluster.nodes):
        found.append("a message is still held")
    verdict = judge(cluster.execution)
    if cluster.cluster.protocol not in ("fifo", "unordered") and not verdict.ok:
        found.append(verdict.explain())
    if verdict.exactly_once or verdict.liveness:
        found.append(verdict.explain())
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_acknowledged_is_lost_and_all_replicas_end_equal(protocol: str) -> None:
    totals: dict[str, int] = {}
    for seed in range(SEEDS):
        cluster = run(protocol, seed)
        assert complaints(cluster) == [], f"seed {seed}, {protocol}"
        for name, count in cluster.counts.items():
            totals[name] = totals.get(name, 0) + count
    assert totals["crashes"] > SEEDS and totals["repeats"] and totals["commits"] > 100 * SEEDS, totals
