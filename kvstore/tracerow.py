"""The rows of a trace: one fixed schema, and how an event becomes a row of it.

A row is something that happened to a message at one site; docs/trace.md says what each column means. Rows gather in
columns of plain numbers, so that an append costs little on the loop and a segment goes to Arrow almost as it is.

pyarrow is an extra. It is imported when a trace is written or read, and by nobody else.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from causal.blocks import Reader
from causal.errors import CausalError
from causal.model import Mask, Site, sites_of
from kvstore.effects import Event, Moment
from kvstore.errors import ConfigError
from kvstore.holds import CAUSES, Hold
from kvstore.past import Seen

SCHEMA_VERSION = 1  # greater when a column changes its meaning or goes; new columns at the end do not count
METADATA = "kvstore."  # in front of the names in a file's own metadata

EVENTS = (
    "sent",
    "received",
    "held",
    "released",
    "delivered",
    "applied",
    "committed",
    "adopted",
    "duplicate",
    "restarted",
)


class Column(NamedTuple):
    name: str
    type: str  # of the types below
    is_optional: bool = False  # null where it has no meaning


# Signed numbers and no timestamps of nanoseconds: every reader of Parquet has the former, and not the latter.
COLUMNS = (
    Column("schema_version", "int32"),
    Column("run", "string"),
    Column("protocol", "string"),
    Column("options", "string"),
    Column("sites", "int32"),
    Column("site", "int32"),
    Column("incarnation", "int64"),
    Column("index", "int64"),
    Column("event", "string"),
    Column("dot", "dot"),
    Column("link", "int32", True),
    Column("link_number", "int64", True),
    Column("destinations", "list<int32>", True),
    Column("is_extra", "bool"),
    Column("semantic", "bool", True),
    Column("depends_on", "list<dot>", True),
    Column("time_wall_ns", "int64"),
    Column("time_mono_ns", "int64"),
    Column("control_bytes", "int64", True),
    Column("units", "int64", True),
    Column("payload_bytes", "int64", True),
    Column("updates", "int64", True),
    Column("held_ns", "int64", True),
    Column("missing", "missing", True),
    Column("hold_cause", "string", True),
    Column("session", "string", True),
    Column("keys", "list<binary>", True),
    Column("witness", "list<int64>", True),
)

WITH_UPDATES = {"sent", "received", "delivered", "applied"}  # the events that know how many
WITH_WITNESS = {"sent", "received", "adopted", "restarted"}  # once at each end; it would say the same in every row

_CODES = {event: code for code, event in enumerate(EVENTS)}
_CAUSE_CODES = {cause: code for code, cause in enumerate(CAUSES)}
_NUMBERS = (  # what a row has as plain numbers; a struct is one for each of its fields
    *("event", "dot.site", "dot.seq", "link", "link_number", "is_extra", "semantic", "time_wall_ns", "time_mono_ns"),
    *("control_bytes", "units", "payload_bytes", "updates", "held_ns"),
    *("missing.site", "missing.seq", "missing.by_link", "hold_cause"),
)
_NULL = (1 << 64) - 1  # in memory; in the file such a number, like any that is too great for its column, is null
_GREATEST = {"int32": (1 << 31) - 1, "int64": (1 << 63) - 1}


def load_pyarrow(what: str = "trace") -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        why = f"a {what} needs pyarrow, which is not installed; pip install 'causal-kvstore[trace]' brings it"
        raise ConfigError(why, file="", key=what, why=why) from None
    return pyarrow


def schema() -> Any:
    """The columns as Arrow has them."""
    types = _types(load_pyarrow())
    return load_pyarrow().schema(
        [load_pyarrow().field(one.name, types[one.type], nullable=one.is_optional) for one in COLUMNS]
    )


def _types(pa: Any) -> dict[str, Any]:
    dot = pa.struct([("site", pa.int32()), ("seq", pa.int64())])
    return {
        "int32": pa.int32(),
        "int64": pa.int64(),
        "bool": pa.bool_(),
        "string": pa.dictionary(pa.int32(), pa.string()),  # a few words, again and again
        "dot": dot,
        "missing": pa.struct([("site", pa.int32()), ("seq", pa.int64()), ("by_link", pa.bool_())]),
        "list<int32>": pa.list_(pa.int32()),
        "list<int64>": pa.list_(pa.int64()),
        "list<dot>": pa.list_(dot),
        "list<binary>": pa.list_(pa.binary()),
    }


class Origin(NamedTuple):
    """What is the same in every row that a process writes."""

    run: str
    cluster_id: str
    protocol: str
    options: str  # JSON
    names: tuple[str, ...]  # of the sites, by number
    site: Site
    incarnation: int
    software: str


class Segment:
    """Rows that are not sealed yet, in columns."""

    def __init__(self, first: int, lost: int = 0) -> None:
        self.first = first  # index of its first row
        self.lost = lost  # rows that were thrown away since the segment before
        self.opened_ns = 0  # of its first row, by the monotonic clock
        self.numbers = {name: array("Q") for name in _NUMBERS}
        self.destinations: list[Mask] = []
        self.depends_on: list[Seen] = []
        self.session: list[str] = []
        self.keys: list[tuple[bytes, ...]] = []
        self.witness: list[bytes] = []

    def __len__(self) -> int:
        return len(self.witness)

    def append(self, event: Event, at: Moment, *, here: Site, is_extra: bool, hold: Hold | None, keys: bool) -> None:
        kind, missing = event.kind, event.missing
        on_link, has_envelope = event.peer != here, event.control_bytes > 0
        put = self.numbers
        put["event"].append(_CODES[kind])
        put["dot.site"].append(event.dot.site)
        put["dot.seq"].append(event.dot.seq)
        put["link"].append(event.peer if on_link else _NULL)
        put["link_number"].append(event.number if on_link and event.number else _NULL)
        put["is_extra"].append(is_extra)
        put["semantic"].append(event.semantic if kind == "sent" else _NULL)
        put["time_wall_ns"].append(at.wall_ns)
        put["time_mono_ns"].append(at.mono_ns)
        put["control_bytes"].append(event.control_bytes if has_envelope else _NULL)
        put["units"].append(event.units if kind == "sent" else _NULL)
        put["payload_bytes"].append(event.payload_bytes if has_envelope else _NULL)
        put["updates"].append(event.updates if kind in WITH_UPDATES else _NULL)
        put["held_ns"].append(_NULL if hold is None or hold.held_ns is None else hold.held_ns)
        put["missing.site"].append(_NULL if missing is None else missing.site)
        put["missing.seq"].append(_NULL if missing is None else missing.seq)
        put["missing.by_link"].append(_NULL if missing is None else missing.by_link)
        put["hold_cause"].append(_NULL if hold is None else _CAUSE_CODES[hold.cause])
        self.destinations.append(event.to)
        self.depends_on.append(event.depends_on)
        self.session.append(event.session)
        self.keys.append(event.keys if keys else ())
        self.witness.append(event.witness if kind in WITH_WITNESS else b"")


# A segment as a table


def to_table(segment: Segment, origin: Origin) -> Any:
    pa = load_pyarrow()
    table = pa.table([_column(pa, one, segment, origin) for one in COLUMNS], schema=schema())
    named = {
        "schema_version": str(SCHEMA_VERSION),
        "software": origin.software,
        "run": origin.run,
        "cluster_id": origin.cluster_id,
        "protocol": origin.protocol,
        "options": origin.options,
        "site": str(origin.site),
        "site_names": json.dumps(origin.names),
        "incarnation": str(origin.incarnation),
        "first_index": str(segment.first),
        "lost": str(segment.lost),
    }
    return table.replace_schema_metadata({METADATA + name: value for name, value in named.items()})


def _column(pa: Any, column: Column, segment: Segment, origin: Origin) -> Any:
    name, rows = column.name, len(segment)
    constants = {
        "schema_version": SCHEMA_VERSION,
        "run": origin.run,
        "protocol": origin.protocol,
        "options": origin.options,
        "sites": len(origin.names),
        "site": origin.site,
        "incarnation": origin.incarnation,
    }
    type_ = _types(pa)[column.type]
    match name:
        case "index":
            return pa.array(array("q", range(segment.first, segment.first + rows)), type_)
        case "event" | "hold_cause":
            words = pa.array(EVENTS if name == "event" else CAUSES)
            return pa.DictionaryArray.from_arrays(_numbers(pa, segment.numbers[name], "int32"), words)
        case "dot" | "missing":
            return _struct(pa, name, type_, segment)
        case "destinations":
            return pa.array(_sites(segment.destinations), type_)
        case "depends_on":  # one that depends on nothing has an empty list; null is not known
            return pa.array(segment.depends_on, type_)
        case "keys" | "session":
            return pa.array([one or None for one in getattr(segment, name)], type_)
        case "witness":
            return pa.array([_vector(one, len(origin.names)) for one in segment.witness], type_)
        case _ if name in constants:
            return pa.array([constants[name]] * rows, type_)
        case _:
            return _numbers(pa, segment.numbers[name], column.type)


def _numbers(pa: Any, values: array[int], type_: str) -> Any:
    pc, kind = pa.compute, pa.uint64()
    numbers = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    if type_ == "bool":
        is_null = pc.equal(numbers, pa.scalar(_NULL, kind))
        return pc.if_else(is_null, pa.scalar(None, pa.bool_()), pc.equal(numbers, pa.scalar(1, kind)))
    fits = pc.less_equal(numbers, pa.scalar(_GREATEST[type_], kind))
    return pc.if_else(fits, numbers, pa.scalar(None, kind)).cast(type_)


def _struct(pa: Any, name: str, type_: Any, segment: Segment) -> Any:
    columns = [segment.numbers[f"{name}.{field.name}"] for field in type_]
    arrays = [_numbers(pa, column, str(field.type)) for column, field in zip(columns, type_, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(type_), mask=pa.compute.is_null(arrays[0]))


def _sites(masks: Iterable[Mask]) -> list[tuple[Site, ...] | None]:
    """The same few sets come again and again."""
    known: dict[Mask, tuple[Site, ...] | None] = {0: None}
    return [known[mask] if mask in known else known.setdefault(mask, tuple(sites_of(mask))) for mask in masks]


def _vector(packed: bytes, sites: int) -> list[int] | None:
    """A witness came from outside: one that is none is as good as absent."""
    if not packed:
        return None
    try:
        numbers = list(Reader(packed).numbers(sites))
    except CausalError:
        return None
    return numbers if max(numbers) <= _GREATEST["int64"] else None
