"""Real replicas trace what they do, and the witness in the rows is enough to judge them; missing rows accuse nobody."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from causal import PROTOCOLS
from causal.model import Site
from kvstore.effects import Happened, Input, Moment, Step
from kvstore.metrics import Metrics
from kvstore.trace import Trace
from tests.kvstore.stage import CAUSAL, Stage
from tests.kvstore.tracing import MS, rows_of

Row = dict[str, Any]


class TracedStage(Stage):
    def __init__(self, folder: Path, protocol: str, sites: int = 3) -> None:
        super().__init__(sites, protocol)
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
    sent = {(row["dot"]["site"], row["dot"]["seq"]): row for row in rows if row["event"] == "sent"}
    found = []
    for here in {row["site"] for row in rows}:
        there: set[tuple[int, int]] = set()
        for row in rows:
            if row["site"] != here or row["event"] != "delivered":
                continue
            dot = (row["dot"]["site"], row["dot"]["seq"])
            there.add(dot)
            past = sent[dot]["witness"] if dot in sent else []
            for site, newest in enumerate(past):
                due = [(site, seq) for seq in range(1, newest + 1) if here in _destinations(sent.get((site, seq)))]
                found += [f"{dot} before {one} at {here}" for one in due if one not in there]
    return found


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
