"""A folder over its budget, or one that ran nothing, fails the run; a chosen part of the suite does not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budgets import BUDGET_SECONDS, TOP, Tally, folder_of, folders_with_tests, idle, overruns, table

ROOT = Path(__file__).parents[1]

PASSING = "def test_it_passes(): pass\n"
LONG = "import pytest\n\n@pytest.mark.long\ndef test_it_takes_an_hour(): pass\n"
NEEDY = "def test_it_needs_a_program(require_program): require_program('no-such-program')\n"


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A project with our conftest and no tests yet."""
    tests = tmp_path / "tests"
    tests.mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name in ("__init__.py", "conftest.py", "budgets.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    return tmp_path


def write(path: Path, source: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(source)


def run(suite: Path, *args: str, ci: bool = False) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *args],
        cwd=suite,
        env={**os.environ, "CI": "true" if ci else ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_test_belongs_to_the_folder_below_tests() -> None:
    assert folder_of("tests/causal/test_model.py::test_it") == "causal"
    assert folder_of("tests/causal/papers/test_jang.py::test_it[a::b/c]") == "causal"
    assert folder_of("tests/test_tidy.py::test_it") == TOP


def test_every_folder_of_this_project_has_a_budget() -> None:
    assert folders_with_tests(ROOT / "tests") <= set(BUDGET_SECONDS)


def test_a_folder_over_its_budget_is_named_and_one_within_is_not() -> None:
    tallies = {"slow": Tally(ran=1, seconds=2.5), "quick": Tally(ran=1, seconds=0.5)}
    assert list(overruns(tallies, {"slow": 2, "quick": 2})) == ["tests/slow took 2.5 s; its budget is 2 s"]


def test_a_folder_without_a_budget_is_named() -> None:
    assert list(overruns({"new": Tally(ran=1)}, {})) == [
        "tests/new has no time budget: give it one in tests/budgets.py"
    ]


def test_a_folder_that_only_skipped_is_idle_only_where_skips_do_not_count() -> None:
    tallies = {"a": Tally(ran=1), "b": Tally(skipped=1)}
    assert list(idle(tallies, {"a", "b", "c"}, skips_count=True)) == ["tests/c ran no test"]
    assert list(idle(tallies, {"a", "b", "c"}, skips_count=False)) == ["tests/b ran no test", "tests/c ran no test"]


def test_the_table_has_a_line_for_each_folder() -> None:
    lines = list(table({"causal": Tally(ran=3, seconds=1.25), TOP: Tally(skipped=1)}, {"causal": 60}))
    assert [line.split() for line in lines[1:]] == [
        ["tests/", "0", "1", "0.0", "none"],
        ["causal", "3", "0", "1.2", "60"],
    ]


def test_a_run_over_budget_fails_although_its_tests_pass(suite: Path) -> None:
    budgets = suite / "tests" / "budgets.py"
    budgets.write_text(budgets.read_text().replace('"docs": 90', '"docs": 0'))
    write(suite / "tests/docs/test_slow.py", PASSING)
    code, output = run(suite, "tests")
    assert code == 1
    assert "1 passed" in output
    assert "FAILED tests/docs took" in output


def test_a_whole_run_fails_when_a_folder_ran_nothing_and_a_chosen_part_does_not(suite: Path) -> None:
    write(suite / "tests/docs/test_quick.py", PASSING)
    write(suite / "tests/causal/test_empty.py", "")
    assert run(suite, "tests")[0] == 1
    assert run(suite)[0] == 1
    assert run(suite, "tests/docs")[0] == 0
    assert run(suite, "tests", "-k", "passes")[0] == 0


def test_long_tests_run_only_when_asked_for(suite: Path) -> None:
    write(suite / "tests/docs/test_both.py", PASSING + LONG)
    assert "1 passed, 1 deselected" in run(suite, "tests")[1]
    assert "2 passed" in run(suite, "tests", "--long")[1]
    assert "1 passed, 1 deselected" in run(suite, "tests", "-m", "long")[1]


def test_a_missing_program_is_a_skip_here_and_a_failure_in_ci(suite: Path) -> None:
    write(suite / "tests/docs/test_needy.py", NEEDY)
    code, output = run(suite, "tests")
    assert (code, "'no-such-program' is not installed" in output) == (0, True)
    assert run(suite, "tests", ci=True)[0] == 1
