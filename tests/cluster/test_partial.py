"""Keys that live where one wants them: five sites, three groups that overlap, judged by the traces."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from causal import PROTOCOLS
from kvstore import node
from kvstore.cluster import LocalCluster
from kvstore.errors import ConfigError
from kvstore.loop import Loop
from kvstore.opening import opened
from kvstore.plan import plan as plan_cluster
from kvstore.replica import Replica
from kvstore.trace import Trace
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import kv_pb2_grpc
from tests.cluster.inprocess import InProcessCluster
from tests.cluster.partial import NAMES, Judged, Plan, judge, random_placement, read_rows, run, write

SEEDS = range(3)
WRITES = 1000
CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal and name != "vector"]


class OneProcess(InProcessCluster):
    """Five nodes in one process; a stop is one that closes its trace."""

    def stop(self, name: str) -> None:
        self.kill(name)


def wishes_of(plan: Plan, protocol: str) -> dict[str, Any]:
    limits = {"heartbeat_ms": 50, "trace_segment_ms_max": 60_000}
    placed = {"names": list(NAMES), "placement": plan.groups, "links": plan.links}
    options = {"threshold": 6} if protocol == "extra-message" else {}  # so few units that it makes some
    return {**placed, "protocol": protocol, "options": options, "limits": limits}


def in_one_process(folder: Path, plan: Plan, protocol: str) -> Judged:
    with OneProcess(folder, trace=True, **wishes_of(plan, protocol)) as cluster:
        done = run(cluster, plan)
    return judge(read_rows(folder / "trace"), plan.groups, done)


@pytest.fixture
def traced_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces name no keys unless they are asked to; here they are."""
    monkeypatch.setattr(node, "Trace", partial(Trace, with_keys=True))


@pytest.mark.usefixtures("traced_keys")
@pytest.mark.parametrize("seed", SEEDS)
def test_no_site_gets_a_key_that_it_does_not_hold_and_causes_come_first(tmp_path: Path, seed: int) -> None:
    judged = in_one_process(tmp_path, Plan(seed, WRITES), "optimal")
    assert not judged.complaints, judged.complaints[:5]
    assert judged.messages > WRITES * 0.7 and judged.alone > 20 and judged.held > 20, judged


@pytest.mark.usefixtures("traced_keys")
@pytest.mark.parametrize("protocol", [name for name in CAUSAL if name != "optimal"])
def test_every_causal_protocol_but_vector_does_the_same(tmp_path: Path, protocol: str) -> None:
    judged = in_one_process(tmp_path, Plan(7, 600), protocol)
    assert not judged.complaints, judged.complaints[:5]
    assert judged.held > 0 and bool(judged.extras) == (protocol == "extra-message"), judged


def table(found: dict[str, Judged]) -> str:
    """Control bytes and units are those of one copy of a client's message, on average."""
    lines = [
        f"\n{'protocol':<10} {'messages':>9} {'copies':>7} {'to nobody':>10} {'held':>6} {'bytes':>7} {'units':>6}"
    ]
    for protocol, one in found.items():
        counts = f"{one.messages:>9} {one.copies:>7} {one.alone:>10} {one.held:>6}"
        lines.append(f"{protocol:<10} {counts} {one.control_bytes / one.copies:>7.1f} {one.units / one.copies:>6.1f}")
    return "\n".join(lines)


def test_real_processes_and_what_their_messages_carry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same writes under two protocols. What `optimal` leaves out, `matrix` sends with every copy."""
    plan, found = Plan(1, 2000), {}
    for protocol in ("optimal", "matrix"):
        with LocalCluster.create(tmp_path / protocol, trace=True, **wishes_of(plan, protocol)) as cluster:
            done = run(cluster, plan)
            cluster.down()
            found[protocol] = judge(read_rows(cluster.trace_folder), plan.groups, done)
    with capsys.disabled():
        print(table(found))
    for judged in found.values():
        assert not judged.complaints, judged.complaints[:5]
    assert found["optimal"].copies == found["matrix"].copies, "the same writes"
    assert found["optimal"].control_bytes < found["matrix"].control_bytes


# The judge can see


def test_a_payload_that_is_not_filtered_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: every destination gets the whole batch (SAFETY 15), and receivers do not look."""
    monkeypatch.setattr(Replica, "_for", lambda self, peer, updates: updates)
    monkeypatch.setattr("kvstore.replica.opened", lambda *given: opened(*given[:4]))
    plan = Plan(0, 200, rounds=1)
    with OneProcess(tmp_path, trace=True, **wishes_of(plan, "optimal")) as cluster:
        done = write(cluster, plan)
        nodes = [cluster.node(name) for name in NAMES]
        until(lambda: all(link.acked == link.sent for one in nodes for link in one.replica.links.values()))
    judged = judge(read_rows(tmp_path / "trace"), plan.groups, done)
    assert any("brought" in complaint for complaint in judged.complaints)
    assert any("changed" in complaint for complaint in judged.complaints)


