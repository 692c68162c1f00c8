"""The commands for keys: put, get, delete, batch, scan, watch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import click

from kvstore.commands.common import (
    Ask,
    Exit,
    Output,
    asking,
    duration_option,
    escape_option,
    fail,
    print_json,
    print_lines,
    raw,
)
from kvstore.commands.operations import operations_in
from kvstore.show import shorten, table, to_json
from kvstore.update import escape
from kvstore.values import ABSENT, Change, Delete, Entry, Position, Version

if TYPE_CHECKING:
    from kvstore.reader import Watch

KEY_WIDTH, VALUE_WIDTH = 40, 60  # columns of a table; what is longer is cut, and ends with …
TABLE_ROWS = 200  # rows of a scan that share their column widths; further ones come as a table of their own
_POSITION = re.compile(r"(\d{1,5})-(\d{1,20})-(\d{1,20})")


def _version(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Version | None:
    return None if text is None else Version.parse(text)


if_version_option = click.option(
    "--if-version", callback=_version, metavar="VERSION", help="Only if the key has this version at the replica."
)


# One key


@click.command()
@click.argument("key")
@click.argument("value", required=False)
@click.option("-f", "--file", type=click.File("rb"), help="Take the value from a file, byte for byte.")
@duration_option("--ttl", help="How long the value lives: 500ms, 30s, 5m, 2h, 7d.")
@if_version_option
@click.option("--if-absent", is_flag=True, help="Only if the replica has nothing under the key.")
@escape_option
@asking
def put(
    ask: Ask,
    key: str,
    value: str | None,
    file: BinaryIO | None,
    ttl: int | None,
    if_version: Version | None,
    if_absent: bool,
    is_escaped: bool,
) -> None:
    """Write VALUE under KEY and print the version of the write.

    The VALUE `-` is read from standard input, byte for byte. When the command returns, the write is committed at one
    replica and on its way to the others.

    \b
      kvstore put color blue
      kvstore put --ttl 30s --if-absent lock me
      kvstore put photo -f photo.jpg
      date | kvstore put now -
      kvstore put -e 'raw\\x00key' '\\xff\\xfe'
    """
    if (value is None) == (file is None):
        raise click.UsageError("give a VALUE or --file, one of the two")
    if if_absent and if_version is not None:
        raise click.UsageError("--if-absent and --if-version cannot both hold")
    if file is not None:
        data = file.read()
    else:
        data = sys.stdin.buffer.read() if value == "-" else raw(value or "", is_escaped=is_escaped)
    expect = ABSENT if if_absent else if_version
    with ask.connect_to_write() as kv:
        written = kv.put(raw(key, is_escaped=is_escaped), data, ttl_ms=ttl, expect=expect)
    _print_written(ask, raw(key, is_escaped=is_escaped), written.version, written.site, written.commit)


@click.command()
@click.argument("key")
@if_version_option
@escape_option
@asking
def delete(ask: Ask, key: str, if_version: Version | None, is_escaped: bool) -> None:
    """Delete KEY and print the version of the delete. Deleting what is not there succeeds.

    \b
      kvstore delete color
      kvstore delete color --if-version 018bcfe568000003-2
    """
    name = raw(key, is_escaped=is_escaped)
    with ask.connect_to_write() as kv:
        written = kv.delete(name, expect=if_version)
    _print_written(ask, name, written.version, written.site, written.commit)


def _print_written(ask: Ask, key: bytes, version: Version, site: str, commit: int) -> None:
    if ask.output is Output.PLAIN:
        click.echo(str(version))
    elif ask.output is Output.JSON:
        print_json({"key": to_json(key), "version": str(version), "site": site, "commit": commit})
    else:
        row = (shorten(key, KEY_WIDTH), str(version), site, commit)
        print_lines(table(("key", "version", "site", "commit"), [row]))


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY…")
@escape_option
@asking
def get(ask: Ask, keys: Sequence[str], is_escaped: bool) -> None:
    """Read KEY; exit 1 if it is not there. Several keys are read at one moment.

    Plain output of one key is its value alone, byte for byte, without a line end. Several keys are shown as `scan`
    shows them; exit 1 if one of them is not there.

    \b
      kvstore get color
      kvstore get photo > photo.jpg
      kvstore get question answer --site b --output json
    """
    names = [raw(key, is_escaped=is_escaped) for key in keys]
    with ask.connect() as kv:
        if len(names) == 1:
            entry = kv.get(names[0])
            found = {names[0]: entry} if entry is not None else {}
        else:
            found = kv.get_many(names)
    if len(names) == 1 and found and ask.output is Output.PLAIN:
        _write_bytes(found[names[0]].value)
    else:
        _print_entries(ask, [found[name] for name in dict.fromkeys(names) if name in found])
    if missing := [name for name in dict.fromkeys(names) if name not in found]:
        fail(Exit.NOT_FOUND, f"{', '.join(escape(name) for name in missing)}: not found")


def _write_bytes(value: bytes) -> None:
    sys.stdout.buffer.write(value)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


# Many keys


@click.command()
@click.argument("operations", type=click.File("rb"), default="-", metavar="[FILE]")
@asking
def batch(ask: Ask, operations: BinaryIO) -> None:
    """Do all of many writes, or none, and print their versions. Reads JSON lines from FILE or standard input.

    \b
      {"put": "color", "value": "blue"}
      {"put": "lock", "value": "me", "ttl": "30s", "if_absent": true}
      {"put": {"base64": "/wA="}, "value": {"base64": "AAEC"}}
      {"delete": "old", "if_version": "018bcfe568000003-2"}

    Bytes that are no UTF-8 text are written as {"base64": "…"}. All conditions are compared with the state before the
    batch. At most 1,000 operations.
    """
    try:
        found = list(operations_in(operations))
    except ValueError as error:
        fail(Exit.WRONG_USE, str(error))
    if not found:
        fail(Exit.WRONG_USE, "a batch needs at least one operation")
    with ask.connect_to_write() as kv:
        written = kv.batch(found)
    versions = [str(version) for version in written.versions]
    if ask.output is Output.PLAIN:
        print_lines(versions)
    elif ask.output is Output.JSON:
        print_json({"versions": versions, "site": written.site, "commit": written.commit})
    else:
        rows = [
            ("delete" if isinstance(one, Delete) else "put", shorten(one.key, KEY_WIDTH), version)
            for one, version in zip(found, versions, strict=True)
        ]
        print_lines(table(("", "key", "version"), rows))


@click.command()
@click.argument("prefix", default="")
@click.option("--start", default="", metavar="KEY", help="The first key, instead of a prefix.")
@click.option("--end", default="", metavar="KEY", help="The first key that does not belong to it any more.")
@click.option("--limit", type=click.IntRange(1), help="At most so many.")
@click.option("--keys", "only_keys", is_flag=True, help="Print the keys alone.")
@escape_option
@asking
def scan(ask: Ask, prefix: str, start: str, end: str, limit: int | None, only_keys: bool, is_escaped: bool) -> None:
    """Print all keys that begin with PREFIX, or lie in a range, with their values, in byte order.

    Plain output is a key, a tab and a value a line, with \\xNN for bytes that are not readable; JSON is an object a
    line.

    \b
      kvstore scan
      kvstore scan user/ --limit 10
      kvstore scan --start a --end b --keys
    """
    begins, first, stop = (raw(text, is_escaped=is_escaped) for text in (prefix, start, end))
    with ask.connect() as kv:
        _print_entries(ask, kv.scan(begins, start=first, end=stop, limit=limit), only_keys=only_keys)


def _print_entries(ask: Ask, entries: Iterable[Entry], *, only_keys: bool = False) -> None:
    rows: list[Entry] = []
    for entry in entries:
        if ask.output is Output.JSON:
            print_json({"key": to_json(entry.key)} if only_keys else _entry_json(entry))
        elif ask.output is Output.PLAIN:
            click.echo(escape(entry.key) if only_keys else f"{escape(entry.key)}\t{escape(entry.value)}")
        else:
            rows.append(entry)
            if len(rows) == TABLE_ROWS:
                _print_table(rows, only_keys=only_keys)
                rows = []
    if rows:
        _print_table(rows, only_keys=only_keys)


def _print_table(entries: Sequence[Entry], *, only_keys: bool) -> None:
    if only_keys:
        print_lines(escape(entry.key) for entry in entries)
        return
    rows = [(shorten(one.key, KEY_WIDTH), shorten(one.value, VALUE_WIDTH), str(one.version)) for one in entries]
    print_lines(table(("key", "value", "version"), rows))


def _entry_json(entry: Entry) -> dict[str, object]:
    shown: dict[str, object] = {
        "key": to_json(entry.key),
        "value": to_json(entry.value),
        "version": str(entry.version),
        "expires_ms": entry.expires_ms or None,
    }
    if entry.siblings:
        shown["siblings"] = [{"value": to_json(one.value), "version": str(one.version)} for one in entry.siblings]
    return shown


# Changes


def _position(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Position | None:
    if text is None:
        return None
    match = _POSITION.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no position; one looks like 0-1-523")
    site, incarnation, index = map(int, match.groups())
    return Position(site, incarnation, index)


@click.command()
@click.argument("prefix", default="")
@click.option("--from", "position", callback=_position, metavar="POSITION", help="Go on after an earlier watch.")
@click.option("--limit", type=click.IntRange(1), help="End after so many changes.")
@escape_option
@asking
def watch(ask: Ask, prefix: str, position: Position | None, limit: int | None, is_escaped: bool) -> None:
    """Print every change of the keys that begin with PREFIX, as one replica applies it; Ctrl-C ends it.

    A line a change: put or delete, key, value, version; with JSON also the position to go on from. A restart of the
    replica is survived, and nothing is left out or comes twice.

    \b
      kvstore watch
      kvstore watch user/ --site a --output json
      kvstore watch --site a --from 0-1-523
    """
    name = raw(prefix, is_escaped=is_escaped)
    with suppress(KeyboardInterrupt), ask.connect() as kv, kv.watch(name, position=position) as changes:
        click.echo(f"watching at {changes.site}, from {_shown(changes.position)}", err=True)
        for number, change in enumerate(changes, start=1):
            _print_change(ask, change, changes)
            if number == limit:
                break


def _print_change(ask: Ask, change: Change, changes: Watch) -> None:
    kind = "delete" if change.value is None else "put"
    if ask.output is Output.JSON:
        value = None if change.value is None else to_json(change.value)
        at = {"version": str(change.version), "position": _shown(changes.position)}
        print_json({"change": kind, "key": to_json(change.key), "value": value, **at})
    elif ask.output is Output.PLAIN:
        click.echo("\t".join((kind, escape(change.key), escape(change.value or b""), str(change.version))))
    else:
        what = "" if change.value is None else f" = {shorten(change.value, VALUE_WIDTH)}"
        click.echo(f"{kind:<6}  {shorten(change.key, KEY_WIDTH)}{what}  ({change.version})")


def _shown(position: Position | None) -> str:
    return "" if position is None else f"{position.site}-{position.incarnation}-{position.index}"


COMMANDS = (put, get, delete, batch, scan, watch)
