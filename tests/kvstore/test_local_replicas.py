"""The local cluster by hand: real replicas, each a process, driven by the command as a person would."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from kvstore.cluster import LocalCluster
from kvstore.plan import plan
from tests.kvstore.shell import run, started

WAIT_S = 20.0
KVSTORE = [sys.executable, "-m", "kvstore"]


def until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.02)


class Hand:
    """Types commands for one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def cluster(self, *arguments: str) -> Result:
        return run("cluster", *arguments, "--dir", str(self.directory))

    def at(self, site: str, *arguments: str) -> Result:
        return run(*arguments, "--site", site, "--output", "plain", KVSTORE_CLUSTER=str(self.directory))

    def has(self, site: str, key: str, value: str) -> bool:
        return self.at(site, "get", key).stdout == value


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hand]:
    """One cluster for the whole file; every test leaves it up and whole."""
    found = Hand(tmp_path_factory.mktemp("local") / "D")
    result = found.cluster("up", "--detach")
    try:
        assert result.exit_code == 0, result.output
        yield found
    finally:
        found.cluster("down")


def test_up_says_how_to_go_on(tmp_path: Path) -> None:
    hand = Hand(tmp_path / "D")
    result = hand.cluster("up", "--detach", "--replicas", "1", "--trace")
    try:
        assert result.exit_code == 0 and result.stdout.startswith("1 replica, ordered by optimal")
        assert f"export KVSTORE_CLUSTER={hand.directory / 'cluster.toml'}" in result.stdout
        assert f"kvstore cluster down --dir {hand.directory}" in result.stdout
        again = hand.cluster("up", "--detach")
        assert again.exit_code == 0, "a second up finds everything running"
        assert hand.at("a", "put", "k", "v").exit_code == 0
    finally:
        assert hand.cluster("down").exit_code == 0
    assert list((hand.directory / "trace").iterdir()), "it was told to trace"
    assert hand.cluster("down", "--purge").exit_code == 0
    assert not hand.directory.exists()


def test_a_put_at_one_replica_is_a_get_at_another(hand: Hand) -> None:
    assert hand.at("a", "put", "greeting", "hello").exit_code == 0
    until(lambda: hand.has("c", "greeting", "hello"), "the arrival at c")
    rows = [line.split("\t")[:2] for line in run("status", KVSTORE_CLUSTER=str(hand.directory)).stdout.splitlines()]
    assert rows == [["a", "up"], ["b", "up"], ["c", "up"]]


def test_a_partition_keeps_updates_out_until_it_is_healed(hand: Hand) -> None:
    assert hand.cluster("partition", "a,b", "c").stdout == "a b | c\n"
    status = json.loads(hand.cluster("status", "--output", "json").stdout)
    assert ["a", "c"] in status["cuts"] and ["a", "b"] not in status["cuts"]
    time.sleep(0.3)  # replicas look for new cuts now and then
    hand.at("a", "put", "split", "1")
    until(lambda: hand.has("b", "split", "1"), "the arrival at b")
    assert hand.at("c", "get", "split").exit_code == 1, "clients still reach c, and it has not heard"
    assert hand.cluster("heal").exit_code == 0
    until(lambda: hand.has("c", "split", "1"), "the arrival at c")


def test_a_message_that_is_held_is_explained(hand: Hand) -> None:
    """b hears from a and answers; c hears b's answer, and from a nothing."""
    assert hand.cluster("cut", "a:c").exit_code == 0
    time.sleep(0.3)
    hand.at("a", "put", "question", "why?")
    until(lambda: hand.has("b", "question", "why?"), "the arrival at b")
    hand.at("b", "put", "answer", "because")
    until(lambda: hand.at("c", "explain").stdout, "the hold at c")
    told = run("explain", "--site", "c", "--output", "table", KVSTORE_CLUSTER=str(hand.directory)).stdout
    assert told.startswith("c has held message") and "of a has not come here" in told
    assert hand.at("c", "get", "answer").exit_code == 1
    hand.cluster("heal")
    until(lambda: hand.has("c", "answer", "because"), "the release at c")
    assert hand.at("c", "explain").stdout == ""


