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

SITE_HELP = "Whose data."


def _print_facts(output: Output, facts: dict[str, Any], shown: dict[str, object]) -> None:
    """JSON has the bare facts; people and lines have them with units."""
    if output is Output.JSON:
        print_json(facts)
    elif output is Output.PLAIN:
        print_lines(f"{name}\t{value}" for name, value in facts.items())
    else:
        print_lines(pairs(shown.items()))


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
    facts = {
        "site": made.site,
        "directory": made.directory,
        "commit": made.commit,
        "size_bytes": made.size_bytes,
        "took_ms": made.took_ms,
    }
    shown = {**facts, "size": size(made.size_bytes), "took": duration(made.took_ms)}
    _print_facts(ask.output, facts, {name: value for name, value in shown.items() if name not in HIDDEN})


HIDDEN = ("size_bytes", "took_ms")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@cluster_option
@click.option("--site", envvar="KVSTORE_SITE", show_envvar=True, metavar="NAME", help=SITE_HELP)
@output_option
def verify(directory: Path | None, cluster_file: Path | None, site: str | None, output: str) -> None:
    """Read everything in a data directory and check it; exit 5 if something is corrupt.

    DIRECTORY is a data directory or a backup; without it, the data of --site. The replica must not be running.

    \b
      kvstore verify --cluster cluster.toml --site a
      kvstore verify backups/a-monday
    """
    from kvstore.storage.lmdb import LmdbStorage

    if directory is None:
        if site is None:
            raise click.UsageError("give a DIRECTORY, or say with --site whose data to check")
        cluster = Ask(cluster_file, site, Output(output), 0).cluster()
        directory = cluster.data_of(cluster.site(site))
    with LmdbStorage(directory) as storage:
        report = storage.verify()
    facts: dict[str, Any] = {"directory": str(directory), "commit": report.number, "bad": report.bad_count}
    facts["records"] = dict(report.records)
    facts["bad_records"] = [{"table": bad.table, "key": escape(bad.key), "why": bad.why} for bad in report.bad]
    lines: dict[str, object] = {"directory": directory, "commit": report.number}
    lines |= {f"records in {name}": count for name, count in report.records.items()}
    if output == Output.JSON:
        print_json(facts)
    elif output == Output.PLAIN:
        print_lines(f"{name}\t{value}" for name, value in (*lines.items(), ("bad", report.bad_count)))
    else:
        print_lines(pairs(lines.items()))
    if not report.is_sound:
        for bad in report.bad:
            click.echo(f"{bad.table} {escape(bad.key)}: {bad.why}", err=True)
        fail(Exit.CORRUPT, f"{report.bad_count} records of {directory} are corrupt")
    if output == Output.TABLE:
        click.echo("Everything is sound.")


@click.command()
@click.argument("backup", type=click.Path(path_type=Path))
@cluster_option
@click.option("--site", envvar="KVSTORE_SITE", show_envvar=True, required=True, metavar="NAME", help=SITE_HELP)
@output_option
def restore(backup: Path, cluster_file: Path | None, site: str, output: str) -> None:
    """Make the data directory of a site from BACKUP, as a new incarnation of the site.

    The site must not be running, and its old data directory must be out of the way. When it starts, it first asks its
    peers for everything that it once said, and takes writes when it has that.

    \b
      kvstore restore backups/a-monday --cluster cluster.toml --site a
    """
    from kvstore.restore import restore as run

    cluster = Ask(cluster_file, site, Output(output), 0).cluster()
    made = run(cluster, site, backup)
    _print_facts(Output(output), made, made)


COMMANDS = (backup, verify, restore)
