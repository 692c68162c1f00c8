"""Where a result comes from: version, commit, machine. Every result file says it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def provenance() -> dict[str, str]:
    return {"version": _version(), "commit": _commit(), "machine": _machine()}


def _version() -> str:
    try:
        return version("causal-kvstore")
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Of the source tree this file lies in; a build from an archive has none."""
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
