"""What a comparison says: numbers with their margins, tables, the judgement of each claim of Jang et al., and the page.

Nothing here runs or draws. A section has words, figures and tables, and is written as plain text or as HTML. A claim is
the paper's sentence and a function from measured sizes to a verdict, so that the verdict follows from the numbers.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from operator import attrgetter
from typing import Any, NamedTuple

from causal.accounting import ID_BYTES, TIME_BYTES

WIDE = 160  # characters; a table beyond it is printed row by row
T_95 = {3: 4.303, 4: 3.182, 5: 2.776}  # Student's t for the 95 % interval of so many runs


class Estimate(NamedTuple):
    """A mean over runs, and half the width of its 95 % interval."""

    mean: float
    margin: float

    @staticmethod
    def of(values: Sequence[float]) -> Estimate:
        mean, runs = math.fsum(values) / len(values), len(values)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (runs - 1))
        return Estimate(mean, T_95[runs] * deviation / math.sqrt(runs))

    def __str__(self) -> str:
        return f"{number(self.mean)} ± {number(self.margin)}" if self.margin else number(self.mean)


class Table(NamedTuple):
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def cells(self) -> list[list[str]]:
        return [[number(cell) if isinstance(cell, int | float) else str(cell) for cell in row] for row in self.rows]

    def csv(self, record: Mapping[str, str]) -> bytes:
        """Where it comes from stands in front, in lines that start with #."""
        text = io.StringIO()
        text.writelines(f"# {name}: {value}\n" for name, value in record.items())
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue().encode()

    def are_words(self) -> list[bool]:
        """For each column, whether it is read rather than compared."""
        return [all(isinstance(cell, str) for cell in column) for column in zip(*self.rows, strict=True)]


class Section(NamedTuple):
    title: str
    words: Sequence[str]  # paragraphs
    figures: Sequence[str] = ()  # names of drawings
    tables: Sequence[Table] = ()


def number(value: float) -> str:
    """About three digits, which is what such a measurement is worth."""
    if abs(value - round(value)) < 1e-9 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


# Claims

AGREES, IN_PART, DISAGREES = "agrees", "agrees in part", "disagrees"
BREAK_EVEN = TIME_BYTES / (TIME_BYTES + ID_BYTES)  # 4/6: a cell of RST against a dependent of PRS
NEARLY_LINEAR = 1.25  # the greatest power of n that we still call "nearly O(n)"
NEAR_BOUND = 0.1  # of n²: how close is "approaches"


class Size(NamedTuple):
    """A mean stamp, as the paper counts."""

    dependents: float
    bytes: float
    facts: float  # (sender, time, destination)
    fan_out: float  # destinations of its message


Sizes = Mapping[tuple[str, int, str], Size]  # by fan-out, number of sites and protocol
Ruling = tuple[str, str]  # the verdict, and what was measured
Measure = Callable[[Size], float]
_FAN_OUTS = ("unicast", "multicast")
count: Measure = attrgetter("dependents")
weight: Measure = attrgetter("bytes")


def graded(outcomes: Iterable[bool]) -> str:
    """All of them, none of them, or some."""
    found = list(outcomes)
    return AGREES if all(found) else IN_PART if any(found) else DISAGREES


def span(values: Iterable[float]) -> str:
    found = sorted(values)
    low, high = number(found[0]), number(found[-1])
    return low if low == high else f"{low} to {high}"


def _sites(sizes: Sizes) -> list[int]:
    return sorted({sites for _, sites, _ in sizes})


def _points(sizes: Sizes) -> list[tuple[str, int]]:
    return [(fan_out, sites) for fan_out in _FAN_OUTS for sites in _sites(sizes)]


def _shares(sizes: Sizes, fan_out: str, measure: Measure, one: str, other: str) -> list[float]:
    """`one` as a share of `other`, for each number of sites."""
    return [measure(sizes[fan_out, n, one]) / measure(sizes[fan_out, n, other]) for n in _sites(sizes)]


