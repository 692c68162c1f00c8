"""The commands for keys: put, get, delete, batch, scan, watch."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kvstore.commands.common import (
    Ask,
    Exit,
    Output,
    asking_keys,
    duration_option,
    escape_option,
    fail,
    print_json,
    print_lines,
    raw,
)
from kvstore.commands.entries import KEY_WIDTH, VALUE_WIDTH, entry_json, print_entries, print_written
from kvstore.commands.operations import operations_in
from kvstore.commands.options import depending, fresh, if_version_option, replaces_option
from kvstore.show import shorten, table, to_json
from kvstore.update import escape
from kvstore.values import ABSENT, Change, Delete, Entry, Position, ReadMany, Version

if TYPE_CHECKING:
    from kvstore.reader import Watch
    from kvstore.verbs import Verbs

_POSITION = re.compile(r"(\d{1,5})-(\d{1,20})-(\d{1,20})")


# One key


@click.command()
@click.argument("key")
@click.argument("value", required=False)
@click.option("-f", "--file", type=click.File("rb"), help="Take the value from a file, byte for byte.")
@duration_option("--ttl", help="How long the value lives: 500ms, 30s, 5m, 2h, 7d.")
@if_version_option
@click.option("--if-absent", is_flag=True, help="Only if the replica has nothing under the key.")
@replaces_option
@depending
@escape_option
@asking_keys
def put(
    ask: Ask,
    key: str,
    value: str | None,
    file: BinaryIO | None,
    ttl: int | None,
    if_version: Version | None,
    if_absent: bool,
    replaces: list[Version] | None,
    depends: Mapping[str, Any],
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
    name, expect = raw(key, is_escaped=is_escaped), ABSENT if if_absent else if_version
    with ask.store_to_write() as store:
        written = store.put(name, data, ttl_ms=ttl, expect=expect, replaces=replaces, **depends)
        told = ask.told(store)
    print_written(ask, name, written, told)


@click.command()
@click.argument("key")
@if_version_option
@replaces_option
@depending
@escape_option
@asking_keys
def delete(
    ask: Ask,
    key: str,
    if_version: Version | None,
    replaces: list[Version] | None,
    depends: Mapping[str, Any],
    is_escaped: bool,
) -> None:
    """Delete KEY and print the version of the delete. Deleting what is not there succeeds.

    \b
      kvstore delete color
      kvstore delete color --if-version 018bcfe568000003-2
    """
    name = raw(key, is_escaped=is_escaped)
    with ask.store_to_write() as store:
        written = store.delete(name, expect=if_version, replaces=replaces, **depends)
        told = ask.told(store)
    print_written(ask, name, written, told)


@click.command()
@click.argument("keys", nargs=-1, required=True, metavar="KEY…")
@fresh
@escape_option
@asking_keys
def get(ask: Ask, keys: Sequence[str], freshness: Mapping[str, Any], is_escaped: bool) -> None:
    """Read KEY; exit 1 if it is not there. Several keys are read at one moment.

    Plain output of one key is its value alone, byte for byte, without a line end. Several keys are shown as `scan`
    shows them; exit 1 if one of them is not there.

    \b
      kvstore get color
      kvstore get photo > photo.jpg
      kvstore get question answer --site b --output json
      kvstore get color --site b --session "$TOKEN"
      kvstore get color --freshness any
    """
    names = [raw(key, is_escaped=is_escaped) for key in keys]
    with ask.store() as store:
        found = _read(store, names, freshness)
        is_fresh = all(value is None for value in freshness.values())
        told = ask.told(store, **({} if is_fresh else {"site": found.site, "staleness_ms": found.staleness_ms}))
    entries = [found.entries[name] for name in dict.fromkeys(names) if name in found.entries]
    _print_found(ask, entries, told, is_one=len(names) == 1)
    if missing := [name for name in dict.fromkeys(names) if name not in found.entries]:
        fail(Exit.NOT_FOUND, f"{', '.join(escape(name) for name in missing)}: not found")


def _read(store: Verbs, names: Sequence[bytes], freshness: Mapping[str, Any]) -> ReadMany:
    if len(names) > 1:
        return store.read_many(names, **freshness)
    entry, site, commit, staleness_ms = store.read(names[0], **freshness)
    return ReadMany({} if entry is None else {names[0]: entry}, site, commit, staleness_ms)


def _print_found(ask: Ask, entries: Sequence[Entry], told: Mapping[str, object], *, is_one: bool) -> None:
    if is_one and entries and ask.output is Output.PLAIN:
        if others := len(entries[0].siblings):
            click.echo(f"{others} more values were written concurrently; --output table shows them", err=True)
        _write_bytes(entries[0].value)
    elif is_one and entries and ask.output is Output.JSON:
        print_json({**entry_json(entries[0]), **told})
    else:
        print_entries(ask, entries)
        _print_told(told)


def _print_told(told: Mapping[str, object]) -> None:
    """In JSON, after the lines that it is about."""
    if told:
        print_json(told)


def _write_bytes(value: bytes) -> None:
    sys.stdout.buffer.write(value)
    if sys.stdout.isatty():
        sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()


# Many keys


@click.command()
@click.argument("operations", type=click.File("rb"), default="-", metavar="[FILE]")
@depending
@asking_keys
def batch(ask: Ask, operations: BinaryIO, depends: Mapping[str, Any]) -> None:
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
    with ask.store_to_write() as store:
        written = store.batch(found, **depends)
        told = ask.told(store)
    versions = [str(version) for version in written.versions]
    if ask.output is Output.PLAIN:
        print_lines(versions)
    elif ask.output is Output.JSON:
        print_json({"versions": versions, "site": written.site, "commit": written.commit, **told})
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
@click.option("--only-held", is_flag=True, help="Only what the replica holds, where keys are placed elsewhere too.")
@fresh
@escape_option
@asking_keys
def scan(
    ask: Ask,
    prefix: str,
    start: str,
    end: str,
    limit: int | None,
    only_keys: bool,
    only_held: bool,
    freshness: Mapping[str, Any],
    is_escaped: bool,
) -> None:
    """Print all keys that begin with PREFIX, or lie in a range, with their values, in byte order.

    Plain output is a key, a tab and a value a line, with \\xNN for bytes that are not readable; JSON is an object a
    line.

    \b
      kvstore scan
      kvstore scan user/ --limit 10
      kvstore scan --start a --end b --keys
    """
    begins, first, stop = (raw(text, is_escaped=is_escaped) for text in (prefix, start, end))
    with ask.store() as store:
        entries = store.scan(begins, start=first, end=stop, limit=limit, only_held=only_held, **freshness)
        print_entries(ask, entries, only_keys=only_keys)
        _print_told(ask.told(store))


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
@fresh
@escape_option
@asking_keys
def watch(
    ask: Ask,
    prefix: str,
    position: Position | None,
    limit: int | None,
    freshness: Mapping[str, Any],
    is_escaped: bool,
) -> None:
    """Print every change of the keys that begin with PREFIX, as one replica applies it; Ctrl-C ends it.

    A line a change: put or delete, key, value, version; with JSON also the position to go on from. A restart of the
    replica is survived, and nothing is left out or comes twice.

    \b
      kvstore watch
      kvstore watch user/ --site a --output json
      kvstore watch --site a --from 0-1-523
    """
    name = raw(prefix, is_escaped=is_escaped)
    with ask.store() as store:
        with suppress(KeyboardInterrupt), store.watch(name, position=position, **freshness) as changes:
            click.echo(f"watching at {changes.site}, from {_shown(changes.position)}", err=True)
            for number, change in enumerate(changes, start=1):
                _print_change(ask, change, changes, ask.told(store) if ask.output is Output.JSON else {})
                if number == limit:
                    break
        if ask.output is not Output.JSON:
            ask.told(store)


def _print_change(ask: Ask, change: Change, changes: Watch, told: Mapping[str, object]) -> None:
    kind = "delete" if change.value is None else "put"
    if ask.output is Output.JSON:
        value = None if change.value is None else to_json(change.value)
        at = {"version": str(change.version), "position": _shown(changes.position)}
        print_json({"change": kind, "key": to_json(change.key), "value": value, **at, **told})
    elif ask.output is Output.PLAIN:
        click.echo("\t".join((kind, escape(change.key), escape(change.value or b""), str(change.version))))
    else:
        what = "" if change.value is None else f" = {shorten(change.value, VALUE_WIDTH)}"
        click.echo(f"{kind:<6}  {shorten(change.key, KEY_WIDTH)}{what}  ({change.version})")


def _shown(position: Position | None) -> str:
    return "" if position is None else f"{position.site}-{position.incarnation}-{position.index}"


COMMANDS = (put, get, delete, batch, scan, watch)
