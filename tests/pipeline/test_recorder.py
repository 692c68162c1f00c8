"""What the client writes down is what the audit reads: they share no code, so only a test can keep them together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from kvstore.historyfile import COLUMNS, Lines, Row, Segments
from pipeline.audit import load
from pipeline.audit.formats.rows import NULLABLE, REQUIRED
from pipeline.audit.history import Kind
from pipeline.cli import main

V1, V2 = "018bcfe568000001-0", "018bcfe568000002-3"
WRITE = Row("run", "s1-ab", 0, 0, "write", b"\xffx", b"digest", V1, [], "a", 5, 6, "ok", "t", True)
READ = Row("run", "s1-ab", 1, 1, "read", b"\xffx", b"digest", None, [V1], "b", 7, 8, "ok", "t", False)
DELETE = Row("run", "s1-ab", 2, 2, "delete", b"\xffx", None, V2, [], "b", 9, 10, "ok", None, False)
LOST = Row("run", "s2-ab", 0, 0, "write", b"y", None, None, [], "", 7, 8, "unknown", None, False)
OUTSIDE = Row("run", "", 3 << 50, 3 << 50, "read", b"y", None, None, [], "b", 7, 8, "ok", None, False)
ROWS = [WRITE, READ, DELETE, LOST, OUTSIDE]


def test_every_column_of_the_client_is_known_to_the_audit() -> None:
    names = {one.name for one in COLUMNS}
    assert set(REQUIRED) <= names <= {*REQUIRED, *NULLABLE}
    assert {one.name for one in COLUMNS if one.is_optional} <= set(NULLABLE)


def test_segments_and_lines_become_the_same_operations(tmp_path: Path) -> None:
    Segments(tmp_path / "segments", writer="ab", values="digest").write(ROWS)
    Lines(tmp_path / "lines.jsonl").write(ROWS)
    (segment,) = (tmp_path / "segments").iterdir()
    history = load(segment.read_bytes(), "parquet")
    assert history == load((tmp_path / "lines.jsonl").read_bytes(), "jsonl")
    assert [one.kind for one in history.operations] == [Kind.WRITE, Kind.READ, Kind.DELETE, Kind.WRITE, Kind.READ]
    assert history.operations[0].key == b"\xffx"
    assert history.operations[0].expires


def test_a_folder_of_segments_is_judged_as_one_run(tmp_path: Path) -> None:
    for writer, rows in (("ab", [WRITE]), ("cd", [replace(READ, session="s1-cd")]), ("ef", [DELETE])):
        Segments(tmp_path, writer=writer, values="digest").write(rows)
    apart = CliRunner().invoke(main, ["audit", str(tmp_path)])
    together = CliRunner().invoke(main, ["audit", "--together", str(tmp_path)])
    assert (apart.exit_code, together.exit_code) == (1, 0)