def _both(sizes: Sizes, value: Callable[[str, int], float]) -> str:
    return ", ".join(f"{fan_out} {span(value(fan_out, n) for n in _sites(sizes))}" for fan_out in _FAN_OUTS)


def power(sizes: Sizes, fan_out: str, protocol: str, measure: Measure) -> float:
    """The power of n that fits best."""
    sites = _sites(sizes)
    xs = [math.log(n) for n in sites]
    ys = [math.log(measure(sizes[fan_out, n, protocol])) for n in sites]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / sum((x - x_mean) ** 2 for x in xs)


def squared(sizes: Sizes) -> Ruling:
    shares = [sizes[fan, n, "matrix"].dependents / n**2 for fan, n in _points(sizes)]
    return graded(abs(share - 1) < 0.005 for share in shares), f"RST carries {span(shares)} n²"


def one_destination(sizes: Sizes) -> Ruling:
    each = [sizes[fan, n, "direct"].facts / sizes[fan, n, "direct"].dependents for fan, n in _points(sizes)]
    return graded(abs(facts - 1) < 0.005 for facts in each), f"destinations in a dependent of PRS: {span(each)}"


def one_per_sender(sizes: Sizes) -> Ruling:
    enough = (sizes[fan, n, "pruning"].dependents > 0.99 * n for fan, n in _points(sizes))
    measured = _both(sizes, lambda fan, n: sizes[fan, n, "pruning"].dependents / n)
    return graded(enough), f"dependents for each site: {measured}"


def above_destinations(sizes: Sizes) -> Ruling:
    ours = [sizes[fan, n, "pruning"] for fan, n in _points(sizes)]
    measured = _both(sizes, lambda fan, n: sizes[fan, n, "pruning"].dependents / sizes[fan, n, "pruning"].fan_out)
    return graded(size.dependents > size.fan_out for size in ours), f"dependents for each destination: {measured}"


def smallest(sizes: Sizes, measure: Measure) -> Ruling:
    shares = {
        other: [share for fan_out in _FAN_OUTS for share in _shares(sizes, fan_out, measure, "pruning", other)]
        for other in ("direct", "matrix")
    }
    verdict = graded(a < 1 and b < 1 for a, b in zip(*shares.values(), strict=True))
    return verdict, f"theirs is {span(shares['direct'])} of PRS's and {span(shares['matrix'])} of RST's"


def multicast_saves(sizes: Sizes, measure: Measure) -> Ruling:
    """Against both rivals at every n; in part: against one of them, or at some n."""
    better, words = [], []
    for other, paper in (("matrix", "RST"), ("direct", "PRS")):
        unicast, multicast = (_shares(sizes, fan_out, measure, "pruning", other) for fan_out in _FAN_OUTS)
        better += [many < one for one, many in zip(unicast, multicast, strict=True)]
        words.append(f"of {paper}'s, {span(unicast)} is left in unicast and {span(multicast)} in multicast")
    return graded(better), "; ".join(words)


def no_better_with_size(sizes: Sizes) -> Ruling:
    """In multicast its share of n² does not fall with n; in part: it falls by less than half."""
    first, *_, last = (sizes["multicast", n, "direct"].dependents / n**2 for n in _sites(sizes))
    verdict = AGREES if last > 0.9 * first else IN_PART if last > 0.5 * first else DISAGREES
    return verdict, f"PRS in multicast: {number(first)} n² with the fewest sites, {number(last)} n² with the most"


def dependent_order(sizes: Sizes) -> Ruling:
    each = {key: size.bytes / size.dependents for key, size in sizes.items()}
    order = [each[fan, n, "pruning"] > each[fan, n, "direct"] > each[fan, n, "matrix"] for fan, n in _points(sizes)]
    others = " and ".join(span(each[fan, n, name] for fan, n in _points(sizes)) for name in ("direct", "matrix"))
    measured = _both(sizes, lambda fan, n: each[fan, n, "pruning"])
    return graded(order), f"bytes of a dependent of theirs: {measured}; of PRS and RST: {others}"


