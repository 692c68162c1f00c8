"""What happened at a replica, row by row, in files that survive it.

The loop hands over what each turn made true, after it is durable; an append there costs a few microseconds and never
waits. When a segment is full or old enough, a thread of its own writes and seals it (tracefile.py). If that thread
falls behind by a few segments, rows are thrown away and counted: a trace with a hole that says so is worth more than
a replica that waits for its diary. A disk that is full ends the trace, not the replica.

The index is the local order. It goes on after a restart, above everything that was sealed before; what a kill took was
never readable. Each process counts in a block of its own, so a hole in the indexes always means rows that nobody has:
thrown away inside a block, or an unsealed tail at its end. They are unknown, never proof that something did not happen.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from causal import make_site
from causal.model import Dot
from kvstore.config import Cluster, SiteConfig
from kvstore.effects import Event, Happened
from kvstore.errors import ConfigError
from kvstore.holds import Hold, Holds
from kvstore.limits import Limits
from kvstore.tracefile import segments_in, unsealed_in, unsealed_name, write_segment
from kvstore.tracerow import Origin, Segment, load_pyarrow
from kvstore.version import software_version

SEGMENTS_WAITING_MAX = 4  # full segments that wait to be written; beyond it: rows are thrown away, and counted
CLOSE_MAX_S = 30  # seconds for the last segments to be written; beyond it: they are lost
INDEX_BLOCK = 1 << 40  # indexes of one process: 127 days of 100,000 rows a second

Alarm = Callable[[str], None]


class Trace:
    """One replica's trace. `happened` and `close` belong to the loop; `alarm` is called by the thread that writes.

    `run` names the rows of all replicas that belong together; without one it is the id of the cluster.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        cluster: Cluster,
        site: SiteConfig,
        incarnation: int,
        run: str = "",
        limits: Limits | None = None,
        with_keys: bool = False,
        alarm: Alarm | None = None,
    ) -> None:
        load_pyarrow()
        limits = limits or cluster.limits
        self._folder = Path(folder)
        self._origin = _origin(run or cluster.cluster_id, cluster, site.number, incarnation)
        self._rows_max = limits.trace_segment_rows_max
        self._age_max_ns = limits.trace_segment_ms_max * 1_000_000
        self._with_keys = with_keys
        self._alarm = alarm
        self._holds = Holds()
        self.lost = 0  # rows thrown away, since the process started
        self.trouble = ""  # why the trace has ended before its time
        self._is_closed = False
        self._open = Segment(_first_index(self._folder, site.name))
        self._waiting: deque[Segment] = deque()
        self._ready = threading.Condition()  # guards the open segment and those that wait
        self._writer = threading.Thread(target=self._write, name="trace", daemon=True)
        self._writer.start()

    # On the loop

    def happened(self, happened: Happened) -> None:
        """Keep the rows of one turn; never waits for the disk."""
        with self._ready:
            if self.trouble or self._is_closed:
                self.lost += len(happened.events)
                return
            was_empty = not len(self._open)
            self._append(happened)
            if was_empty and len(self._open):
                self._open.opened_ns = time.monotonic_ns()
                self._ready.notify()
            if len(self._open) >= self._rows_max:
                self._hand_over()

    def close(self) -> None:
        """Seal what there is. Waits for the disk, so it comes last."""
        with self._ready:
            if not self._is_closed and not self.trouble:
                self._waiting.append(self._open)
            self._is_closed = True
            self._ready.notify()
        self._writer.join(CLOSE_MAX_S)

    def _append(self, happened: Happened) -> None:
        """The rows of the events; then, for each message that this commit made last, one that says so.

        What was sent, delivered or applied in a turn is in its commit. What was only received or held is not: it needs
        no disk, the peer still has it.
        """
        extra = {event.dot for event in happened.events if event.is_extra}
        kept: dict[Dot, None] = {}
        for event in happened.events:
            self._row(event, happened, is_extra=event.dot in extra)
            if event.kind in ("sent", "delivered", "applied"):
                kept[event.dot] = None
        for dot in kept:
            self._row(Event("committed", dot, self._origin.site), happened, is_extra=dot in extra)

    def _row(self, event: Event, happened: Happened, *, is_extra: bool) -> None:
        at = happened.committed if event.kind == "committed" else happened.stepped
        hold: Hold | None = None
        if event.kind == "held":
            hold = self._holds.begin(event, at.mono_ns)
        elif event.kind == "released":
            hold = self._holds.end(event.dot, at.mono_ns)
        self._open.append(event, at, here=self._origin.site, is_extra=is_extra, hold=hold, keys=self._with_keys)

    def _hand_over(self) -> None:
        """To the thread that writes; where too much waits there already, to nobody."""
        full = self._open
        following = full.first + len(full)
        if len(self._waiting) < SEGMENTS_WAITING_MAX:
            self._waiting.append(full)
            self._open = Segment(following)
            self._ready.notify()
        else:
            self.lost += len(full)
            self._open = Segment(following, lost=full.lost + len(full))

    # On the thread that writes

    def _write(self) -> None:
        while (segment := self._next()) is not None:
            if not len(segment) and not segment.lost:
                continue
            try:
                write_segment(self._folder, segment, self._origin)
            except Exception as error:  # whatever it is: the replica is worth more than its trace
                self._end(error, segment)

    def _next(self) -> Segment | None:
        """The segment to write next, when there is one; None at the end."""
        with self._ready:
            while not self._waiting:
                if self._is_closed:
                    return None
                left_ns = self._open.opened_ns + self._age_max_ns - time.monotonic_ns() if len(self._open) else None
                if left_ns is not None and left_ns <= 0:
                    self._hand_over()
                else:
                    self._ready.wait(None if left_ns is None else left_ns / 1e9)
            return self._waiting.popleft()

    def _end(self, error: Exception, segment: Segment) -> None:
        why = f"the trace in {self._folder} ends here, and the replica goes on without it: {error}"
        with self._ready:
            self.trouble = why
            unwritten = [segment, *self._waiting, *([] if self._is_closed else [self._open])]
            self.lost += sum(len(one) for one in unwritten)
            self._waiting.clear()
            self._open = Segment(self._open.first + len(self._open))
            self._is_closed = True
        if self._alarm is not None:
            self._alarm(why)


def _origin(run: str, cluster: Cluster, site: int, incarnation: int) -> Origin:
    options = make_site(cluster.protocol, site, len(cluster.sites), **cluster.options).options
    return Origin(
        run=run,
        cluster_id=cluster.cluster_id,
        protocol=cluster.protocol,
        options=json.dumps(options, sort_keys=True),
        names=tuple(one.name for one in cluster.sites),
        site=site,
        incarnation=incarnation,
        software=software_version(),
    )


def _first_index(folder: Path, site: str) -> int:
    """The beginning of the first block without a sealed row. Tries the folder at once, not when rows would be lost."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left_behind in unsealed_in(folder, site):
            left_behind.unlink()
        trial = folder / unsealed_name(f"trace-{site}-trial")
        trial.touch()
        trial.unlink()
        sealed = segments_in(folder, site)
    except OSError as error:
        why = f"the trace cannot be written to {folder}: {error.strerror or error}"
        raise ConfigError(why, file="", key="trace", why=why) from None
    return (sealed[-1][0] // INDEX_BLOCK + 1) * INDEX_BLOCK if sealed else 0
