"""The one registry: what was fed is what is told, to Prometheus, to status and to load tests."""

from __future__ import annotations

import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from causal.model import Dot, Missing
from kvstore.effects import Event, Happened, Moment
from kvstore.errors import StorageFailed
from kvstore.holds import CAUSES
from kvstore.meter import OTHER, SERIES_MAX, Counter, Histogram
from kvstore.metrics import LATENCIES, WINDOW_S, Metrics
from kvstore.version import software_version

MS = 1_000_000
SECOND = 1000 * MS
WALL_MS = 1_700_000_000_000
COUNTED = {"inputs", "messages", "writes", "watches", "snapshots", "units", "connected"}  # what a name may end in


class Clock:
    """The monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.ns = 100 * SECOND

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> Metrics:
    return Metrics("a", "optimal", sites=("a", "b", "c"), commit=6, mono_ns=clock)


def turn(*events: Event, commit: int = 7, at_ms: int = 0, took_ms: int = 2, updates: int = 0) -> Happened:
    stepped = Moment((WALL_MS + at_ms) * MS, at_ms * MS)
    committed = Moment(stepped.wall_ns + took_ms * MS, stepped.mono_ns + took_ms * MS)
    return Happened(commit, list(events), stepped, committed, inputs=3, updates=updates)


def feed_everything(metrics: Metrics) -> None:
    metrics.call("Put", 0.004)
    metrics.frame_sent("b", 1, 1)
    metrics.frame_received("b", 1, 1)
    metrics.link_opened("b")
    metrics.ack_waited("b", 0.1)
    metrics.visible("b", 0.1)
    metrics.gauge("kvstore_outbox_bytes", "Bytes that a peer has not acknowledged.", lambda: {"b": 10.0}, label="peer")
    metrics.gauge("kvstore_inbox_writes", "Writes that wait.", lambda: 4)


def families(metrics: Metrics) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}


# Names


def name_complaints(name: str, kind: str, help: str) -> list[str]:
    """What is wrong with a metric's name and help."""
    last = name.removesuffix("_total").rpartition("_")[2]
    complaints = [] if re.fullmatch(r"kvstore_[a-z_]+", name) else ["it does not begin with kvstore_"]
    if not help.endswith("."):
        complaints.append("its help is no sentence")
    if kind == "histogram" and last not in {"seconds", "bytes", "inputs"}:
        complaints.append("it has no unit")
    if kind == "gauge" and name != "kvstore_replica_info" and last not in {"seconds", "bytes", *COUNTED}:
        complaints.append("it has no unit")
    return complaints


def test_every_metric_has_a_help_and_a_name_with_its_unit(metrics: Metrics) -> None:
    feed_everything(metrics)
    found = {name: one for name, one in families(metrics).items() if not name.startswith("process_")}
    assert len(found) > 25
    bad = {name: wrong for name, one in found.items() if (wrong := name_complaints(name, one.type, one.documentation))}
    assert not bad


@pytest.mark.parametrize(
    ("name", "kind", "help"),
    [
        ("hold_seconds", "histogram", "Time."),
        ("kvstore_hold", "histogram", "Time."),
        ("kvstore_storage", "gauge", "Size."),
        ("kvstore_hold_seconds", "histogram", ""),
    ],
)
def test_a_bad_name_is_noticed(name: str, kind: str, help: str) -> None:
    assert name_complaints(name, kind, help)


def test_every_series_names_its_site_and_none_names_a_key(metrics: Metrics) -> None:
    feed_everything(metrics)
    metrics.happened(turn(Event("applied", Dot(0, 1), 0, updates=1, keys=(b"secret",))))
    text = metrics.render().decode()
    assert "secret" not in text
    samples = [sample for family in families(metrics).values() for sample in family.samples]
    assert all(one.labels["site"] == "a" for one in samples if one.name.startswith("kvstore_"))


def test_two_registries_do_not_mix(metrics: Metrics) -> None:
    other = Metrics("b", "vector")
    metrics.call("Put", 0.001)
    assert 'kvstore_calls_total{method="Put",reason="OK"}' not in other.snapshot()
    assert other.snapshot()[f'kvstore_replica_info{{protocol="vector",software="{software_version()}"}}'] == 1


# What is fed is what is told


def test_calls_are_counted_by_method_and_reason_and_timed(metrics: Metrics) -> None:
    for seconds, reason in ((0.0004, ""), (0.004, ""), (0.04, "INBOX_FULL"), (11.0, "")):
        metrics.call("Put", seconds, reason)
    metrics.call("Get", 0.00001)
    told = metrics.snapshot()
    assert told['kvstore_calls_total{method="Put",reason="OK"}'] == 3
    assert told['kvstore_calls_total{method="Put",reason="INBOX_FULL"}'] == 1
    assert told['kvstore_call_seconds_count{method="Put"}'] == 4
    assert told['kvstore_call_seconds_sum{method="Put"}'] == pytest.approx(11.0444)
    buckets = {
        sample.labels["le"]: sample.value
        for sample in families(metrics)["kvstore_call_seconds"].samples
        if sample.name.endswith("_bucket") and sample.labels["method"] == "Put"
    }
    assert [buckets[le] for le in ("0.0002", "0.0005", "0.005", "10", "+Inf")] == [0, 1, 2, 3, 4]


