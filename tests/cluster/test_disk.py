"""A disk that takes no more: the process ends with one clear line, and everything acknowledged is there afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstore.client import Client, connect
from kvstore.cluster import LocalCluster
from kvstore.errors import KvError

VALUE = b"v" * 10_000


def fill(kv: Client, acknowledged: list[bytes]) -> None:
    for number in range(1000):
        key = b"%04d" % number
        kv.put(key, VALUE, timeout_s=2)
        acknowledged.append(key)


def test_a_full_disk_ends_the_process_with_one_line_and_loses_nothing(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path, replicas=1, limits={"map_bytes_max": 4 << 20})
    acknowledged: list[bytes] = []
    with cluster:
        with connect(cluster.endpoint("a"), timeout_s=5) as kv:
            with pytest.raises(KvError) as failed:
                fill(kv, acknowledged)
            assert not failed.value.definite
        process = cluster.process("a")
        assert process is not None and process.wait(10)
        assert process.exit_code() == 3
        last = cluster.log_file("a").read_text().splitlines()[-1]
        assert "the map is full" in last and "Traceback" not in cluster.log_file("a").read_text()
        assert len(acknowledged) > 50

        cluster.file.write_text(cluster.file.read_text().replace(str(4 << 20), str(64 << 20)))
        cluster.start("a")
        with connect(cluster.endpoint("a")) as kv:
            found = {entry.key for entry in kv.scan()}
            assert found >= set(acknowledged)
            kv.put(b"again", b"there is room")