def test_a_replica_that_was_killed_comes_back_with_what_it_had_and_missed(hand: Hand) -> None:
    hand.at("b", "put", "mine", "1")
    assert hand.cluster("kill", "b").exit_code == 0
    assert [line.split("\t")[1] for line in hand.cluster("status").stdout.splitlines()] == [
        "running",
        "dead",
        "running",
    ]
    refused = hand.at("b", "get", "mine", "--timeout", "300ms")
    assert refused.exit_code == 3 and refused.stderr.count("\n") == 1
    asked = run("status", "--output", "table", "--timeout", "300ms", KVSTORE_CLUSTER=str(hand.directory))
    assert asked.exit_code == 0 and "b     down" in asked.stdout
    hand.at("a", "put", "missed", "2")
    assert hand.cluster("restart", "b").exit_code == 0
    assert hand.has("b", "mine", "1")
    until(lambda: hand.has("b", "missed", "2"), "the catching up of b")


def test_a_replica_that_is_paused_is_late_and_goes_on(hand: Hand) -> None:
    assert hand.cluster("pause", "c").exit_code == 0
    late = hand.at("c", "get", "k", "--timeout", "300ms")
    assert late.exit_code == 3 and late.stderr.count("\n") == 1
    assert hand.cluster("resume", "c").exit_code == 0
    assert hand.at("c", "put", "k", "v").exit_code == 0


def test_a_watch_survives_a_restart_of_its_replica_and_says_nothing_about_it(hand: Hand) -> None:
    with started("watch", "seen/", "--site", "b", "--cluster", str(hand.directory)) as watch:
        assert watch.stdout is not None and watch.stderr is not None
        assert watch.stderr.readline().startswith("watching at b, from 1-")
        hand.at("b", "put", "seen/1", "before")
        assert watch.stdout.readline().split("\t")[:3] == ["put", "seen/1", "before"]
        hand.cluster("kill", "b")
        hand.at("a", "put", "seen/2", "meanwhile")
        hand.cluster("restart", "b")
        assert watch.stdout.readline().split("\t")[:3] == ["put", "seen/2", "meanwhile"]
        LocalCluster.open(hand.directory).stop("b")
        hand.cluster("restart", "b")
        hand.at("b", "delete", "seen/1")
        assert watch.stdout.readline().split("\t")[:3] == ["delete", "seen/1", ""]
        watch.send_signal(signal.SIGINT)
        assert watch.wait(WAIT_S) == 0
        assert watch.stderr.read() == ""


def test_a_time_to_live_runs_out(hand: Hand) -> None:
    hand.at("a", "put", "lock", "me", "--ttl", "300ms")
    assert hand.has("a", "lock", "me")
    until(lambda: hand.at("a", "get", "lock").exit_code == 1, "the end of its life")
    assert hand.at("a", "put", "lock", "other", "--if-absent").exit_code == 0


def test_what_the_replica_refuses_is_exit_4_and_wrong_use_is_exit_2(hand: Hand) -> None:
    hand.at("a", "put", "once", "1")
    refused = hand.at("a", "put", "once", "2", "--if-absent")
    assert refused.exit_code == 4 and refused.stderr.startswith("kvstore: once has version ")
    (hand.directory / "large").write_bytes(bytes((1 << 20) + 1))
    large = hand.at("a", "put", "large", "-f", str(hand.directory / "large"))
    assert large.exit_code == 2 and "1048576" in large.stderr


