"""Automatic pipelining: calls that are made in the same moment travel in one request, each with its own result.

A call waits in a lane until the event loop has run whoever else is ready, which takes microseconds when nothing else
goes on; then everything that waits goes out. Only so many requests are under way at once; while they are, calls gather,
so the busier the client, the more calls share the price of a request.

A call is one entry in a list and one future: no task of its own. Whoever gives up waiting disturbs nobody: the call is
left out if it has not gone yet, else its result is dropped.

When a request fails as a whole, its calls are tried again together as far as they may be (retry.py), each no longer
than its own deadline. Such a request gives its place to the next one while it waits, unless the replica said that it
has too much to do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from random import random
from typing import Any, NamedTuple

from kvstore.answers import Result
from kvstore.calls import closed_error, one_more
from kvstore.checks import Operation
from kvstore.errors import BatchTooLarge, DeadlineExceeded, Internal, KvError
from kvstore.retry import AGAIN, Again, Course, Kind

CALLS_MAX = 1000  # calls in one request; beyond it: another request
BYTES_MAX = 1 << 20  # bytes of keys and values in one request; beyond it: the same, after one call at least
REQUESTS_MAX = 2  # requests of a lane under way; beyond it: calls gather


class TooLarge(Exception):
    """A request or its answer is more than the other end takes at once."""

    def __init__(self, failure: KvError) -> None:
        self.failure = failure


class Waiting(NamedTuple):
    operation: Operation
    request_id: bytes
    future: asyncio.Future[Any]
    deadline_s: float
    size: int


Post = Callable[[Sequence[Waiting], Course, float], Awaitable[list[Result]]]  # with the time that it may take


class Lane:
    """Calls of one kind: reads, or writes. Apart, so that no read waits for the commit of the writes beside it."""

    def __init__(self, post: Post, begin: Callable[[float], Course], timeout_s: float) -> None:
        self._post = post
        self._begin = begin  # a course for calls with so much time left
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Waiting] = deque()
        self._bytes = 0  # in the queue
        self._requests = 0  # under way
        self._is_flushing = False  # `_flush` will run in this turn of the event loop
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def ask(self, operation: Operation, request_id: bytes, size: int) -> asyncio.Future[Any]:
        """The future has the result of the call, or its error."""
        if self._is_closed:
            raise closed_error()
        loop = self._loop
        future: asyncio.Future[Any] = loop.create_future()
        one = Waiting(operation, request_id, future, loop.time() + self._timeout_s, size)
        self._queue.append(one)
        self._bytes += size
        if not self._is_flushing and self._requests < REQUESTS_MAX:
            self._is_flushing = True
            loop.call_soon(self._flush)
        elif self._alarm is None:
            self._alarm = loop.call_at(one.deadline_s, self._expire)
        return future

    def close(self) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        for one in self._queue:
            _fail(one, closed_error())
        self._queue.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def _flush(self) -> None:
        self._is_flushing = False
        self._drop_late()
        while self._queue and self._requests < REQUESTS_MAX:
            calls = self._take()
            if calls:
                self._start(calls)

    def _start(self, calls: list[Waiting]) -> None:
        self._requests += 1
        task = self._loop.create_task(self._carry(calls))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[Waiting]:
        """What waits, up to the limits; without those that nobody waits for any more."""
        queue = self._queue
        if len(queue) <= CALLS_MAX and self._bytes <= BYTES_MAX:
            found = [one for one in queue if not one.future.done()]
            queue.clear()
            self._bytes = 0
            return found
        found, size = [], 0
        while queue and len(found) < CALLS_MAX and (not found or size + queue[0].size <= BYTES_MAX):
            one = queue.popleft()
            self._bytes -= one.size
            if not one.future.done():
                found.append(one)
                size += one.size
        return found

    def _expire(self) -> None:
        self._drop_late()
        self._alarm = self._loop.call_at(self._queue[0].deadline_s, self._expire) if self._queue else None

    def _drop_late(self) -> None:
        """Who waited here until the deadline was never sent."""
        now_s = self._loop.time()
        while self._queue and (self._queue[0].deadline_s <= now_s or self._queue[0].future.done()):
            one = self._queue.popleft()
            self._bytes -= one.size
            late = DeadlineExceeded(timeout_ms=round(self._timeout_s * 1000), waiting_for="it was never sent")
            late.definite = True
            _fail(one, late)

    def leave(self) -> None:
        """One request less is under way. Those who just got their results are run first: they may have more calls."""
        self._requests -= 1
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    # One request, from its first attempt to its last

    async def _carry(self, calls: list[Waiting]) -> None:
        place = _Place(self)
        try:
            await self._try(calls, place)
        except asyncio.CancelledError:
            for one in calls:
                _fail(one, closed_error(is_definite=False))
        except Exception as error:  # a mistake of ours must not leave anybody waiting for ever
            for one in calls:
                _fail(one, Internal(why=repr(error)))
            raise
        finally:
            place.leave()

    async def _try(self, calls: list[Waiting], place: _Place) -> None:
        course = self._begin(calls[-1].deadline_s - self._loop.time())
        while calls:
            now_s = self._loop.time()
            attempt_s = min(course.attempt_s(now_s), max(calls[0].deadline_s - now_s, 0.001))
            try:
                results = await self._post(calls, course, attempt_s)
            except TooLarge as error:
                is_safe = error.failure.definite or course.kind is Kind.READ
                if len(calls) > 1 and is_safe:
                    half = len(calls) // 2
                    await self._try(calls[:half], place)
                    calls = calls[half:]
                    continue
                results = [one_more(error.failure) for _ in calls]
            except KvError as failure:
                results = [one_more(failure) for _ in calls]
            else:
                course.worked()
            failed, left_out = _settle(calls, results, course)
            if failed:
                left_out += await self._after(failed, course, place)
            calls = left_out

    async def _after(self, failed: list[tuple[Waiting, KvError]], course: Course, place: _Place) -> list[Waiting]:
        """Wait, if another attempt makes sense; the calls that it is for."""
        worst = min((failure for _, failure in failed), key=lambda failure: failure.definite)
        wait_s = course.after(worst, now_s=self._loop.time(), chance=random())
        if course.may_be_done:
            for _, failure in failed:
                failure.definite = False
        if wait_s is None:
            _fail_all(failed)
            return []
        if AGAIN[worst.reason] is not Again.HERE:
            place.leave()
        await asyncio.sleep(wait_s)
        now_s = self._loop.time()
        _fail_all([(one, failure) for one, failure in failed if one.deadline_s <= now_s])
        return [one for one, _ in failed if not one.future.done()]


class _Place:
    """A request's place among those under way; it can be left once."""

    def __init__(self, lane: Lane) -> None:
        self._lane: Lane | None = lane

    def leave(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.leave()


def _settle(
    calls: Sequence[Waiting], results: Sequence[Result], course: Course
) -> tuple[list[tuple[Waiting, KvError]], list[Waiting]]:
    """Hand out results and final errors. What could be tried again, and the reads that had no room in the answer."""
    failed, left_out = [], []
    for one, result in zip(calls, results, strict=True):
        if one.future.done():
            continue
        if not isinstance(result, KvError):
            one.future.set_result(result)
            continue
        if course.may_be_done:
            result.definite = False
        if result.reason in AGAIN:
            failed.append((one, result))
        elif result.reason == BatchTooLarge.reason and course.kind is Kind.READ and one is not calls[0]:
            left_out.append(one)
        else:
            one.future.set_exception(result)
    return failed, left_out


def _fail_all(failed: Sequence[tuple[Waiting, KvError]]) -> None:
    for one, failure in failed:
        _fail(one, failure)


def _fail(one: Waiting, failure: KvError) -> None:
    if not one.future.done():
        one.future.set_exception(failure)
