"""Following the changes of keys: a watch reads the table of changes from where it is, page by page.

Every message that changed something here has one row in that table, in the order in which it was applied; that order
respects causality, and so does every watch. The table is the buffer: a watcher keeps nothing in memory but the page
that it is sending, a position is just the index of a row, and a watch that broke goes on from its position as if
nothing had been, also after a restart. Only the newest rows are kept. Who falls behind them, coming back late or
reading too slowly, has lost changes and is told so: PositionTooOld.

A row is shown when its commit is durable (SAFETY 2), or a power loss could take back what a watcher has seen.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from causal.model import Dot
from kvstore.config import Cluster, SiteConfig
from kvstore.errors import BadRequest, CorruptRecord, MalformedUpdate, PositionTooOld, Stopping
from kvstore.feed import Feed
from kvstore.layout import index_key, index_of
from kvstore.loop import Loop
from kvstore.past import Past
from kvstore.replica import Replica
from kvstore.rpc.decode import Decoder
from kvstore.rpc.wire import Context, send
from kvstore.sessions import Seen, Sessions
from kvstore.storage.contract import Snapshot, Storage
from kvstore.update import Change, unpack_change
from kvstore.v1 import watch_pb2

PROGRESS_S = 2.0  # without a response; beyond it: one that only says how far the watch has come
PUT, DELETE = watch_pb2.Change.KIND_PUT, watch_pb2.Change.KIND_DELETE


class Row(NamedTuple):
    index: int  # type: ignore[assignment]  # tuple's own `index` has no use here
    dot: Dot
    updates: list[Change]


class Page(NamedTuple):
    after: int  # the position it was read from
    newest: int  # the newest row that might be shown then
    rows: list[Row]

    @property
    def last(self) -> int:
        return self.rows[-1].index


class Watching:
    """All watches of one site."""

    def __init__(
        self,
        cluster: Cluster,
        site: SiteConfig,
        replica: Replica,
        loop: Loop,
        storage: Storage,
        feed: Feed,
        decoder: Decoder,
        sessions: Sessions,
        *,
        progress_s: float = PROGRESS_S,
    ) -> None:
        self._site = site
        self._limits = cluster.limits
        self._replica = replica
        self._loop = loop
        self._storage = storage
        self._feed = feed
        self._decoder = decoder
        self._sessions = sessions
        self._progress_s = progress_s
        self._page = Page(0, 0, [])  # the newest that was read: watchers who are up to date all want the same

    async def watch(self, request: watch_pb2.WatchRequest, context: Context, deadline_s: float) -> None:
        """`deadline_s` is for what must be here before the watch begins."""
        prefix = self._decoder.held_prefix(request.prefix)
        wanted = self._decoder.wanted(request)
        self._feed.watches += 1
        try:
            await self._sessions.arrive(wanted, deadline_s)
            await self._follow(self._beginning(request), prefix, wanted.past, context)
        finally:
            self._feed.watches -= 1

    async def _follow(self, position: int, prefix: bytes, past: Past | None, context: Context) -> None:
        said = self._loop.said
        commit = said.number if position == said.changes else 0  # 0: while it catches up, that is not known
        await self._send(context, self._response(position, commit), past)
        told_s = time.monotonic()
        while not self._feed.is_closed:
            said, rows = self._loop.said, []
            if position < said.changes:
                page = self._read(position, said.changes)
                position = page.last
                rows = page.rows
            if position == said.changes:
                commit = said.number
            response = self._response(position, commit)
            _fill(response, rows, prefix)
            if response.changes or time.monotonic() - told_s >= self._progress_s:
                await self._send(context, response, past)
                told_s = time.monotonic()
            elif position < self._loop.said.changes:
                await asyncio.sleep(0)  # nothing for this watch in the page; others have their turn before the next
            else:
                await self._feed.wait(position, max(0.0, told_s + self._progress_s - time.monotonic()))
        raise Stopping(site=self._site.name)

    def _response(self, position: int, commit: int) -> watch_pb2.WatchResponse:
        response = watch_pb2.WatchResponse(site=self._site.name, commit=commit)
        place = response.position
        place.site, place.incarnation, place.index = self._site.number, self._replica.incarnation, position
        return response

    async def _send(self, context: Context, response: watch_pb2.WatchResponse, past: Past | None) -> None:
        """With the token of a session that has seen all that is durable here: what was shown is a part of it."""
        if past is not None:
            seen = Seen(self._loop.said.number, None)
            response.session = self._sessions.seal.seal(self._sessions.after_read(past, seen))
        await send(context, response)

    # Where a watch begins

    def _beginning(self, request: watch_pb2.WatchRequest) -> int:
        newest = self._loop.said.changes
        if not request.HasField("position"):
            return newest
        position, incarnation = request.position, self._replica.incarnation
        if position.site != self._site.number:
            why = f"the position is one of site {position.site}, and means nothing at {self._site.name}"
            raise BadRequest(why=f"{why}, which is site {self._site.number}", field="position")
        if position.incarnation != incarnation:
            raise self._foreign(position.index, f"of incarnation {position.incarnation}, and this is {incarnation}")
        if position.index > newest:
            raise self._foreign(position.index, f"behind the newest, {newest}")
        with self._storage.snapshot() as view:
            oldest = self._oldest(view)
        if position.index + 1 < oldest:
            raise PositionTooOld(position=position.index + 1, oldest=oldest)
        return position.index

    def _foreign(self, index: int, why: str) -> PositionTooOld:
        """A position that these data never gave: they were restored or replaced since. The way out is the same."""
        with self._storage.snapshot() as view:
            oldest = self._oldest(view)
        message = f"the position {index} is {why}: it was given before the data here were replaced; watch anew"
        return PositionTooOld(message, position=index + 1, oldest=oldest)

    def _oldest(self, view: Snapshot) -> int:
        """The first change that is kept."""
        for key, _ in view.scan("changes", limit=1):
            return index_of(key)
        return self._loop.said.changes + 1

    # Pages

    def _read(self, position: int, newest: int) -> Page:
        """The rows after this position: whole messages, at least one, up to the limits of a page."""
        if self._page.after == position and self._page.newest == newest and self._page.rows:
            return self._page
        rows: list[Row] = []
        size = 0
        with self._storage.snapshot() as view:
            for key, data in view.scan("changes", index_key(position + 1), index_key(newest + 1)):
                if rows and size + len(data) > self._limits.scan_page_bytes_max:
                    break
                if index_of(key) != position + 1 + len(rows):
                    break  # a gap; where it begins the page, it is behind what is kept
                rows.append(_row(index_of(key), data))
                size += len(data)
                if len(rows) >= self._limits.scan_page_max:
                    break
            if not rows:
                raise PositionTooOld(position=position + 1, oldest=self._oldest(view))
        self._page = Page(position, newest, rows)
        return self._page


def _row(index: int, data: bytes) -> Row:
    try:
        return Row(index, *unpack_change(data))
    except MalformedUpdate as error:
        raise CorruptRecord(table="changes", key=str(index), why=str(error)) from None


def _fill(response: watch_pb2.WatchResponse, rows: list[Row], prefix: bytes) -> None:
    for index, dot, updates in rows:
        for key, value, (time_of_write, site), expires_ms in updates:
            if not key.startswith(prefix):
                continue
            kind = DELETE if value is None else PUT
            change = response.changes.add(kind=kind, key=key, value=value or b"", expires_ms=expires_ms, index=index)
            version, name = change.version, change.dot
            version.time, version.site = time_of_write, site
            name.site, name.seq = dot
