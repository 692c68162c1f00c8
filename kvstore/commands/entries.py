"""How keys, values and versions are printed. A key with siblings has a line for each of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from kvstore.commands.common import Ask, Output, print_json, print_lines
from kvstore.show import shorten, table, to_json
from kvstore.update import escape
from kvstore.values import Entry, Sibling, Written

KEY_WIDTH, VALUE_WIDTH = 40, 60  # columns of a table; what is longer is cut, and ends with …
TABLE_ROWS = 200  # rows of a scan that share their column widths; further ones come as a table of their own


def print_written(ask: Ask, key: bytes, written: Written, told: Mapping[str, object]) -> None:
    version, site, commit = str(written.version), written.site, written.commit
    if ask.output is Output.PLAIN:
        click.echo(version)
    elif ask.output is Output.JSON:
        print_json({"key": to_json(key), "version": version, "site": site, "commit": commit, **told})
    else:
        print_lines(table(("key", "version", "site", "commit"), [(shorten(key, KEY_WIDTH), version, site, commit)]))


def print_entries(ask: Ask, entries: Iterable[Entry], *, only_keys: bool = False) -> None:
    rows: list[Entry] = []
    for entry in entries:
        if ask.output is Output.JSON:
            print_json({"key": to_json(entry.key)} if only_keys else entry_json(entry))
        elif ask.output is Output.PLAIN:
            print_lines([escape(entry.key)] if only_keys else _plain(entry))
        else:
            rows.append(entry)
            if len(rows) == TABLE_ROWS:
                _print_table(rows, only_keys=only_keys)
                rows = []
    if rows:
        _print_table(rows, only_keys=only_keys)


def _values(entry: Entry) -> list[Sibling]:
    return [Sibling(entry.value, entry.version, entry.expires_ms), *entry.siblings]


def _plain(entry: Entry) -> list[str]:
    return [f"{escape(entry.key)}\t{escape(one.value)}" for one in _values(entry)]


def _print_table(entries: Sequence[Entry], *, only_keys: bool) -> None:
    if only_keys:
        print_lines(escape(entry.key) for entry in entries)
        return
    rows = [
        (shorten(entry.key, KEY_WIDTH), shorten(one.value, VALUE_WIDTH), str(one.version))
        for entry in entries
        for one in _values(entry)
    ]
    print_lines(table(("key", "value", "version"), rows))


def entry_json(entry: Entry) -> dict[str, object]:
    shown: dict[str, object] = {
        "key": to_json(entry.key),
        "value": to_json(entry.value),
        "version": str(entry.version),
        "expires_ms": entry.expires_ms or None,
    }
    if entry.siblings:
        shown["siblings"] = [{"value": to_json(one.value), "version": str(one.version)} for one in entry.siblings]
    return shown
