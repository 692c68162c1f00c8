"""Calls with many answers, and how far each has come: after a broken connection it is asked again, for the rest only.

A scan goes on after the last key that was looked at. A watch goes on after a position: no change is left out, none
comes twice. Events are not kept anywhere: when the connection breaks, there is nothing to go on with.

In a session, each answer's token becomes the session's, if the session did nothing else meanwhile. If it did, the
answer was made without what the session knows now, and its token would forget that; so the stream is opened anew,
with the session's token, and asked for the same again.

A lease is the other thing that outlives a call: a snapshot at one replica, renewed while it is used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from kvstore.answers import entry_of
from kvstore.calls import change_of
from kvstore.checks import check_count, check_position
from kvstore.errors import DeadlineExceeded, KvError
from kvstore.retry import Course, Kind, Route
from kvstore.session import Memory
from kvstore.terms import carry, is_unordered
from kvstore.values import Change, Entry, Position

Piece = TypeVar("Piece")
Piece_co = TypeVar("Piece_co", covariant=True)

STREAM_S = 3600.0  # seconds that a watch stays on one stream; beyond it: it goes on with another
PATIENCE_S = 60.0  # seconds that a watch tries to get its replica back; beyond it: it fails


class Stream(Protocol[Piece_co]):
    method: str
    is_endless: bool  # it has no last answer: when the stream ends, the connection has ended
    can_resume: bool
    stays: bool  # it can go on only where it began

    @property
    def is_done(self) -> bool:
        """Nothing is left to ask for."""

    def request(self) -> Any:
        """For what has not come yet."""

    def take(self, answer: Any) -> Sequence[Piece_co]: ...


class Strand:
    """How a stream hangs together with its session; without one, it is free."""

    def __init__(self, memory: Memory | None) -> None:
        self.memory = memory
        self._token = b""  # of the session, as the stream knows it

    def must_begin(self, request: Any) -> bool:
        """The session needs its first token before it can ask for this."""
        return self.memory is not None and self.memory.must_begin(request)

    def tie(self, request: Any) -> None:
        if self.memory is not None:
            self._token = self.memory.token
            carry(request, self._token)

    @property
    def is_overtaken(self) -> bool:
        """The session has gone on without this stream."""
        return self.memory is not None and self.memory.token != self._token

    def take(self, answer: Any) -> None:
        if self.memory is not None and not self.is_overtaken:
            self.memory.take_token(answer)
            self._token = self.memory.token


class Scanning:
    method = "Scan"
    is_endless = False
    can_resume = True
    stays = False

    def __init__(self, request: Any, limit: int | None, memory: Memory | None = None) -> None:
        check_count("limit", limit, 1 << 62)
        self.site = ""
        self.strand = Strand(memory)
        self._request = request
        self._left = limit

    @property
    def is_done(self) -> bool:
        return self._left == 0

    @property
    def must_begin(self) -> bool:
        return self.strand.must_begin(self._request)

    @property
    def is_unordered(self) -> bool:
        return is_unordered(self._request)

    def request(self) -> Any:
        self._request.limit = self._left or 0
        self.strand.tie(self._request)
        return self._request

    def take(self, answer: Any) -> list[Entry]:
        self.strand.take(answer)
        self.site = answer.site
        if answer.last_key:
            self._request.after = answer.last_key
        if self._left is not None:
            self._left = max(self._left - len(answer.entries), 0)
        entries = [entry_of(one) for one in answer.entries]
        if self.strand.memory is not None:
            for one in entries:
                self.strand.memory.see(one)
        return entries


class Watching:
    """`position` is where to resume after what was handed out.

    The changes of a batch have one index: a position in the middle of a batch would lose its rest, so a batch counts
    when all of it is handed out.
    """

    method = "Watch"
    is_endless = True
    can_resume = True
    stays = True
    is_done = False

    def __init__(self, request: Any, position: Position | None, memory: Memory | None = None) -> None:
        check_position(position)
        self.position = position
        self.site = ""
        self.strand = Strand(memory)
        self._request = request
        self._reached = position
        self._waiting: deque[Change] = deque()

    @property
    def must_begin(self) -> bool:
        return self.strand.must_begin(self._request)

    def request(self) -> Any:
        if self._reached is not None:
            at = self._request.position
            at.site, at.incarnation, at.index = self._reached.site, self._reached.incarnation, self._reached.index
        self.strand.tie(self._request)
        return self._request

    def must_ask_again(self, answer: Any) -> bool:
        """These changes came to a session that has gone on meanwhile."""
        return self.strand.is_overtaken and bool(answer.changes)

    def take(self, answer: Any) -> list[Change]:
        self.strand.take(answer)
        at = answer.position
        self._reached = Position(at.site, at.incarnation, at.index)
        self.site = answer.site
        self._waiting.extend(change_of(one) for one in answer.changes)
        if not self._waiting:
            self.position = self._reached
        return []

    def next(self) -> Change | None:
        """The next change to hand out; None: one must be waited for."""
        if not self._waiting:
            return None
        change = self._waiting.popleft()
        if not self._waiting:
            self.position = self._reached
        elif self._reached is not None and self._waiting[0].index != change.index:
            self.position = Position(self._reached.site, self._reached.incarnation, change.index)
        return change


class Listening:
    method = "Events"
    is_endless = True
    can_resume = False
    stays = True
    is_done = False

    def __init__(self, request: Any) -> None:
        self._request = request

    def request(self) -> Any:
        return self._request

    def take(self, answer: Any) -> list[Any]:
        return [answer]


class Following(Generic[Piece]):
    """Decides for one stream where and for how long to open it, and what to do when it breaks.

    A stream that has answered may stay open for long, for keepalive notices when it dies; until then it has the time
    of a call. Whoever was answered begins anew when a failure comes: the time to get back counts from there.
    """

    def __init__(
        self,
        route: Route,
        source: Stream[Piece],
        *,
        now_s: float,
        begin_s: float,
        resume_s: float,
        stream_s: float,
        pinned_at: int | None = None,
    ) -> None:
        self.source = source
        self._begin_s = begin_s
        self._resume_s = resume_s
        self._stream_s = stream_s
        self.course = Course(route, Kind.READ, now_s=now_s, timeout_s=begin_s, pinned_at=pinned_at)
        self._was_answered = False

    @property
    def at(self) -> int:
        return self.course.at

    @property
    def timeout_s(self) -> float:
        return self.course.timeout_s

    def attempt_s(self, now_s: float) -> float:
        """How long the stream that is opened now may live."""
        if self._was_answered or not self.source.can_resume:
            return self._stream_s
        return self.course.attempt_s(now_s)

    def came(self, answer: Any) -> Sequence[Piece]:
        self.course.worked()
        self._was_answered = True
        return self.source.take(answer)

    def begin_anew(self, now_s: float) -> None:
        """The stream that is opened next has the time of a call again, until it answers."""
        self.course.renew(now_s=now_s, timeout_s=self._begin_s, stays=self.source.stays)
        self._was_answered = False

    def after(self, failure: KvError, *, now_s: float, chance: float) -> float | None:
        """As `Course.after`."""
        if self._was_answered:
            if not self.source.can_resume:
                return None
            self.course.renew(now_s=now_s, timeout_s=self._resume_s, stays=self.source.stays)
            if failure.reason == DeadlineExceeded.reason:
                return 0.0  # it only was open long enough: the replica is well
            self._was_answered = False
        return self.course.after(failure, now_s=now_s, chance=chance)


class Lease:
    """A snapshot at one replica. It is renewed when half of the lease is over, and only when it is used."""

    def __init__(self, answer: Any, *, at: int, now_s: float) -> None:
        self.handle: bytes = answer.snapshot
        self.site: str = answer.site
        self.commit: int = answer.commit
        self.at = at  # which of the client's endpoints holds it
        self.renewed(answer.lease_ms, now_s)

    def renewed(self, lease_ms: int, now_s: float) -> None:
        self._renew_s = now_s + lease_ms / 2000

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._renew_s
