"""What a blocking client reads piece by piece: scans, watches, events.

In a session, a page of a scan is a call like any other and waits for its turn. A watch cannot keep the others waiting
until something changes: it takes its turn when an answer is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from kvstore import calls
from kvstore.checks import checked_timeout
from kvstore.errors import KvError, Unavailable
from kvstore.retry import Route
from kvstore.streams import STREAM_S, Following, Listening, Scanning, Stream, Watching
from kvstore.values import Change, Entry, Position

if TYPE_CHECKING:
    from kvstore.client import Caller, Session

Piece = TypeVar("Piece")


def scan(
    caller: Caller,
    source: Scanning,
    timeout_s: float | None,
    *,
    pinned_at: int | None = None,
    session: Session | None = None,
) -> Iterator[Entry]:
    return _pages(caller, source, checked_timeout(timeout_s, caller.timeout_s), pinned_at, session)


def _pages(
    caller: Caller, source: Scanning, page_s: float, pinned_at: int | None, session: Session | None
) -> Iterator[Entry]:
    """Time runs from the first piece that is asked for."""
    route = caller.route if session is None else session.route
    reader = Reader(caller, source, route, begin_s=page_s, resume_s=page_s, stream_s=page_s, pinned_at=pinned_at)
    try:
        while (page := _page(caller, reader, source, session)) is not None:
            yield from page
    finally:
        reader.close()


def _page(caller: Caller, reader: Reader[Entry], source: Scanning, session: Session | None) -> Sequence[Entry] | None:
    started_ns = time.monotonic_ns()
    with _turn(session):
        if session is not None:
            session.begin_before(source)
        if source.strand.is_overtaken:
            reader.begin_anew()
        page = reader.read()
        diary = caller.diary if session is None else session.diary
        if diary is not None and page:
            diary.page(page, source, started_ns=started_ns)
        return page


def _turn(session: Session | None) -> AbstractContextManager[object]:
    return nullcontext() if session is None else session.lock


def listen(caller: Caller, source: Listening) -> Iterator[Any]:
    """Time runs from the first piece that is asked for."""
    begin_s = caller.timeout_s
    reader = Reader(caller, source, caller.route, begin_s=begin_s, resume_s=begin_s, stream_s=STREAM_S, pinned_at=None)
    try:
        while (found := reader.read()) is not None:
            yield from found
    finally:
        reader.close()


class Reader(Generic[Piece]):
    """Reads a stream, and opens it again where it broke off."""

    def __init__(
        self,
        caller: Caller,
        source: Stream[Piece],
        route: Route,
        *,
        begin_s: float,
        resume_s: float,
        stream_s: float,
        pinned_at: int | None,
    ) -> None:
        self._caller = caller
        self._following = Following(
            route,
            source,
            now_s=time.monotonic(),
            begin_s=begin_s,
            resume_s=resume_s,
            stream_s=stream_s,
            pinned_at=pinned_at,
        )
        self._stream: Any = None
        self._closed = Event()

    def read(self) -> Sequence[Piece] | None:
        """What the next answer brings; None: that was all."""
        answer = self.answer()
        return None if answer is None else self.take(answer)

    def answer(self) -> Any:
        """The next answer; None: that was the last."""
        while not self._closed.is_set() and not self._following.source.is_done:
            try:
                return self._next()
            except KvError as failure:
                if self._closed.is_set():
                    return None
                self._stream = None
                self._caller.wait_or_raise(self._following, failure)
        return None

    def take(self, answer: Any) -> Sequence[Piece]:
        return self._following.came(answer)

    def begin_anew(self) -> None:
        """Leave this stream; what was not taken from it comes again."""
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._following.begin_anew(time.monotonic())

    def _next(self) -> Any:
        if self._stream is None:
            self._stream = self._caller.open(self._following)
        answer = self._caller.read(self._stream, self._following)
        if answer is None and self._following.source.is_endless:
            raise Unavailable(site=self._caller.endpoints[self._following.at], why="it ended the stream")
        return answer

    def close(self) -> None:
        """From any thread; whoever reads hears that it is the end."""
        self._closed.set()
        if self._stream is not None:
            self._stream.cancel()


class Watch:
    """The changes under a prefix, one by one, in an order that respects causality: `for change in watch`.

    `position` is where another watch goes on after the changes that this one has handed out; changes that were written
    together count together, when the last of them is out. `close` ends the loop, from any thread.
    """

    def __init__(
        self,
        caller: Caller,
        source: Watching,
        timeout_s: float | None,
        patience_s: float,
        session: Session | None = None,
    ) -> None:
        self._source = source
        self._session = session
        begin_s = checked_timeout(timeout_s, caller.timeout_s)
        patience_s = checked_timeout(patience_s, patience_s)
        at = None if source.position is None else _holder(caller, source.position, begin_s)
        route = caller.route if session is None else session.route
        with _turn(session):
            if session is not None:
                session.begin_before(source)
            self._reader = Reader(
                caller, source, route, begin_s=begin_s, resume_s=patience_s, stream_s=STREAM_S, pinned_at=at
            )
            self._reader.read()  # the first answer says where it begins

    @property
    def position(self) -> Position | None:
        return self._source.position

    @property
    def site(self) -> str:
        """The name of the site that is watched."""
        return self._source.site

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        while (change := self._source.next()) is None:
            if not self._read():
                raise StopIteration
        return change

    def _read(self) -> bool:
        answer = self._reader.answer()
        if answer is None:
            return False
        try:
            with _turn(self._session):
                return self._take(answer)
        except BaseException:
            self._reader.begin_anew()  # what was not taken must come again
            raise

    def _take(self, answer: Any) -> bool:
        if not self._source.must_ask_again(answer):
            self._reader.take(answer)
            return True
        self._reader.begin_anew()
        while (again := self._reader.answer()) is not None:  # what came once is there, so this does not take long
            self._reader.take(again)
            if again.changes:
                return True
        return False

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _holder(caller: Caller, position: Position, timeout_s: float) -> int:
    """Which endpoint is the site that a position speaks of. With one endpoint, the replica itself will judge."""
    if len(caller.endpoints) == 1:
        return 0
    for at in range(len(caller.endpoints)):
        try:
            status = caller.ask(calls.status(), timeout_s / len(caller.endpoints), pinned_at=at)
        except KvError:
            continue
        if status.site_number == position.site:
            return at
    raise Unavailable(site=f"site {position.site}", why="no endpoint answers as the site of this position")
