"""A cluster of processes in one directory: started, killed, paused, cut off, taken down, and nothing left behind.

First with stand-ins that only listen, so that every mishap of a start can be ordered; then with real replicas.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kvstore.cluster import DidNotStart, LocalCluster
from kvstore.config import SiteConfig, load_cluster
from kvstore.errors import AddressTaken, BadRequest, ConfigError, Unavailable, UnknownSite
from kvstore.process import Process, State, read_pid_file
from kvstore.shape import read_cuts

WAIT_S = 20.0
LISTEN = """
import signal, socket, sys, time
print("arguments", *sys.argv[2:], flush=True)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen(8)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(60)
"""
DEAF = LISTEN.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
FAILING = "import sys; print('first words'); print('kvstore: the disk is gone', file=sys.stderr); sys.exit(5)"
SILENT = "import time; time.sleep(60)"


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.01)


class StandIns(LocalCluster):
    """Processes that listen where clients would come, or misbehave as they are told."""

    code: dict[str, str]

    def _command(self, site: SiteConfig, arguments: Sequence[str]) -> list[str]:
        code = getattr(self, "code", {}).get(site.name, LISTEN)
        return [sys.executable, "-c", code, site.client.rpartition(":")[2], *arguments]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandIns]:
    found = StandIns.create(tmp_path / "D")
    yield found
    found.down(timeout_s=1)


def pids(cluster: LocalCluster) -> dict[str, int | None]:
    return {site.name: site.pid for site in cluster.status()}


def states(cluster: LocalCluster) -> str:
    return " ".join(site.state for site in cluster.status())


# The directory


def test_a_new_directory_has_a_cluster_file_and_nothing_runs(cluster: StandIns) -> None:
    found = {one.name for one in cluster.directory.iterdir()}
    assert cluster.file.is_file() and found == {"cluster.toml", "data", "session.key"}
    assert stat.S_IMODE((cluster.directory / "session.key").stat().st_mode) == 0o600
    assert len(cluster.cluster.session_keys) == 1 and load_cluster(cluster.file) == cluster.cluster
    assert states(cluster) == "down down down"
    assert LocalCluster.open(cluster.directory).cluster == cluster.cluster
    assert cluster.endpoints == [cluster.endpoint(name) for name in "abc"]


def test_a_directory_is_made_once_and_opened_only_when_it_is_there(cluster: StandIns, tmp_path: Path) -> None:
    before, key = cluster.file.read_text(), cluster.cluster.session_keys
    with pytest.raises(BadRequest, match="already"):
        LocalCluster.create(cluster.directory)
    assert cluster.file.read_text() == before and LocalCluster.open(cluster.directory).cluster.session_keys == key
    with pytest.raises(ConfigError, match="there is no cluster in"):
        LocalCluster.open(tmp_path)
    with pytest.raises(ConfigError):
        LocalCluster.create(tmp_path / "wrong", protocol="nonsense")
    assert not (tmp_path / "wrong").exists()


def test_a_directory_that_cannot_be_made_is_a_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"file/D cannot be written: Not a directory"):
        LocalCluster.create(tmp_path / "file" / "D")


# Starting and stopping


def test_all_start_and_end_and_the_next_start_finds_the_same_ports(cluster: StandIns) -> None:
    with cluster:
        assert states(cluster) == "running running running"
        first = pids(cluster)
        assert cluster.start() == [], "what runs is not started again"
        assert pids(cluster) == first
    assert states(cluster) == "down down down"
    assert not list(cluster.directory.glob("*.pid"))
    assert cluster.start("b") == ["b"]
    assert states(cluster) == "down running down"


def test_another_process_finds_them_and_kills_pauses_and_restarts_them(cluster: StandIns) -> None:
    cluster.start()
    other = StandIns.open(cluster.directory)
    first = pids(other)
    other.pause("a")
    until(lambda: other.state("a") == "paused", "the pause")
    other.resume("a")
    until(lambda: other.state("a") == "running", "the resume")
    other.kill("a", "b")
    assert states(cluster) == "dead dead running"
    with pytest.raises(Unavailable, match="a is not running"):
        other.pause("a")
    other.restart("b", "c")
    assert states(cluster) == "dead running running"
    second = pids(cluster)
    assert second["a"] is None and second["b"] != first["b"] and second["c"] != first["c"]


def test_a_restart_uses_the_arguments_of_the_start_before(tmp_path: Path) -> None:
    with StandIns.create(tmp_path / "D", replicas=1, trace=True) as cluster:
        trace = str(cluster.trace_folder)
        StandIns.open(cluster.directory).restart("a")
        assert cluster.log_file("a").read_text().splitlines() == [f"arguments --trace {trace}"] * 2


def test_a_pid_file_that_names_a_stranger_harms_nobody(cluster: StandIns) -> None:
    """The number was given to another process meanwhile: this one."""
    cluster.start("a")
    found = read_pid_file(cluster.directory / "a.pid")
    assert found is not None
    process, _ = found
    stranger = json.dumps({**process._asdict(), "pid": os.getpid(), "arguments": []})
    (cluster.directory / "a.pid").write_text(stranger)
    assert cluster.state("a") == "dead"
    cluster.kill("a")
    cluster.down()
    assert process.state() is State.RUNNING
    process.send(signal.SIGKILL)
    assert process.wait(WAIT_S)


def test_down_ends_also_what_is_paused_and_kills_what_does_not_listen(cluster: StandIns) -> None:
    cluster.code = {"b": DEAF}
    cluster.start()
    cluster.pause("a")
    assert cluster.down(timeout_s=0.5) == ["b"]
    assert states(cluster) == "down down down"


def test_unknown_sites_are_refused_before_anything_happens(cluster: StandIns) -> None:
    cluster.start("a")
    for act in (cluster.start, cluster.kill, cluster.pause, cluster.resume, cluster.restart, cluster.stop):
        with pytest.raises(UnknownSite, match="there is no site 'z'; there are a, b, c"):
            act("a", "z")
    assert states(cluster) == "running down down"


def test_a_replica_that_ends_at_once_is_told_with_its_last_line_and_the_others_are_stopped(cluster: StandIns) -> None:
    cluster.log_file("b").write_text("an older line\n")
    cluster.code = {"b": FAILING}
    with pytest.raises(DidNotStart, match=r"b did not start; .*b.log ends with: kvstore: the disk is gone") as caught:
        cluster.start()
    assert caught.value.exit_code == 5
    assert states(cluster) == "down down down"
    cluster.code = {"b": "raise SystemExit(3)"}
    with pytest.raises(DidNotStart, match="says nothing"):
        cluster.start()


def test_a_replica_that_never_serves_is_given_up(cluster: StandIns) -> None:
    cluster.code = {"c": SILENT}
    with pytest.raises(DidNotStart, match="c does not serve yet"):
        cluster.start(timeout_s=0.3)
    assert states(cluster) == "down down down"


def test_what_ran_before_a_failed_start_still_runs(cluster: StandIns) -> None:
    cluster.start("a")
    cluster.code = {"c": FAILING}
    with pytest.raises(DidNotStart):
        cluster.start()
    assert states(cluster) == "running down down"


def test_a_port_that_is_taken_is_named_and_nothing_is_started(cluster: StandIns) -> None:
    address = cluster.cluster.site("b").peer
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        with pytest.raises(AddressTaken, match=rf"{address} cannot be used for the peers of b"):
            cluster.start()
        assert states(cluster) == "down down down"
    cluster.start()


def test_an_error_inside_leaves_no_process_behind(tmp_path: Path) -> None:
    running: list[Process] = []

    def fail() -> None:
        with StandIns.create(tmp_path / "D") as cluster:
            running.extend(process for name in cluster.names if (process := cluster.process(name)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(running) == 3 and all(process.state() is State.GONE for process in running)


def test_two_that_start_at_once_start_each_replica_once(cluster: StandIns) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.kvstore.test_local_cluster import StandIns\n"
        "print(StandIns.open(Path(sys.argv[1])).start())"
    )
    command = [sys.executable, "-c", code, str(cluster.directory)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=WAIT_S)[0] for process in both)
    assert said == ["['a', 'b', 'c']\n", "[]\n"]
    assert states(cluster) == "running running running"
    assert len(cluster.log_file("a").read_text().splitlines()) == 1


def test_purging_takes_what_is_ours_and_nothing_else(cluster: StandIns) -> None:
    cluster.start()
    (cluster.directory / "data" / "a").mkdir()
    (cluster.directory / "data" / "a" / "data.mdb").touch()
    cluster.trace_folder.mkdir()
    note = cluster.directory / "note.txt"
    note.touch()
    cluster.partition(["a"])
    cluster.down(purge=True)
    assert list(cluster.directory.iterdir()) == [note]
    note.unlink()
    again = StandIns.create(cluster.directory)
    again.down(purge=True)
    assert not cluster.directory.exists()


# The network


def test_a_partition_cuts_between_groups_and_whoever_is_not_named_stays_together(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "D", replicas=5)
    assert cluster.partition(["a", "b"], ["c"]) == [["a", "b"], ["c"], ["d", "e"]]
    cuts = read_cuts(cluster.directory / "network.json")
    assert sorted(cuts) == cluster.cuts()
    together = {frozenset(pair) for pair in (("a", "b"), ("d", "e"))}
    everybody = {(one, other) for one in "abcde" for other in "abcde" if one != other}
    assert cuts == {pair for pair in everybody if frozenset(pair) not in together}
    assert cluster.partition(["a"]) == [["a"], ["b", "c", "d", "e"]]
    assert len(cluster.cuts()) == 8, "a partition takes the place of the one before it"
    cluster.heal()
    assert cluster.cuts() == []
    cluster.cut([("a", "b")])
    assert cluster.cuts() == [("a", "b")]
    cluster.down()
    assert cluster.cuts() == []


def test_a_partition_that_makes_no_sense_changes_nothing(cluster: StandIns) -> None:
    cluster.partition(["a"])
    before = cluster.cuts()
    with pytest.raises(BadRequest, match="b is named twice"):
        cluster.partition(["a", "b"], ["b"])
    with pytest.raises(UnknownSite):
        cluster.partition(["a", "z"])
    assert cluster.cuts() == before
