"""Reads as of one moment, with await. A snapshot begins when it is awaited or entered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kvstore import calls
from kvstore.aio_reader import scan
from kvstore.errors import KvError, SnapshotGone
from kvstore.snapshot import RELEASE_S
from kvstore.streams import Lease, Scanning
from kvstore.terms import Fresh
from kvstore.values import Entry

if TYPE_CHECKING:
    from kvstore.aio import Caller


class SnapshotReader:
    """Reads as of one moment at one replica. The lease is renewed by reading; it has an end all the same."""

    def __init__(self, caller: Caller, lease_ms: int | None, timeout_s: float | None) -> None:
        self._caller = caller
        self._lease_ms = lease_ms
        self._call = calls.snapshot(lease_ms)
        self._timeout_s = timeout_s
        self._leased: Lease | None = None

    async def _begin(self) -> Self:
        if self._leased is None:
            course = self._caller.course(self._call.kind, self._timeout_s)
            answer = await self._caller.run(self._call, course)
            self._leased = Lease(answer, at=course.at, now_s=self._caller.now_s())
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        return self._begin().__await__()

    @property
    def _lease(self) -> Lease:
        if self._leased is None:
            raise SnapshotGone("a snapshot begins when it is awaited or entered", limit=0)
        return self._leased

    @property
    def site(self) -> str:
        return self._lease.site

    @property
    def commit(self) -> int:
        """The number of the commit that it shows."""
        return self._lease.commit

    async def get_many(self, keys: Iterable[bytes], *, timeout_s: float | None = None) -> dict[bytes, Entry]:
        call = calls.read_many(keys, Fresh(), self._lease.handle)
        await self._renew_when_due()
        return (await self._caller.ask(call, timeout_s, pinned_at=self._lease.at)).entries

    def scan(
        self,
        prefix: bytes = b"",
        *,
        start: bytes = b"",
        end: bytes = b"",
        after: bytes = b"",
        limit: int | None = None,
        page_size: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Entry]:
        request = calls.scan_request(
            prefix=prefix,
            start=start,
            end=end,
            after=after,
            page_size=page_size,
            snapshot=self._lease.handle,
            fresh=Fresh(),
        )
        return self._renewing(scan(self._caller, Scanning(request, limit), timeout_s, pinned_at=self._lease.at))

    async def _renewing(self, entries: AsyncGenerator[Entry, None]) -> AsyncIterator[Entry]:
        await self._renew_when_due()
        async with aclosing(entries):
            async for entry in entries:
                yield entry
                await self._renew_when_due()

    async def renew(self) -> None:
        """For those who pause for longer than half a lease between two reads."""
        call = calls.renew_snapshot(self._lease.handle, self._lease_ms)
        answer = await self._caller.ask(call, None, pinned_at=self._lease.at)
        self._lease.renewed(answer.lease_ms, self._caller.now_s())

    async def close(self) -> None:
        """Closing one that has ended is fine, and one whose replica is away ends by itself."""
        try:
            await self._caller.ask(calls.release_snapshot(self._lease.handle), RELEASE_S, pinned_at=self._lease.at)
        except KvError:
            return

    async def _renew_when_due(self) -> None:
        if self._lease.is_due(self._caller.now_s()):
            await self.renew()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
