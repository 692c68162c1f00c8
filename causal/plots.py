"""What a comparison shows: its tables and figures. A protocol has one colour and one marker in all of them.

A figure is a grid of panels, a panel is lines (one for each protocol or variant) and levels (a protocol that does not
depend on what varies). matplotlib is an extra of this package, so it is imported only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from causal.errors import CausalError
from causal.page import BREAK_EVEN, Estimate, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Sample = Mapping[str, Estimate]  # by what was measured
Samples = Mapping[tuple[Any, ...], Sample]  # by the point of a grid
Results = Mapping[str, Samples]  # by study


class NoPlots(CausalError):
    """matplotlib is not installed."""


class Style(NamedTuple):
    colour: str
    marker: str
    size: float = 5
    is_hollow: bool = False  # so that a line below it can be seen


PROTOCOL_STYLE: Mapping[str, Style] = {
    "optimal": Style("#0072b2", "o", 4),
    "pruning": Style("#009e73", "s", 8, is_hollow=True),
    "false-causality": Style("#cc79a7", "^"),
    "extra-message": Style("#e69f00", "D"),
    "matrix": Style("#444444", "x", 6),
    "direct": Style("#d55e00", "v"),
    "vector": Style("#56b4e9", "P"),
    "fifo": Style("#999999", "+"),
    "unordered": Style("#bbbbbb", "."),
}
FULL_NAME = {
    "matrix": "matrix (RST)",
    "direct": "direct (PRS)",
    "pruning": "pruning (Jang et al.)",
    "extra-message": "extra-message (default k)",
}

_LOOK: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "legend.frameon": False,
    "lines.linewidth": 1.4,
}
_PANEL_INCHES = (4.2, 3.1)
_DPI = 160


class Line(NamedTuple):
    protocol: str
    points: Mapping[float, Estimate]  # x -> y
    label: str = ""
    dash: str = "-"


class Level(NamedTuple):
    protocol: str
    value: float
    label: str = ""
    dash: str = "--"


class Panel(NamedTuple):
    title: str
    x: str
    y: str
    lines: Sequence[Line]
    levels: Sequence[Level] = ()
    is_log: bool = False
    ticks: Sequence[float] = ()


class Drawing(NamedTuple):
    svg: str
    png: bytes


def require_matplotlib() -> None:
    """Refuse before the work rather than after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise NoPlots("figures need matplotlib: install causal-kvstore[plots]") from None


def draw(name: str, panels: Sequence[Panel], columns: int, record: Mapping[str, str]) -> Drawing:
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    width, height = _PANEL_INCHES
    with matplotlib.rc_context({**_LOOK, "svg.hashsalt": name}):
        figure = Figure(figsize=(columns * width, rows * height + 0.5), layout="constrained")
        for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=True):
            _draw_panel(axes, panel)
        _draw_legend(figure)
        origin = "; ".join(f"{key}: {value}" for key, value in record.items())
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Title": name, "Description": origin})
        figure.savefig(png, format="png", dpi=_DPI, metadata={"Title": name, "Description": origin})
    return Drawing(svg.getvalue(), png.getvalue())


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for line in panel.lines:
        style = PROTOCOL_STYLE[line.protocol]
        axes.errorbar(
            list(line.points),
            [estimate.mean for estimate in line.points.values()],
            yerr=[estimate.margin for estimate in line.points.values()],
            color=style.colour,
            marker=style.marker,
            markersize=style.size,
            markerfacecolor="none" if style.is_hollow else style.colour,
            linestyle=line.dash,
            elinewidth=0.8,
            capsize=2,
            label=line.label or FULL_NAME.get(line.protocol, line.protocol),
        )
    for level in panel.levels:
        colour = PROTOCOL_STYLE[level.protocol].colour
        axes.axhline(level.value, color=colour, linestyle=level.dash, label=level.label or level.protocol)
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if panel.ticks:
        axes.set_xticks(panel.ticks)
    if panel.is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    else:
        axes.set_ylim(bottom=0)


