"""A hundred sessions that change replica with every operation, real processes, slow links, kill -9: all promises hold.

The histories are recorded by the product and judged by `pipeline.audit`. The same audit must find something wrong
where tokens are dropped on the way, where the protocol orders nothing, and where a replica does not do its part.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from causal import PROTOCOLS
from kvstore.cluster import LocalCluster
from kvstore.errors import NoSessions
from tests.cluster.moving import Report, Tokens, Travels, links
from tests.cluster.stories import clients_of, until_equal

CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
QUICK = {"optimal", "extra-message"}  # on every change; the others with --long
DELAY_MS = 200  # of the slowest link
OK_SHARE_LEAST = 0.8
ALL_FOUR = {"ReadYourWrites", "MonotonicReads", "MonotonicWrites", "WritesFollowReads"}
SEED = int(os.environ.get("KVSTORE_SEED", "0"))  # another one is another run


def travel(
    folder: Path,
    protocol: str,
    *,
    sessions: int = 100,
    operations: int = 100,
    kills: int = 2,
    tokens: Tokens = Tokens.CARRIED,
) -> Report:
    with LocalCluster.create(folder / "cluster", protocol=protocol, links=links(most_ms=DELAY_MS)) as cluster:
        travels = Travels(cluster, sessions=sessions, operations=operations, kills=kills, seed=SEED, tokens=tokens)
        report = travels.go(folder / "history.jsonl")
        print(f"{protocol}, tokens {tokens.value}, {kills} kills: {report}")
        assert len(report.seconds) == sessions * operations
        assert report.ok_share > OK_SHARE_LEAST
        with clients_of(cluster) as clients:
            assert until_equal(clients, 60)
        return report


def broken(report: Report) -> set[str]:
    return {one.pattern for one in report.verdict.guarantees}


@pytest.mark.parametrize(
    "protocol", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CAUSAL]
)
def test_every_promise_holds_for_sessions_that_move_with_every_operation(protocol: str, tmp_path: Path) -> None:
    report = travel(tmp_path, protocol)
    assert [str(one) for one in report.verdict.violations()] == []
    assert report.verdict.cc and report.verdict.ccv and report.verdict.sessions
    assert report.errors["PAST_MISSING"], "nobody ever came to a replica that was behind"


def test_sessions_that_lose_their_tokens_on_the_way_are_caught(tmp_path: Path) -> None:
    report = travel(tmp_path, "optimal", tokens=Tokens.DROPPED)
    assert broken(report) == ALL_FOUR
    assert not report.verdict.cc


def test_a_protocol_that_orders_nothing_is_caught(tmp_path: Path) -> None:
    report = travel(tmp_path, "unordered", tokens=Tokens.NONE)
    assert broken(report) == ALL_FOUR
    assert not report.verdict.cc


def test_a_protocol_that_orders_nothing_refuses_sessions(tmp_path: Path) -> None:
    with LocalCluster.create(tmp_path, protocol="unordered", replicas=1) as cluster, clients_of(cluster) as clients:
        session = clients["a"].session()
        for call in (lambda: session.get(b"k"), lambda: session.put(b"k", b"v")):
            with pytest.raises(NoSessions, match="unordered keeps no causal past") as refused:
                call()
            assert refused.value.definite
        assert clients["a"].get(b"k") is None


# Planted bugs, put into the replicas of a test by the name that Python imports at every start

DOES_NOT_LOOK = """
from kvstore.sessions import Sessions
Sessions.lack = lambda self, wanted, committed, asked_ms: None
"""
FORGETS_WHAT_WAS_READ = """
from kvstore.sessions import Sessions
Sessions.after_read = lambda self, past, seen: past
"""
WRITES_TOO_EARLY = """
from kvstore import replica
from kvstore.sessions import Sessions

async def arrive(self, wanted, deadline_s):
    pass

Sessions.arrive = arrive
replica.refusal_of_past = lambda replica, write: None
replica.Replica._land = lambda self, past, *, adopts: self.clock.merge(past.time)
"""


@pytest.mark.parametrize(
    ("bug", "pattern"),
    [
        pytest.param(DOES_NOT_LOOK, "ReadYourWrites", id="does not look whether the past is here"),
        pytest.param(FORGETS_WHAT_WAS_READ, "MonotonicReads", id="forgets what was read"),
        pytest.param(WRITES_TOO_EARLY, "WritesFollowReads", id="writes before the past is here"),
    ],
)
def test_a_replica_that_does_not_do_its_part_is_caught(
    bug: str, pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plant").mkdir()
    lines = [f"    {line}\n" for line in bug.splitlines()]
    (tmp_path / "plant/sitecustomize.py").write_text("import sys\nif '-m' in sys.orig_argv:\n" + "".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "plant"))
    report = travel(tmp_path, "optimal", operations=20, kills=0)
    assert pattern in broken(report)
