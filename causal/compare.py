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


class Measured(NamedTuple):
    """Means of one run after its warm-up; what a result file has a column for."""

    messages: float
    copies: float
    fan_out: float
    dependents: float  # of a copy, like the next three
    paper_bytes: float
    bytes: float
    units: float
    largest_units: float
    extras: float  # of a user message, like the next three
    message_bytes: float  # all its copies
    extra_bytes: float
    total_bytes: float
    held: float  # share of copies
    hold_s: float  # of a held copy
    hold_p99_s: float
    wait_s: float  # of any copy


def measured(outcome: Outcome) -> Measured:
    messages, copies = max(outcome.messages, 1), max(outcome.copies, 1)
    holds = sorted(outcome.held_s)
    return Measured(
        messages=outcome.messages,
        copies=outcome.copies,
        fan_out=copies / messages,
        dependents=outcome.dependents / copies,
        paper_bytes=outcome.paper_bytes / copies,
        bytes=outcome.bytes / copies,
        units=outcome.units / copies,
        largest_units=outcome.largest_units,
        extras=outcome.extras / messages,
        message_bytes=outcome.bytes / messages,
        extra_bytes=outcome.extra_bytes / messages,
        total_bytes=(outcome.bytes + outcome.extra_bytes) / messages,
        held=outcome.held / copies,
        hold_s=sum(holds) / max(len(holds), 1),
        hold_p99_s=holds[len(holds) * 99 // 100] if holds else 0.0,
        wait_s=sum(holds) / copies,
    )


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

    def jobs(
        self, protocol: str, sites: int, fan_out: str, messages: int, *thresholds: int, **rest: Any
    ) -> tuple[Job, ...]:
        """The runs of one point. Stamps stop growing after some n² unicasts or n multicasts; and links must fill."""
        steady = 5 * sites**2 if fan_out == "unicast" else 14 * sites
        steady += round(4 * sites * rest.get("delay_s", 0.1) / 0.1)
        warm_up = round(self.scale * steady)
        total = warm_up + max(20, round(self.scale * messages))
        loads = [Workload(sites, total, seed, fan_out, warm_up=warm_up, **rest) for seed in self.seeds]
        return tuple(Job(protocol, load, thresholds) for load in loads)


Points = dict[tuple[Any, ...], tuple[Job, ...]]


def _messages(fan_out: str, sites: int) -> int:
    return 1500 if fan_out == "unicast" else max(400, 10_000 // sites)


def size_points(effort: Effort) -> Points:
    points: Points = {}
    for fan_out, sites, protocol in product(FAN_OUTS, SIZES, PROTOCOLS):
        messages = _messages(fan_out, sites)
        if protocol == "matrix":  # its stamps are all of one size
            points[fan_out, sites, protocol] = Effort(effort.scale / 10, effort.seed).jobs(
                protocol, sites, fan_out, messages
            )
        else:
            points[fan_out, sites, protocol] = effort.jobs(protocol, sites, fan_out, messages)
    return points


def delay_points(effort: Effort) -> Points:
    def jobs(delay_s: float, fan_out: str, sites: int, protocol: str) -> tuple[Job, ...]:
        messages = _messages(fan_out, sites)
        return effort.jobs(protocol, sites, fan_out, messages, delay_s=delay_s)

    return {point: jobs(*point) for point in product(DELAYS_S, FAN_OUTS, DELAY_SIZES, ("direct", "pruning"))}


def held_points(effort: Effort) -> Points:
    points: Points = {}
    for sites in HELD_SIZES:
        for share in DEPENDENT_SHARES:
            jobs = effort.jobs("false-causality", sites, "multicast", 2500, dependent=share)
            points[sites, "false-causality", share] = jobs
        for protocol in ("matrix", "optimal"):  # they take every send for a dependent one
            points[sites, protocol, 1.0] = effort.jobs(protocol, sites, "multicast", 2500)
    return points


def threshold_points(effort: Effort) -> Points:
    """On links that overtake: there an extra message delays no other, unless by being waited for."""
    points: Points = {}
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


class Study(NamedTuple):
    labels: Sequence[str]
    points: Callable[[Effort], Points]


STUDIES: Mapping[str, Study] = {
    "sizes": Study(("fan_out", "sites", "protocol"), size_points),
    "delays": Study(("delay_s", "fan_out", "sites", "protocol"), delay_points),
    "held": Study(("sites", "protocol", "dependent_share"), held_points),
    "threshold": Study(("sites", "fan_out", "protocol", "threshold"), threshold_points),
    "mixed": Study(("threshold_even_sites", "threshold_odd_sites"), mixed_points),
}


def study(effort: Effort, workers: int, progress: Callable[[int, int], None] | None = None) -> Results:
    """Run everything."""
    grids = {name: study.points(effort) for name, study in STUDIES.items()}
    done = run_all((job for grid in grids.values() for jobs in grid.values() for job in jobs), workers, progress)

    def sample(jobs: Iterable[Job]) -> Sample:
        columns = zip(*(done[job] for job in jobs), strict=True)
        return {name: estimate(column) for name, column in zip(Measured._fields, columns, strict=True)}

    return {name: {labels: sample(jobs) for labels, jobs in grid.items()} for name, grid in grids.items()}


# What they say


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
        delay_s: sizes_of({tuple(rest): found for (delay, *rest), found in results["delays"].items() if delay == delay_s})
        for delay_s in DELAYS_S
    }
    rows = []
    for words, judge in page.CLAIMS.items():
        verdict, measure = judge(sizes_of(results["sizes"]))
        rows.append([words, verdict, measure, *(judge(sizes)[0] for sizes in by_delay.values())])
    columns = ["claim of Jang et al.", "verdict", "measured (links of 0.1 s)", *(f"{delay:g} s" for delay in DELAYS_S)]
    return Table("Each claim, and the verdict for other mean link delays (n = 10, 20, 30)", columns, rows)
