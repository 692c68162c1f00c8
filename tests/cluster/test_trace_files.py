"""The traces of real processes: what was sealed can be read after a kill -9, and tells who had what delivered when."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

from kvstore.cluster import LocalCluster
from kvstore.tracefile import read_trace
from tests.cluster.stories import clients_of, until_equal, until_value


def test_a_killed_replica_leaves_a_trace_that_can_be_read(tmp_path: Path) -> None:
    limits = {"trace_segment_ms_max": 200}
    with LocalCluster.create(tmp_path, trace=True, limits=limits) as cluster, clients_of(cluster) as clients:
        for number in range(30):
            clients["a"].put(b"k%d" % number, b"v")
        until_value(clients["b"], b"k29", b"v")
        time.sleep(0.5)  # two segments long
        cluster.kill("b")
        before = read_trace(cluster.trace_folder).to_pylist()
        cluster.restart("b")
        clients["b"].put(b"last", b"word")
        until_equal(clients)
        cluster.down()
        after = read_trace(cluster.trace_folder).to_pylist()
    delivered = {(row["dot"]["site"], row["dot"]["seq"]) for row in before if row["event"] == "delivered"}
    sent = {(row["dot"]["site"], row["dot"]["seq"]) for row in after if row["event"] == "sent"}
    assert delivered and delivered <= sent
    events = Counter(row["event"] for row in after)
    assert events["restarted"] == 1 and events["applied"] >= 31 and events["committed"] > 0
    indexes = [(row["site"], row["incarnation"], row["index"]) for row in after]
    assert len(set(indexes)) == len(indexes), "no two rows have one place"
