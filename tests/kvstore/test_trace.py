"""The rows of a trace: every event becomes what the page says, in the order of happening."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from causal.blocks import pack_numbers
from causal.model import Dot, Missing
from kvstore.effects import Event
from kvstore.errors import ConfigError
from kvstore.holds import CAUSES
from kvstore.past import Seen
from kvstore.tracefile import metadata_of, segments_in
from kvstore.tracerow import COLUMNS, EVENTS, WITH_WITNESS, schema
from tests.kvstore.tracing import MS, ROOT, WALL, Make, rows_of, traces_in, turn, written

PAGE = (ROOT / "docs/trace.md").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "trace"


@pytest.fixture
def make(folder: Path) -> Iterator[Make]:
    with traces_in(folder) as start:
        yield start


# The schema is what the page says


def columns_of_the_page(text: str) -> list[tuple[str, str, bool]]:
    """Name, type and whether it may be null, as the table of columns has them."""
    rows = re.findall(r"^\| `(\w+)`( ∗)? \| ([^|]+) \|", text, re.MULTILINE)
    plain = [(name, kind.replace("&lt;", "<").replace("&gt;", ">").strip(), not star) for name, star, kind in rows]
    return [row for row in plain if row[0] not in EVENTS]


def test_the_page_describes_every_column_in_order_with_its_type() -> None:
    assert columns_of_the_page(PAGE) == [tuple(column) for column in COLUMNS]


def test_the_page_describes_every_event() -> None:
    table = PAGE.split("## Events")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == EVENTS


def test_a_page_that_forgets_a_column_is_noticed() -> None:
    without = "\n".join(line for line in PAGE.splitlines() if not line.startswith("| `held_ns`"))
    assert columns_of_the_page(without) != [tuple(column) for column in COLUMNS]


def test_the_page_names_the_metadata_that_a_file_has(make: Make, folder: Path) -> None:
    trace = make(site=1, incarnation=3)
    trace.happened(turn(Event("restarted", Dot(1, 7), 1)))
    trace.close()
    [(_, path)] = segments_in(folder)
    found = metadata_of(path)
    paragraph = PAGE.split("The metadata of every file")[1].split("\n\n")[0]
    assert list(found) == [name for name in re.findall(r"`([\w.]+)`", paragraph) if name != "kvstore."]
    assert found["run"] == "r1" and found["cluster_id"] == "simulated" and found["site_names"] == '["a", "b", "c"]'
    assert (found["site"], found["incarnation"], found["lost"]) == ("1", "3", "0")


def test_the_file_has_the_schema_and_a_plain_reader_sees_plain_types(make: Make, folder: Path) -> None:
    import pyarrow.parquet

    trace = make()
    trace.happened(written(1))
    trace.close()
    [(_, path)] = segments_in(folder)
    stored = pyarrow.parquet.ParquetFile(path).schema
    physical = {stored.column(number).path: stored.column(number).physical_type for number in range(len(stored))}
    assert physical["time_wall_ns"] == physical["dot.seq"] == "INT64"
    assert physical["event"] == physical["options"] == "BYTE_ARRAY"
    assert pyarrow.parquet.read_schema(path).names == schema().names == [column.name for column in COLUMNS]


# Rows


def test_a_write_becomes_a_row_for_each_copy_then_applied_then_committed(make: Make, folder: Path) -> None:
    trace = make()
    trace.happened(written(1))
    trace.close()
    rows = rows_of(folder)
    assert [(row["event"], row["link"], row["index"]) for row in rows] == [
        ("sent", 1, 0),
        ("sent", 2, 1),
        ("applied", None, 2),
        ("committed", None, 3),
    ]
    assert rows[0] == {
        "schema_version": 1,
        "run": "r1",
        "protocol": "extra-message",
        "options": '{"threshold": 8}',
        "sites": 3,
        "site": 0,
        "incarnation": 1,
        "index": 0,
        "event": "sent",
        "dot": {"site": 0, "seq": 1},
        "link": 1,
        "link_number": 1,
        "destinations": [1, 2],
        "is_extra": False,
        "semantic": True,
        "depends_on": None,
        "time_wall_ns": WALL + 5 * MS,
        "time_mono_ns": 5 * MS,
        "control_bytes": 9,
        "units": 2,
        "payload_bytes": 100,
        "updates": 1,
        "held_ns": None,
        "missing": None,
        "hold_cause": None,
        "session": None,
        "keys": None,
        "witness": [1, 0, 0],
    }
    assert [row["time_mono_ns"] for row in rows] == [5 * MS] * 3 + [6 * MS]
    assert rows[2]["updates"] == 1 and rows[2]["control_bytes"] is None


def test_keys_are_named_only_where_the_trace_is_told_to(make: Make, folder: Path) -> None:
    for with_keys in (False, True):
        trace = make(with_keys=with_keys)
        trace.happened(written(1))
        trace.close()
    assert [row["keys"] for row in rows_of(folder)] == [None] * 4 + [None, None, [b"k"], None]


def test_a_held_message_is_not_committed_and_its_time_is_known_when_it_is_released(make: Make, folder: Path) -> None:
    late, early = Dot(1, 1), Dot(2, 4)
    trace = make()
    trace.happened(
        turn(
            Event("received", early, 2, 9, control_bytes=5, updates=1),
            Event("held", early, 2, 9, Missing(1, 1), control_bytes=5),
            at_ms=10,
        )
    )
    trace.happened(
        turn(
            *(Event(kind, late, 1, 1, control_bytes=4) for kind in ("received", "delivered", "applied")),
            *(Event(kind, early, 2, 9, control_bytes=5) for kind in ("released", "delivered", "applied")),
            at_ms=35,
        )
    )
    trace.close()
    rows = rows_of(folder)
    assert [row["event"] for row in rows[:2]] == ["received", "held"]
    assert rows[1]["missing"] == {"site": 1, "seq": 1, "by_link": False} and rows[1]["hold_cause"] == "unknown"
    [released] = [row for row in rows if row["event"] == "released"]
    assert released["held_ns"] == 25 * MS and released["hold_cause"] == "unknown" and released["missing"] is None
    assert [row["dot"]["site"] for row in rows if row["event"] == "committed"] == [1, 2]


@pytest.mark.parametrize("cause", CAUSES)
def test_the_cause_of_a_hold_is_in_its_row_and_in_that_of_its_end(cause: str, make: Make, folder: Path) -> None:
    trace = make()
    trace.happened(turn(Event("held", Dot(2, 4), 2, 9, Missing(1, 1), cause=cause)))
    trace.happened(turn(Event("released", Dot(2, 4), 2, 9), Event("delivered", Dot(2, 4), 2, 9)))
    trace.close()
    causes = {row["event"]: row["hold_cause"] for row in rows_of(folder)}
    assert causes == {"held": cause, "released": cause, "delivered": None, "committed": None}


@pytest.mark.parametrize(
    ("meant", "shown"),
    [((Dot(0, 1), Dot(2, 8)), [{"site": 0, "seq": 1}, {"site": 2, "seq": 8}]), ((), []), (None, None)],
)
def test_what_it_was_meant_to_follow_is_in_the_row_and_nothing_is_not_the_same_as_not_known(
    make: Make, folder: Path, meant: Seen, shown: Any
) -> None:
    trace = make()
    trace.happened(turn(Event("sent", Dot(0, 2), 1, 2, depends_on=meant, semantic=meant != ())))
    trace.close()
    row = rows_of(folder)[0]
    assert row["depends_on"] == shown and row["semantic"] is (meant != ())


def test_an_adopted_past_names_its_session_and_what_it_brought(make: Make, folder: Path) -> None:
    trace = make()
    brought: dict[str, Any] = {"witness": pack_numbers([0, 5, 2]), "depends_on": (Dot(1, 5),), "session": "f00d"}
    trace.happened(turn(Event("adopted", Dot(0, 7), 0, **brought), Event("applied", Dot(0, 8), 0, updates=1)))
    trace.close()
    adopted, applied, committed = rows_of(folder)
    assert (adopted["event"], adopted["dot"]["seq"], adopted["session"]) == ("adopted", 7, "f00d")
    assert adopted["witness"] == [0, 5, 2] and adopted["depends_on"] == [{"site": 1, "seq": 5}]
    assert adopted["link"] is adopted["semantic"] is adopted["updates"] is applied["session"] is None
    assert committed["dot"]["seq"] == 8  # an adoption is not a message


def test_every_event_has_its_row(make: Make, folder: Path) -> None:
    trace = make()
    for kind in EVENTS:
        trace.happened(turn(Event(kind, Dot(1, 3), 1, 3, is_extra=True, witness=pack_numbers([300, 1, 2]))))
    trace.close()
    rows = rows_of(folder)
    assert [row["event"] for row in rows if row["event"] != "committed"] == [e for e in EVENTS if e != "committed"]
    assert all(row["is_extra"] for row in rows)
    assert {row["event"] for row in rows if row["witness"] == [300, 1, 2]} == WITH_WITNESS


def test_an_extra_message_is_known_as_one_by_its_delivery_also_where_it_is_applied(make: Make, folder: Path) -> None:
    trace = make()
    trace.happened(turn(Event("delivered", Dot(1, 4), 1, 4, is_extra=True), Event("applied", Dot(1, 4), 1, 4)))
    trace.close()
    assert [(row["event"], row["is_extra"]) for row in rows_of(folder)] == [
        ("delivered", True),
        ("applied", True),
        ("committed", True),
    ]


@pytest.mark.parametrize("witness", [b"\x01\x01", b"\x09abc", pack_numbers([1, 2, (1 << 64) - 1])])
def test_a_number_or_witness_that_no_column_can_hold_is_null_and_nothing_breaks(
    make: Make, folder: Path, witness: bytes
) -> None:
    trace = make()
    trace.happened(turn(Event("received", Dot(1, 1 << 63), 1, 1, control_bytes=3, witness=witness)))
    trace.happened(turn(Event("received", Dot(1, 2), 1, 2, control_bytes=3)))
    trace.close()
    assert not trace.trouble
    rows = rows_of(folder)
    assert rows[0]["dot"] == {"site": 1, "seq": None} and rows[0]["witness"] is None
    assert rows[1]["dot"] == {"site": 1, "seq": 2}


# Before it starts


def test_without_pyarrow_it_says_what_to_install(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"a trace needs pyarrow.*pip install 'causal-kvstore\[trace\]'"):
        make()


def test_nothing_but_a_trace_needs_pyarrow() -> None:
    program = "import sys; import kvstore.trace, kvstore.metrics; sys.exit('pyarrow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_folder_that_cannot_be_written_is_refused_at_once(make: Make, folder: Path) -> None:
    (folder).write_text("a file, not a folder")
    with pytest.raises(ConfigError, match="the trace cannot be written to"):
        make()
