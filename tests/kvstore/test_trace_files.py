"""The files of a trace: sealed by rows and by time, readable after a kill, and never in the way of the replica."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from causal.model import Dot
from kvstore import trace as trace_module
from kvstore.effects import Event
from kvstore.trace import INDEX_BLOCK, SEGMENTS_WAITING_MAX
from kvstore.tracefile import metadata_of, read_trace, segments_in, write_segment
from kvstore.tracerow import COLUMNS, Origin, Segment
from tests.kvstore.tracing import ROOT, Make, eventually, rows_of, traces_in, turn, written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    with traces_in(folder) as start:
        yield start


# Segments


def test_a_segment_is_sealed_when_it_has_its_rows(make: Make, folder: Path) -> None:
    trace = make(trace_segment_rows_max=8)
    for seq in range(1, 6):
        trace.happened(written(seq))
    eventually(lambda: len(segments_in(folder)) == 2)
    assert [first for first, _ in segments_in(folder)] == [0, 8]
    assert [row["index"] for row in rows_of(folder)] == list(range(16))  # the rest is not sealed yet
    trace.close()
    assert [row["index"] for row in rows_of(folder)] == list(range(20))


def test_a_segment_is_sealed_when_it_is_old_and_an_idle_trace_writes_nothing(make: Make, folder: Path) -> None:
    trace = make(trace_segment_ms_max=20)
    time.sleep(0.05)
    assert segments_in(folder) == []
    trace.happened(written(1))
    eventually(lambda: len(segments_in(folder)) == 1)
    trace.happened(written(2))
    eventually(lambda: len(segments_in(folder)) == 2)
    trace.close()
    assert [row["index"] for row in rows_of(folder)] == list(range(8))
    assert len(segments_in(folder)) == 2


def test_replicas_share_a_folder_and_names_that_look_alike_do_not_mix(make: Make, folder: Path) -> None:
    for site in (0, 1):
        one = make(site=site)
        one.happened(turn(Event("restarted", Dot(site, 1), site)))
        one.close()
    folder = folder
    alike = folder / ".trace-a-1-1-0000000000000000000.parquet.part"  # of a site called a-1
    ours = folder / ".trace-a-1-0000000000000000000.parquet.part"
    for path in (alike, ours):
        path.write_bytes(b"half")
    assert [row["site"] for row in rows_of(folder)] == [0, 1]  # nobody reads what is not sealed
    assert read_trace(folder, "b").num_rows == 1
    make(site=0).close()
    assert alike.exists() and not ours.exists()


def test_a_folder_without_segments_reads_as_no_rows(tmp_path: Path) -> None:
    table = read_trace(tmp_path)
    assert table.num_rows == 0 and table.schema.names == [column.name for column in COLUMNS]


# Restarts and kills


def test_the_index_goes_on_after_a_restart_in_a_block_of_its_own(make: Make, folder: Path) -> None:
    for run, incarnation in (("r1", 1), ("r1", 1), ("r2", 2)):
        trace = make(run=run, incarnation=incarnation)
        trace.happened(written(1))
        trace.close()
    rows = rows_of(folder)
    assert [row["index"] // INDEX_BLOCK for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert [row["index"] % INDEX_BLOCK for row in rows] == [0, 1, 2, 3] * 3
    assert [row["index"] for row in rows] == sorted(row["index"] for row in rows)


TRACER = """
import os, sys, time
from causal.model import Dot
from kvstore.effects import Event, Happened, Moment
from kvstore.limits import Limits
from kvstore.trace import Trace
from tests.simulation.cluster import make_cluster

cluster = make_cluster(3, "optimal")
limits = Limits(trace_segment_rows_max=40)
def tell(text):  # whole lines, from two threads
    os.write(1, f"{text}\\n".encode())
def complain(text):
    tell("alarm " + text)
trace = Trace(sys.argv[1], cluster=cluster, site=cluster.sites[0], incarnation=1, limits=limits, alarm=complain)
end, seq = time.monotonic() + 30, int(sys.argv[2])  # whatever becomes of the test, this ends
while time.monotonic() < end:
    seq += 1
    now = Moment(time.time_ns(), time.monotonic_ns())
    events = [Event("sent", Dot(0, seq), peer, seq, to=6, control_bytes=9) for peer in (1, 2)]
    events.append(Event("applied", Dot(0, seq), 0))
    trace.happened(Happened(seq, events, now, now, 1, 1))
    if seq % 50 == 0:
        tell(seq)
        time.sleep(0.002)
