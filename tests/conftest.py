"""What every folder of tests shares: the time budgets, the marker `long`, missing programs, and hypothesis' profile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest

from tests.budgets import BUDGET_SECONDS, Tally, folder_of, folders_with_tests, idle, overruns, table

TESTS = Path(__file__).resolve().parent
IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# In CI a failure must fail again on the next run; elsewhere new examples every time find more.
hypothesis.settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None)
hypothesis.settings.register_profile("local", print_blob=True, deadline=None)
hypothesis.settings.load_profile("ci" if IN_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="also run the tests marked `long` (make test-full); without it, or an -m of your own, they are left out "
        "and the time budgets hold",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(BudgetKeeper(config), "budget-keeper")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.long or config.option.markexpr:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture(scope="session")
def require_program() -> Callable[[str], str]:
    """Call it with a program's name: it gives the path, skips where the program is missing, and fails in CI."""
    return find_program


def find_program(name: str) -> str:
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"the program {name!r} is not installed; `make setup-system` installs what tests call"
    if IN_CI:
        pytest.fail(reason)
    pytest.skip(reason)


class BudgetKeeper:
    """Adds up what each folder ran, prints it, and fails the session where the budgets module complains."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.tallies: dict[str, Tally] = {}
        self.complaints: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        tally = self.tallies.setdefault(folder_of(report.nodeid), Tally())
        tally.seconds += report.duration
        if report.skipped:
            tally.skipped += 1
        elif report.when == "call":
            tally.ran += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.config.option.long:
            self.complaints += overruns(self.tallies, BUDGET_SECONDS)
        if self.whole_suite_was_asked_for() and not session.shouldstop and not session.shouldfail:
            self.complaints += idle(self.tallies, folders_with_tests(TESTS), skips_count=not IN_CI)
        if self.complaints and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def whole_suite_was_asked_for(self) -> bool:
        option = self.config.option
        narrowed = (option.keyword, option.markexpr, option.deselect, option.ignore, option.ignore_glob)
        partial = option.collectonly or getattr(option, "lf", False) or getattr(option, "stepwise", False)
        everywhere = all(
            Path(self.config.invocation_params.dir, arg) in (TESTS, TESTS.parent) for arg in self.config.args
        )
        return everywhere and not any(narrowed) and not partial

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.tallies:
            terminalreporter.section("time budgets")
            for line in table(self.tallies, BUDGET_SECONDS):
                terminalreporter.line(line)
        for complaint in self.complaints:
            terminalreporter.line(f"FAILED {complaint}", red=True)
