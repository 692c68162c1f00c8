"""The papers' figures again, and what they leave open: what stamps cost, who holds what, what a threshold buys.

A study is a grid of points, a point is a few runs with different seeds. `sizes` is figures 2 and 3 of Jang et al.;
`delays` repeats it for other link delays, which the paper does not tell; `held` varies the share of sends meant to
depend on what came before (Gambhire and Kshemkalyani); `threshold` and `mixed` answer section 5 of Sanchez and Alvarez.
Runs are independent jobs, each decided by its seed, so they go to as many processes as there are.

Every site starts at message number 1,000: a system that has run for a while, whose times take two bytes (they do up to
65,535). The papers' accounting does not notice; the bytes really encoded would otherwise depend on how short a run is.
"""

from __future__ import annotations

import csv
import io
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
from causal.plots import Results, Sample
from causal.protocols import make_site
from causal.provenance import provenance
from causal.simulation import Outcome, simulate
from causal.workload import Workload

RUNS = 3  # seeds for each point
T_95 = 4.303  # Student's t for the 95 % interval of that many
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
    """One run."""

    protocol: str
    workload: Workload
    thresholds: tuple[int, ...] = ()  # of the sites, in turn

    @property
    def cost(self) -> float:
        """Roughly, to start with the longest."""
        n, load = self.workload.sites, self.workload
        copies = n / 2 if load.fan_out == "multicast" else 1
        heavy = {"direct": 3.0, "extra-message": 4.0 + n * n / min(self.thresholds, default=n * n)}
        return load.messages * copies * (n + 10) * heavy.get(self.protocol, 1.0)


Measured = Mapping[str, float]


