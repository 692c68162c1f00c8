"""All that a replica counts, in one registry: status, load tests and dashboards read the same numbers.

Names end in their unit (`_seconds`, `_bytes`) or say what they count; what only grows ends in `_total`. Counts are
since the process started. Labels are sites, methods and reasons, never keys: what a label can be must be known
beforehand.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from kvstore.clock import time_ms
from kvstore.effects import Event, Happened
from kvstore.holds import FALSE, TRUE, UNKNOWN, Holds
from kvstore.meter import Counter, Gauge, Histogram
from kvstore.version import software_version

# Seconds, from a read out of memory to a call that is given up; the same steps everywhere, so that they compare.
LATENCIES = (
    *(50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3),
    *(1.0, 2.0, 5.0, 10.0),
)
LONG = (1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)
SIZES = tuple(1 << power for power in range(13))  # up to the most inputs of one commit
WINDOW_S = 5  # seconds that a rate looks back

Site = str | int  # a name, or its number


class Rates(NamedTuple):
    commits: float  # a second
    updates: float


class Metrics(Collector):
    """Call the methods on the loop, after the fact. `commit` is the number of the newest commit at the start."""

    def __init__(
        self,
        site: str,
        protocol: str,
        *,
        sites: Sequence[str] = (),
        commit: int = 0,
        mono_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.site = site
        self.protocol = protocol
        self._sites = tuple(sites)
        self._commit = commit
        self._mono_ns = mono_ns
        self.holds = Holds()  # what is held now
        self._all: dict[str, Counter | Histogram | Gauge] = {}
        self._calls()
        self._links()
        self._messages()
        self._commits()
        self._started_ns = mono_ns()
        self._seconds: deque[tuple[int, Rates]] = deque()  # a second of the clock, and what was done in it
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)  # CPU and memory of the process, where the system tells

    # What there is

    def _calls(self) -> None:
        self._call_seconds = self._histogram(
            "kvstore_call_seconds", "Time from a client's call to its answer, at the server.", LATENCIES, "method"
        )
        self._call_results = self._counter(
            "kvstore_calls_total", "Calls of clients, by the reason of the error; OK without one.", "method", "reason"
        )

    def _links(self) -> None:
        peer = "peer"
        self._frames_sent = self._counter("kvstore_frames_sent_total", "Frames sent on links, by receiver.", peer)
        self._frame_messages_sent = self._counter(
            "kvstore_frame_messages_sent_total", "Messages in the frames sent, resends included.", peer
        )
        self._frame_bytes_sent = self._counter("kvstore_frame_sent_bytes_total", "Bytes of the frames sent.", peer)
        self._frames_received = self._counter("kvstore_frames_received_total", "Frames received, by sender.", peer)
        self._frame_messages_received = self._counter(
            "kvstore_frame_messages_received_total", "Messages in the frames received, repeats included.", peer
        )
        self._frame_bytes_received = self._counter(
            "kvstore_frame_received_bytes_total", "Bytes of the frames received.", peer
        )
        self._links_opened = self._counter("kvstore_links_opened_total", "Links opened and accepted.", peer)
        self._ack_seconds = self._histogram(
            "kvstore_link_ack_seconds", "Time from sending a message to its acknowledgement.", LATENCIES, peer
        )

    def _messages(self) -> None:
        counter = self._counter
        self._by_kind = {
            "sent": counter("kvstore_messages_sent_total", "Messages sent, added up over destinations."),
            "received": counter("kvstore_messages_received_total", "Messages received, without repeats."),
            "held": counter("kvstore_messages_held_total", "Messages that came too early and had to wait."),
            "released": counter("kvstore_messages_released_total", "Held messages whose missing one has come."),
            "delivered": counter("kvstore_messages_delivered_total", "Messages that were due."),
            "duplicate": counter("kvstore_messages_duplicate_total", "Messages that came again and were dropped."),
            "adopted": counter("kvstore_sessions_adopted_total", "Sessions whose past became part of this site's."),
        }
        self._extra = counter("kvstore_messages_extra_total", "Messages sent that the protocol made for itself.")
        self._control_bytes = counter("kvstore_control_bytes_total", "Control information of the messages sent.")
        self._control_units = counter("kvstore_control_units_total", "The same in the units that the papers count.")
        self._payload_bytes = counter("kvstore_payload_bytes_total", "Updates of the messages sent.")
        self._applied = counter("kvstore_updates_applied_total", "Updates that changed a key, from clients and peers.")
        self._hold_seconds = self._histogram(
            "kvstore_hold_seconds", "Time that messages were held, counted when they are released.", LONG
        )
        self._hold_causes = {
            TRUE: counter("kvstore_hold_true_seconds_total", "The part of it that the held message surely needed."),
            FALSE: counter("kvstore_hold_false_seconds_total", "The part of it that was surely not needed."),
            UNKNOWN: counter("kvstore_hold_unknown_seconds_total", "The part of it of which nobody told."),
        }
        self._visibility = self._histogram(
            "kvstore_visibility_seconds",
            "From a message's stamp, by its site's clock, to its commit here, by ours; clocks that differ add to it.",
            LONG,
            "origin",
        )

    def _commits(self) -> None:
        self._commit_count = self._counter("kvstore_commits_total", "Commits.")
        self._updates = self._counter("kvstore_updates_total", "Updates written or delivered, in all commits.")
        self._commit_seconds = self._histogram(
            "kvstore_commit_seconds",
            "Time from taking inputs to having what they change in the store.",
            LATENCIES,
        )
        self._commit_inputs = self._histogram(
            "kvstore_commit_inputs", "Inputs that share one commit: client writes, messages, acks.", SIZES
        )

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        made = self._all[name] = Counter(name, help, *labels)
        return made

    def _histogram(self, name: str, help: str, bounds: Sequence[float], *labels: str) -> Histogram:
        made = self._all[name] = Histogram(name, help, bounds, *labels)
        return made

    def gauge(self, name: str, help: str, read: Callable[[], float | Mapping[str, float]], *, label: str = "") -> None:
        """Something to read at every scrape; with a label, `read` gives a number for each of its values."""
        if name in self._all or not name.startswith("kvstore_") or not help:
            raise ValueError(f"{name} is there already, has no help, or does not begin with kvstore_")
        self._all[name] = Gauge(name, help, read, label)

    # What happens

    def call(self, method: str, seconds: float, reason: str = "") -> None:
        """A client's call was answered; without a reason, well."""
        self._call_seconds.observe(seconds, method)
        self._call_results.add(1, method, reason or "OK")

    def frame_sent(self, peer: Site, messages: int, bytes: int) -> None:
        name = self._name(peer)
        self._frames_sent.add(1, name)
        self._frame_messages_sent.add(messages, name)
        self._frame_bytes_sent.add(bytes, name)

    def frame_received(self, peer: Site, messages: int, bytes: int) -> None:
        name = self._name(peer)
        self._frames_received.add(1, name)
        self._frame_messages_received.add(messages, name)
        self._frame_bytes_received.add(bytes, name)

    def link_opened(self, peer: Site) -> None:
        self._links_opened.add(1, self._name(peer))

    def ack_waited(self, peer: Site, seconds: float) -> None:
        self._ack_seconds.observe(seconds, self._name(peer))

    def visible(self, origin: Site, seconds: float) -> None:
        """A message of that site is committed here, so long after it was stamped there. Below zero is zero."""
        self._visibility.observe(max(seconds, 0.0), self._name(origin))

    def happened(self, happened: Happened) -> None:
        """A turn of the loop, once it is durable."""
        for event in happened.events:
            kind = event.kind
            counter = self._by_kind.get(kind)
            if counter is not None:
                counter.add(1)
            if kind == "sent":
                self._sent(event)
            elif kind == "delivered":
                if not event.is_extra:
                    self.visible(event.peer, happened.committed.wall_ns / 1e9 - time_ms(event.time) / 1e3)
            elif kind == "applied":
                self._applied.add(event.updates)
            elif kind == "held":
                self.holds.begin(event, happened.stepped.mono_ns)
            elif kind == "released":
                self._released(event, happened.stepped.mono_ns)
        if happened.commit > self._commit:
            self._commit = happened.commit
            self._committed(happened)

    def _sent(self, event: Event) -> None:
        self._control_bytes.add(event.control_bytes)
        self._control_units.add(event.units)
        self._payload_bytes.add(event.payload_bytes)
        if event.is_extra:
            self._extra.add(1)

    def _released(self, event: Event, mono_ns: int) -> None:
        hold = self.holds.end(event.dot, mono_ns)
        if hold is None or hold.held_ns is None:
            return
        self._hold_seconds.observe(hold.held_ns / 1e9)
        self._hold_causes[hold.cause].add(hold.held_ns / 1e9)

    def _committed(self, happened: Happened) -> None:
        self._commit_count.add(1)
        self._updates.add(happened.updates)
        self._commit_seconds.observe((happened.committed.mono_ns - happened.stepped.mono_ns) / 1e9)
        self._commit_inputs.observe(happened.inputs)
        second = happened.committed.mono_ns // 1_000_000_000
        commits, updates = 0.0, 0.0
        if self._seconds and self._seconds[-1][0] == second:
            commits, updates = self._seconds.pop()[1]
        self._seconds.append((second, Rates(commits + 1, updates + happened.updates)))
        if len(self._seconds) > WINDOW_S:
            self._seconds.popleft()

    def _name(self, site: Site) -> str:
        if isinstance(site, str):
            return site
        return self._sites[site] if site < len(self._sites) else str(site)

    # What it amounts to

    def rates(self) -> Rates:
        """What was done a second, over the last few seconds."""
        now_ns = self._mono_ns()
        first = now_ns // 1_000_000_000 - WINDOW_S + 1
        since_ns = max(first * 1_000_000_000, self._started_ns)
        elapsed_s = max((now_ns - since_ns) / 1e9, 1.0)  # a replica just started has not done thousands a second
        done = [one for second, one in self._seconds if second >= first]
        return Rates(sum(one.commits for one in done) / elapsed_s, sum(one.updates for one in done) / elapsed_s)

    def snapshot(self) -> dict[str, float]:
        """Every number by name and labels, like `kvstore_frames_sent_total{peer="b"}`; of histograms count and sum."""
        found: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    labels = ",".join(f'{name}="{text}"' for name, text in sample.labels.items() if name != "site")
                    found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return found

    def render(self) -> bytes:
        """All of it in the text format of Prometheus."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        about = {"site": self.site, "protocol": self.protocol, "software": software_version()}
        yield InfoMetricFamily("kvstore_replica", "Which replica this is.", value=about)
        for one in list(self._all.values()):
            yield one.family(self.site)
