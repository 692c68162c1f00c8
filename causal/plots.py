"""The figures of a comparison. A protocol has one colour and one marker in all of them.

A figure is a grid of panels, a panel is lines (one for each protocol or variant) and levels (a protocol that does not
depend on what varies). matplotlib is an extra of this package, so it is imported only when something is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from causal.errors import CausalError
from causal.page import BREAK_EVEN, Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Sample = Mapping[str, Estimate]  # by what was measured
Results = Mapping[str, Mapping[tuple[Any, ...], Sample]]  # by study, then by the point of its grid


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
PAPER_NAME = {"matrix": "matrix (RST)", "direct": "direct (PRS)", "pruning": "pruning (Jang et al.)"}

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
            label=line.label or PAPER_NAME.get(line.protocol, line.protocol),
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
    columns = min(len(found), 4 if len(figure.axes) > 1 else 3)
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=columns)


# The figures


def _points(
    results: Results, study: str, metric: str, x_at: int, scale: float = 1, **fixed: Any
) -> dict[float, Estimate]:
    """One line of a study: the points whose labels are as given, by position (`at0=...`)."""
    wanted = {int(name.removeprefix("at")): value for name, value in fixed.items()}
    return {
        labels[x_at]: Estimate(sample[metric].mean * scale, sample[metric].margin * scale)
        for labels, sample in results[study].items()
        if all(labels[position] == value for position, value in wanted.items())
    }


def _protocols(results: Results, study: str, position: int) -> list[str]:
    return list(dict.fromkeys(labels[position] for labels in results[study]))


def _size_panel(results: Results, fan_out: str, metric: str, title: str, unit: str) -> Panel:
    lines = [
        Line(protocol, _points(results, "sizes", metric, 1, at0=fan_out, at2=protocol))
        for protocol in _protocols(results, "sizes", 2)
    ]
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
    panels = []
    measures = [
        ("held", "copies held", "% of copies", 100),
        ("hold_s", "hold of a held copy, mean", "ms", 1000),
        ("hold_p99_s", "hold of a held copy, 99th percentile", "ms", 1000),
        ("wait_s", "wait of any copy, mean", "ms", 1000),
    ]
    sizes = sorted({sites for sites, _, _ in results["held"]}, reverse=True)
    for metric, title, unit, scale in measures:
        lines, levels = [], []
        for sites, dash in zip(sizes, ("-", ":"), strict=False):
            points = _points(results, "held", metric, 2, scale, at0=sites, at1="false-causality")
            lines.append(Line("false-causality", points, f"false-causality, n = {sites}", dash))
            level = results["held"][sites, "matrix", 1.0][metric].mean * scale
            levels.append(Level("matrix", level, f"matrix = optimal, n = {sites}", "--" if dash == "-" else ":"))
        panels.append(Panel(title, "share of sends that are meant to depend", unit, lines, levels))
    return panels, 2


def threshold(results: Results, fan_out: str, sites: int = 10) -> tuple[list[Panel], int]:
    def line(metric: str, label: str, dash: str = "-", scale: float = 1) -> Line:
        points = _points(results, "threshold", metric, 3, scale, at0=sites, at1=fan_out, at2="extra-message")
        return Line("extra-message", dict(sorted(points.items())), label, dash)

    def levels(metric: str, scale: float = 1) -> list[Level]:
        found = {name: results["threshold"][sites, fan_out, name, 0] for name in ("optimal", "matrix")}
        return [Level(name, sample[metric].mean * scale, name) for name, sample in found.items()]

    bytes_unit = "bytes, all copies and extra messages"
    x = f"threshold k (n = {sites}, n² = {sites**2})"
    whole, user = line("total_bytes", "extra-message"), line("message_bytes", "user messages alone", ":")
    units, largest = line("units", "extra-message"), line("largest_units", "largest copy", ":")
    waits = [Level("matrix", level.value, "matrix") for level in levels("wait_s", 1000)[1:]]
    return [
        Panel(f"{fan_out}: extra messages", x, "for each user message", [line("extras", "extra-message")]),
        Panel(
            "control bytes of a user message",
            x,
            "bytes, all copies, extra ones too",
            [whole, user],
            levels("total_bytes"),
        ),
        Panel("cells of a copy", x, "cells", [units, largest], levels("units")),
        Panel("wait of a copy, mean", x, "ms", [line("wait_s", "extra-message", scale=1000)], waits),
    ], 2


def best_threshold(results: Results) -> tuple[list[Panel], int]:
    """Bytes of a message relative to those with the least k that makes no extra message, (n-1)²."""
    panels = []
    for fan_out in ("unicast", "multicast"):
        lines = []
        sizes = sorted({labels[0] for labels in results["threshold"] if labels[1] == fan_out})
        for sites, dash in zip(sizes, (":", "-", "--"), strict=False):
            found = _points(results, "threshold", "total_bytes", 3, at0=sites, at1=fan_out, at2="extra-message")
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
                found = _points(results, "delays", "dependents", 2, at0=delay_s, at1=fan_out, at3=protocol)
                points = {n: Estimate(y.mean / n**power, y.margin / n**power) for n, y in found.items()}
                lines.append(Line(protocol, points, f"{PAPER_NAME[protocol]}, {delay_s:g} s", dash))
            levels = [Level("matrix", BREAK_EVEN, "4/6 n², as dear as RST")] if power == 2 else []
            title = f"{PAPER_NAME[protocol]}, {fan_out}"
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
