"""The `causal` command, through click's own runner."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from causal.bench import Row, Timing, calibrate, crossover, crossover_sentence, measure
from causal.cli import main
from causal.diagram import picture
from causal.protocols import PROTOCOLS, make_site
from causal.workload import Workload


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin)


def test_every_command_explains_itself() -> None:
    for command in ("protocols", "simulate", "compare", "replay", "bench", "demo"):
        result = run(command, "--help")
        assert result.exit_code == 0 and "Usage:" in result.output


def test_protocols_tells_what_each_one_is() -> None:
    told = json.loads(run("protocols", "--output", "json").output)
    assert [row["protocol"] for row in told] == list(PROTOCOLS)
    assert all(row["paper"] and row["a stamp carries"] and row["promise"] for row in told)
    text = run("protocols").output
    default = make_site("extra-message", 0, 10).options["threshold"]
    assert f"{default} at n = 10" in text, "the default k is the one in use"


def test_the_demo_shows_who_holds_the_reply_and_who_does_not() -> None:
    lines = run("demo").output.splitlines()
    rows = {line.split()[0]: line for line in lines if line.split() and line.split()[0] in PROTOCOLS}
    assert rows.keys() == PROTOCOLS.keys()
    assert {name for name, row in rows.items() if "holds reply, question, reply" not in row} == {"fifo", "unordered"}


def test_a_judged_simulation_is_clean_and_repeats_itself() -> None:
    arguments = ("simulate", "optimal", "--judge", "--messages", "120", "--sessions", "2", "--output", "json")
    first, second = run(*arguments), run(*arguments)
    assert first.exit_code == 0 and first.output == second.output
    assert json.loads(first.output)["verdict"] == "nothing to object to"


def test_a_control_is_judged_guilty_with_exit_code_1_and_sentences() -> None:
    result = run("simulate", "unordered", "--judge", "--messages", "120", "--overtake")
    assert result.exit_code == 1
    assert "violations" in result.stdout and "which comes before it" in result.stderr


def test_the_command_that_a_failure_prints_runs_the_same_workload() -> None:
    workload = Workload(4, 60, seed=9, fifo=False, duplicates=0.2, sessions=1, delay="uniform")
    program, *arguments = workload.command("extra-message", {"threshold": 9}).split()
    assert program == "causal"
    result = run(*arguments, "--output", "json")
    assert result.exit_code == 0 and json.loads(result.output)["seed"] == 9


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate", "nonsense"),
        ("simulate", "vector"),
        ("simulate", "optimal", "--sites", "1"),
        ("simulate", "optimal", "--duplicates", "2"),
        ("simulate", "optimal", "--option", "threshold=9"),
        ("simulate", "extra-message", "--option", "threshold=nine"),
        ("simulate", "extra-message", "--option", "threshold=2"),
        ("simulate", "fifo", "--sessions", "1"),
        ("bench", "--sizes", "three"),
        ("bench", "--sizes", "1"),
        ("bench", "--protocols", "nonsense"),
        ("replay", "no such file"),
        ("compare", "--scale", "0"),
    ],
)
def test_wrong_use_is_one_clear_sentence_and_exit_code_2(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.strip() and "Traceback" not in result.output


SCHEDULE = Path(__file__).parents[2] / "docs" / "examples" / "optimal.jsonl"


def test_a_diagram_places_every_copy(tmp_path: Path) -> None:
    shown = picture(SCHEDULE.read_text().splitlines())
    assert len(shown.arrows) == 7
    held = [arrow.name for arrow in shown.arrows.values() if arrow.delivered > arrow.arrived]
    assert held == ["m2"]
    assert all(arrow.sent < arrow.arrived <= arrow.delivered for arrow in shown.arrows.values())
    out = tmp_path / "out.svg"
    assert run("replay", str(SCHEDULE), "--diagram", str(out)).exit_code == 0
    texts = {element.text for element in ElementTree.parse(out).iter() if element.tag.endswith("text")}
    assert {"m1", "m2", "m3", "m4", "m5", "site 0", "site 3"} <= texts


def test_a_diagram_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    for out in (tmp_path / "no" / "folder.svg", tmp_path / "out.nonsense"):
        result = run("replay", str(SCHEDULE), "--diagram", str(out))
        assert result.exit_code == 2 and "Traceback" not in result.output and result.stderr.startswith("causal: ")


def test_a_benchmark_measures_every_step() -> None:
    timing = measure("optimal", 3)
    assert all(value > 0 for value in timing) and calibrate() > 0
    assert timing.multicast > timing.send + timing.encode
    result = run("bench", "--sizes", "3", "--protocols", "optimal,matrix", "--rounds", "1", "--output", "json")
    told = json.loads(result.stdout)
    assert {row["protocol"] for row in told["rows"]} == {"optimal", "matrix"}
    assert {"version", "commit", "machine"} <= told.keys()


def test_the_crossover_is_where_one_stays_cheaper() -> None:
    def row(sites: int, protocol: str, send: float) -> Row:
        return Row(sites, protocol, Timing(send, 0, 0, 0, 1, 1), 1)

    rows = [row(n, "matrix", 10) for n in (3, 5, 10, 20)]
    assert crossover([*rows, *(row(n, "optimal", cost) for n, cost in ((3, 9), (5, 12), (10, 8), (20, 7)))]) == 10
    assert crossover([*rows, *(row(n, "optimal", 11) for n in (3, 5, 10, 20))]) is None
    assert "no less" in crossover_sentence([*rows, *(row(n, "optimal", 11) for n in (3, 5, 10, 20))])
