"""Which version of the software this is: status, trace and metrics say it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def software_version() -> str:
    try:
        return version("causal-kvstore")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "unknown"