def measured(outcome: Outcome) -> Measured:
    """Means of one run after its warm-up: what a result file has columns for."""
    messages, copies = max(outcome.messages, 1), max(outcome.copies, 1)
    holds = sorted(outcome.held_s)
    return {
        "messages": outcome.messages,
        "copies": outcome.copies,
        "fan_out": copies / messages,
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


def run_all(
    jobs: Iterable[Job], workers: int, progress: Callable[[int, int], None] | None = None
) -> dict[Job, Measured]:
    """Each job once, the longest first."""
    waiting = sorted(dict.fromkeys(jobs), key=lambda job: -job.cost)
    tell = progress or (lambda done, total: None)
    if workers <= 1:
        done = {}
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


def estimate(values: Sequence[float]) -> Estimate:
    mean = math.fsum(values) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Estimate(mean, T_95 * deviation / math.sqrt(len(values)))


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
        steady += round(4 * sites * rest.get("delay_s", 0.1) / 0.1)
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


def study(effort: Effort, workers: int, progress: Callable[[int, int], None] | None = None) -> Results:
    """Run everything."""
    grids = {name: points(effort) for name, (points, _) in STUDIES.items()}
    done = run_all((job for grid in grids.values() for jobs in grid.values() for job in jobs), workers, progress)

    def sample(jobs: Sequence[Job]) -> Sample:
        return {name: estimate([done[job][name] for job in jobs]) for name in done[jobs[0]]}

    return {name: {labels: sample(jobs) for labels, jobs in grid.items()} for name, grid in grids.items()}


# What they say

MS, PERCENT = 1000, 100
HOLDS = {"held": PERCENT, "hold_s": MS, "hold_p99_s": MS, "wait_s": MS}
PRICES = {
    "extras": 1,
    "message_bytes": 1,
    "total_bytes": 1,
    "units": 1,
    "largest_units": 1,
    "held": PERCENT,
    "wait_s": MS,
}
HEADS = {
    "held": "held, %",
    "hold_s": "mean hold, ms",
    "hold_p99_s": "99 % hold, ms",
    "wait_s": "mean wait of any copy, ms",
    "extras": "extra messages",
    "message_bytes": "bytes",
    "total_bytes": "with extra messages",
    "units": "cells of a copy",
    "largest_units": "largest copy",
}


def pivot(title: str, samples: Mapping[tuple[Any, ...], Sample], metric: str, *labels: str) -> Table:
    """The last label becomes the columns."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for (*row, _), found in samples.items():
        rows.setdefault(tuple(row), list(row)).append(found[metric])
    return Table(title, [*labels, *dict.fromkeys(point[-1] for point in samples)], list(rows.values()))


def listing(title: str, samples: Mapping[tuple[Any, ...], Sample], metrics: Mapping[str, int], *labels: str) -> Table:
    rows = [
        [*point, *(Estimate(found[name].mean * by, found[name].margin * by) for name, by in metrics.items())]
        for point, found in samples.items()
    ]
    return Table(title, [*labels, *map(HEADS.__getitem__, metrics)], rows)


def sizes_of(samples: Mapping[tuple[Any, ...], Sample]) -> Sizes:
    """As the claims want them. What `matrix` carries is known without a run."""
    sizes = {}
    for (fan_out, sites, protocol), found in samples.items():
        means = [found[name].mean for name in ("dependents", "paper_bytes", "units", "fan_out")]
        sizes[fan_out, sites, protocol] = Size(*means)
        sizes.setdefault((fan_out, sites, "matrix"), Size(sites**2, TIME_BYTES * sites**2, sites**2, means[3]))
    return sizes


def claims_table(results: Results) -> Table:
    by_delay = {
        delay_s: sizes_of({point[1:]: found for point, found in results["delays"].items() if point[0] == delay_s})
        for delay_s in DELAYS_S
    }
    rows = []
    for words, judge in page.CLAIMS.items():
        verdict, found = judge(sizes_of(results["sizes"]))
        rows.append([words, verdict, found, *(judge(sizes)[0] for sizes in by_delay.values())])
    columns = ["claim", "verdict", "measured with links of 0.1 s", *(f"with {delay:g} s" for delay in DELAYS_S)]
    return Table("Claims of Jang et al., section 6.3 (last columns: n = 10, 20, 30)", columns, rows)


def best_table(results: Results) -> Table:
    """The thresholds that cost the least, in bytes alone and with a header for each extra message."""
    rows: list[list[Any]] = []
    for sites, fan_out in product(THRESHOLDS, FAN_OUTS):
        found = {k: results["threshold"][sites, fan_out, "extra-message", k] for k in THRESHOLDS[sites]}
        rivals = [results["threshold"][sites, fan_out, name, 0] for name in ("optimal", "matrix")]
        never = found[(sites - 1) ** 2]
        for header in (0, HEADER_BYTES):
            costs = {k: sample["total_bytes"].mean + header * sample["extras"].mean for k, sample in found.items()}
            k = min(costs, key=costs.__getitem__)
            shares = [costs[k] / base["total_bytes"].mean for base in (never, *rivals)]
            waits = found[k]["wait_s"].mean / max(never["wait_s"].mean, 1e-9)
            rows.append([sites, fan_out, header, k, found[k]["extras"].mean, *shares, waits])
    heads = ["n", "fan-out", "header, bytes", "best k", "extra messages"]
    heads += ["bytes / (n-1)²'s", "bytes / optimal's", "bytes / matrix's", "wait / (n-1)²'s"]
    return Table("The k with the fewest bytes of a user message, among those measured", heads, rows)


def effort_table(results: Results) -> Table:
    rows = []
    for fan_out, sites in product(FAN_OUTS, SIZES):
        found = results["sizes"][fan_out, sites, "pruning"]
        messages, copies = (RUNS * found[name].mean for name in ("messages", "copies"))
        rows.append([fan_out, sites, messages, copies, PAPER_COPIES * sites, copies / PAPER_COPIES / sites])
    heads = ["fan-out", "n", "messages", "copies", "copies in the paper", "share"]
    return Table(f"Measured for a point of figures 2 and 3, {RUNS} runs together", heads, rows)


def sections(results: Results) -> list[Section]:
    sizes, held, prices = results["sizes"], results["held"], results["threshold"]
    some, all_of_it = held[10, "false-causality", 0.05], held[10, "matrix", 1.0]
    least, most = (prices[10, "multicast", "extra-message", k] for k in (11, 81))
    return [
        Section(
            "What a stamp carries (figure 2 of Jang et al.)",
            [
                "Dependents of a copy, as the paper counts them: cells for RST, (sender, time) tuples for PRS, messages "
                "named at all for theirs. The mean of runs with different seeds, ± half a 95 % interval. `optimal` "
                "keeps the same facts as `pruning`."
            ],
            ["dependents"],
            [pivot("Dependents a copy", sizes, "dependents", "fan-out", "n")],
        ),
        Section(
            "What it weighs (figure 3)",
            [
                "First as the paper counts: 4 bytes for a time, 2 for a site. Then the bytes that the codec really "
                "writes, with message numbers between 1,000 and 65,535."
            ],
            ["overhead"],
            [
                pivot("Bytes a copy, as the paper counts", sizes, "paper_bytes", "fan-out", "n"),
                pivot("Bytes a copy, really encoded", sizes, "bytes", "fan-out", "n"),
            ],
        ),
        Section("What the paper says about it", CLAIM_WORDS, ["delays"], [claims_table(results)]),
        Section(
            "Who holds what: false causality",
            [
                f"At n = 10, with 5 % dependent sends, false-causality holds {number(PERCENT * some['held'].mean)} % of "
                f"the copies; matrix and optimal hold {number(PERCENT * all_of_it['held'].mean)} %. A copy waits "
                f"{number(MS * some['wait_s'].mean)} ms in the mean instead of {number(MS * all_of_it['wait_s'].mean)} "
                "ms: fewer copies are held, but a held one is held for about as long. FIFO links."
            ],
            ["held"],
            [listing("Holds", held, HOLDS, "n", "protocol", "dependent")],
        ),
        Section(
            "What a threshold buys: extra messages",
            [
                *THRESHOLD_WORDS,
                f"At n = 10 in multicast, k = n + 1 makes {number(least['extras'].mean)} extra messages for each user "
                f"message and lets a copy wait {number(MS * least['wait_s'].mean)} ms instead of "
                f"{number(MS * most['wait_s'].mean)}.",
            ],
            ["threshold-multicast", "threshold-unicast", "threshold-best"],
            [
                best_table(results),
                listing("For each user message (k = 0: has none)", prices, PRICES, "n", "fan-out", "protocol", "k"),
                listing("Different k at even and odd sites, n = 10", results["mixed"], PRICES, "even k", "odd k"),
            ],
        ),
        Section("How much was measured", EFFORT_WORDS, (), [effort_table(results)]),
    ]


CLAIM_WORDS = [
    "Every verdict is computed from the numbers above. Where a claim has two modes or several n, 'agrees in part' means "
    "that it holds for some of them.",
    "The paper does not tell how long a link takes, and that decides much: the last columns judge the same claims for "
    "other mean delays. In unicast PRS comes near its bound of 4/6 n², and costs more than RST only beyond about 25 "
    "sites, when a link takes some 40 mean gaps between two sends (4 s); with shorter links it is dearer than RST from "
    "10 sites on.",
]
