"""Real replicas trace what they do, and the witness in the rows is enough to judge them; missing rows accuse nobody."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from causal import PROTOCOLS
from causal.model import Dot, Site
from causal.multicast import Multicast
from kvstore.effects import Happened, Input, Moment, Operation, Step, Write
from kvstore.metrics import Metrics
from kvstore.past import Past
from kvstore.placement import Placement
from kvstore.replica import Replica
from kvstore.trace import Trace
from tests.kvstore.stage import CAN_SEND_TO_SOME, CAUSAL, Stage
from tests.kvstore.tracing import MS, rows_of

Row = dict[str, Any]


class TracedStage(Stage):
    def __init__(self, folder: Path, protocol: str, sites: int = 3, **settings: Any) -> None:
        super().__init__(sites, protocol, **settings)
        self.traces = []
        self.metrics = [Metrics(one.name, protocol) for one in self.cluster.sites]
        for replica, one in zip(self.replicas, self.cluster.sites, strict=True):
            ordering = replica.ordering
            replica.notes.start_witness(delivered=ordering.delivered, clock=ordering.clock)
            self.traces.append(Trace(folder, cluster=self.cluster, site=one, incarnation=1, with_keys=True))

    def step(self, site: Site, *inputs: Input) -> Step:
        step = super().step(site, *inputs)
        self.now_ms += 1
        moment = Moment(self.now_ms * MS, self.now_ms * MS)
        happened = Happened(self.storages[site].number, step.events, moment, moment, len(inputs), step.updates)
        self.traces[site].happened(happened)
        self.metrics[site].happened(happened)
        return step

    def close(self) -> None:
        for trace in self.traces:
            trace.close()


@pytest.fixture
def stage(tmp_path: Path, protocol: str) -> Iterator[TracedStage]:
    made = TracedStage(tmp_path, protocol)
    yield made
    made.close()


def violations(rows: list[Row]) -> list[str]:
    """Deliveries before something of their causal past, as far as the rows tell; what is not told is no finding."""
    sent = {_dot(row["dot"]): row for row in rows if row["event"] == "sent"}
    found = []
    for here in {row["site"] for row in rows}:
        there: set[tuple[int, int]] = set()
        for row in rows:
            if row["site"] != here or row["event"] != "delivered":
                continue
            dot = _dot(row["dot"])
            there.add(dot)
            past = _past(sent[dot]) if dot in sent else []
            due = [one for one in past if here in _destinations(sent.get(one))]
            found += [f"{dot} before {one} at {here}" for one in due if one not in there]
    return found


def _past(row: Row) -> list[tuple[int, int]]:
    """What a message must not overtake: all that its site knew, and what it was meant to follow.

    Only one protocol heeds that a message was meant to follow nothing.
    """
    if row["protocol"] == "false-causality" and not row["semantic"]:
        return []
    known = [(site, seq) for site, newest in enumerate(row["witness"]) for seq in range(1, newest + 1)]
    known.remove(_dot(row["dot"]))
    return list(dict.fromkeys(known + [_dot(one) for one in row["depends_on"] or ()]))


def _dot(dot: Row) -> tuple[int, int]:
    return (dot["site"], dot["seq"])


def _destinations(row: Row | None) -> list[int]:
    return [] if row is None else row["destinations"]


def reply_overtakes_question(stage: TracedStage) -> None:
    stage.write(0, b"question")
    stage.carry(0, 1)
    stage.write(1, b"reply")
    stage.carry(1, 2)
    stage.now_ms += 50
    stage.carry(0, 2)


@pytest.mark.parametrize("protocol", CAUSAL)
def test_a_hold_can_be_read_off_the_rows(stage: TracedStage, tmp_path: Path) -> None:
    reply_overtakes_question(stage)
    stage.close()
    here = [row for row in rows_of(tmp_path) if row["site"] == 2]
    assert [(row["event"], row["dot"]["site"]) for row in here] == [
        *(("received", 1), ("held", 1)),
        *(("received", 0), ("delivered", 0), ("applied", 0)),
        *(("released", 1), ("delivered", 1), ("applied", 1)),
        *(("committed", 0), ("committed", 1)),
    ]
    held, released = here[1], here[5]
    assert (held["missing"]["site"], held["missing"]["seq"]) == (0, 1)
    assert released["held_ns"] == released["time_mono_ns"] - held["time_mono_ns"] > 50 * MS
    assert here[4]["keys"] == [b"question"] and here[0]["witness"] == [1, 1, 0]
    assert violations(rows_of(tmp_path)) == []
    assert stage.metrics[2].snapshot()["kvstore_hold_seconds_sum"] == released["held_ns"] / 1e9


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name not in CAUSAL])
def test_the_judge_finds_a_protocol_that_ignores_causality(stage: TracedStage, tmp_path: Path) -> None:
    reply_overtakes_question(stage)
    stage.close()
    rows = rows_of(tmp_path)
    assert violations(rows) == ["(1, 1) before (0, 1) at 2"]
    assert violations([row for row in rows if row["site"] != 0]) == []  # without the question's row nobody can tell


@pytest.mark.parametrize("protocol", CAUSAL)
def test_random_runs_have_no_violation_and_metrics_count_what_the_rows_show(stage: TracedStage, tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(150):
        sender, receiver = rng.sample(range(3), 2)
        if rng.random() < 0.4:
            stage.write(sender, b"k%d" % rng.randrange(5))
        elif stage.under_way.get((sender, receiver)):
            stage.carry(sender, receiver, count=1)
    stage.close()
    rows = rows_of(tmp_path)
    assert violations(rows) == []
    for site, metrics in enumerate(stage.metrics):
        told, here = metrics.snapshot(), [row for row in rows if row["site"] == site]
        for event in ("sent", "received", "held", "released", "delivered"):
            shown = sum(row["event"] == event for row in here)
            assert told[f"kvstore_messages_{event}_total"] == shown, event
        sent = [row for row in here if row["event"] == "sent"]
        assert told["kvstore_control_bytes_total"] == sum(row["control_bytes"] for row in sent) > 0
        assert told["kvstore_control_units_total"] == sum(row["units"] for row in sent)
        assert told["kvstore_commits_total"] == stage.storages[site].number


# What is not meant to follow


@pytest.mark.parametrize("protocol", ["false-causality"])
def test_a_message_that_was_meant_to_follow_nothing_may_overtake_and_is_not_accused(
    stage: TracedStage, tmp_path: Path
) -> None:
    stage.write(0, b"question")
    stage.carry(0, 1)
    stage.step(1, Write((Operation(b"aside", b"v"),), independent=True))
    stage.carry(1, 2)
    stage.carry(0, 2)
    stage.close()
    rows = rows_of(tmp_path)
    assert [_dot(row["dot"]) for row in rows if row["event"] == "delivered" and row["site"] == 2] == [(1, 1), (0, 1)]
    aside = [row for row in rows if row["event"] == "sent" and row["site"] == 1]
    assert {(row["semantic"], tuple(row["depends_on"])) for row in aside} == {(False, ())}
    assert violations(rows) == []
    for row in aside:
        row["semantic"] = True
    assert violations(rows) == ["(1, 1) before (0, 1) at 2"]


# Sessions that move


def place(stage: TracedStage) -> list[bytes]:
    """Some keys are at two sites only, which they are called after. Gives one of each kind, and one of all sites."""
    names = [site.name for site in stage.cluster.sites]
    pairs = {"".join(pair).encode(): pair for pair in combinations(names, 2)}
    object.__setattr__(stage.cluster, "placement", {b"": tuple(names), **pairs})
    for replica in stage.replicas:
        replica.placement = Placement(stage.cluster)
    return [*pairs, b"everywhere"]


def past_at(stage: TracedStage, site: Site, *seen: Dot) -> Past:
    """Of a session that has seen all of a site, but really read or written only these messages; none: not known."""
    past = stage.replicas[site].committed(stage.storages[site].number).past
    assert past is not None
    return past._replace(seen=seen or None, name=f"session-{site}")


def session_moves(stage: TracedStage, *, is_told: bool = True) -> None:
    """It writes at a what c will have, then at b, where that never comes; c hears b first."""
    place(stage)
    first = stage.write(0, b"ac")
    past = past_at(stage, 0, *([first] if is_told else []))
    stage.step(1, Write((Operation(b"bc", b"v"),), past=past))
    stage.carry(1, 2)
    stage.carry(0, 2)
    stage.close()


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_a_session_that_moves_makes_causality_and_the_rows_show_it(stage: TracedStage, tmp_path: Path) -> None:
    session_moves(stage)
    rows = rows_of(tmp_path)
    at_b = [row for row in rows if row["site"] == 1]
    assert [row["event"] for row in at_b] == ["adopted", "sent", "applied", "committed"]
    adopted, sent, *_ = at_b
    assert (adopted["session"], adopted["witness"], adopted["dot"]["seq"]) == ("session-0", [1, 0, 0], 0)
    assert sent["witness"] == [1, 1, 0] and sent["session"] is None  # b has never heard of a itself
    assert sent["semantic"] and adopted["depends_on"] == sent["depends_on"] == [{"site": 0, "seq": 1}]
    (held,) = [row for row in rows if row["event"] == "held"]
    assert (_dot(held["missing"]), held["hold_cause"]) == ((0, 1), "true")
    assert violations(rows) == []
    assert stage.metrics[1].snapshot()["kvstore_sessions_adopted_total"] == 1
    told = stage.metrics[2].snapshot()
    assert told["kvstore_hold_true_seconds_total"] == told["kvstore_hold_seconds_sum"] > 0


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_a_protocol_that_forgets_what_it_adopted_is_found_by_the_witness(
    stage: TracedStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Multicast, "adopt", lambda *_: [])
    session_moves(stage, is_told=False)
    assert violations(rows_of(tmp_path)) == ["(1, 1) before (0, 1) at 2"]


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_a_replica_that_adopts_nothing_at_all_is_found_by_what_its_writes_were_meant_to_follow(
    stage: TracedStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replica, "_land", lambda *_, **__: None)
    session_moves(stage)
    rows = rows_of(tmp_path)
    assert not [row for row in rows if row["event"] == "adopted"]
    assert violations(rows) == ["(1, 1) before (0, 1) at 2"]


def wander(stage: TracedStage, seed: int) -> None:
    """Two sessions that read and write wherever all that they have seen is here."""
    rng = random.Random(f"wander {seed}")
    keys, sites = place(stage), len(stage.replicas)
    sessions = [past_at(stage, 0) for _ in range(2)]
    for _ in range(200):
        sender, receiver = rng.sample(range(sites), 2)
        number = rng.randrange(2)
        if rng.random() < 0.5:
            if stage.under_way.get((sender, receiver)):
                stage.carry(sender, receiver, count=1)
        elif stage.replicas[sender].ordering.first_missing(sessions[number].context) is None:
            stage.step(sender, Write((Operation(rng.choice(keys), b"v"),), past=sessions[number]))
            sessions[number] = sessions[number].merged(past_at(stage, sender))


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_random_runs_of_moving_sessions_have_no_violation(tmp_path: Path, protocol: str) -> None:
    options = {"threshold": 6} if protocol == "extra-message" else {}
    adoptions, extras = 0, 0
    for seed in range(3):
        folder = tmp_path / str(seed)
        stage = TracedStage(folder, protocol, 5, options=options)
        wander(stage, seed)
        stage.close()
        rows = rows_of(folder)
        assert violations(rows) == []
        adopted = [row for row in rows if row["event"] == "adopted"]
        assert all(row["session"] for row in adopted)
        adoptions += len(adopted)
        for one in adopted:  # the messages that the adoption itself makes carry it too
            step = [row for row in rows if (row["site"], row["time_mono_ns"]) == (one["site"], one["time_mono_ns"])]
            sent = [row for row in step if row["event"] == "sent"]
            extras += any(row["is_extra"] for row in sent)
            assert all(list(map(max, row["witness"], one["witness"])) == row["witness"] for row in sent)
    assert adoptions > 10 and bool(extras) is (protocol == "extra-message")


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_lost_adoptions_in_random_runs_are_found(
    tmp_path: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Multicast, "adopt", lambda *_: [])
    found = []
    for seed in range(10):
        stage = TracedStage(tmp_path / str(seed), protocol)
        wander(stage, seed)
        stage.close()
        found += violations(rows_of(tmp_path / str(seed)))
    assert found