def _draw_legend(figure: Figure) -> None:
    """One for all panels, below them, so that it hides nothing."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    columns = len(found) if len(found) <= 5 else 3
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


# Tables

METRICS = {  # what to call it, and how many of the unit are one of ours
    "held": ("held, %", 100),
    "hold_s": ("mean hold, ms", 1000),
    "hold_p99_s": ("99 % hold, ms", 1000),
    "wait_s": ("wait of any copy, ms", 1000),
    "extras": ("extra messages", 1),
    "message_bytes": ("bytes", 1),
    "total_bytes": ("with extra messages", 1),
    "units": ("cells a copy", 1),
    "largest_units": ("largest copy", 1),
}
HOLDS = ("held", "hold_s", "hold_p99_s", "wait_s")
PRICES = ("extras", "message_bytes", "total_bytes", "units", "largest_units", "held", "wait_s")


def pivot(title: str, samples: Samples, metric: str, *labels: str) -> Table:
    """One measure; the last label makes the columns."""
    rows: dict[tuple[Any, ...], list[Any]] = {}
    for (*row, _), found in samples.items():
        rows.setdefault(tuple(row), list(row)).append(found[metric])
    return Table(title, [*labels, *dict.fromkeys(point[-1] for point in samples)], list(rows.values()))


def listing(title: str, samples: Samples, metrics: Sequence[str], *labels: str) -> Table:
    """Several measures, each in its unit."""
    rows = [[*point, *(_scaled(found, name) for name in metrics)] for point, found in samples.items()]
    return Table(title, [*labels, *(METRICS[name][0] for name in metrics)], rows)


def _scaled(sample: Sample, metric: str) -> Estimate:
    by = METRICS[metric][1] if metric in METRICS else 1
    return Estimate(sample[metric].mean * by, sample[metric].margin * by)


def best(samples: Samples, header_bytes: int) -> Table:
    """The thresholds that cost the least, in bytes alone and with a header for each extra message."""
    rows: list[list[Any]] = []
    for sites, fan_out in dict.fromkeys(point[:2] for point in samples):
        found = {p[3]: sample for p, sample in samples.items() if p[:3] == (sites, fan_out, "extra-message")}
        rivals = [found[(sites - 1) ** 2], *(samples[sites, fan_out, name, 0] for name in ("optimal", "matrix"))]
        for header in (0, header_bytes):
            costs = {k: sample["total_bytes"].mean + header * sample["extras"].mean for k, sample in found.items()}
            k = min(costs, key=costs.__getitem__)
            shares = [costs[k] / rival["total_bytes"].mean for rival in rivals]
            wait = found[k]["wait_s"].mean / max(rivals[0]["wait_s"].mean, 1e-9)
            rows.append([sites, fan_out, header, k, found[k]["extras"].mean, *shares, wait])
    heads = ["n", "fan-out", "header, bytes", "best k", "extra messages", "bytes / (n-1)²", "/ optimal", "/ matrix"]
    return Table("The k with the fewest bytes, and what it costs", [*heads, "wait / (n-1)²"], rows)


def effort(samples: Samples, runs: int, paper_copies: int) -> Table:
    rows = []
    for fan_out, sites in dict.fromkeys(point[:2] for point in samples):
        messages, copies = (runs * samples[fan_out, sites, "pruning"][name].mean for name in ("messages", "copies"))
        rows.append([fan_out, sites, messages, copies, paper_copies * sites, 100 * copies / paper_copies / sites])
    heads = ["fan-out", "n", "messages", "copies", "copies in the paper", "%"]
    return Table("Measured for a point of figures 2 and 3, all runs together", heads, rows)


# The figures


def _points(samples: Samples, metric: str, x_at: int, *fixed: Any) -> dict[float, Estimate]:
    """One line of a study: the points whose other labels are as given, in order."""
    return {
        point[x_at]: _scaled(sample, metric)
        for point, sample in samples.items()
        if (*point[:x_at], *point[x_at + 1 :]) == fixed
    }


def _size_panel(results: Results, fan_out: str, metric: str, title: str, unit: str) -> Panel:
    sizes = results["sizes"]
    protocols = dict.fromkeys(protocol for _, _, protocol in sizes)
    lines = [Line(protocol, _points(sizes, metric, 1, fan_out, protocol)) for protocol in protocols]
    return Panel(f"{fan_out}{title}", "sites n", unit, lines, is_log=True, ticks=list(lines[0].points))


def dependents(results: Results) -> tuple[list[Panel], int]:
    unit = "dependents a copy"
    return [_size_panel(results, fan_out, "dependents", "", unit) for fan_out in ("unicast", "multicast")], 2


def overhead(results: Results) -> tuple[list[Panel], int]:
    ways = [("paper_bytes", ", as the paper counts"), ("bytes", ", really encoded")]
    return [
        _size_panel(results, fan_out, metric, title, "bytes a copy")
        for metric, title in ways
        for fan_out in ("unicast", "multicast")
    ], 2


def held(results: Results) -> tuple[list[Panel], int]:
    samples, panels = results["held"], []
    titles = [
        "copies held",
        "hold of a held copy, mean",
        "hold of a held copy, 99th percentile",
        "wait of any copy, mean",
    ]
    sizes = sorted({sites for sites, _, _ in samples}, reverse=True)
    for metric, title in zip(HOLDS, titles, strict=True):
        lines, levels = [], []
        for sites, dash, level_dash in zip(sizes, ("-", ":"), ("--", ":"), strict=False):
            points = _points(samples, metric, 2, sites, "false-causality")
            if metric in ("hold_s", "hold_p99_s"):  # where nothing is held, there is no hold
                points = {share: hold for share, hold in points.items() if hold.mean}
            lines.append(Line("false-causality", points, f"false-causality, n = {sites}", dash))
            level = _scaled(samples[sites, "matrix", 1.0], metric).mean
            levels.append(Level("matrix", level, f"matrix and optimal, n = {sites}", level_dash))
        unit = "% of copies" if metric == "held" else "ms"
        panels.append(Panel(title, "share of sends that are meant to depend", unit, lines, levels))
    return panels, 2


def threshold(results: Results, fan_out: str, sites: int = 10) -> tuple[list[Panel], int]:
    samples = results["threshold"]

    def line(metric: str, label: str = "extra-message", dash: str = "-") -> Line:
        return Line("extra-message", _points(samples, metric, 3, sites, fan_out, "extra-message"), label, dash)

    def levels(metric: str, *protocols: str) -> list[Level]:
        return [Level(name, _scaled(samples[sites, fan_out, name, 0], metric).mean) for name in protocols]

    x = f"threshold k (n = {sites})"
    weights = [line("total_bytes"), line("message_bytes", "without extra messages", ":")]
    cells = [line("units"), line("largest_units", "largest copy", "--")]
    return [
        Panel(f"{fan_out}: extra messages", x, "for each user message", [line("extras")]),
        Panel(
            "control bytes", x, "bytes a user message, all copies", weights, levels("total_bytes", "optimal", "matrix")
        ),
        Panel("cells of a copy", x, "cells", cells, levels("units", "optimal", "matrix")),
        Panel("wait of a copy, mean", x, "ms", [line("wait_s")], levels("wait_s", "matrix")),
    ], 2


def best_threshold(results: Results) -> tuple[list[Panel], int]:
    """Bytes of a message relative to those with the least k that makes no extra message, (n-1)²."""
    panels = []
    for fan_out in ("unicast", "multicast"):
        lines = []
        sizes = sorted({labels[0] for labels in results["threshold"] if labels[1] == fan_out})
        for sites, dash in zip(sizes, (":", "-", "--"), strict=False):
            found = _points(results["threshold"], "total_bytes", 3, sites, fan_out, "extra-message")
            base = found[(sites - 1) ** 2].mean
            points = {k / sites**2: Estimate(y.mean / base, y.margin / base) for k, y in sorted(found.items())}
            lines.append(Line("extra-message", points, f"extra-message, n = {sites}", dash))
        unit = "bytes, in those of k = (n-1)²"
        panels.append(Panel(f"{fan_out}: control bytes of a user message", "k / n²", unit, lines))
    return panels, 2


def delays(results: Results) -> tuple[list[Panel], int]:
    panels = []
    dashes = ("-", "--", "-.", ":")
    for protocol, what, power in (("direct", "dependents / n²", 2), ("pruning", "dependents / n", 1)):
        for fan_out in ("unicast", "multicast"):
            lines = []
            for delay_s, dash in zip(sorted({labels[0] for labels in results["delays"]}), dashes, strict=False):
                found = _points(results["delays"], "dependents", 2, delay_s, fan_out, protocol)
                points = {n: Estimate(y.mean / n**power, y.margin / n**power) for n, y in found.items()}
                lines.append(Line(protocol, points, f"{FULL_NAME[protocol]}, {delay_s:g} s", dash))
            levels = [Level("matrix", BREAK_EVEN, "4/6 n², as dear as RST")] if power == 2 else []
            title = f"{FULL_NAME[protocol]}, {fan_out}"
            panels.append(Panel(title, "sites n", what, lines, levels, ticks=list(lines[0].points)))
    return panels, 2


FIGURES: Mapping[str, Callable[[Results], tuple[list[Panel], int]]] = {
    "dependents": dependents,
    "overhead": overhead,
    "delays": delays,
    "held": held,
    "threshold-multicast": lambda results: threshold(results, "multicast"),
    "threshold-unicast": lambda results: threshold(results, "unicast"),
    "threshold-best": best_threshold,
}


def figures(results: Results, record: Mapping[str, str]) -> dict[str, Drawing]:
    return {name: draw(name, *make(results), record) for name, make in FIGURES.items()}
