"""TOML with strict reading: whoever takes a value says its type, and what nobody took is an error.

The standard library reads TOML and does not write it; the few kinds of lines that our files need are written here.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from kvstore.errors import ConfigError

T = TypeVar("T")
KINDS: Mapping[type, str] = {
    str: "a text in quotes",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "a table",
}


def wrong(key: str, why: str) -> ConfigError:
    """The file is not known here; whoever opened it puts its name in front (`in_file`)."""
    return ConfigError(f"{key}: {why}", key=key, why=why)


def in_file(error: ConfigError, file: str) -> ConfigError:
    return ConfigError(file=file, key=error.details["key"], why=error.details["why"])


def parse_toml(text: str, file: str) -> Table:
    try:
        return Table(tomllib.loads(text))
    except ValueError as error:  # a TOMLDecodeError, or a number beyond all measure
        why = str(error)
    except RecursionError:
        why = "it is nested too deeply"
    raise ConfigError(f"{file}: {why}", file=file, key="", why=why)


class Table:
    """One table of a file. `path` leads to it: `limits`, `site[2]`."""

    __slots__ = ("_content", "_known", "path")

    def __init__(self, content: Mapping[str, object], path: str = "") -> None:
        self._content = dict(content)
        self._known: list[str] = []
        self.path = path

    def __contains__(self, name: str) -> bool:
        return name in self._content

    def key(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The value under this name, of exactly this kind. Without a default it must be there."""
        self._known.append(name)
        if name not in self._content:
            if default is None:
                raise wrong(self.key(name), "is missing")
            return default
        return expect(self._content.pop(name), kind, self.key(name))

    def table(self, name: str) -> Table:
        """The table under this name; an empty one if there is none."""
        return Table(self.take(name, dict, {}), self.key(name))

    def tables(self, name: str) -> Iterator[Table]:
        """The tables of `[[name]]`, counted from 1."""
        for number, content in enumerate(self.take(name, list, []), start=1):
            path = f"{self.key(name)}[{number}]"
            yield Table(expect(content, dict, path), path)

    def rest(self, kind: type[T]) -> Iterator[tuple[str, T]]:
        """Everything that was not taken yet, for tables whose keys are free."""
        while self._content:
            name = next(iter(self._content))
            yield name, expect(self._content.pop(name), kind, f"{self.path}.{quoted(name)}")

    def finish(self, why: str = "is unknown") -> None:
        """What is left now is nothing that we know."""
        for name in self._content:
            close = difflib.get_close_matches(name, self._known, n=1)
            raise wrong(self.key(name), f"is unknown; did you mean {close[0]}?" if close else why)


def expect(value: object, kind: type[T], key: str) -> T:
    if kind is float and type(value) is int:
        value = float(value) if abs(value) < 1 << 53 else value
    if type(value) is not kind:  # exactly: in Python, though not in TOML, true is a whole number
        raise wrong(key, f"must be {KINDS[kind]}")
    return value


def quoted(text: str) -> str:
    """A JSON string is a TOML string, but for the one control character that JSON leaves alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def section(title: str, rows: Mapping[str, object]) -> list[str]:
    """The lines of one table, with an empty one before it; nothing if the table is empty. Keys are written as given."""
    return ["", *filter(None, [title]), *(f"{key} = {_value(value)}" for key, value in rows.items())] if rows else []


def _value(value: object) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    return repr(value)
