"""The papers' figures again, and what they leave open: what stamps cost, who holds what, what a threshold buys.

A study is a grid of points, a point is a few runs with different seeds. `sizes` is figures 2 and 3 of Jang et al.;
`delays` repeats it for other link delays, which the paper does not tell; `held` varies the share of sends meant to
depend on what came before (Gambhire and Kshemkalyani); `threshold` and `mixed` answer section 5 of Sanchez and Alvarez.
Runs are independent jobs, each decided by its seed, so they go to as many processes as there are.

Every site starts at message number 1,000: a system that has run for a while, whose times take two bytes (they do up to
65,535). The papers' accounting does not notice; the bytes really encoded would otherwise depend on how short a run is.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from causal import page, plots
from causal.accounting import TIME_BYTES
from causal.errors import BadOption
from causal.model import Site
from causal.multicast import Multicast
from causal.page import Estimate, Section, Size, Sizes, Table, number
from causal.plots import Results, Sample, Samples, listing, pivot
from causal.protocols import make_site
from causal.provenance import provenance
from causal.simulation import Outcome, simulate
from causal.workload import Workload

RUNS = 3  # seeds for each point
FIRST_NUMBER = 1000
FAN_OUTS = ("unicast", "multicast")
SIZES = (10, 20, 30, 40, 50)
PROTOCOLS = ("matrix", "direct", "pruning", "optimal", "extra-message")
DELAYS_S = (0.01, 0.1, 1.0, 4.0)
DELAY_SIZES = (10, 20, 30)
HELD_SIZES = (6, 10)
DEPENDENT_SHARES = (0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 1.0)
THRESHOLDS: Mapping[int, Sequence[int]] = {  # with (n-1)²: no matrix has more cells
    5: (6, 8, 10, 12, 14, 16),
    10: (11, 15, 20, 30, 40, 50, 60, 70, 81, 100),
    20: (21, 40, 80, 160, 240, 320, 361),
}
MIXED = ((20, 20), (20, 81), (81, 81))  # thresholds of even and odd sites, n = 10
HEADER_BYTES = 28  # what a message costs beside its stamp, at the least: IPv4 and UDP
PAPER_COPIES = 5 * 50_000  # that each process received while Jang et al. measured


# Runs


@dataclass(frozen=True)
class Job:
    protocol: str
    workload: Workload
    thresholds: tuple[int, ...] = ()  # of the sites, in turn

    @property
    def cost(self) -> float:
        """Roughly, to start with the longest."""
        n, copies = self.workload.sites, self.workload.sites / 2 if self.workload.fan_out == "multicast" else 1
        heavy = {"direct": 3.0, "extra-message": 4.0 + n * n / min(self.thresholds, default=n * n)}
        return self.workload.messages * copies * (n + 10) * heavy.get(self.protocol, 1.0)


Measured = Mapping[str, float]
Progress = Callable[[int, int], None]  # so many runs done, of so many


def measured(outcome: Outcome) -> Measured:
    """Means of one run after its warm-up: what a result file has columns for."""
    messages, copies = max(outcome.messages, 1), max(outcome.copies, 1)
    holds = sorted(outcome.held_s)
    return {
        "messages": outcome.messages,
        "copies": outcome.copies,
        "destinations": copies / messages,
        "dependents": outcome.dependents / copies,
        "paper_bytes": outcome.paper_bytes / copies,
        "bytes": outcome.bytes / copies,
        "units": outcome.units / copies,
        "largest_units": outcome.largest_units,
        "extras": outcome.extras / messages,
        "message_bytes": outcome.bytes / messages,  # all copies of a user message
        "total_bytes": (outcome.bytes + outcome.extra_bytes) / messages,
        "held": outcome.held / copies,
        "hold_s": sum(holds) / max(len(holds), 1),  # of a held copy
        "hold_p99_s": holds[len(holds) * 99 // 100] if holds else 0.0,
        "wait_s": sum(holds) / copies,  # of any copy
    }


def run(job: Job) -> Measured:
    def make(protocol: str, site: Site, sites: int) -> Multicast[Any]:
        options = {"threshold": job.thresholds[site % len(job.thresholds)]} if job.thresholds else {}
        made = make_site(protocol, site, sites, **options)
        made.clock = FIRST_NUMBER
        return made

    return measured(simulate(job.workload, job.protocol, count_bytes=True, make=make))


def run_all(jobs: Iterable[Job], workers: int, progress: Progress | None = None) -> dict[Job, Measured]:
    """Each job once, the longest first."""
    waiting = sorted(dict.fromkeys(jobs), key=lambda job: -job.cost)
    tell = progress or (lambda done, total: None)
    if workers == 1:
        done: dict[Job, Measured] = {}
        for job in waiting:
            done[job] = run(job)
            tell(len(done), len(waiting))
        return done
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(run, job): job for job in waiting}
        try:
            for count, future in enumerate(as_completed(futures), start=1):
                future.result()
                tell(count, len(waiting))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return {job: future.result() for future, job in futures.items()}


# Studies


@dataclass(frozen=True)
class Effort:
    """How much to run: `scale` 1 is the default size."""

    scale: float
    seed: int

    @property
    def seeds(self) -> list[int]:
        return list(range(self.seed * RUNS, self.seed * RUNS + RUNS))

    def jobs(self, protocol: str, sites: int, fan_out: str, messages: int, *ks: int, **rest: Any) -> tuple[Job, ...]:
        """The runs of one point. Stamps stop growing after some n² unicasts or n multicasts; and links must fill."""
        steady = 5 * sites**2 if fan_out == "unicast" else 14 * sites
        steady += round(8 * sites * rest.get("delay_s", 0.1) / 0.1)
        warm_up = round(self.scale * steady)
        total = warm_up + max(20, round(self.scale * messages))
        loads = [Workload(sites, total, seed, fan_out, warm_up=warm_up, **rest) for seed in self.seeds]
        return tuple(Job(protocol, load, ks) for load in loads)

    def sized(self, fan_out: str, sites: int, protocol: str, **rest: Any) -> tuple[Job, ...]:
        messages = 1500 if fan_out == "unicast" else max(400, 10_000 // sites)
        less = Effort(self.scale / 10, self.seed) if protocol == "matrix" else self  # its stamps are all of one size
        return less.jobs(protocol, sites, fan_out, messages, **rest)


Points = Mapping[tuple[Any, ...], tuple[Job, ...]]


def size_points(effort: Effort) -> Points:
    return {point: effort.sized(*point) for point in product(FAN_OUTS, SIZES, PROTOCOLS)}


def delay_points(effort: Effort) -> Points:
    grid = product(FAN_OUTS, DELAY_SIZES, ("direct", "pruning"))
    return {(delay_s, *point): effort.sized(*point, delay_s=delay_s) for delay_s, point in product(DELAYS_S, grid)}


def held_points(effort: Effort) -> Points:
    grid = [("false-causality", share) for share in DEPENDENT_SHARES]
    grid += [("matrix", 1.0), ("optimal", 1.0)]  # they take every send for a dependent one
    return {
        (sites, protocol, share): effort.jobs(protocol, sites, "multicast", 2500, dependent=share)
        for sites, (protocol, share) in product(HELD_SIZES, grid)
    }


def threshold_points(effort: Effort) -> Points:
    """On links that overtake: there an extra message delays no other, unless by being waited for."""
    points = {}
    for sites, fan_out in product(THRESHOLDS, FAN_OUTS):
        messages = 8000 // sites if fan_out == "multicast" else 1500
        for protocol in ("optimal", "matrix"):
            points[sites, fan_out, protocol, 0] = effort.jobs(protocol, sites, fan_out, messages, fifo=False)
        for k in THRESHOLDS[sites]:
            jobs = effort.jobs("extra-message", sites, fan_out, messages, k, fifo=False)
            points[sites, fan_out, "extra-message", k] = jobs
    return points


def mixed_points(effort: Effort) -> Points:
    return {pair: effort.jobs("extra-message", 10, "multicast", 800, *pair, fifo=False) for pair in MIXED}


STUDIES: Mapping[str, tuple[Callable[[Effort], Points], Sequence[str]]] = {  # with the names of a point's labels
    "sizes": (size_points, ("fan_out", "sites", "protocol")),
    "delays": (delay_points, ("delay_s", "fan_out", "sites", "protocol")),
    "held": (held_points, ("sites", "protocol", "dependent_share")),
    "threshold": (threshold_points, ("sites", "fan_out", "protocol", "threshold")),
    "mixed": (mixed_points, ("threshold_even_sites", "threshold_odd_sites")),
}


def study(effort: Effort, workers: int, progress: Progress | None = None) -> Results:
    """Run everything."""
    grids = {name: points(effort) for name, (points, _) in STUDIES.items()}
    done = run_all((job for grid in grids.values() for jobs in grid.values() for job in jobs), workers, progress)

    def sample(jobs: Sequence[Job]) -> Sample:
        return {name: Estimate.of([done[job][name] for job in jobs]) for name in done[jobs[0]]}

    return {name: {labels: sample(jobs) for labels, jobs in grid.items()} for name, grid in grids.items()}


# What they say


def sizes_of(samples: Samples) -> Sizes:
    """As the claims want them. What `matrix` carries is known without a run."""
    sizes = {}
    for (fan_out, sites, protocol), found in samples.items():
        means = [found[name].mean for name in ("dependents", "paper_bytes", "units", "destinations")]
        sizes[fan_out, sites, protocol] = Size(*means)
        sizes.setdefault((fan_out, sites, "matrix"), Size(sites**2, TIME_BYTES * sites**2, sites**2, means[3]))
    return sizes


def claims_table(results: Results) -> Table:
    grids = [results["sizes"]]
    for delay_s in DELAYS_S:
        grids.append({point[1:]: found for point, found in results["delays"].items() if point[0] == delay_s})
    rows = []
    for words, judge in page.CLAIMS.items():
        (verdict, found), *others = (judge(sizes_of(grid)) for grid in grids)
        rows.append([words, verdict, found, *(other for other, _ in others)])
    columns = ["claim", "verdict", "measured with links of 0.1 s", *(f"with {delay:g} s" for delay in DELAYS_S)]
    return Table("Claims of Jang et al., section 6.3; the last columns for n = 10, 20, 30", columns, rows)


def sections(results: Results, effort: Effort) -> list[Section]:
    sizes, prices, mixed, by_n = results["sizes"], results["threshold"], results["mixed"], ("fan-out", "n")
    figure_2 = pivot("Dependents a copy", sizes, "dependents", *by_n)
    on_paper = pivot("Bytes a copy, as the paper counts", sizes, "paper_bytes", *by_n)
    encoded = pivot("Bytes a copy, really encoded", sizes, "bytes", *by_n)
    delays = pivot("Dependents a copy, by link delay", results["delays"], "dependents", "delay, s", *by_n)
    holds = listing("Holds", results["held"], plots.HOLDS, "n", "protocol", "dependent")
    of_k = listing("By threshold (0: it has none)", prices, plots.PRICES, "n", "fan-out", "protocol", "k")
    of_two = listing("One k at even sites, another at odd ones", mixed, plots.PRICES, "even k", "odd k")
    extras = ["threshold-multicast", "threshold-unicast", "threshold-best"]
    measured = [WORDS["measured"]] if effort.scale >= 1 else [WORDS["measured"], WORDS["small"]]
    return [
        Section("What a stamp carries (figure 2 of Jang et al.)", [WORDS["carries"]], ["dependents"], [figure_2]),
        Section("What it weighs (figure 3)", [WORDS["weighs"]], ["overhead"], [on_paper, encoded]),
        Section("What the paper says about it", [WORDS["claims"]], ["delays"], [claims_table(results), delays]),
        Section("Who is held: false causality", [_held(results["held"])], ["held"], [holds]),
        Section("What a threshold buys", _bought(prices), extras, [plots.best(prices, HEADER_BYTES), of_k, of_two]),
        Section("How much was measured", measured, [], [plots.effort(sizes, RUNS, PAPER_COPIES)]),
    ]


WORDS = {
    "carries": "Dependents of a copy, as the paper counts them: cells for RST, tuples for PRS, and for theirs the "
    "messages that are named. Means over runs, ± half a 95 % interval. `optimal` keeps the facts that `pruning` keeps. "
    "`extra-message` has its default threshold; its extra messages come on top.",
    "weighs": "As the paper counts, a time takes 4 bytes and a site 2. The bytes really encoded are the codec's, for "
    "message numbers between 1,000 and 65,535.",
    "claims": "Each verdict is computed from the means on this page; intervals do not count. 'Agrees in part' means: "
    "for some n, in one of the two modes, or against one of the two rivals. The paper does not tell how long a link "
    "takes, and that decides much; so the last columns judge each claim again for other mean delays (a site sends "
    "every 0.1 s). With 4 s, few runs vary much: see the intervals.",
    "small": "This was a smaller run than the default: stamps had not reached their size, and the numbers mean little.",
    "threshold": "Links overtake here, so that an extra message delays no copy but those that wait for it. From "
    "k = (n-1)² on there is nothing to relieve: a site's own column is empty, and nobody sends to itself.",
    "measured": "Stamps reach their size soon, after some n² unicasts or n multicasts; what comes before is not "
    "counted. The paper measured longer runs; the intervals say what ours are worth.",
}


def _held(samples: Samples) -> str:
    some, every = samples[10, "false-causality", 0.05], samples[10, "matrix", 1.0]
    share, hold, wait = (
        f"{number(by * some[name].mean)} against {number(by * every[name].mean)}"
        for name, by in (("held", 100), ("hold_s", 1000), ("wait_s", 1000))
    )
    words = "false-causality against matrix and optimal, n = 10, when 5 % of the sends are meant to depend: "
    return (
        f"{words}{share} % of the copies are held; a held copy waits {hold} ms, any copy {wait} ms. Links keep order."
    )


def _bought(samples: Samples) -> list[str]:
    """To the questions of Sanchez and Alvarez, section 5."""
    prices = {k: samples[10, "multicast", "extra-message", k] for k in THRESHOLDS[10]}
    least = samples[10, "multicast", "optimal", 0]["total_bytes"].mean
    extras = ", ".join(number(prices[k]["extras"].mean) for k in (11, 60, 81))
    waits = ", ".join(number(1000 * prices[k]["wait_s"].mean) for k in (11, 60, 81))
    times = page.span(sample["total_bytes"].mean / least for sample in prices.values())
    words = f"n = 10, multicast, k = 11, 60 and 81: {extras} extra messages for each user message; a copy waits {waits}"
    return [WORDS["threshold"], f"{words} ms. All control bytes are {times} times those of optimal, over all k."]


# Results


class Report(NamedTuple):
    sections: Sequence[Section]
    files: Sequence[Path]

    def text(self) -> str:
        return page.text(self.sections)


def compare(
    out: Path, *, scale: float = 1.0, seed: int = 0, workers: int = 2, progress: Progress | None = None
) -> Report:
    """Run all studies and write tables, figures and the page (index.html) into `out`."""
    plots.require_matplotlib()
    if not 0 < scale < math.inf or workers < 1:
        raise BadOption(f"scale {scale} with {workers} processes: there must be some of both")
    effort = Effort(scale, seed)
    results = study(effort, workers, progress)
    record = {**provenance(), "seeds": ", ".join(map(str, effort.seeds)), "options": f"scale {scale:g}, seed {seed}"}
    found = sections(results, effort)
    drawings = plots.figures(results, record)
    files = {f"{name}.csv": _tidy(name, samples).csv(record) for name, samples in results.items()}
    files["claims.csv"] = claims_table(results).csv(record)
    files |= {f"{name}.svg": drawing.svg.encode() for name, drawing in drawings.items()}
    files |= {f"{name}.png": drawing.png for name, drawing in drawings.items()}
    svgs = {name: drawing.svg for name, drawing in drawings.items()}
    files["index.html"] = page.html("Causal multicast: the protocols compared", found, svgs, record).encode()
    return Report(found, [_write(out / name, content) for name, content in files.items()])


def _tidy(name: str, samples: Samples) -> Table:
    """One row for each point, everything that was measured, each with its margin."""
    metrics = next(iter(samples.values()))
    columns = [*STUDIES[name][1], *(column for metric in metrics for column in (metric, f"{metric}_ci95"))]
    rows = [[*point, *(x for each in found.values() for x in each)] for point, found in samples.items()]
    return Table(name, columns, rows)


def _write(path: Path, content: bytes) -> Path:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content)
    return draft.replace(path)