def break_even(sizes: Sizes) -> Ruling:
    fits = []
    for fan, n in _points(sizes):
        ours, theirs = sizes[fan, n, "direct"], sizes[fan, n, "matrix"]
        fits.append((ours.dependents < BREAK_EVEN * n**2) == (ours.bytes < theirs.bytes))
    return graded(fits), f"below RST in bytes exactly where below 4/6 n², at {sum(fits)} of {len(fits)} points"


def approaches_bound(sizes: Sizes) -> Ruling:
    """Near the bound with the most sites, in both modes; in part: in one of them, or at least rising with n."""
    shares = {fan: [sizes[fan, n, "direct"].dependents / n**2 for n in _sites(sizes)] for fan in _FAN_OUTS}
    near = [abs(found[-1] - BREAK_EVEN) < NEAR_BOUND for found in shares.values()]
    rises = [found[-1] > found[0] for found in shares.values()]
    verdict = AGREES if all(near) else IN_PART if any(near) or all(rises) else DISAGREES
    words = ", ".join(f"{fan} from {number(found[0])} to {number(found[-1])} n²" for fan, found in shares.items())
    return verdict, f"PRS with n growing: {words}; the bound is {number(BREAK_EVEN)} n²"


def same_order(sizes: Sizes) -> Ruling:
    def order(fan: str, n: int, measure: Measure) -> list[str]:
        return sorted(("pruning", "direct", "matrix"), key=lambda name: measure(sizes[fan, n, name]))

    same = [order(*point, count) == order(*point, weight) for point in _points(sizes)]
    return graded(same), f"the same order by dependents and by bytes at {sum(same)} of {len(same)} points"


def grows_slowest(sizes: Sizes) -> Ruling:
    powers = {name: [power(sizes, fan, name, weight) for fan in _FAN_OUTS] for name in ("pruning", "direct", "matrix")}
    slower = [ours < min(others) for ours, *others in zip(*powers.values(), strict=True)]
    words = ", ".join(f"{name} n^{one:.2f} and n^{many:.2f}" for name, (one, many) in powers.items())
    return graded(slower), f"bytes in unicast and multicast grow as: {words}"


def nearly_linear(sizes: Sizes) -> Ruling:
    powers = [power(sizes, fan, "pruning", measure) for measure in (weight, count) for fan in _FAN_OUTS]
    words = "theirs in unicast and multicast: bytes n^{:.2f} and n^{:.2f}, dependents n^{:.2f} and n^{:.2f}"
    return graded(found <= NEARLY_LINEAR for found in powers[:2]), words.format(*powers)


def dearer_beyond_25(sizes: Sizes) -> Ruling:
    """Dearer beyond 25 sites and not before; in part: dearer beyond 25, but before as well."""
    dearer = [n for n in _sites(sizes) if sizes["unicast", n, "direct"].bytes > sizes["unicast", n, "matrix"].bytes]
    beyond = all(n in dearer for n in _sites(sizes) if n > 25)
    verdict = DISAGREES if not beyond else IN_PART if min(dearer, default=26) <= 25 else AGREES
    return verdict, f"PRS in unicast costs more than RST at n = {', '.join(map(str, dearer)) or 'none'}"