def test_a_backup_is_verified_and_restored_as_a_new_incarnation(hand: Hand, tmp_path: Path) -> None:
    hand.at("b", "put", "kept", "1")
    copy = tmp_path / "copy"
    assert hand.at("b", "backup", str(copy)).exit_code == 0
    assert run("verify", str(copy)).exit_code == 0
    running = hand.at("b", "verify")
    assert running.exit_code == 3 and "has it open" in running.stderr
    twice = hand.at("b", "backup", str(copy))
    assert twice.exit_code == 2 and str(copy) in twice.stderr
    hand.cluster("kill", "b")
    there = hand.at("b", "restore", str(copy))
    assert there.exit_code == 2 and "exists already" in there.stderr
    (hand.directory / "data" / "b").rename(tmp_path / "lost")
    assert hand.at("b", "restore", str(copy)).exit_code == 0
    assert hand.cluster("restart", "b").exit_code == 0
    assert hand.has("b", "kept", "1")
    until(lambda: hand.at("b", "put", "again", "2").exit_code == 0, "that its peers prove it whole")


def test_an_up_with_other_options_than_the_file_is_refused(hand: Hand, tmp_path: Path) -> None:
    (tmp_path / "links.toml").write_text('[[link]]\nfrom = "a"\nto = "b"\ndelay_ms = 9\n')
    for option, words in (
        (("--replicas", "5"), "has 3 replicas, not 5"),
        (("--protocol", "matrix"), "has the protocol optimal, not matrix"),
        (("--link-delay-ms", "5"), "has other links"),
        (("--links", str(tmp_path / "links.toml")), "has other links"),
    ):
        result = hand.cluster("up", "--detach", *option)
        assert result.exit_code == 2 and words in result.stderr and "--dir" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("kill", "z"),
        ("kill",),
        ("restart", "z"),
        ("pause", "a", "z"),
        ("partition", "a,z"),
        ("partition", "a", "a"),
        ("partition",),
        ("cut", "a"),
        ("cut", "a:"),
        ("cut", "a:z"),
        ("cut", "a:a"),
    ],
    ids=" ".join,
)
def test_sites_that_are_not_there_are_wrong_use(hand: Hand, arguments: tuple[str, ...]) -> None:
    result = hand.cluster(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert hand.cluster("status").stdout.count("running") == 3


@pytest.mark.parametrize("command", [("status",), ("kill", "a"), ("down",), ("heal",)], ids=" ".join)
def test_a_directory_without_a_cluster_is_wrong_use(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = Hand(tmp_path).cluster(*command)
    assert result.exit_code == 2 and "`kvstore cluster up` makes one" in result.stderr


@pytest.mark.parametrize(
    "options",
    [
        ("--replicas", "0"),
        ("--protocol", "nonsense"),
        ("--names", "a,a"),
        ("--names", "a,b", "--replicas", "3"),
        ("--option", "threshold"),
        ("--option", "threshold=9"),
        ("--limit", "inbox_maxx=3"),
        ("--links", "no such file"),
        ("--placement", "no such file"),
        ("--link-delay-ms", "-1"),
    ],
    ids=" ".join,
)
def test_an_up_that_makes_no_sense_leaves_nothing_behind(tmp_path: Path, options: tuple[str, ...]) -> None:
    result = Hand(tmp_path / "D").cluster("up", "--detach", *options)
    assert result.exit_code == 2 and result.stderr, result.output
    assert not (tmp_path / "D").exists()


def test_a_port_that_is_taken_is_exit_3(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "D", replicas=2)
    port = int(cluster.endpoint("b").rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        result = Hand(tmp_path / "D").cluster("up", "--detach")
        assert result.exit_code == 3 and f"127.0.0.1:{port}" in result.stderr
        served = run("serve", "--cluster", str(cluster.file), "--site", "b")
        assert served.exit_code == 3 and f"127.0.0.1:{port}" in served.stderr
        assert served.stderr.splitlines()[-1].startswith("kvstore: ")


# Starting one replica


def cluster_file(folder: Path, data: str = "data") -> str:
    cluster = plan(replicas=1)
    site = replace(cluster.sites[0], data=data)
    path = folder / "cluster.toml"
    path.write_text(replace(cluster, sites=(site,)).to_toml())
    return str(path)


def serve(file: str, site: str = "a") -> subprocess.CompletedProcess[str]:
    """It is expected to end by itself."""
    command = [*KVSTORE, "serve", "--cluster", file, "--site", site]
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)


@pytest.mark.parametrize("data", ["/proc/sys/kernel", "cluster.toml/data"], ids=["read-only", "below a file"])
def test_a_data_directory_that_cannot_be_written_is_exit_3_and_named(tmp_path: Path, data: str) -> None:
    result = serve(cluster_file(tmp_path, data))
    assert result.returncode == 3
    assert result.stderr.startswith("kvstore: ") and result.stderr.count("\n") == 1
    assert data in result.stderr


def test_the_data_of_another_site_is_refused(hand: Hand, tmp_path: Path) -> None:
    assert hand.at("a", "backup", str(tmp_path / "data")).exit_code == 0
    result = serve(cluster_file(tmp_path))
    assert result.returncode == 4
    assert result.stderr.startswith("kvstore: ") and "cluster id" in result.stderr


def test_a_data_file_that_is_none_is_refused_or_corrupt(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.mdb").write_bytes(b"something else entirely" * 1000)
    result = serve(cluster_file(tmp_path))
    assert result.returncode in (4, 5)
    assert result.stderr.startswith("kvstore: ") and result.stderr.count("\n") == 1


def test_a_replica_of_its_own_serves_and_ends_with_a_signal(tmp_path: Path) -> None:
    file = cluster_file(tmp_path)
    command = [*KVSTORE, "serve", "--cluster", file, "--site", "a", "--log-level", "error"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        put = run("put", "k", "v", "--cluster", file, "--site", "a")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stderr.read() == ""
    assert put.exit_code == 0, "the client tries until the replica serves"


def test_replicas_end_with_the_process_that_started_them_however_it_ends(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom kvstore.cluster import LocalCluster\n"
        "with LocalCluster.create(sys.argv[1], replicas=2) as cluster:\n"
        "    cluster.restart('b')\n    print('up', flush=True)\n    sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "D")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == b"up\n"
        cluster = LocalCluster.open(tmp_path / "D")
        running = [process for name in cluster.names if (process := cluster.process(name))]
        assert [process.state() for process in running] == ["running", "running"]
        parent.kill()
    try:
        assert all(process.wait(WAIT_S) for process in running)
    finally:
        cluster.down()


# In the foreground


@contextmanager
def foreground(directory: Path) -> Iterator[subprocess.Popen[str]]:
    command = ("cluster", "up", "--replicas", "2", "--dir", str(directory))
    try:
        with started(*command, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            while line := process.stdout.readline():
                if "Ctrl-C stops it" in line:
                    break
            yield process
    finally:
        LocalCluster.open(directory).down()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
def test_in_the_foreground_a_signal_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    with foreground(tmp_path / "D") as process:
        cluster = LocalCluster.open(tmp_path / "D")
        running = [cluster.process(name) for name in cluster.names]
        assert [cluster.state(name) for name in cluster.names] == ["running", "running"]
        process.send_signal(number)
        assert process.wait(WAIT_S) == 0
        assert all(one is not None and one.state() == "gone" for one in running)
        assert not list(cluster.directory.glob("*.pid"))
    log = "".join(cluster.log_file(name).read_text() for name in cluster.names)
    assert all(line[:4].isdigit() for line in log.splitlines()), f"only the replicas log:\n{log}"


def test_in_the_foreground_one_hears_what_others_do_to_the_cluster(tmp_path: Path) -> None:
    hand = Hand(tmp_path / "D")
    with foreground(hand.directory) as process:
        assert process.stdout is not None
        hand.cluster("kill", "b")
        assert process.stdout.readline() == "b is dead.\n"
        hand.cluster("restart", "b")
        assert process.stdout.readline() == "b is running.\n"
        hand.cluster("down")
        assert process.wait(WAIT_S) == 0
        assert process.stdout.read().splitlines()[-1] == "The cluster was stopped."
