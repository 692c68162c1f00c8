"""From bytes to a history: one file a format, and the table of them.

A loader is strict. What it does not understand is an error that names the line, because an operation that is left
out can hide a violation or make one up.

    awdit     r|w key value; a line of dashes ends a transaction, a line of equals signs a session
    plume     r|w(key,value,session,transaction); transaction -1 was aborted, value 0 is the initial one
    edn       Jepsen's maps, one a line
    jsonl     the store's own history rows, one JSON object a line
    parquet   the same rows in columns
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

from pipeline.audit.errors import UnknownFormat
from pipeline.audit.formats.awdit import read_awdit
from pipeline.audit.formats.edn import read_edn
from pipeline.audit.formats.jsonl import read_jsonl
from pipeline.audit.formats.parquet import MAGIC, read_parquet
from pipeline.audit.formats.plume import read_plume
from pipeline.audit.history import History, Operation


class Format(NamedTuple):
    read: Callable[[bytes], list[Operation]]
    is_ordered: bool  # it has the store's own versions


FORMATS: Mapping[str, Format] = {
    "awdit": Format(read_awdit, is_ordered=False),
    "plume": Format(read_plume, is_ordered=False),
    "edn": Format(read_edn, is_ordered=False),
    "jsonl": Format(read_jsonl, is_ordered=True),
    "parquet": Format(read_parquet, is_ordered=True),
}

_SUFFIXES = {".edn": "edn", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
# How the first line that is not empty begins.
_BEGINNINGS = {
    "plume": re.compile(rb"[rw]\s*\("),
    "awdit": re.compile(rb"[rw]\s+[-0-9]|-+\s*$|=+\s*$"),
    "edn": re.compile(rb"[;#]|\{\s*:"),
    "jsonl": re.compile(rb'\{\s*"'),
}


def detect(data: bytes, *, name: str) -> str:
    """The format of a file, by how it begins, and where that says nothing by how it is called."""
    if data.startswith(MAGIC):
        return "parquet"
    first = data.lstrip().partition(b"\n")[0]
    for format, beginning in _BEGINNINGS.items():
        if beginning.match(first):
            return format
    suffix = PurePath(name).suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    raise UnknownFormat(f"it is of no format that is known here ({', '.join(FORMATS)}); --format can name it")


def load(data: bytes, format: str, *, siblings: Collection[bytes] = (), is_complete: bool = True) -> History:
    """The history that a file holds."""
    return load_parts([data], [format], siblings=siblings, is_complete=is_complete)


def load_parts(
    parts: Iterable[bytes], formats: Collection[str], *, siblings: Collection[bytes] = (), is_complete: bool = True
) -> History:
    """One history that several clients recorded, each in its own file."""
    read = [FORMATS[format].read(data) for data, format in zip(parts, formats, strict=True)]
    orders = {FORMATS[format].is_ordered for format in formats}
    if len(orders) > 1 or (len(read) > 1 and orders == {False}):
        raise UnknownFormat("only the store's own histories, jsonl or parquet, can be put together")
    operations = [one for part in read for one in part]
    return History.of(operations, is_ordered=orders == {True}, siblings=siblings, is_complete=is_complete)