CLAIMS: Mapping[str, Callable[[Sizes], Ruling]] = {
    "RST carries n² dependents.": squared,
    "A dependent of PRS specifies one destination process.": one_destination,
    "Theirs has at least one dependent for each sender process …": one_per_sender,
    "… so their number is generally larger than the number of destinations.": above_destinations,
    "Theirs carries the smallest number of dependents.": lambda sizes: smallest(sizes, count),
    "More savings (in dependents) in multicast.": lambda sizes: multicast_saves(sizes, count),
    "PRS does not show a good feature in multicast.": no_better_with_size,
    "The average size of a dependent: theirs > PRS > RST.": dependent_order,
    "To be better than RST, PRS must have fewer than 4/6 n² dependents …": break_even,
    "… but it approaches this bound.": approaches_bound,
    "The results of figure 3 (bytes) correspond to figure 2 (dependents).": same_order,
    "Theirs has less overhead than the others …": lambda sizes: smallest(sizes, weight),
    "… especially in multicast.": lambda sizes: multicast_saves(sizes, weight),
    "The overhead of theirs grows slowly with n: it is scalable.": grows_slowest,
    "The average overhead of theirs is nearly O(n) (section 6.1).": nearly_linear,
    "PRS in unicast costs more than RST when n exceeds 25.": dearer_beyond_25,
}


# Writing


def text(sections: Iterable[Section]) -> str:
    """For a terminal: words and tables, no figures."""
    parts = []
    for section in sections:
        parts.append(f"{section.title}\n{'=' * len(section.title)}")
        parts += [textwrap.fill(words, 110) for words in section.words]
        parts += [f"{table.title}\n{_grid(table)}" for table in section.tables]
    return "\n\n".join(parts)


def _grid(table: Table) -> str:
    lines = [list(table.columns), *table.cells()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(widths) > WIDE:
        return "\n".join(f"{first}\n{_pairs(table.columns[1:], rest)}" for first, *rest in lines[1:])
    signs = ["<" if are_words else ">" for are_words in table.are_words()]
    form = "  ".join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    return "\n".join(form.format(*line).rstrip() for line in lines)


def _pairs(names: Sequence[str], cells: Sequence[str]) -> str:
    pairs = "; ".join(f"{name}: {cell}" for name, cell in zip(names, cells, strict=True))
    return textwrap.indent(textwrap.fill(pairs, 106), "    ")


_STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --paper: #fdfdfc; --line: #d4d4d0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e4; --paper: #1b1b1d; --line: #45454a; } }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 5rem; background: var(--paper); color: var(--ink);
  font: 1.05rem/1.55 Charter, "Bitstream Charter", Cambria, Georgia, serif; }
p { max-width: 44rem; }
h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
figure { margin: 1.5rem 0; padding: .75rem; background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figure svg { display: block; width: 100%; height: auto; }
.wide { overflow-x: auto; }
table, dl { border-collapse: collapse; font: .82rem/1.4 system-ui, sans-serif; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .22rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  font-variant-numeric: tabular-nums; white-space: nowrap; }
.words { text-align: left; white-space: normal; }
dt { float: left; clear: left; width: 8rem; }
"""


def html(title: str, sections: Iterable[Section], drawings: Mapping[str, str], record: Mapping[str, str]) -> str:
    """The page: one file, no scripts, figures inside."""
    body = [f"<h1>{escape(title)}</h1>"]
    for section in sections:
        body.append(f"<h2>{escape(section.title)}</h2>")
        body += [f"<p>{escape(words)}</p>" for words in section.words]
        body += [f"<figure>{_inline(name, drawings[name])}</figure>" for name in section.figures]
        body += [_html_table(table) for table in section.tables]
    body.append("<h2>How this was made</h2>\n<dl>")
    body += [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in record.items()]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{chr(10).join(body)}
</dl>
</body>
</html>
"""


def _inline(name: str, svg: str) -> str:
    """The drawing without its XML head, its ids told apart from those of the other drawings."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg", f'<svg role="img" aria-label="figure {escape(name)}"', 1)


def _html_table(table: Table) -> str:
    classes = [' class="words"' if are_words else "" for are_words in table.are_words()]
    head = "".join(f"<th{css}>{escape(name)}</th>" for name, css in zip(table.columns, classes, strict=True))
    cells = ((f"<td{css}>{escape(cell)}</td>" for cell, css in zip(row, classes, strict=True)) for row in table.cells())
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    caption = f"<caption>{escape(table.title)}</caption>"
    return f'<div class="wide"><table>{caption}\n<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