"""


def start_tracer(folder: Path, first: int, *, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + TRACER, str(folder), str(first)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_kill_leaves_whole_segments_and_the_next_process_goes_on_above_them(folder: Path) -> None:
    first = 1
    for killed in range(1, 4):
        process = start_tracer(folder, first)
        assert process.stdout is not None
        try:
            told = [int(process.stdout.readline()) for _ in range(3)]
            eventually(lambda: blocks_in(folder) >= killed)  # noqa: B023
        finally:
            process.send_signal(signal.SIGKILL)
            told += [int(line) for line in process.stdout if line.endswith("\n")]
            process.wait()
            process.stdout.close()
        first = told[-1] + 100  # so that a dot is never made twice
        assert_nothing_wrong(folder)
    assert blocks_in(folder) == 3


def blocks_in(folder: Path) -> int:
    return len({first // INDEX_BLOCK for first, _ in segments_in(folder)}) if folder.is_dir() else 0


def assert_nothing_wrong(folder: Path) -> None:
    """Every row that is there is true and in order, and of what is missing before the tail the files say how much."""
    following: dict[int, int] = {}
    for first, path in segments_in(folder):
        block = first // INDEX_BLOCK
        assert first == following.get(block, block * INDEX_BLOCK) + int(metadata_of(path)["lost"])
        rows = pyarrow.parquet.read_table(path).to_pylist()
        assert [row["index"] for row in rows] == list(range(first, first + len(rows)))
        kinds = [row["event"] for row in rows]
        assert kinds == ["sent", "sent", "applied", "committed"] * (len(rows) // 4)
        numbers = [row["dot"]["seq"] for row in rows]
        assert numbers == sorted(numbers)
        following[block] = first + len(rows)


def test_the_check_after_a_kill_notices_a_segment_that_is_gone(make: Make, folder: Path) -> None:
    trace = make(trace_segment_rows_max=4)
    for seq in (1, 2, 3):
        trace.happened(written(seq))
    trace.close()
    assert_nothing_wrong(folder)
    segments_in(folder)[1][1].unlink()
    with pytest.raises(AssertionError):
        assert_nothing_wrong(folder)


def test_a_segment_has_its_name_only_when_it_is_synced_and_then_the_name_is_synced(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[bool, list[str]]] = []  # whether a folder was synced, and what was in ours at that moment
    really = os.fsync

    def watched(descriptor: int) -> None:
        really(descriptor)
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_folder, [path.name for path in folder.iterdir()]))

    monkeypatch.setattr(os, "fsync", watched)
    trace = make()
    trace.happened(written(1))
    trace.close()
    name = "trace-a-1-0000000000000000000.parquet"
    assert synced == [(False, [f".{name}.part"]), (True, [name])]


def test_a_segment_that_fails_halfway_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="input/output"):
        write_segment(tmp_path, Segment(0), Origin("r", "c", "optimal", "{}", ("a", "b"), 0, 1, "0"))
    assert list(tmp_path.iterdir()) == []


# When the disk does not keep up, or fails


def test_a_writer_that_falls_behind_costs_rows_which_are_counted_and_never_makes_the_loop_wait(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write, reached = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Path:
        reached.set()
        assert may_write.wait(20)
        return write_segment(*arguments)

    monkeypatch.setattr(trace_module, "write_segment", slow)
    trace = make(trace_segment_rows_max=4)
    trace.happened(written(1))
    assert reached.wait(20)
    for seq in range(2, 102):  # none of these waits for the writer, who waits for us
        trace.happened(written(seq))
    kept = 1 + SEGMENTS_WAITING_MAX
    assert trace.lost == (101 - kept) * 4
    may_write.set()
    eventually(lambda: len(segments_in(folder)) == kept)
    trace.happened(written(102))
    trace.close()
    files = [path for _, path in segments_in(folder)]
    assert [int(metadata_of(path)["lost"]) for path in files] == [0] * kept + [trace.lost]
    assert [row["index"] for row in rows_of(folder)] == [*range(kept * 4), *range(101 * 4, 102 * 4)]


def test_rows_lost_at_the_very_end_are_still_told(make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_write = threading.Event()
    monkeypatch.setattr(trace_module, "write_segment", lambda *all: may_write.wait(20) and write_segment(*all))
    trace = make(trace_segment_rows_max=4)
    for seq in range(1, 21):
        trace.happened(written(seq))
    may_write.set()
    trace.close()
    files = [path for _, path in segments_in(folder)]
    assert trace.lost > 0 and int(metadata_of(files[-1])["lost"]) == trace.lost
    assert len(rows_of(folder)) + trace.lost == 20 * 4


def test_a_full_disk_ends_the_trace_with_one_alarm_and_the_replica_goes_on(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    alarms: list[str] = []
    trace = make(trace_segment_rows_max=4, alarm=alarms.append)
    trace.happened(written(1))
    eventually(lambda: len(segments_in(folder)) == 1)
    monkeypatch.setattr(trace_module, "write_segment", full)
    trace.happened(written(2))
    eventually(lambda: alarms)
    for seq in range(3, 10):
        trace.happened(written(seq))
    trace.close()
    assert len(alarms) == 1 and "No space left" in alarms[0] and "the replica goes on" in alarms[0]
    assert trace.trouble == alarms[0] and trace.lost >= 4
    assert len(rows_of(folder)) == 4


def test_a_disk_that_really_takes_no_more_is_an_alarm_in_a_process_that_goes_on(folder: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
    process = start_tracer(folder, 1, before=limit)
    assert process.stdout is not None
    try:
        lines: list[str] = []
        while not lines or not lines[-1].startswith("alarm"):
            lines.append(process.stdout.readline())
            assert lines[-1], "it ended without an alarm"
        assert "File too large" in lines[-1]
        assert int(process.stdout.readline()) > 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert list((folder).iterdir()) == []


def test_a_trace_that_is_closed_takes_nothing_more_and_closes_twice(make: Make, folder: Path) -> None:
    trace = make()
    trace.happened(written(1))
    trace.close()
    trace.close()
    trace.happened(written(2))
    assert trace.lost == 3 and len(rows_of(folder)) == 4
