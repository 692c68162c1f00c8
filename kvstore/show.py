"""Values as text and back: bytes in JSON, lines and tables, tokens, durations and sizes.

A key or a value is any bytes. In JSON it is text where it is UTF-8, else `{"base64": "…"}`: an object where a text
could stand, so that the two cannot be confused. In lines and tables it is text with backslash escapes, one line
whatever it holds; `--escape` reads that back.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvstore.update import escape

MARK = "base64"
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,3})?) ?(ms|s|m|h|d)")
_NUMERIC = re.compile(r"-|[-+]?[0-9][0-9,]*(\.[0-9]+)?( [A-Za-z]+)*( \(.*\))?")  # 1,234 or 5 (1.2 KiB) or 3 s ago
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")

JsonBytes = str | dict[str, str]


def to_json(data: bytes) -> JsonBytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {MARK: base64.b64encode(data).decode()}


def from_json(value: object) -> bytes:
    """The bytes that `to_json` showed; ValueError with a sentence for anything else."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise ValueError("half a character, which no text can hold") from None
    if isinstance(value, dict) and value.keys() == {MARK} and isinstance(value[MARK], str):
        try:
            return base64.b64decode(value[MARK], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{value[MARK][:40]!r} is not base64") from None
    raise ValueError(f'neither a text nor {{"{MARK}": "…"}}')


def token_text(token: bytes) -> str:
    """A session's token for command lines: base64 with the signs that no shell touches."""
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def token_of(text: str) -> bytes:
    """The token that `token_text` showed; ValueError with a sentence for anything else."""
    if not _TOKEN.fullmatch(text) or len(text) % 4 == 1:
        raise ValueError(f"{text[:40]!r} is no token; one is printed by every command with --session")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def shorten(data: bytes, width: int) -> str:
    """Bytes for a table: readable, and no wider than this."""
    text = escape(data[: 4 * width])
    return text if len(text) <= width else text[: width - 1] + "…"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns below their names; those of numbers, with or without a unit, stand to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    rights = [bool(column) and all(map(_is_numeric, column)) for column in zip(*cells, strict=True)] or [False] * len(
        header
    )
    return [_line(row, widths, rights) for row in (header, *cells)]


def pairs(rows: Iterable[tuple[str, object]]) -> list[str]:
    """A name and a value a line."""
    shown = [(name, _cell(value)) for name, value in rows]
    width = max((len(name) for name, _ in shown), default=0)
    return [f"{name:<{width}}  {value}".rstrip() for name, value in shown]


def outline(facts: Mapping[str, Any], depth: int = 0) -> list[str]:
    """Nested facts: a name and a value a line, what belongs to a name below it and to the right."""
    lines: list[str] = []
    plain = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    shown = dict(zip(plain, pairs((name, _one_line(value)) for name, value in plain.items()), strict=True))
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines += [name + ("" if value else "  none"), *outline(value, 1)]
        else:
            lines.append(shown[name])
    return ["  " * depth + line for line in lines]


def _one_line(value: object) -> object:
    return ", ".join(map(_cell, value)) or "none" if isinstance(value, list | tuple) else value


def _line(row: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(row, widths, rights, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _is_numeric(text: str) -> bool:
    return not text or _NUMERIC.fullmatch(text) is not None


def milliseconds(text: str) -> int:
    """`30s` and the like; ValueError with a sentence for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no duration; one looks like 500ms, 30s, 5m, 2h or 7d")
    return round(float(match[1]) * UNITS_MS[match[2]])


def duration(ms: float) -> str:
    """For people: the largest unit that leaves something before the point."""
    for unit, size in reversed(UNITS_MS.items()):
        if ms >= size:
            return f"{ms / size:.1f} {unit}" if ms % size else f"{ms / size:.0f} {unit}"
    return f"{ms:.0f} ms" if not ms else f"{ms:.1f} ms"


def size(count: int) -> str:
    amount = float(count)
    for unit in _SIZES:
        if amount < 1024 or unit == _SIZES[-1]:
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
