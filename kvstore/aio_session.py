"""A session of the asyncio client: one call after another, each with the token of the one before (session.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kvstore import calls
from kvstore.aio_reader import Watch, scan
from kvstore.aio_verbs import Verbs
from kvstore.calls import Call, RequestIds
from kvstore.checks import checked_timeout
from kvstore.retry import Course
from kvstore.session import Memory, no_turn
from kvstore.streams import Scanning, Watching
from kvstore.values import Entry, Position

if TYPE_CHECKING:
    from kvstore.aio import Caller
    from kvstore.history import Diary

Result = TypeVar("Result")


class Session(Verbs):
    """As the session of the blocking client; calls of many tasks are done one after another."""

    _has_session: ClassVar[bool] = True

    def __init__(self, caller: Caller, ids: RequestIds, token: bytes) -> None:
        self._caller = caller
        self._ids = ids
        self._memory = Memory(token)
        self.lock = asyncio.Lock()  # whoever has it does the session's call of the moment
        self.route = caller.route.of_session()
        self.diary: Diary | None = None if caller.history is None else caller.history.session()

    async def token(self) -> bytes:
        """What the session has seen, sealed, for `kv.session(token)` anywhere; empty before it has done anything.

        Waits for the call that is under way.
        """
        async with self.lock:
            return self._memory.token

    async def _ask(self, call: Call[Result], timeout_s: float | None) -> Result:
        timeout_s = checked_timeout(timeout_s, self._caller.timeout_s)
        deadline_s = self._caller.now_s() + timeout_s
        await self._turn(timeout_s)
        try:
            if self._memory.must_begin(call.request):
                await self._do(calls.begin(), deadline_s)
            return await self._do(call, deadline_s)
        finally:
            self.lock.release()

    async def _turn(self, timeout_s: float) -> None:
        if not self.lock.locked():
            await self.lock.acquire()  # at once
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.lock.acquire()
        except TimeoutError:
            raise no_turn(timeout_s) from None

    async def _do(self, call: Call[Result], deadline_s: float) -> Result:
        """Whose turn it is."""
        memory, diary, now_s = self._memory, self.diary, self._caller.now_s()
        memory.fill(call)
        course = Course(self.route, call.kind, now_s=now_s, timeout_s=max(deadline_s - now_s, 0.001))
        started_ns = time.monotonic_ns()
        try:
            answer = await self._caller.run(call, course)
            result = memory.learn(call, answer)
        except BaseException as error:
            if diary is not None:
                diary.failed(call, error, started_ns=started_ns, token=memory.token)
            raise
        if diary is not None:
            diary.answered(call, result, site=answer.site, started_ns=started_ns, token=memory.token)
        return result

    def _scan(self, request: Any, limit: int | None, timeout_s: float | None) -> AsyncIterator[Entry]:
        return scan(self._caller, Scanning(request, limit, self._memory), timeout_s, session=self)

    def _watch(self, request: Any, position: Position | None, timeout_s: float | None, patience_s: float) -> Watch:
        return Watch(self._caller, Watching(request, position, self._memory), timeout_s, patience_s, self)

    async def begin_before(self, source: Scanning | Watching) -> None:
        """A stream that cannot ask for the session's first token itself has its turn."""
        if source.must_begin:
            await self._do(calls.begin(), self._caller.now_s() + self._caller.timeout_s)
