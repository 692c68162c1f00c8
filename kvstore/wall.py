"""The wall clock, read in one place; whoever decides something is told the time instead."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
