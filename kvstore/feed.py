"""Who looks on hears of what is durable: watchers are woken, and readers of events get a bounded backlog.

A watch needs no queue. The changes lie in a table already, so a watcher that is told "there are more" reads from where
it is, at its own pace, and a slow one costs nothing but its place in the table.

Events lie nowhere: a live view that looks away has missed them. Each reader keeps the newest few that it has not taken
yet, and a count of those that it lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import NamedTuple, Self

from kvstore.effects import Happened
from kvstore.errors import TooManyWaiting
from kvstore.limits import Limits

READERS_MAX = 64  # readers of events at once; beyond it: TooManyWaiting


class Feed:
    """Wakes those who wait for changes. Call it with durable ones only: what a watcher saw must never be taken back."""

    def __init__(self) -> None:
        self.newest = 0  # index of the newest change that we were told of
        self.watches = 0  # open, for whoever wants to know
        self.is_closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def wake(self, newest: int) -> None:
        """Changes up to this index are durable."""
        if newest > self.newest:
            self.newest = newest
            self._wake_all()

    def close(self) -> None:
        """Nothing more will come: nobody waits any longer."""
        self.is_closed = True
        self._wake_all()

    async def wait(self, after: int, timeout_s: float) -> None:
        """Until there is a change after this one, or the feed closes, or so much time has passed."""
        if self.newest > after or self.is_closed:
            return
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, _wake, waiting)
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for one in waiting:
            _wake(one)


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class Taken(NamedTuple):
    """What a reader of events gets at once."""

    happened: list[Happened]
    lost: int  # events, since the last time, because it was too slow


class EventFeed:
    """Hands events to everybody who reads them; nobody reading costs nothing."""

    def __init__(self, limits: Limits) -> None:
        self._backlog_max = limits.event_backlog_max
        self._readers: set[EventReader] = set()

    def __len__(self) -> int:
        return len(self._readers)

    def publish(self, happened: Happened) -> None:
        if self._readers and happened.events:
            for reader in self._readers:
                reader.give(happened)

    def open(self) -> EventReader:
        """A new reader: it sees what happens from now on. Use it in a `with`."""
        if len(self._readers) >= READERS_MAX:
            raise TooManyWaiting(limit=READERS_MAX, what="readers of events")
        reader = EventReader(self, self._backlog_max)
        self._readers.add(reader)
        return reader

    def forget(self, reader: EventReader) -> None:
        self._readers.discard(reader)

    def close(self) -> None:
        """Nothing more will happen: whoever waits gets what is left, and then nothing."""
        for reader in tuple(self._readers):
            reader.close()


class EventReader:
    """One reader's backlog: the newest `most` events at most, whole turns of the loop at a time."""

    def __init__(self, feed: EventFeed, most: int) -> None:
        self.is_closed = False
        self._feed = feed
        self._most = most
        self._backlog: deque[Happened] = deque()
        self._events = 0  # in the backlog
        self._lost = 0
        self._more = asyncio.Event()

    def give(self, happened: Happened) -> None:
        self._backlog.append(happened)
        self._events += len(happened.events)
        while self._events > self._most:
            oldest = len(self._backlog.popleft().events)
            self._events -= oldest
            self._lost += oldest
        self._more.set()

    async def take(self) -> Taken:
        """Everything since the last time; waits until there is something. Empty once the reader is closed."""
        if not self.is_closed:
            await self._more.wait()
        self._more.clear()
        taken = Taken(list(self._backlog), self._lost)
        self._backlog.clear()
        self._events = self._lost = 0
        return taken

    def close(self) -> None:
        self.is_closed = True
        self._feed.forget(self)
        self._more.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
