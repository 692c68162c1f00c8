"""Simulated time and simulated disks: the product's own coroutines run as they are, and an hour takes a moment.

The event loop is asyncio's, except that nobody waits: when nothing is ready, the clock jumps to the next timer. One
thread and one seed decide everything, so a run that fails fails again. The modules that read a monotonic clock are
given this one.

A disk takes its time. A commit can be read a moment before its writer learns of it, as with a real disk and a thread
that writes; and a crash in the middle may leave it behind or not. `LaggingStorage` is a disk that forgets, at a power
loss, all that was committed after the last sync.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from kvstore.storage.contract import Snapshot
from kvstore.storage.memory import MemorySnapshot, MemoryStorage

T = TypeVar("T")


class _Patience(selectors.SelectSelector):
    """Nothing ever comes from outside: to wait means that so much time has passed."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self.now_s += max(0.0, timeout)
        return []


class SimulatedTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._patience = _Patience()
        super().__init__(self._patience)

    def time(self) -> float:
        return self._patience.now_s


def run_in_simulated_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        now_s = runner.get_loop().time
        clock = SimpleNamespace(time_ns=lambda: int(now_s() * 1e9), monotonic_ns=lambda: int(now_s() * 1e9))
        with (
            mock.patch("kvstore.loop.time", clock),
            mock.patch("kvstore.sessions.monotonic", now_s),
            mock.patch("kvstore.rpc.answering.monotonic", now_s),
        ):
            return runner.run(main())


class Writer:
    """The thread that writes, for `Loop`: each task becomes true at one moment, and is known to be true at a later."""

    def __init__(self, rng: random.Random, *, takes_s: float) -> None:
        self._rng = rng
        self._takes_s = takes_s
        self._under_way: list[tuple[asyncio.TimerHandle, Callable[[], None]]] = []

    def submit(self, task: Callable[..., Any], *arguments: Any) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        known: asyncio.Future[None] = loop.create_future()

        def happen() -> None:
            self._under_way.clear()
            task(*arguments)
            loop.call_later(self._rng.uniform(0, self._takes_s / 4), tell)

        def tell() -> None:
            if not known.done():
                known.set_result(None)

        self._under_way.append((loop.call_later(self._rng.uniform(0, self._takes_s), happen), happen))
        return known

    def crash(self) -> None:
        """What was under way is there afterwards, or not."""
        for timer, happen in tuple(self._under_way):
            timer.cancel()
            if self._rng.random() < 0.5:
                happen()
        self._under_way.clear()

    def shutdown(self, wait: bool = True) -> None: ...


class LaggingStorage(MemoryStorage):
    """Durable is what was synced. `lose_power` goes back to that."""

    def __init__(self) -> None:
        super().__init__()
        self._synced: Snapshot = self.snapshot()

    @property
    def durable(self) -> int:
        return self._synced.number

    def sync(self) -> None:
        self._synced.close()
        self._synced = self.snapshot()

    def lose_power(self) -> None:
        view = self._synced
        assert isinstance(view, MemorySnapshot)
        tables, number = view._held(), view.number
        lost = self._number - number
        if lost:
            self._tables = {name: table.copy() for name, table in tables.items()}
            self._number = number
            self.sync()