def test_the_buckets_of_a_call_reach_from_50_microseconds_to_10_seconds() -> None:
    assert LATENCIES[0] == 50e-6 and LATENCIES[-1] == 10 and list(LATENCIES) == sorted(set(LATENCIES))


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram("kvstore_x_seconds", "X.", (1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts[()] == [1, 2, 1]


def test_links_are_counted_by_peer_whether_it_is_named_or_numbered(metrics: Metrics) -> None:
    metrics.frame_sent("b", 3, 100)
    metrics.frame_sent(1, 4, 50)
    metrics.frame_received("c", 2, 70)
    metrics.link_opened("b")
    metrics.ack_waited("b", 0.25)
    told = metrics.snapshot()
    assert told['kvstore_frames_sent_total{peer="b"}'] == 2
    assert told['kvstore_frame_messages_sent_total{peer="b"}'] == 7
    assert told['kvstore_frame_sent_bytes_total{peer="b"}'] == 150
    assert told['kvstore_frames_received_total{peer="c"}'] == 1
    assert told['kvstore_frame_messages_received_total{peer="c"}'] == 2
    assert told['kvstore_frame_received_bytes_total{peer="c"}'] == 70
    assert told['kvstore_links_opened_total{peer="b"}'] == 1
    assert told['kvstore_link_ack_seconds_sum{peer="b"}'] == 0.25


def test_messages_and_their_control_information_are_added_up(metrics: Metrics) -> None:
    sizes: dict[str, Any] = {"control_bytes": 10, "units": 3, "payload_bytes": 100}
    metrics.happened(
        turn(
            Event("sent", Dot(0, 1), 1, 1, updates=2, **sizes),
            Event("sent", Dot(0, 1), 2, 1, updates=2, **sizes),
            Event("sent", Dot(0, 2), 1, 2, is_extra=True, control_bytes=5, units=1),
            Event("applied", Dot(0, 1), 0, updates=2),
            Event("received", Dot(1, 1), 1, 1, **sizes),
            Event("delivered", Dot(1, 1), 1, 1, time=WALL_MS << 16, **sizes),
            Event("applied", Dot(1, 1), 1, updates=5),
            Event("duplicate", Dot(1, 1), 1, 2),
            updates=7,
        )
    )
    told = metrics.snapshot()
    assert told["kvstore_messages_sent_total"] == 3 and told["kvstore_messages_extra_total"] == 1
    assert told["kvstore_messages_received_total"] == told["kvstore_messages_delivered_total"] == 1
    assert told["kvstore_messages_duplicate_total"] == 1
    assert told["kvstore_control_bytes_total"] == 25 and told["kvstore_control_units_total"] == 7
    assert told["kvstore_payload_bytes_total"] == 200  # of what was sent, not of what came
    assert told["kvstore_updates_applied_total"] == 7


def test_a_hold_is_timed_from_held_to_released_and_its_needless_part_apart(metrics: Metrics) -> None:
    first, second, third = Dot(1, 2), Dot(2, 2), Dot(1, 3)
    metrics.happened(turn(Event("held", first, 1, 2, Missing(2, 1), cause="true"), at_ms=100))
    metrics.happened(turn(Event("held", second, 2, 2, Missing(1, 1), cause="false"), at_ms=200))
    metrics.happened(turn(Event("held", third, 1, 3, Missing(2, 1), cause="unknown"), at_ms=300))
    metrics.happened(turn(Event("released", first, 1, 2), Event("released", second, 2, 2), at_ms=600))
    metrics.happened(turn(Event("released", Dot(2, 9), 2, 9), at_ms=700))  # held before we looked
    metrics.happened(turn(Event("released", third, 1, 3), at_ms=1000))
    told = metrics.snapshot()
    assert told["kvstore_messages_held_total"] == 3 and told["kvstore_messages_released_total"] == 4
    assert told["kvstore_hold_seconds_count"] == 3
    assert told["kvstore_hold_seconds_sum"] == pytest.approx(1.6)
    parts = {cause: told[f"kvstore_hold_{cause}_seconds_total"] for cause in CAUSES}
    assert parts == pytest.approx({"true": 0.5, "false": 0.4, "unknown": 0.7})
    assert sum(parts.values()) == pytest.approx(told["kvstore_hold_seconds_sum"])


def test_visibility_is_from_the_stamp_to_the_commit_and_a_clock_ahead_counts_as_nothing(metrics: Metrics) -> None:
    stamped = (WALL_MS - 40) << 16 | 5
    metrics.happened(turn(Event("delivered", Dot(1, 1), 1, 1, time=stamped), took_ms=2))
    metrics.happened(turn(Event("delivered", Dot(2, 1), 2, 1, time=(WALL_MS + 9000) << 16)))
    metrics.happened(turn(Event("delivered", Dot(2, 2), 2, 2, time=stamped, is_extra=True)))  # nothing to see in it
    told = metrics.snapshot()
    assert told['kvstore_visibility_seconds_sum{origin="b"}'] == pytest.approx(0.042, abs=1e-6)
    assert told['kvstore_visibility_seconds_sum{origin="c"}'] == 0
    assert told['kvstore_visibility_seconds_count{origin="c"}'] == 1


def test_a_commit_counts_once_and_a_turn_without_one_not_at_all(metrics: Metrics) -> None:
    metrics.happened(turn(commit=6, updates=0))  # nothing was committed: 6 was there before
    metrics.happened(turn(commit=7, updates=5, took_ms=3))
    metrics.happened(turn(commit=7, updates=0))
    metrics.happened(turn(commit=8, updates=2, took_ms=5))
    told = metrics.snapshot()
    assert told["kvstore_commits_total"] == told["kvstore_commit_seconds_count"] == 2
    assert told["kvstore_updates_total"] == 7
    assert told["kvstore_commit_seconds_sum"] == pytest.approx(0.008)
    assert told["kvstore_commit_inputs_sum"] == 6


# Gauges


def test_a_gauge_is_read_when_it_is_asked_for(metrics: Metrics) -> None:
    waiting = [1]
    metrics.gauge("kvstore_inbox_writes", "Writes that wait.", lambda: waiting[0])
    metrics.gauge("kvstore_outbox_bytes", "Not acknowledged.", lambda: {"b": 5, "c": 7}, label="peer")
    waiting[0] = 42
    told = metrics.snapshot()
    assert told["kvstore_inbox_writes"] == 42
    assert (told['kvstore_outbox_bytes{peer="b"}'], told['kvstore_outbox_bytes{peer="c"}']) == (5, 7)


def test_a_gauge_that_cannot_be_read_is_left_out_and_the_rest_is_told(metrics: Metrics) -> None:
    def broken() -> float:
        raise StorageFailed(path="x", why="it is closed")

    metrics.gauge("kvstore_storage_bytes", "Size.", broken)
    told = metrics.snapshot()
    assert "kvstore_storage_bytes" not in told and told["kvstore_commits_total"] == 0


@pytest.mark.parametrize(("name", "help"), [("kvstore_commits_total", "X."), ("inbox", "X."), ("kvstore_x_bytes", "")])
def test_a_gauge_with_a_wrong_or_taken_name_is_refused(metrics: Metrics, name: str, help: str) -> None:
    with pytest.raises(ValueError, match=name):
        metrics.gauge(name, help, lambda: 0)


def test_labels_from_outside_cannot_fill_the_memory() -> None:
    counter, histogram = Counter("kvstore_x_total", "X.", "m"), Histogram("kvstore_x_seconds", "X.", (1.0,), "m")
    for number in range(SERIES_MAX + 100):
        counter.add(1, str(number))
        histogram.observe(0.5, str(number))
    assert len(counter.values) == len(histogram.counts) == SERIES_MAX + 1
    assert counter.values[(OTHER,)] == sum(histogram.counts[(OTHER,)]) == 100


# What it amounts to


def test_what_is_rendered_is_what_the_snapshot_says(metrics: Metrics) -> None:
    feed_everything(metrics)
    metrics.happened(turn(Event("sent", Dot(0, 1), 1, 1, control_bytes=10)))
    rendered = {
        (sample.name, frozenset(sample.labels.items()) - {("site", "a")}): sample.value
        for family in families(metrics).values()
        for sample in family.samples
        if sample.name.startswith("kvstore_") and not sample.name.endswith("_bucket")
    }
    told = {name: value for name, value in metrics.snapshot().items() if name.startswith("kvstore_")}
    again = {
        (name.partition("{")[0], frozenset(re.findall(r'(\w+)="([^"]*)"', name))): value for name, value in told.items()
    }
    assert rendered == again and len(told) > 25


def test_the_process_tells_its_memory(metrics: Metrics) -> None:
    assert metrics.snapshot()["process_resident_memory_bytes"] > 1_000_000


def test_rates_are_of_the_last_few_seconds(metrics: Metrics, clock: Clock) -> None:
    assert metrics.rates() == (0, 0)
    for tenth in range(100):  # ten seconds of ten commits a second, three updates each
        clock.ns += SECOND // 10
        metrics.happened(turn(commit=7 + tenth, at_ms=clock.ns // MS, took_ms=0, updates=3))
    rates = metrics.rates()
    assert rates.commits == pytest.approx(10, rel=0.05) and rates.updates == pytest.approx(30, rel=0.05)
    clock.ns += (WINDOW_S + 1) * SECOND
    assert metrics.rates() == (0, 0)


def test_one_commit_just_after_the_start_is_no_thousand_a_second(metrics: Metrics, clock: Clock) -> None:
    clock.ns += MS
    metrics.happened(turn(commit=7, at_ms=clock.ns // MS, took_ms=0, updates=100))
    assert metrics.rates() == (1, 100)
