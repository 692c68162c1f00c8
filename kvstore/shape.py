"""The shape of a dev cluster's network: how long each link takes, and which links are cut.

A cluster on one machine has no distance. This layer puts some in, between replica and socket: everything that one site
says to another is held back for the delay of the link between them, messages as well as acknowledgements, so a round
trip takes the delay there and the delay back. Order is kept: what is due later never leaves earlier, whatever the
jitter.

Delays stand in the cluster file. Cuts come and go while the cluster runs, so they stand in a small file beside it,
which `kvstore cluster partition` writes and every replica looks at a few times a second:

    {"cut": [["a", "b"], ["b", "a"]]}

Each pair is the link from one site to the other. No file, no cuts. A file that cannot be read changes nothing: half a
partition is harder to understand than none.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from time import monotonic

from causal.model import Site
from kvstore.config import Cluster, LinkConfig, SiteConfig
from kvstore.errors import ConfigError

REFRESH_MS = 50  # how often a replica looks for new cuts
UNDER_WAY_BYTES_MAX = 16 << 20  # on one delayed link; beyond it: whoever sends has to wait

Pair = tuple[str, str]  # the names of the site that sends and the site that receives
log = logging.getLogger("kvstore.shape")


class Delay:
    """When what is said now arrives, on one link in one direction."""

    __slots__ = ("_delay_s", "_due", "_jitter_s", "_random")

    def __init__(self, link: LinkConfig, random: Random) -> None:
        self._delay_s = link.delay_ms / 1000
        self._jitter_s = link.jitter_ms / 1000
        self._random = random
        self._due = 0.0

    def __bool__(self) -> bool:
        return self._delay_s > 0 or self._jitter_s > 0

    def due(self, now: float) -> float:
        jitter = self._random.uniform(0, self._jitter_s) if self._jitter_s else 0.0
        self._due = max(self._due, now + self._delay_s + jitter)
        return self._due


class Line:
    """A stream with its delay: what is put in comes out in order, each piece when it is due."""

    def __init__(self, delay: Delay, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._delay = delay
        self._write = write
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._came = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, data: bytes) -> None:
        """Waits while the stream takes nothing, or too much is under way."""
        if not self._delay:
            await self._write(data)
            return
        while self._bytes >= UNDER_WAY_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        self._under_way.append((self._delay.due(monotonic()), data))
        self._bytes += len(data)
        self._came.set()

    async def run(self) -> None:
        """For as long as the stream lives; without a delay there is nothing to do."""
        while True:
            while not self._under_way:
                self._came.clear()
                await self._came.wait()
            due, data = self._under_way.popleft()
            if (wait_s := due - monotonic()) > 0:
                await asyncio.sleep(wait_s)
            await self._write(data)
            self._bytes -= len(data)
            self._room.set()


class Shape:
    """The network as one site sees it."""

    def __init__(self, cluster: Cluster, site: SiteConfig, network_file: Path | None = None) -> None:
        self._cluster = cluster
        self._site = site
        self._file = network_file
        self._links = {(link.origin, link.target): link for link in cluster.links}
        self._cuts: frozenset[Pair] = frozenset()
        self._seen: tuple[int, ...] | None = None  # what the file looked like when we last read it
        self._listeners: list[Callable[[], None]] = []
        self.refresh()

    def delay_ms(self, peer: Site, *, incoming: bool = False) -> float:
        """What the link to a peer, or from it, adds to every message, jitter left out."""
        return self._link(self._pair(peer, incoming=incoming)).delay_ms

    def delay(self, peer: Site) -> Delay:
        """For one new stream: all that we say to this peer on it."""
        pair = self._pair(peer)
        return Delay(self._link(pair), Random(f"{self._cluster.cluster_id} {pair[0]} {pair[1]}"))

    def is_cut(self, peer: Site, *, incoming: bool = False) -> bool:
        return self._pair(peer, incoming=incoming) in self._cuts

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call this whenever links were cut or healed."""
        self._listeners.append(listener)

    def refresh(self) -> bool:
        """Look for new cuts. Whether anything changed."""
        if self._file is None:
            return False
        looks = _looks_of(self._file)
        if looks == self._seen:
            return False
        self._seen = looks
        try:
            cuts = read_cuts(self._file)
        except ConfigError as error:
            log.warning("%s; the links stay as they are", error)
            return False
        if cuts == self._cuts:
            return False
        self._cuts = cuts
        for listener in self._listeners:
            listener()
        return True

    def _pair(self, peer: Site, *, incoming: bool = False) -> Pair:
        name = self._cluster.sites[peer].name
        return (name, self._site.name) if incoming else (self._site.name, name)

    def _link(self, pair: Pair) -> LinkConfig:
        return self._links.get(pair) or LinkConfig(*pair)


# The file


def read_cuts(path: Path) -> frozenset[Pair]:
    """The links that are cut. A ConfigError when the file is there and makes no sense."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, RecursionError) as error:
        raise _wrong(path, str(error)) from None
    if not isinstance(content, dict) or set(content) != {"cut"} or not isinstance(content["cut"], list):
        raise _wrong(path, 'it is not {"cut": [[from, to], …]}')
    pairs = set()
    for pair in content["cut"]:
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise _wrong(path, f"{str(pair)[:100]} is not a pair of site names")
        pairs.add((pair[0], pair[1]))
    return frozenset(pairs)


def write_cuts(path: Path, pairs: Iterable[Pair]) -> None:
    """Replace the file at once, so that nobody ever reads half of it."""
    text = json.dumps({"cut": sorted({(origin, target) for origin, target in pairs})})
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def _looks_of(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _wrong(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path}: {why}", file=str(path), key="cut", why=why)
