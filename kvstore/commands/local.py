"""`kvstore cluster`: a cluster of real processes on this machine, to try things, break things and test."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from causal import PROTOCOLS
from kvstore.commands.common import Exit, Output, fail, output_option, print_json, print_lines
from kvstore.config import Durability
from kvstore.show import table
from kvstore.update import unescape

if TYPE_CHECKING:
    from kvstore.cluster import LocalCluster, SiteState

DIRECTORY = "kvstore-cluster"
DURABILITIES = [str(one) for one in Durability]
WATCH_S = 0.2  # how often a cluster in the foreground is looked at

F = TypeVar("F", bound=Callable[..., Any])


@click.group("cluster")
def cluster() -> None:
    """A cluster on this machine: one real process a replica, to kill, pause and cut off.

    Everything of it is in one directory; its commands find each other there, from any terminal.

    \b
      kvstore cluster up --replicas 3 --link-delay-ms 40 --detach
      kvstore cluster kill b
      kvstore cluster restart b
      kvstore cluster partition a,b c
      kvstore cluster heal
      kvstore cluster down
    """


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=DIRECTORY,
    show_default=True,
    envvar="KVSTORE_DIR",
    show_envvar=True,
    metavar="D",
    help="The directory of the cluster.",
)


def _numbers(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    numbers = {}
    for value in values:
        name, equals, number = value.partition("=")
        if not equals or not number.isdecimal() or len(number) > 18:
            raise click.BadParameter(f"{value!r} is not of the form NAME=NUMBER")
        numbers[name] = int(number)
    return numbers


def _merges(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[bytes, str]:
    merges = {}
    for value in values:
        prefix, equals, name = value.rpartition("=")
        if not equals:
            raise click.BadParameter(f"{value!r} is not of the form PREFIX=MERGE")
        try:
            merges[unescape(prefix)] = name
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from None
    return merges


def _names(_context: click.Context, _parameter: click.Parameter, text: str | None) -> list[str] | None:
    return None if text is None else text.split(",")


@cluster.command()
@directory_option
@click.option("--replicas", type=click.IntRange(1, 64), help="How many replicas.  [default: 3]")
@click.option("--names", callback=_names, metavar="NAME,…", help="What the sites are called.  [default: a,b,c,…]")
@click.option("--protocol", type=click.Choice(list(PROTOCOLS)), help="The ordering protocol.  [default: optimal]")
@click.option("--option", "options", multiple=True, callback=_numbers, metavar="NAME=NUMBER", help="Of the protocol.")
@click.option("--durability", type=click.Choice(DURABILITIES), help="When a write is answered.  [default: sync]")
@click.option(
    "--placement",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Which sites hold which keys: the table [placement] of a cluster file.  [default: all hold all]",
)
@click.option(
    "--merge",
    multiple=True,
    callback=_merges,
    metavar="PREFIX=MERGE",
    help="How keys merge: lww, or siblings, which keeps concurrent values.  [default: lww]",
)
@click.option("--link-delay-ms", type=click.FloatRange(0, 60_000), metavar="M", help="What every link adds.")
@click.option(
    "--links",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What single links add: the tables [[link]] of a cluster file.",
)
@click.option("--limit", "limits", multiple=True, callback=_numbers, metavar="NAME=NUMBER", help="Of [limits].")
@click.option("--trace", is_flag=True, help="Record every message into D/trace.")
@click.option("--detach", is_flag=True, help="Return when all replicas serve, and leave them running.")
def up(directory: Path, trace: bool, detach: bool, **wishes: Any) -> None:
    """Start a cluster, and stop it with Ctrl-C; with --detach, with `kvstore cluster down`.

    A directory that has a cluster already starts that one again, with its data. Options that say otherwise than its
    cluster.toml are refused.

    \b
      kvstore cluster up
      kvstore cluster up --dir trial --replicas 5 --protocol pruning --link-delay-ms 40 --detach
    """
    local = _prepare(directory, _wishes(wishes), trace=trace)
    if detach:
        local.start()
        _summary(local, directory, is_foreground=False)
        return
    local.is_tied = True
    with _signals_as_interrupts():
        try:
            local.start()
            _summary(local, directory, is_foreground=True)
            _watch(local)
        except KeyboardInterrupt:
            click.echo("\nStopping …")
        finally:
            killed = local.down()
        _tell_killed(killed)


def _wishes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Only what was said: what was not is as the cluster file has it, or as it is by default."""
    from kvstore.plan import read_links, read_placement

    wishes = {name: value for name, value in given.items() if value is not None and value != {}}
    if "names" in wishes and wishes.setdefault("replicas", len(wishes["names"])) != len(wishes["names"]):
        raise click.UsageError("--names gives another number of sites than --replicas")
    if "placement" in wishes:
        wishes["placement"] = read_placement(wishes["placement"])
    if "links" in wishes:
        wishes["links"] = read_links(wishes["links"])
    return wishes