def test_a_receiver_refuses_what_it_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bug at the sender alone, the link is refused and nothing is applied."""
    monkeypatch.setattr(Replica, "_for", lambda self, peer, updates: updates)
    with OneProcess(tmp_path, replicas=3, placement={b"x/": ("a", "b"), b"y/": ("c",)}) as cluster:
        with grpc.insecure_channel(cluster.endpoint("a")) as channel:
            operations = [kv.Operation(put=kv.Operation.Put(key=key, value=b"v")) for key in (b"x/1", b"y/1")]
            kv_pb2_grpc.KeyValueStub(channel).Batch(kv.BatchRequest(operations=operations), timeout=10)
        until(lambda: any("not held here" in one.alarm.message for one in cluster.node("b").alarms.current()))
        for name in "bc":
            assert keys_of(cluster, name) == []


def test_an_order_that_breaks_causes_is_caught(tmp_path: Path) -> None:
    """`fifo` delivers what comes in the order of each link alone."""
    judged = in_one_process(tmp_path, Plan(1, 500), "fifo")
    assert any("before" in complaint for complaint in judged.complaints)


# Where `vector` cannot go


def test_vector_with_partial_placement_is_refused() -> None:
    for seed in SEEDS:
        with pytest.raises(ConfigError, match="vector sends to everyone or to nobody"):
            plan_cluster(names=list(NAMES), protocol="vector", placement=random_placement(random.Random(seed)))


# Tombstones


def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def keys_of(cluster: InProcessCluster, name: str) -> list[bytes]:
    with cluster.node(name).storage.snapshot() as view:
        return [key for key, _ in view.scan("keys")]


def is_swept(cluster: InProcessCluster, name: str) -> bool:
    with cluster.node(name).storage.snapshot() as view:
        return not list(view.scan("keys")) and not list(view.scan("tombstones"))


def tombstones_go_although_one_site_hears_of_nothing(folder: Path, seconds: float = 20.0) -> None:
    """c holds none of it, never gets a message and never writes; it still has to promise that nothing older comes."""
    wishes: dict[str, Any] = {"replicas": 3, "placement": {b"x/": ("a", "b")}, "limits": {"heartbeat_ms": 20}}
    with InProcessCluster(folder, **wishes) as cluster:
        with grpc.insecure_channel(cluster.endpoint("a")) as channel:
            stub = kv_pb2_grpc.KeyValueStub(channel)
            for number in range(20):
                stub.Put(kv.PutRequest(key=b"x/%d" % number, value=b"v"), timeout=10)
                stub.Delete(kv.DeleteRequest(key=b"x/%d" % number), timeout=10)
        until(lambda: cluster.node("b").replica.links[0].applied == 40)
        assert cluster.node("c").replica.links[0].applied == 0
        for name in "ab":
            until(partial(is_swept, cluster, name), seconds)


def test_tombstones_go_everywhere_although_one_site_never_gets_a_delete(tmp_path: Path) -> None:
    tombstones_go_although_one_site_hears_of_nothing(tmp_path)


def test_heartbeats_that_tell_only_of_commits_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: an idle site promises what it last committed, so its clock stands still."""
    monkeypatch.setattr(Loop, "promised", lambda self: self.said.time)
    with pytest.raises(AssertionError, match="did not happen"):
        tombstones_go_although_one_site_hears_of_nothing(tmp_path, 2.0)
