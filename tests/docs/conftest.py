"""Says at the end of a run how many commands of each page were run and how many were left out as long."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    counts = [value for report in reports for key, value in report.user_properties if key == "commands"]
    if counts:
        terminalreporter.section("commands shown in the pages")
        for line in sorted(counts):
            terminalreporter.line(line)
