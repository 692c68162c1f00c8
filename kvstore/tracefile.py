"""The files of a trace: segments that are whole or not there, and how to read them again.

A segment is written under a name that every reader ignores, synced, and renamed: a kill leaves sealed segments, each
complete, and perhaps one file that nobody looks at.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvstore.storage.folder import sync_path
from kvstore.tracerow import METADATA, Origin, Segment, load_pyarrow, schema, to_table

_NAME = re.compile(r"trace-(?P<site>.+)-(?P<incarnation>\d+)-(?P<first>\d{19})\.parquet")


def segment_name(site: str, incarnation: int, first: int) -> str:
    return f"trace-{site}-{incarnation}-{first:019}.parquet"


def unsealed_name(name: str) -> str:
    """Of a segment that is being written: neither `*.parquet` nor Spark sees it."""
    return f".{name}.part"


def unsealed_in(folder: Path, site: str) -> list[Path]:
    """What a process of this site left behind when it was killed."""
    parts = [(path, _NAME.fullmatch(path.name[1 : -len(".part")])) for path in folder.glob(".trace-*.part")]
    return [path for path, match in parts if match and match["site"] == site]


def segments_in(folder: Path | str, site: str | None = None) -> list[tuple[int, Path]]:
    """The sealed segments, of one site or of all, each with the index of its first row; by site, then in order."""
    found = [(match, path) for path in Path(folder).iterdir() if (match := _NAME.fullmatch(path.name))]
    named = [(one["site"], int(one["first"]), path) for one, path in found if site in (None, one["site"])]
    return [(first, path) for _, first, path in sorted(named)]


def write_segment(folder: Path, segment: Segment, origin: Origin) -> Path:
    name = segment_name(origin.names[origin.site], origin.incarnation, segment.first)
    return seal(folder, name, to_table(segment, origin))


def seal(folder: Path, name: str, table: Any) -> Path:
    """All of it is there under its name, and survives a power loss, or nothing is."""
    path, unsealed = folder / name, folder / unsealed_name(name)
    try:
        with unsealed.open("wb") as file:
            load_pyarrow().parquet.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        unsealed.rename(path)
    except BaseException:
        unsealed.unlink(missing_ok=True)
        raise
    sync_path(folder)  # the new name itself must reach the disk
    return path


def metadata_of(path: Path) -> Mapping[str, str]:
    """What a segment says of itself: version, run, cluster, site, rows lost before it."""
    found = load_pyarrow().parquet.read_schema(path).metadata
    texts = {name.decode(): value.decode() for name, value in found.items()}
    return {name.removeprefix(METADATA): value for name, value in texts.items() if name.startswith(METADATA)}


def read_trace(folder: Path | str, site: str | None = None) -> Any:
    """All sealed rows as one pyarrow Table, by site, incarnation and index; `.to_pylist()` makes rows of it."""
    pa = load_pyarrow()
    tables = [
        pa.parquet.read_table(path, partitioning=None).replace_schema_metadata(None)
        for _, path in segments_in(folder, site)
    ]
    together = pa.concat_tables(tables) if tables else schema().empty_table()
    return together.sort_by([(name, "ascending") for name in ("site", "incarnation", "index")])
