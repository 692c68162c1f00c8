"""`causal compare`: a small run is complete and can be repeated, and every verdict follows from the numbers."""

from __future__ import annotations

import csv
import re
import sys
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from causal import compare, page, plots
from causal.compare import Effort, Job
from causal.errors import BadOption, CausalError
from causal.page import AGREES, CLAIMS, DISAGREES, IN_PART, Estimate, Size, Table
from causal.protocols import PROTOCOLS
from causal.workload import Workload

TINY = 0.005
STUDY_ROWS = {"sizes": 50, "delays": 48, "held": 18, "threshold": 58, "mixed": 3}


# A whole run, small


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, compare.Report, list[tuple[int, int]]]:
    out = tmp_path_factory.mktemp("compare") / "out"
    told: list[tuple[int, int]] = []
    report = compare.compare(out, scale=TINY, workers=2, progress=lambda done, total: told.append((done, total)))
    return out, report, told


def read(path: Path) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The record in front of a CSV file, and its rows."""
    lines = path.read_text().splitlines()
    record = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    return record, list(csv.DictReader(line for line in lines if not line.startswith("#")))


def test_it_writes_every_file_and_nothing_else(run) -> None:
    out, report, _ = run
    drawn = {f"{name}.{kind}" for name, kind in product(plots.FIGURES, ("svg", "png"))}
    tables = {f"{name}.csv" for name in (*compare.STUDIES, "claims")}
    assert {path.name for path in out.iterdir()} == drawn | tables | {"index.html"}
    assert sorted(report.files) == sorted(out.iterdir())


@pytest.mark.parametrize(("study", "rows"), STUDY_ROWS.items())
def test_a_table_has_a_row_for_each_point_of_its_grid(run, study: str, rows: int) -> None:
    _, found = read(run[0] / f"{study}.csv")
    points = compare.STUDIES[study][0](Effort(1, 0))
    assert len(found) == len(points) == rows
    labels = compare.STUDIES[study][1]
    assert [tuple(row[name] for name in labels) for row in found] == [tuple(map(str, point)) for point in points]
    assert all(float(row["messages"]) > 0 and float(row["bytes"]) > 0 for row in found)


def test_every_claim_is_judged_for_every_delay(run) -> None:
    _, found = read(run[0] / "claims.csv")
    assert [row["claim"] for row in found] == list(CLAIMS)
    for row in found:
        verdicts = [row["verdict"], *(row[f"with {delay:g} s"] for delay in compare.DELAYS_S)]
        assert set(verdicts) <= {AGREES, IN_PART, DISAGREES}
        assert row["measured with links of 0.1 s"]


def test_every_result_file_says_where_it_comes_from(run) -> None:
    out, _, _ = run
    for path in out.glob("*.csv"):
        record, _ = read(path)
        assert record.keys() == {"version", "commit", "machine", "seeds", "options"}
        assert record["seeds"] == "0, 1, 2" and record["options"] == "scale 0.005, seed 0"
    for path in [*out.glob("*.svg"), *out.glob("*.png"), out / "index.html"]:
        assert b"scale 0.005, seed 0" in path.read_bytes(), path.name


def test_the_page_stands_alone(run) -> None:
    text = (run[0] / "index.html").read_text()
    assert text.count("<svg") == text.count("</svg>") == len(plots.FIGURES)
    assert "<script" not in text and "<img" not in text and "src=" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', text)) <= set(ids)
    assert all(escape(claim) in text for claim in CLAIMS)
    assert compare.WORDS["small"] in text  # nobody should take these numbers for results


def test_the_text_has_every_table(run) -> None:
    _, report, _ = run
    text = report.text()
    for section in report.sections:
        assert section.title in text
        assert all(table.title in text for table in section.tables)


def test_progress_is_told_run_by_run(run) -> None:
    *_, told = run
    total = told[0][1]
    assert told == [(done, total) for done in range(1, total + 1)]


def test_the_same_seed_gives_the_same_tables_with_any_number_of_processes(run) -> None:
    again = compare.study(Effort(TINY, 0), workers=1)
    for name, samples in again.items():
        record, _ = read(run[0] / f"{name}.csv")
        assert compare._tidy(name, samples).csv(record) == (run[0] / f"{name}.csv").read_bytes()


def test_another_seed_gives_other_runs() -> None:
    assert not set(Effort(1, 0).seeds) & set(Effort(1, 1).seeds)


def test_matrix_and_optimal_hold_the_same_copies(run) -> None:
    _, rows = read(run[0] / "held.csv")
    held = {(row["sites"], row["protocol"], row["dependent_share"]): row["wait_s"] for row in rows}
    for sites in map(str, compare.HELD_SIZES):
        assert held[sites, "matrix", "1.0"] == held[sites, "optimal", "1.0"] == held[sites, "false-causality", "1.0"]


@pytest.mark.parametrize("wrong", [{"scale": 0.0}, {"scale": float("nan")}, {"scale": float("inf")}, {"workers": 0}])
def test_what_makes_no_sense_is_refused_before_anything_is_written(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        compare.compare(tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()


def test_a_run_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(compare, "study", fail)
    with pytest.raises(OSError, match="disk full"):
        compare.compare(tmp_path / "out", scale=TINY)
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_it_says_so_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(CausalError, match="matplotlib"):
        compare.compare(tmp_path / "out", scale=TINY)


# One run


def test_a_job_counts_what_the_simulation_counts() -> None:
    measured = compare.run(Job("matrix", Workload(6, 60, warm_up=20)))
    assert measured["messages"] == 40
    assert measured["dependents"] == measured["units"] == 36
    assert measured["paper_bytes"] == 4 * 36
    assert measured["bytes"] > 2 * 36  # two bytes a time: numbers start at 1,000
    assert measured["destinations"] == measured["copies"] / 40


def test_sites_take_their_thresholds_in_turn() -> None:
    low, mixed, high = (compare.run(Job("extra-message", Workload(6, 200), ks)) for ks in ((7,), (7, 25), (25,)))
    assert low["largest_units"] <= 7 < high["largest_units"]
    assert low["extras"] > mixed["extras"] > high["extras"] == 0
    assert mixed["largest_units"] > 7


def test_no_matrix_has_more_cells_than_the_threshold_that_makes_no_extra_messages() -> None:
    for sites, thresholds in compare.THRESHOLDS.items():
        assert (sites - 1) ** 2 in thresholds
        job = Effort(0.1, 0).jobs("extra-message", sites, "unicast", 300, (sites - 1) ** 2, fifo=False)[0]
        assert compare.run(job)["extras"] == 0


def test_an_estimate_is_the_mean_with_students_interval() -> None:
    found = Estimate.of([1.0, 2.0, 3.0])
    assert found.mean == 2
    assert found.margin == pytest.approx(4.303 / 3**0.5)
    assert Estimate.of([5.0] * 3) == Estimate(5.0, 0.0)


def test_every_protocol_has_its_own_look() -> None:
    assert plots.PROTOCOL_STYLE.keys() == PROTOCOLS.keys()
    assert len({style.colour for style in plots.PROTOCOL_STYLE.values()}) == len(PROTOCOLS)
    assert len({style.marker for style in plots.PROTOCOL_STYLE.values()}) == len(PROTOCOLS)


def test_the_best_threshold_pays_for_the_headers_of_extra_messages() -> None:
    def sample(total: float, extras: float) -> dict[str, Estimate]:
        numbers = {"total_bytes": total, "extras": extras, "wait_s": 0.1}
        return {name: Estimate(value, 0.0) for name, value in numbers.items()}

    samples = {
        (5, "unicast", "optimal", 0): sample(50, 0),
        (5, "unicast", "matrix", 0): sample(200, 0),
        (5, "unicast", "extra-message", 8): sample(80, 2),
        (5, "unicast", "extra-message", 16): sample(100, 0),
    }
    bare, with_header = plots.best(samples, 28).rows
    assert bare == [5, "unicast", 0, 8, 2.0, 0.8, 1.6, 0.4, 1.0]
    assert with_header == [5, "unicast", 28, 16, 0.0, 1.0, 2.0, 0.5, 1.0]


# Tables


def test_a_number_shows_about_three_digits() -> None:
    values = {0.0: "0", 0.1234: "0.123", 1.234: "1.23", 12.34: "12.3", 1234.5: "1,234", 7.0: "7"}
    assert {value: page.number(value) for value in values} == values


def test_a_table_is_text_and_html_and_csv() -> None:
    table = Table("T <1>", ["protocol", "n", "bytes"], [["a & b", 1200, Estimate(1.5, 0.25)]])
    text = page.text([page.Section("S", ["Words."], (), [table])])
    assert text.splitlines()[-2:] == ["protocol      n         bytes", "a & b     1,200  1.50 ± 0.250"]
    html = page.html("t", [page.Section("S", [], (), [table])], {}, {"commit": "<c>"})
    assert "T &lt;1&gt;" in html and "a &amp; b" in html and "&lt;c&gt;" in html
    assert table.csv({"commit": "c"}).decode().splitlines()[:2] == ["# commit: c", "protocol,n,bytes"]


# Claims: fabricated numbers on both sides

SITES = (10, 20, 30)


def fabricated(**changes: float) -> dict[tuple[str, int, str], Size]:
    """Sizes for which the paper is right in everything; `changes` are factors on some of them.

    A change is named after a protocol, a mode or nothing, and a field: pruning_bytes, direct_unicast_dependents, …
    """
    sizes = {}
    for fan_out, n in product(("unicast", "multicast"), SITES):
        many = fan_out == "multicast"
        direct = 0.6 * n**2 if n < 25 else 0.7 * n**2
        direct -= 0.05 * n**2 if many and n > 25 else 0
        ours = 1.1 * n if many else 2.5 * n
        rows = {
            "matrix": Size(n**2, 4 * n**2, n**2, 0),
            "direct": Size(direct, 6 * direct, direct, 0),
            "pruning": Size(ours, 7 * ours, ours, 0),
        }
        for name, size in rows.items():
            fields = size._replace(fan_out=n / 2 if many else 1)._asdict()
            for field in fields:
                for key in (f"{name}_{field}", f"{name}_{fan_out}_{field}", f"{name}_{fan_out}_{field}_{n}"):
                    fields[field] *= changes.get(key, 1)
            sizes[fan_out, n, name] = Size(**fields)
    return sizes


def verdict(claim: str, **changes: float) -> str:
    (found,) = [judge for words, judge in CLAIMS.items() if claim in words]
    ruling, measured = found(fabricated(**changes))
    assert measured
    return ruling


RULINGS = [
    ("RST carries n²", {}, AGREES),
    ("RST carries n²", {"matrix_dependents": 0.9}, DISAGREES),
    ("RST carries n²", {"matrix_unicast_dependents": 0.9}, IN_PART),
    ("specifies one destination", {}, AGREES),
    ("specifies one destination", {"direct_facts": 2}, DISAGREES),
    ("one dependent for each sender", {}, AGREES),
    ("one dependent for each sender", {"pruning_dependents": 0.2}, DISAGREES),
    ("one dependent for each sender", {"pruning_multicast_dependents": 0.5}, IN_PART),
    ("larger than the number of destinations", {}, AGREES),
    ("larger than the number of destinations", {"pruning_dependents": 0.01}, DISAGREES),
    ("larger than the number of destinations", {"pruning_multicast_dependents": 0.1}, IN_PART),
    ("smallest number of dependents", {}, AGREES),
    ("smallest number of dependents", {"pruning_dependents": 100}, DISAGREES),
    ("smallest number of dependents", {"direct_multicast_dependents": 0.01}, IN_PART),
    ("More savings", {}, AGREES),
    ("More savings", {"pruning_multicast_dependents": 10}, DISAGREES),
    ("More savings", {"direct_multicast_dependents": 0.1}, IN_PART),
    ("good feature", {}, AGREES),
    ("good feature", {"direct_multicast_dependents_30": 0.1}, DISAGREES),
    ("good feature", {"direct_multicast_dependents_30": 0.7}, IN_PART),
    ("average size of a dependent", {}, AGREES),
    ("average size of a dependent", {"pruning_bytes": 0.5}, DISAGREES),
    ("average size of a dependent", {"pruning_unicast_bytes": 0.5}, IN_PART),
    ("fewer than 4/6", {}, AGREES),
    ("fewer than 4/6", {"direct_unicast_bytes": 10}, IN_PART),
    ("approaches this bound", {}, AGREES),
    ("approaches this bound", {"direct_dependents": 0.1, "direct_multicast_dependents_10": 2}, DISAGREES),
    ("approaches this bound", {"direct_unicast_dependents": 0.5}, IN_PART),
    ("correspond to figure 2", {"direct_bytes": 0.5}, AGREES),
    ("correspond to figure 2", {"direct_bytes": 10}, DISAGREES),
    ("correspond to figure 2", {"direct_unicast_bytes": 10, "direct_multicast_bytes": 0.5}, IN_PART),
    ("less overhead", {}, AGREES),
    ("less overhead", {"pruning_bytes": 100}, DISAGREES),
    ("less overhead", {"matrix_unicast_bytes": 0.001}, IN_PART),
    ("especially in multicast", {}, AGREES),
    ("especially in multicast", {"pruning_multicast_bytes": 10}, DISAGREES),
    ("especially in multicast", {"direct_multicast_bytes": 0.1}, IN_PART),
    ("grows slowly", {}, AGREES),
    ("grows slowly", {"pruning_unicast_bytes_30": 9, "pruning_multicast_bytes_30": 9}, DISAGREES),
    ("grows slowly", {"pruning_multicast_bytes_30": 9}, IN_PART),
    ("nearly O(n)", {}, AGREES),
    ("nearly O(n)", {"pruning_unicast_bytes_30": 3, "pruning_multicast_bytes_30": 3}, DISAGREES),
    ("nearly O(n)", {"pruning_unicast_bytes_30": 3}, IN_PART),
    ("exceeds 25", {}, AGREES),
    ("exceeds 25", {"direct_unicast_bytes": 0.5}, DISAGREES),
    ("exceeds 25", {"direct_unicast_bytes": 2}, IN_PART),
]


@pytest.mark.parametrize(("claim", "changes", "expected"), RULINGS)
def test_the_verdict_follows_the_numbers(claim: str, changes: dict[str, float], expected: str) -> None:
    assert verdict(claim, **changes) == expected


def test_every_claim_can_be_agreed_with_and_not() -> None:
    for words in CLAIMS:
        rulings = {expected for claim, _, expected in RULINGS if claim in words}
        assert AGREES in rulings and len(rulings) > 1, words