def _prepare(directory: Path, wishes: dict[str, Any], *, trace: bool) -> LocalCluster:
    from kvstore.cluster import LocalCluster, serve_arguments
    from kvstore.plan import contradiction

    if not (directory / "cluster.toml").exists():
        return LocalCluster.create(directory, trace=trace, **wishes)
    local = LocalCluster.open(directory, arguments=serve_arguments(directory.absolute(), trace=trace))
    if objection := contradiction(local.cluster, wishes):
        fail(Exit.WRONG_USE, f"{local.file} {objection}; leave that option out, or take another --dir")
    return local


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Whoever ends this command ends the cluster with it, also by closing the terminal."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _summary(local: LocalCluster, directory: Path, *, is_foreground: bool) -> None:
    first, last = local.names[0], local.names[-1]
    count = f"{len(local.names)} replica{'s' * (len(local.names) != 1)}"
    lines = [f"{count}, ordered by {local.cluster.protocol}; everything is in {directory}.", ""]
    lines += table(("site", "clients at"), [(site.name, site.client) for site in local.cluster.sites])
    lines += ["", "Try it" + (" in another terminal:" if is_foreground else ":")]
    lines += [f"  export KVSTORE_CLUSTER={local.file} KVSTORE_DIR={local.directory}"]
    lines += [f"  kvstore put --site {first} greeting hello", f"  kvstore get --site {last} greeting"]
    lines += [f"  kvstore cluster kill {last}", f"  kvstore cluster restart {last}", "  kvstore status"]
    stop = "Ctrl-C stops it" if is_foreground else f"`kvstore cluster down --dir {directory}` stops it"
    print_lines([*lines, "", f"{stop}; the data stay."])


def _watch(local: LocalCluster) -> None:
    """Say what happens to the replicas, until somebody takes the cluster down."""
    before = dict.fromkeys(local.names, "running")  # they all were, when the start returned
    while any(state != "down" for state in before.values()):
        time.sleep(WATCH_S)
        now = {site.name: site.state for site in local.status()}
        for name, state in now.items():
            if state != before[name]:
                click.echo(f"{name} is {state}.")
        before = now
    click.echo("The cluster was stopped.")


def _tell_killed(killed: Sequence[str]) -> None:
    for name in killed:
        click.echo(f"{name} did not end by itself and was killed.", err=True)


def _over(directory: Path) -> LocalCluster:
    from kvstore.cluster import LocalCluster

    return LocalCluster.open(directory)


def _on_sites(command: F) -> F:
    return directory_option(click.argument("sites", nargs=-1, required=True, metavar="SITE…")(command))


@cluster.command()
@directory_option
@output_option
def status(directory: Path, output: str) -> None:
    """The processes: which run, which are paused or dead. `kvstore status` asks the replicas themselves.

    Exits with 3 when none runs.
    """
    local = _over(directory)
    rows, cuts = local.status(), local.cuts()
    if output == Output.JSON:
        print_json({"sites": [row._asdict() for row in rows], "cuts": [list(pair) for pair in cuts]})
    elif output == Output.PLAIN:
        print_lines("\t".join((row.name, row.state, str(row.pid or "-"), row.client, row.peer)) for row in rows)
    else:
        print_lines(table(("site", "state", "pid", "clients at", "peers at"), [_shown(row) for row in rows]))
        if cuts:
            click.echo("\nCut: " + ", ".join(f"{one} → {other}" for one, other in cuts))
    if all(row.state in ("dead", "down") for row in rows):
        raise SystemExit(Exit.UNAVAILABLE)


def _shown(row: SiteState) -> tuple[str, str, str, str, str]:
    return (row.name, row.state, str(row.pid or "-"), row.client, row.peer)


@cluster.command()
@_on_sites
def kill(directory: Path, sites: Sequence[str]) -> None:
    """End replicas as a power cut would (SIGKILL)."""
    _over(directory).kill(*sites)


@cluster.command()
@_on_sites
def pause(directory: Path, sites: Sequence[str]) -> None:
    """Stop replicas in the middle of what they do (SIGSTOP), until `resume`."""
    _over(directory).pause(*sites)


@cluster.command()
@_on_sites
def resume(directory: Path, sites: Sequence[str]) -> None:
    """Let paused replicas go on (SIGCONT)."""
    _over(directory).resume(*sites)


@cluster.command()
@_on_sites
def restart(directory: Path, sites: Sequence[str]) -> None:
    """Start replicas again with their data; those that run are killed first."""
    _over(directory).restart(*sites)


@cluster.command()
@click.argument("groups", nargs=-1, required=True, metavar="GROUP…")
@directory_option
def partition(directory: Path, groups: Sequence[str]) -> None:
    """Cut the network between groups of sites; clients still reach all.

    A GROUP is sites with commas. Sites that are not named are one more group together. A partition takes the place of
    the one before it.

    \b
      kvstore cluster partition a,b c     with a to e: a b | c | d e
      kvstore cluster partition a         a alone, all others together
    """
    whole = _over(directory).partition(*(filter(None, group.split(",")) for group in groups))
    click.echo(" | ".join(" ".join(group) for group in whole))


@cluster.command()
@click.argument("links", nargs=-1, required=True, metavar="FROM:TO…")
@directory_option
def cut(directory: Path, links: Sequence[str]) -> None:
    """Cut single links, each in one direction; clients still reach all. Takes the place of what was cut before.

    \b
      kvstore cluster cut a:c     c hears nothing from a any more, but a still hears c
    """
    pairs = [(one, other) for one, _, other in (link.partition(":") for link in links)]
    if wrong := [link for link, pair in zip(links, pairs, strict=True) if not all(pair)]:
        raise click.UsageError(f"{wrong[0]!r} is no link; one looks like a:c")
    _over(directory).cut(pairs)


@cluster.command()
@directory_option
def heal(directory: Path) -> None:
    """Mend every link that was cut."""
    _over(directory).heal()


@cluster.command()
@directory_option
@click.option("--purge", is_flag=True, help="Delete the data, the logs and the cluster file, too.")
def down(directory: Path, purge: bool) -> None:
    """Stop all replicas (SIGTERM; those that do not listen are killed) and heal the network. The data stay."""
    _tell_killed(_over(directory).down(purge=purge))
