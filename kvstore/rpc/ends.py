"""What both ends of a link have in common: the parts of the replica they need, and what they show of themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from causal.model import Site
from kvstore.config import Cluster, SiteConfig
from kvstore.loop import Loop
from kvstore.replica import Replica
from kvstore.shape import Shape
from kvstore.storage.contract import Storage

HELLO_S_MAX = 5.0  # for a hello and its answer; beyond it: the stream is given up
STEADY_S = 1.0  # after which a link counts as good: its alarm goes, and a break is no sign of trouble


class Alarming(Protocol):
    def raise_(self, reason: str, message: str, /, **details: str) -> Any: ...

    def clear(self, reason: str, /, **details: str) -> Any: ...


class Counting(Protocol):
    def frame_sent(self, peer: str, messages: int, size: int, /) -> Any: ...

    def frame_received(self, peer: str, messages: int, size: int, /) -> Any: ...

    def link_opened(self, peer: str, /) -> Any: ...

    def ack_waited(self, peer: str, seconds: float, /) -> Any: ...


class Parts(NamedTuple):
    """The replica around its links."""

    cluster: Cluster
    site: SiteConfig
    replica: Replica
    loop: Loop
    storage: Storage
    shape: Shape
    alarms: Alarming
    metrics: Counting
    now_ms: Callable[[], int]  # wall clock

    def name(self, peer: Site) -> str:
        return self.cluster.sites[peer].name


@dataclass(slots=True)
class LinkState:
    """One end of a link, for whoever asks."""

    connected: bool = False  # open, and both have accepted each other
    trouble: str = ""  # why it is not, in a sentence
    connects: int = 0  # how often it was opened
    ack_ms: float = 0.0  # from sending to the acknowledgement, of the newest frame that has it; at the sender
    passed: int = 0  # the newest number sent, or received
    queue: int = 0  # messages waiting in memory: to go out, or to be delivered
    heard_mono: float = 0.0  # when the other end last said anything, by the monotonic clock; 0: never
    frames: int = 0  # sent, or received
    bytes: int = 0  # in them


async def until_first(*parts: Awaitable[Any]) -> None:
    """Run all of them until one ends; then end the others, and raise what it raised. The first named goes first."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()
