"""The commands for what is on disk: backup while a replica runs; verify and restore while it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvstore.commands.common import (
    Ask,
    Exit,
    Output,
    asking,
    cluster_option,
    duration_option,
    fail,
    output_option,
    print_json,
    print_lines,
)
from kvstore.show import duration, pairs, size
from kvstore.update import escape

FOR_PEOPLE = {"size_bytes": ("size", size), "took_ms": ("took", duration)}


def _print_facts(output: Output, facts: dict[str, Any]) -> None:
    """JSON and lines have the bare facts; people have them with units."""
    if output is Output.JSON:
        print_json(facts)
        return
    flat = {name: value for name, value in facts.items() if not isinstance(value, dict | list)}
    flat |= {f"records in {name}": count for name, count in facts.get("records", {}).items()}
    if output is Output.PLAIN:
        print_lines(f"{name}\t{value}" for name, value in flat.items())
        return
    rows: list[tuple[str, object]] = []
    for name, value in flat.items():
        shown, as_text = FOR_PEOPLE.get(name, (name, str if isinstance(value, str) else lambda one: f"{one:,}"))
        rows.append((shown, as_text(value)))
    print_lines(pairs(rows))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@duration_option("--within", default="10m", show_default=True, help="How long the copy may take.")
@asking
def backup(ask: Ask, directory: Path, within: int) -> None:
    """Copy a replica's data to DIRECTORY, consistent and compact, while it goes on working.

    DIRECTORY is on the replica's machine and must not exist yet; a relative one is taken from the current directory
    here. To use the copy, `kvstore restore`: it must never be started in the place of the data it was made from.

    \b
      kvstore backup --site a backups/a-monday
    """
    if ask.site is None:
        raise click.UsageError("say with --site which replica's data to copy")
    with ask.connect() as kv:
        made = kv.backup(str(directory.absolute()), timeout_s=within / 1000)
    names = ("site", "directory", "commit", "size_bytes", "took_ms")
    _print_facts(ask.output, {name: getattr(made, name) for name in names})


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@cluster_option
@click.option("--site", envvar="KVSTORE_SITE", show_envvar=True, metavar="NAME", help="Whose data.")
@output_option
def verify(directory: Path | None, cluster_file: Path | None, site: str | None, output: str) -> None:
    """Read everything in a data directory and check it; exit 5 if something is corrupt.

    DIRECTORY is a data directory or a backup; without it, the data of --site. The replica must not be running.

    \b
      kvstore verify --cluster cluster.toml --site a
      kvstore verify backups/a-monday
    """
    from kvstore.restore import verify_directory

    if directory is None:
        if site is None:
            raise click.UsageError("give a DIRECTORY, or say with --site whose data to check")
        cluster = Ask(cluster_file, site, Output(output), 0).cluster()
        directory = cluster.data_of(cluster.site(site))
    report = verify_directory(directory)
    facts: dict[str, Any] = {"directory": str(directory), "commit": report.number, "records": dict(report.records)}
    facts |= {"bad": report.bad_count}
    facts |= {"bad_records": [{"table": one.table, "key": escape(one.key), "why": one.why} for one in report.bad]}
    _print_facts(Output(output), facts)
    if not report.is_sound:
        for one in report.bad:
            click.echo(f"{one.table} {escape(one.key)}: {one.why}", err=True)
        fail(Exit.CORRUPT, f"{report.bad_count} records of {directory} are corrupt")


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@cluster_option
@click.option("--site", envvar="KVSTORE_SITE", show_envvar=True, required=True, metavar="NAME", help="Whose data.")
@output_option
def restore(backup: Path, cluster_file: Path | None, site: str, output: str) -> None:
    """Make the data directory of a site from BACKUP, as a new incarnation of the site.

    The site must not be running, and its old data directory must be out of the way: nothing is replaced. BACKUP stays
    as it is. A site that starts with restored data first hears from each peer that nothing it once said is missing,
    and takes no writes before that.

    \b
      kvstore restore backups/a-monday --cluster cluster.toml --site a
    """
    from kvstore.restore import restore as run

    cluster = Ask(cluster_file, site, Output(output), 0).cluster()
    target = cluster.data_of(cluster.site(site))
    made = run(backup, target, cluster, site)
    facts = made._asdict()
    _print_facts(Output(output), {"directory": str(target), **facts, "records": dict(made.records)})


COMMANDS = (backup, verify, restore)
