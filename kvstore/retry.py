"""What a client does when an attempt failed: try again, where, after how long, or give up. Decided here as plain data;
somebody else waits and sends.

A read may be asked twice, anywhere. A write with a request id may be asked twice *at one replica*: ids are remembered
where they were done, so the same write at another replica would be a second effect. So a write leaves a replica only
when it was surely not done there (`definite`); once one attempt has left it open, the call stays where it is, and
whatever error it ends with is not definite, even if the last attempt was refused.

A replica that misses what a session has seen, or is too stale, has surely done nothing: the call moves on, a write
too. When nobody has it in time, the error says which message no replica that answered has.

An attempt gets a part of the time that the call has, so that a replica that is silent does not use up all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from kvstore.errors import KvError, PastMissing, TooStale

ATTEMPT_SHARE = 3  # an attempt gets this part of the call's time
ATTEMPT_LEAST_S = 1.0  # but not less than this: a busy replica is not a dead one
BACKOFF_FIRST_S = 0.05
BACKOFF_MOST_S = 1.0
HOME_S = 10.0  # seconds away from the preferred replica; beyond it: the next read asks there first


class Kind(Enum):
    """How often a call may be done."""

    READ = "read"  # as often as one likes, anywhere
    WRITE = "write"  # it has a request id: at one replica as often as one likes
    ONCE = "once"  # again only when it surely was not done


class Again(Enum):
    """What a failure leaves to try."""

    HERE = "here"  # it will pass: later, at the same replica
    ELSEWHERE = "elsewhere"  # this replica will say the same for a while
    ANYWHERE = "anywhere"  # at the next replica, and then here again


# What is not named here would fail in the same way again.
AGAIN: Mapping[str, Again] = {
    "INBOX_FULL": Again.HERE,
    "TOO_MANY_WAITING": Again.HERE,
    "OUTBOX_FULL": Again.ELSEWHERE,
    "CLOCK_SKEW": Again.ELSEWHERE,
    "RESTORED": Again.ELSEWHERE,
    "AMNESIA": Again.ELSEWHERE,
    "PAST_MISSING": Again.ANYWHERE,
    "TOO_STALE": Again.ANYWHERE,
    "STOPPING": Again.ANYWHERE,
    "STORAGE_FAILED": Again.ANYWHERE,
    "UNAVAILABLE": Again.ANYWHERE,
    "DEADLINE_EXCEEDED": Again.ANYWHERE,
}


class Route:
    """Which of its replicas a client asks first: the one that answered last.

    Away from home, the first of the list, a read looks there again now and then, and when it is answered everything
    goes home with it. A write does not look: it could not leave again. Nor does a session, which has a route of its
    own: what it has seen is where it was answered last, and may be missing at home.
    """

    def __init__(self, endpoints: int, *, at: int = 0, looks_home: bool = True) -> None:
        self.endpoints = endpoints
        self.at = at
        self._looks_home = looks_home
        self._look_home_s = 0.0

    def of_session(self) -> Route:
        return Route(self.endpoints, at=self.at, looks_home=False)

    def first(self, kind: Kind, now_s: float) -> int:
        if self.at and self._looks_home and kind is Kind.READ and now_s >= self._look_home_s:
            self._look_home_s = now_s + HOME_S
            return 0
        return self.at

    def worked(self, at: int) -> None:
        self.at = at

    def failed(self, at: int, now_s: float) -> None:
        if at == self.at:
            self.at = (at + 1) % self.endpoints
            self._look_home_s = now_s + HOME_S


class Course:
    """The way of one call from attempt to attempt. `at` is the replica to ask now."""

    def __init__(
        self, route: Route, kind: Kind, *, now_s: float, timeout_s: float, pinned_at: int | None = None
    ) -> None:
        self.kind = kind
        self.at = route.first(kind, now_s) if pinned_at is None else pinned_at
        self.deadline_s = now_s + timeout_s
        self.may_be_done = False  # an attempt left it open whether the write was done
        self.behind: dict[int, PastMissing | TooStale] = {}  # what the replicas said that lack something
        self._route = route
        self._is_pinned = pinned_at is not None
        self.timeout_s = timeout_s
        self._attempts = {self.at: 1}
        self._refusing: set[int] = set()

    def attempt_s(self, now_s: float) -> float:
        """How long the attempt that begins now may take."""
        left = max(self.deadline_s - now_s, 0.001)
        if self.kind is Kind.ONCE:
            return left
        return min(left, max(self.timeout_s / ATTEMPT_SHARE, ATTEMPT_LEAST_S))

    def worked(self) -> None:
        if not self._is_pinned:
            self._route.worked(self.at)

    def renew(self, *, now_s: float, timeout_s: float, stays: bool) -> None:
        """What came so far is safe: from here on it is a new call, at the same replica to begin with."""
        self.timeout_s, self.deadline_s = timeout_s, now_s + timeout_s
        self._is_pinned |= stays
        self._attempts, self._refusing, self.behind = {self.at: 1}, set(), {}

    def after(self, failure: KvError, *, now_s: float, chance: float) -> float | None:
        """How many seconds to wait before the next attempt, at `at`; None: the call has failed with this failure.

        `chance`, from 0 to 1, keeps clients that failed together from coming back together.
        """
        again = AGAIN.get(failure.reason)
        if self.kind is not Kind.READ and not failure.definite:
            self.may_be_done = True
        if self.may_be_done:
            failure.definite = False
        if isinstance(failure, PastMissing | TooStale):
            self.behind[self.at] = failure
        if again is None or (self.may_be_done and self.kind is Kind.ONCE):
            return None
        if again is not Again.HERE:
            self._route.failed(self.at, now_s)
        target = self._next(again)
        if target is None:
            return None
        self.at = target
        times = self._attempts.get(target, 0)
        self._attempts[target] = times + 1
        wait_s = backoff_s(times, chance) if times else 0.0
        return wait_s if now_s + wait_s < self.deadline_s else None

    def _next(self, again: Again) -> int | None:
        if again is Again.ELSEWHERE:
            self._refusing.add(self.at)
        may_leave = not self._is_pinned and not self.may_be_done and again is not Again.HERE
        steps = range(1, self._route.endpoints + 1) if may_leave else (0,)
        found = ((self.at + step) % self._route.endpoints for step in steps)
        return next((one for one in found if one not in self._refusing), None)


def last_word(failure: KvError, course: Course, endpoints: Sequence[str]) -> KvError:
    """What to raise when nothing is left to try: who only could not be reached says less than who lacks something."""
    is_open = course.may_be_done or AGAIN.get(failure.reason) is not Again.ANYWHERE
    if is_open or not course.behind:
        return failure
    missing = {endpoints[at]: one for at, one in course.behind.items() if isinstance(one, PastMissing)}
    if not missing:
        return failure if isinstance(failure, TooStale) else [*course.behind.values()][-1]
    last = failure if isinstance(failure, PastMissing) else [*missing.values()][-1]
    names = list(dict.fromkeys(_message_of(one) for one in missing.values()))
    what = names[0] if len(names) == 1 else f"all of {', '.join(names)}"
    tried = ", ".join(missing)
    sentence = f"no replica that answered has {what}, which the session has seen; {tried} did not get it in time"
    return PastMissing(sentence, **{**last.details, "tried": tried})


def _message_of(missing: PastMissing) -> str:
    return f"message {missing.details.get('seq', '?')} of {missing.details.get('origin', '?')}"


def backoff_s(times: int, chance: float) -> float:
    """The wait before a replica is asked again that was asked so many times already."""
    longest_s = min(BACKOFF_FIRST_S * (1 << min(times - 1, 10)), BACKOFF_MOST_S)
    return longest_s * (0.5 + chance / 2)
