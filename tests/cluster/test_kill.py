"""kill -9 of any replica at any moment, with writers running: nothing acknowledged is lost, nothing happens twice.

Every write has a key of its own, so afterwards each replica's changes tell the whole story: which message (dot) carried
which writes. A dot that was used twice would carry different writes at different replicas; a retry that acted twice
would show as two changes of one key.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from causal.model import Dot
from kvstore.client import Client, connect
from kvstore.cluster import LocalCluster
from kvstore.errors import KvError
from kvstore.update import Version
from kvstore.values import Position, Put
from tests.cluster.stories import clients_of, until_equal

WRITERS = 2  # at each replica
Story = dict[Dot, frozenset[tuple[bytes, Version]]]


class Writer(threading.Thread):
    """Writes at one replica until it is told to stop, and remembers what was acknowledged."""

    def __init__(self, cluster: LocalCluster, site: str, number: int) -> None:
        super().__init__(name=f"writer {number} at {site}")
        self.stopping = threading.Event()
        self.acknowledged: dict[bytes, Version] = {}
        self.failed = 0
        self.mistake: BaseException | None = None
        self._endpoint = cluster.endpoint(site)
        self._prefix = f"{site}/{number}/".encode()

    def run(self) -> None:
        try:
            with connect(self._endpoint, timeout_s=30) as kv:
                written = 0
                while not self.stopping.is_set():
                    written += 1
                    self._write(kv, written)
        except BaseException as error:
            self.mistake = error

    def _write(self, kv: Client, number: int) -> None:
        keys = [self._prefix + b"%06d/%d" % (number, part) for part in range(3 if number % 10 == 0 else 1)]
        try:
            if len(keys) == 1:
                self.acknowledged[keys[0]] = kv.put(keys[0], b"v").version
            else:
                versions = kv.batch([Put(key, b"v") for key in keys]).versions
                self.acknowledged.update(zip(keys, versions, strict=True))
        except KvError:
            self.failed += 1


def kill_cycles(folder: Path, protocol: str, *, cycles: int, seed: int) -> None:
    chance = random.Random(seed)
    with LocalCluster.create(folder, protocol=protocol) as cluster, clients_of(cluster) as clients:
        writers = [Writer(cluster, site, number) for site in cluster.names for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(cycles):
                time.sleep(chance.uniform(0.02, 0.3))
                victim = chance.choice(cluster.names)
                cluster.kill(victim)
                time.sleep(chance.uniform(0, 0.1))
                cluster.restart(victim)
        finally:
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join(60)
        assert [writer.mistake for writer in writers if writer.mistake] == []
        acknowledged = {key: version for writer in writers for key, version in writer.acknowledged.items()}
        print(f"{cycles} kills, {len(acknowledged)} acknowledged, {sum(writer.failed for writer in writers)} failed")
        assert len(acknowledged) > 10 * cycles, "too little was written for the kills to mean anything"
        until_equal(clients, 60)
        for name, kv in clients.items():
            judge(name, kv, acknowledged)
        stories = [story_of(kv) for kv in clients.values()]
        assert stories[0] == stories[1] == stories[2], "a message carried different writes at different replicas"


def judge(name: str, kv: Client, acknowledged: Mapping[bytes, Version]) -> None:
    found = {entry.key: entry.version for entry in kv.scan()}
    lost = [key for key in acknowledged if key not in found]
    assert lost == [], f"{len(lost)} acknowledged writes are not at {name}"
    wrong = [key for key, version in acknowledged.items() if found[key] != version]
    assert wrong == [], f"{len(wrong)} writes have another version at {name} than they were acknowledged with"


def story_of(kv: Client) -> Story:
    """Everything that was ever applied at a replica, message by message."""
    status = kv.status()
    story: dict[Dot, set[tuple[bytes, Version]]] = {}
    counts: Counter[bytes] = Counter()
    total = sum(1 for _ in kv.scan())
    start = Position(site=status.site_number, incarnation=status.incarnation, index=0)
    with kv.watch(position=start) as watch:
        while len(counts) < total:
            change = next(watch)
            story.setdefault(change.dot, set()).add((change.key, change.version))
            counts[change.key] += 1
    twice = [key for key, count in counts.items() if count > 1]
    assert twice == [], f"{len(twice)} writes happened twice"
    return {dot: frozenset(writes) for dot, writes in story.items()}


def seeds(count: int) -> list[int]:
    """KVSTORE_SEED=n runs one seed again."""
    return [int(os.environ["KVSTORE_SEED"])] if "KVSTORE_SEED" in os.environ else list(range(count))


@pytest.mark.parametrize("seed", seeds(1))
def test_nothing_is_lost_or_doubled_by_twenty_kills(seed: int, tmp_path: Path) -> None:
    kill_cycles(tmp_path, "optimal", cycles=20, seed=seed)


ANSWERS_BEFORE_THE_COMMIT = """
from kvstore.loop import Loop

commit = Loop._commit

async def answer_first(self, step):
    for place, asked in self.planted:
        if not asked.answer.done():
            asked.answer.set_result([step.answers[place + at] for at in range(len(asked.writes))])
    await commit(self, step)

take = Loop._take

def remember(self):
    inputs, self.planted = take(self)
    return inputs, self.planted

Loop._commit, Loop._take = answer_first, remember
"""


def test_a_replica_that_answers_before_the_commit_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug, put into the replicas of this test by the name that Python imports at every start."""
    (tmp_path / "plant").mkdir()
    (tmp_path / "plant/sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv or '-m' in sys.orig_argv:\n"
        + "".join(f"    {line}\n" for line in ANSWERS_BEFORE_THE_COMMIT.splitlines())
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plant"))
    with pytest.raises(AssertionError, match="acknowledged writes are not at"):
        kill_cycles(tmp_path / "cluster", "optimal", cycles=8, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["optimal", "false-causality", "extra-message", "matrix", "pruning"])
def test_nothing_is_lost_or_doubled_by_two_hundred_kills(protocol: str, tmp_path: Path) -> None:
    kill_cycles(tmp_path, protocol, cycles=40, seed=len(protocol))
