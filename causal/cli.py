"""The `causal` command: look at the protocols, run them, compare them, replay a schedule, measure them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from causal.errors import CausalError
from causal.multicast import SITES_MAX
from causal.protocols import PROTOCOLS, make_site
from causal.protocols.extra_message import default_threshold
from causal.provenance import provenance
from causal.replay import ScheduleError, replay
from causal.workload import DELAYS, FAN_OUTS, Workload

VIOLATED = 1  # exit code: the oracle objects
WRONG_USE = 2

_OUTPUT = click.option("--output", type=click.Choice(["table", "json"]), default="table", help="How to print it.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="causal-kvstore", prog_name="causal")
def main() -> None:
    """Causal multicast: nine protocols on one base, an oracle that judges them, a network that runs them."""


@main.command()
@_OUTPUT
def protocols(output: str) -> None:
    """What each protocol is: its paper, what a stamp carries, what it promises, its options."""
    rows = [
        {
            "protocol": name,
            "paper": protocol.paper,
            "a stamp carries": protocol.carries,
            "promise": protocol.promise,
            "options": _options_of(name),
        }
        for name, protocol in PROTOCOLS.items()
    ]
    if output == "json":
        _print_json(rows)
        return
    for row in rows:
        click.echo(click.style(row["protocol"], bold=True))
        for label in ("paper", "a stamp carries", "promise", "options"):
            if row[label]:
                click.echo(f"  {label + ':':<17}{row[label]}")


def _options_of(name: str) -> str:
    if name != "extra-message":
        return ""
    defaults = ", ".join(f"{default_threshold(sites)} at n = {sites}" for sites in (3, 5, 10, 20))
    return f"threshold=k, n < k <= n * n (default {defaults})"


def _parse_options(_context: click.Context, _parameter: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    options = {}
    for value in values:
        name, equals, number = value.partition("=")
        if not equals or not number.isdecimal() or len(number) > 18:
            raise click.BadParameter(f"{value!r} is not of the form NAME=NUMBER")
        options[name] = int(number)
    return options


@main.command()
@click.argument("protocol", type=click.Choice(list(PROTOCOLS)), metavar="PROTOCOL")
@click.option("--sites", default=5, show_default=True, help="How many sites there are.")
@click.option("--messages", default=1000, show_default=True, help="Messages that the sites send, all together.")
@click.option("--seed", default=0, show_default=True, help="Decides the whole run.")
@click.option("--fan-out", type=click.Choice(FAN_OUTS), default="multicast", show_default=True, help="How many get it.")
@click.option("--gap-s", default=0.1, show_default=True, help="Mean time between two sends of a site.")
@click.option("--delay", type=click.Choice(DELAYS), default="exponential", show_default=True, help="Of a link.")
@click.option("--delay-s", default=0.1, show_default=True, help="Mean delay of a link.")
@click.option("--overtake", is_flag=True, help="Links do not keep order.")
@click.option("--duplicates", default=0.0, show_default=True, help="Share of copies that arrive twice.")
@click.option("--dependent", default=1.0, show_default=True, help="Share of sends meant to depend on the past.")
@click.option("--sessions", default=0, show_default=True, help="Clients that move from site to site with a token.")
@click.option("--warm-up", default=0, show_default=True, help="Messages before anything is counted.")
@click.option("--option", "options", multiple=True, callback=_parse_options, help="Of the protocol: NAME=NUMBER.")
@click.option("--judge", is_flag=True, help="Judge the run by the whole happens-before graph; exit 1 if it objects.")
@_OUTPUT
def simulate(protocol: str, options: dict[str, int], judge: bool, output: str, overtake: bool, **settings: Any) -> None:
    """Run PROTOCOL on a simulated network, and print what it cost."""
    from causal.oracle import judge as judge_execution
    from causal.simulation import simulate as run

    if protocol == "vector" and settings["fan_out"] != "broadcast":
        _fail("vector needs every message to go to all other sites: add --fan-out broadcast")
    try:
        workload = Workload(fifo=not overtake, **settings)
        silent = not sys.stderr.isatty()
        with click.progressbar(length=workload.messages, label="simulating", file=sys.stderr, hidden=silent) as bar:

            def advance(sent: int) -> None:
                if sent % 100 == 0 or sent == workload.messages:
                    bar.update(sent - bar.pos)

            outcome = run(workload, protocol, options, record=judge, count_bytes=True, progress=advance)
        bound = make_site(protocol, 0, workload.sites, **options).options.get("threshold")
    except CausalError as error:
        _fail(str(error))
    result = {"protocol": protocol, "seed": workload.seed, **outcome.summary()}
    verdict = None
    if outcome.execution is not None:
        verdict = judge_execution(outcome.execution, bound=bound, optimality=protocol in ("optimal", "pruning"))
        result["verdict"] = "nothing to object to" if verdict.ok else f"{len(verdict.violations)} violations"
    if output == "json":
        _print_json({**provenance(), **asdict(workload), "options": options, **result})
    else:
        _print_pairs(result)
    if verdict is not None and not verdict.ok:
        click.echo(verdict.explain(), err=True)
        sys.exit(VIOLATED)


@main.command("replay")
@click.argument("schedule", type=click.File("rb"), default="-")
@click.option("--diagram", type=click.Path(path_type=Path), help="Draw the space-time diagram (SVG or PNG) as well.")
def replay_command(schedule: Iterable[bytes], diagram: Path | None) -> None:
    """Replay a SCHEDULE (JSON lines; - is standard input) and print what happened, as JSON lines."""
    if diagram and diagram.suffix not in (".svg", ".png"):
        _fail(f"a diagram is an .svg or a .png file, not {diagram.name!r}")
    lines = list(schedule) if diagram else schedule
    try:
        for line in replay(lines):
            click.echo(json.dumps(line))
    except ScheduleError as error:
        _fail(str(error))
    if diagram:
        from causal.diagram import draw

        try:
            draw(lines, diagram)
        except ImportError:
            _fail("diagrams need matplotlib: pip install 'causal-kvstore[plots]'")
        except (OSError, ValueError) as error:
            _fail(f"the diagram could not be written: {error}")


@main.command()
@click.option("--sizes", default="3,5,10,20,40", show_default=True, help="Numbers of sites, with commas.")
@click.option("--protocols", "names", default=",".join(PROTOCOLS), help="Which protocols, with commas; default all.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Runs of each; the best counts.")
@_OUTPUT
def bench(sizes: str, names: str, rounds: int, output: str) -> None:
    """Microseconds a send, a delivery, an encoding and a decoding; bytes a stamp; and where curves cross."""
    from causal import bench as benchmark

    try:
        numbers = [int(size) for size in sizes.split(",")]
    except ValueError:
        _fail(f"--sizes takes numbers with commas between them, not {sizes!r}")
    chosen = names.split(",")
    if unknown := [name for name in chosen if name not in PROTOCOLS]:
        _fail(f"unknown protocol {unknown[0]!r}; there are {', '.join(PROTOCOLS)}")
    if not 2 <= min(numbers) <= max(numbers) <= SITES_MAX:
        _fail(f"a benchmark needs 2 to {SITES_MAX} sites")
    total = len(numbers) * len(chosen)
    with click.progressbar(benchmark.bench(numbers, chosen, rounds), total, "measuring", file=sys.stderr) as progress:
        rows = list(progress)
    click.echo(json.dumps(benchmark.as_json(rows), indent=2) if output == "json" else benchmark.as_table(rows))


@main.command()
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="compare", show_default=True)
@click.option(
    "--scale", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Length of the runs."
)
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes to use.")
def compare(out: Path, scale: float, seed: int, workers: int) -> None:
    """The papers' figures again: sizes, holds and extra messages of the protocols, as tables, CSV, PNG, SVG, a page.

    Takes about three minutes on two idle cores.
    """
    from causal.compare import compare as run

    with click.progressbar(length=1000, label="comparing", file=sys.stderr) as bar:

        def advance(done: int, total: int) -> None:
            bar.update(done * 1000 // total - bar.pos)

        try:
            report = run(out, scale=scale, seed=seed, workers=workers, progress=advance)
        except (CausalError, OSError) as error:
            _fail(str(error))
    click.echo(report.text())
    click.echo(f"Everything is in {out}; open {out / 'index.html'} first.")


@main.command()
def demo() -> None:
    """All protocols on one small execution: a reply that overtakes its question."""
    from causal.demo import demo as tell

    click.echo(tell())


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def _print_pairs(pairs: dict[str, Any]) -> None:
    width = max(map(len, pairs)) + 2
    for name, value in pairs.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        click.echo(f"{name.replace('_', ' '):<{width}}{shown}")


def _fail(sentence: str) -> NoReturn:
    click.echo(f"causal: {sentence}", err=True)
    sys.exit(WRONG_USE)
