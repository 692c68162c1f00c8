"""What can be asked of the keys, with a session and without: as verbs.py, with await."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kvstore import calls
from kvstore.answers import Item
from kvstore.calls import Call, RequestIds
from kvstore.checks import Operation
from kvstore.streams import PATIENCE_S
from kvstore.terms import Depends, Fresh
from kvstore.values import Delete, Entry, Position, Put, Read, ReadMany, Replaces, Version, Written, WrittenBatch

if TYPE_CHECKING:
    from kvstore.aio_reader import Watch

Result = TypeVar("Result")


class Verbs(ABC):
    _has_session: ClassVar[bool]
    _ids: RequestIds

    @abstractmethod
    async def _ask(self, call: Call[Result], timeout_s: float | None) -> Result: ...

    @abstractmethod
    def _scan(self, request: Any, limit: int | None, timeout_s: float | None) -> AsyncIterator[Entry]: ...

    @abstractmethod
    def _watch(self, request: Any, position: Position | None, timeout_s: float | None, patience_s: float) -> Watch: ...

    def _fresh(self, freshness: str | None, max_age_ms: int | None) -> Fresh:
        return Fresh(freshness, max_age_ms, self._has_session)

    def _id(self, request_id: bytes | None) -> bytes:
        return self._ids.make() if request_id is None else request_id

    # One key

    async def get(
        self,
        key: bytes,
        *,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Entry | None:
        found = await self.read(key, freshness=freshness, max_age_ms=max_age_ms, timeout_s=timeout_s)
        return found.entry

    async def read(
        self,
        key: bytes,
        *,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> Read:
        """As `get`, and where the answer comes from and how old it may be."""
        return await self._ask(calls.read(key, self._fresh(freshness, max_age_ms)), timeout_s)

    async def put(
        self,
        key: bytes,
        value: bytes,
        *,
        ttl_ms: int | None = None,
        expect: Version | None = None,
        replaces: Replaces | None = None,
        depends_on: Iterable[Version] | None = None,
        independent: bool = False,
        request_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Write, only if the replica has the expected version, or nothing under the key with `expect=ABSENT`."""
        put = Put(key, value, ttl_ms, expect, replaces)
        return await self._write(put, request_id, Depends(depends_on, independent), timeout_s)

    async def delete(
        self,
        key: bytes,
        *,
        expect: Version | None = None,
        replaces: Replaces | None = None,
        depends_on: Iterable[Version] | None = None,
        independent: bool = False,
        request_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Delete; what is not there too."""
        delete = Delete(key, expect, replaces)
        return await self._write(delete, request_id, Depends(depends_on, independent), timeout_s)

    def _write(
        self, operation: Put | Delete, request_id: bytes | None, depends: Depends, timeout_s: float | None
    ) -> Awaitable[Written]:
        return self._ask(calls.write(operation, self._id(request_id), depends), timeout_s)

    # Many keys

    async def batch(
        self,
        operations: Iterable[Put | Delete],
        *,
        depends_on: Iterable[Version] | None = None,
        independent: bool = False,
        request_id: bytes | None = None,
        timeout_s: float | None = None,
    ) -> WrittenBatch:
        """All or nothing, here and at every replica."""
        return await self._ask(
            calls.batch(operations, self._id(request_id), Depends(depends_on, independent)), timeout_s
        )

    async def pipeline(self, operations: Sequence[Operation], *, timeout_s: float | None = None) -> list[Item]:
        """Independent calls in one request: for each what the call alone would give, or its error, not raised."""
        ids = [self._ids.make() for _ in operations]
        return await self._ask(calls.pipeline(operations, ids), timeout_s)

    async def get_many(
        self,
        keys: Iterable[bytes],
        *,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> dict[bytes, Entry]:
        """All at one moment; what is not there is left out."""
        found = await self.read_many(keys, freshness=freshness, max_age_ms=max_age_ms, timeout_s=timeout_s)
        return found.entries

    async def read_many(
        self,
        keys: Iterable[bytes],
        *,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> ReadMany:
        """As `get_many`, and where the answer comes from and how old it may be."""
        return await self._ask(calls.read_many(keys, self._fresh(freshness, max_age_ms)), timeout_s)

    def scan(
        self,
        prefix: bytes = b"",
        *,
        start: bytes = b"",
        end: bytes = b"",
        after: bytes = b"",
        limit: int | None = None,
        page_size: int | None = None,
        only_held: bool = False,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Entry]:
        """All keys with a prefix, or from start up to end, in order. `timeout_s` is for one page.

        Where some of them are placed elsewhere, it is refused, unless it is for those that the replica holds only.
        """
        request = calls.scan_request(
            prefix=prefix,
            start=start,
            end=end,
            after=after,
            page_size=page_size,
            only_held=only_held,
            fresh=self._fresh(freshness, max_age_ms),
        )
        return self._scan(request, limit, timeout_s)

    def watch(
        self,
        prefix: bytes = b"",
        *,
        position: Position | None = None,
        freshness: str | None = None,
        max_age_ms: int | None = None,
        timeout_s: float | None = None,
        patience_s: float = PATIENCE_S,
    ) -> Watch:
        """Every change under a prefix from now on, or after a position: `async with kv.watch() as watch` has begun.

        A broken connection and a restart of the replica are survived, if they last no longer than `patience_s`. In a
        session it begins when what the session has seen is there, and the session has seen what the watch brings.
        """
        request = calls.watch_request(prefix, self._fresh(freshness, max_age_ms))
        return self._watch(request, position, timeout_s, patience_s)
