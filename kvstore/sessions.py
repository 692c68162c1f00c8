"""Sessions at one replica: is what they have seen here, and what do they carry away?

The replica keeps nothing about a session; its token says everything. A request that brings one may be served when all
that the token names is in the very commit that is read: the due-check, the data and the new token come from one
committed record (SAFETY 1). Until then it waits, in a place of its own that keeps nobody else out (SAFETY 7), and at
most until its deadline; then the error names what is missing.

A read changes nothing here: only a write takes the token into the site's past (SAFETY 11). What a session carries away
is the past *as of the newest commit that it saw*, not all that the replica knows, so that it can go on at a replica
that is behind in other things (SAFETY 12). And nothing is carried away that a crash could take back (SAFETY 2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from time import monotonic
from typing import NamedTuple

from causal.model import Dot, Missing
from kvstore.clock import COUNTER_BITS, TIME_MAX, time_ms
from kvstore.config import Cluster, SiteConfig
from kvstore.effects import Committed, Write, Written
from kvstore.errors import Amnesia, DeadlineExceeded, KvError, PastMissing, Stopping, TooManyWaiting, TooStale
from kvstore.loop import Loop
from kvstore.past import Past, merged_seen, some_dots
from kvstore.replica import Replica
from kvstore.seal import Seal
from kvstore.storage.contract import Storage

MARGIN_S = 0.05  # before its deadline a request that waits is told what is missing; later nobody would hear it


class Wanted(NamedTuple):
    """What a request wants of the state that serves it."""

    past: Past | None = None  # of its session; None: it has none, and gets no token
    waits: bool = False  # until that past is here
    bound_ms: int | None = None  # everything older than this must be here; None: it need not


PLAIN = Wanted()


class Lack(NamedTuple):
    """What is not here yet, and what to say when it does not come."""

    error: Callable[[int], KvError]  # of the milliseconds that were waited


class Seen(NamedTuple):
    """What a read saw of this commit."""

    commit: int
    dots: Iterable[Dot] | None  # the messages whose updates it saw; None: also that something is absent
    newest: int | None = None  # the newest commit that any of it came with; None: all of the commit
    clock_ms: int = 0  # by which something was found to be expired


class Sessions:
    def __init__(
        self,
        cluster: Cluster,
        site: SiteConfig,
        replica: Replica,
        loop: Loop,
        storage: Storage,
        now_ms: Callable[[], int],
        lost_memory: Callable[[KvError], None],
    ) -> None:
        self.seal = Seal(cluster)
        self.waiting = 0  # requests that wait now
        self._cluster = cluster
        self._site = site
        self._replica = replica
        self._loop = loop
        self._storage = storage
        self._now_ms = now_ms
        self._lost_memory = lost_memory
        limits = cluster.limits
        self._most = min(limits.waits_max, max(1, limits.calls_max // 2))  # who waits must leave room for other calls
        self._moved = asyncio.Event()  # something became true since the last look
        self._is_closed = False

    def close(self) -> None:
        """Whoever waits hears that the replica is stopping."""
        self._is_closed = True
        self.moved()

    def moved(self) -> None:
        """The loop made something true: whoever waits may look again."""
        self._moved.set()
        self._moved = asyncio.Event()

    # Is it here?

    def lack(self, wanted: Wanted, committed: Committed, asked_ms: int) -> Lack | None:
        """What this commit lacks for the request, which came at this time."""
        past = wanted.past
        if past is not None and wanted.waits:
            number = self._site.number
            if past.context.highest(number) > self._replica.ordering.clock:
                raise self._amnesia(past)
            missing = past.context.first_missing(number, committed.delivered)
            if missing is not None:
                return self._lacking(missing)
        if wanted.bound_ms is not None and self._loop.fresh < (asked_ms - wanted.bound_ms) << COUNTER_BITS:
            return Lack(lambda ms: self._stale(wanted.bound_ms or 0))
        return None

    def lack_of_old(self, wanted: Wanted, committed: Committed) -> Lack | None:
        """The same for a moment that is over. `lack` may look at the present alone: a past leaves out what it knows to
        be delivered here, and that knowledge may be younger than the moment."""
        past, then = wanted.past, committed.past
        if past is None or then is None or not wanted.waits:
            return None
        for origin in self._cluster.sites:
            newest = past.context.highest(origin.number)
            if newest > then.context.highest(origin.number):
                return self._lacking(Missing(origin.number, newest))
        return None

    def _lacking(self, missing: Missing) -> Lack:
        origin, name = self._cluster.sites[missing.site].name, self._site.name
        return Lack(lambda ms: PastMissing(site=name, origin=origin, seq=missing.seq, waited_ms=ms))

    def staleness_ms(self) -> int | None:
        """Everything that was written longer ago, as clocks tell, is here; None: not known."""
        fresh = self._loop.fresh
        if fresh == TIME_MAX:
            return 0
        return max(0, self._now_ms() - time_ms(fresh)) if fresh else None

    async def until(self, lack: Lack, *, asked_s: float, deadline_s: float) -> None:
        """Wait until something new is true; raises what is lacking when the time is up."""
        left_s = deadline_s - MARGIN_S - monotonic()
        if left_s <= 0:
            raise lack.error(round((monotonic() - asked_s) * 1000))
        if self.waiting >= self._most:
            raise TooManyWaiting(limit=self._most, what="requests that wait for their session's past")
        if self._is_closed:
            raise Stopping(site=self._site.name)
        self.waiting += 1
        try:
            if not await self._moves(left_s):
                raise lack.error(round((monotonic() - asked_s) * 1000))
        finally:
            self.waiting -= 1

    async def _moves(self, seconds: float) -> bool:
        """Whether something new became true within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def arrive(self, wanted: Wanted, deadline_s: float) -> None:
        """Until what a write wants is here. Later it still will be: deliveries are not taken back."""
        asked_ms, asked_s = self._now_ms(), monotonic()
        while (lack := self.lack(wanted, self._loop.said, asked_ms)) is not None:
            await self.until(lack, asked_s=asked_s, deadline_s=deadline_s)

    async def durable(self, commit: int, deadline_s: float) -> None:
        """Until this commit cannot be lost any more: in relaxed modes an answer may come before that, a token not.

        Nobody is refused here for being one too many: what is waited for may be the caller's own write, and is done.
        """
        asked_s = monotonic()
        while self._storage.durable < commit:
            left_s = deadline_s - MARGIN_S - monotonic()
            if left_s <= 0 or not await self._moves(left_s):
                waited_ms = round((monotonic() - asked_s) * 1000)
                raise DeadlineExceeded(timeout_ms=waited_ms, waiting_for="the token waits for the disk")

    # What a session carries away

    def after_read(self, past: Past, seen: Seen) -> Past:
        if seen.newest == 0:  # it asked for nothing
            return past
        record = self._loop.committed_by(seen.commit if seen.newest is None else seen.newest)
        dots = None if seen.dots is None else some_dots(seen.dots)
        now = _past_of(record)._replace(seen=dots)
        if seen.clock_ms:
            now = now._replace(time=max(now.time, seen.clock_ms << COUNTER_BITS))
        return past.merged(now)

    def after_write(self, write: Write, written: Written) -> Past:
        """A write follows all that its session had seen, so from now on it stands for that; unless it said less."""
        past = write.past
        assert past is not None
        now = past.merged(_past_of(self._loop.committed_by(written.commit)))
        seen: tuple[Dot, ...] | None = (written.dot,) if written.dot is not None else None
        if write.independent or write.depends:
            seen = merged_seen(past.seen, seen)
        return now._replace(seen=seen)

    def _amnesia(self, past: Past) -> KvError:
        """The seal is ours, so we did say it: this replica has lost its memory, and must not go on (SAFETY 3)."""
        here, there = self._replica.ordering.clock, past.context.highest(self._site.number)
        error = Amnesia(peer="a session", what="message", there=there, site=self._site.name, here=here)
        self._lost_memory(error)
        return error

    def _stale(self, bound_ms: int) -> KvError:
        links = self._replica.links
        silent = min(links, key=lambda peer: links[peer].promise)
        age_ms = max(0, self._now_ms() - time_ms(links[silent].promise))
        here, name = self._site.name, self._cluster.sites[silent].name
        if not links[silent].promise:
            message = f"{here} has not heard from {name} yet; at most {bound_ms} ms without a word were allowed"
            return TooStale(message, site=here, silent=name, age_ms=age_ms, bound_ms=bound_ms)
        return TooStale(site=here, silent=name, age_ms=age_ms, bound_ms=bound_ms)


def _past_of(record: Committed) -> Past:
    assert record.past is not None  # whoever comes here has a session
    return record.past
