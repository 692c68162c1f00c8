"""The files of a history: sealed Parquet segments in a folder, like those of a trace, or lines of JSON in one file.

A row is one operation on one key, as the client saw it; docs/client.md says what each column means. Segments are whole
or not there (tracefile.py). Lines are appended, so a kill may leave half a line at the end, which is no row.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvstore.errors import ConfigError
from kvstore.show import from_json, to_json
from kvstore.tracefile import seal
from kvstore.tracerow import METADATA, Column, load_pyarrow
from kvstore.version import software_version

LINES = ".jsonl"  # how the name of a history ends that is lines of JSON
SCHEMA_VERSION = 1  # greater when a column changes its meaning or goes
_SEGMENT = re.compile(r"history-[0-9a-f]+-[0-9]{19}\.parquet")


@dataclass(slots=True)
class Row:
    run: str
    session: str  # empty: a call without one
    index: int  # order of the session's operations
    transaction: int  # shared by what was done or seen at one moment
    operation: str  # read, write, delete
    key: bytes
    value: bytes | None  # written, or read; a digest of it, unless the history was told otherwise
    version: str | None  # that was written
    observed: list[str]  # the versions that a read returned; several are siblings, none is absent
    replica: str
    start_ns: int  # by the monotonic clock of the client
    end_ns: int
    outcome: str  # ok, fail, unknown
    token: str | None  # a digest of the session's token after the call
    expires: bool  # the write had a time to live, or what was read a deadline
    replaces: list[str] | None = None  # the versions that a write named, where keys have siblings


COLUMNS = (
    Column("run", "string"),
    Column("session", "string"),
    Column("index", "int64"),
    Column("transaction", "int64"),
    Column("operation", "string"),
    Column("key", "binary"),
    Column("value", "binary", True),
    Column("version", "string", True),
    Column("observed", "list<string>"),
    Column("replica", "string"),
    Column("start_ns", "int64"),
    Column("end_ns", "int64"),
    Column("outcome", "string"),
    Column("token", "string", True),
    Column("expires", "bool"),
    Column("replaces", "list<string>", True),
)


class File(Protocol):
    def write(self, rows: Sequence[Row]) -> None:
        """When it returns, a kill cannot take them any more."""


class Segments:
    """Each is named by whoever writes it and its first row: many processes may write to one folder."""

    def __init__(self, folder: Path, *, writer: str, values: str) -> None:
        load_pyarrow("history")
        self._folder, self._writer, self._values = folder, writer, values
        self._rows = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            trial = folder / f".history-{writer}.part"
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise unusable(folder, error) from None

    def write(self, rows: Sequence[Row]) -> None:
        pa = load_pyarrow("history")
        columns = [pa.array([getattr(row, one.name) for row in rows], one.type) for one in schema()]
        named = {"schema_version": str(SCHEMA_VERSION), "software": software_version(), "values": self._values}
        metadata = {f"{METADATA}history.{name}": value for name, value in named.items()}
        table = pa.table(columns, schema=schema()).replace_schema_metadata(metadata)
        seal(self._folder, f"history-{self._writer}-{self._rows:019}.parquet", table)
        self._rows += len(rows)


class Lines:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise unusable(path, error) from None

    def write(self, rows: Sequence[Row]) -> None:
        text = "".join(json.dumps(_line(row), ensure_ascii=False) + "\n" for row in rows)
        with self._path.open("ab") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())


def unusable(path: Path, error: OSError) -> ConfigError:
    why = f"the history cannot be written to {path}: {error.strerror or error}"
    return ConfigError(why, file="", key="history", why=why)


def schema() -> Any:
    """The columns as Arrow has them."""
    pa = load_pyarrow("history")
    types = {"string": pa.string(), "int64": pa.int64(), "binary": pa.binary(), "bool": pa.bool_()}
    types["list<string>"] = pa.list_(pa.string())
    return pa.schema([pa.field(one.name, types[one.type], nullable=one.is_optional) for one in COLUMNS])


def _line(row: Row) -> dict[str, Any]:
    shown = {one.name: getattr(row, one.name) for one in COLUMNS}
    return {**shown, "key": to_json(row.key), "value": None if row.value is None else to_json(row.value)}


def read_history(path: Path | str) -> list[Row]:
    """All rows that are safe, by session and in the order in which the session did them."""
    path = Path(path)
    found = _lines_in(path) if path.suffix == LINES else _segments_in(path)
    return sorted(found, key=lambda row: (row.run, row.session, row.index))


def _segments_in(folder: Path) -> Iterator[Row]:
    parquet = load_pyarrow("history").parquet
    for path in sorted(one for one in folder.iterdir() if _SEGMENT.fullmatch(one.name)):
        for row in parquet.read_table(path, partitioning=None).to_pylist():
            yield Row(**row)


def _lines_in(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                row = json.loads(line)
                value = None if row["value"] is None else from_json(row["value"])
                yield Row(**{**row, "key": from_json(row["key"]), "value": value})
