"""What a client does after a failed attempt, as a table of decisions: nothing here waits or sends."""

from __future__ import annotations

import pytest

from kvstore import errors
from kvstore.errors import KvError, PastMissing, error_of
from kvstore.retry import AGAIN, BACKOFF_MOST_S, HOME_S, Course, Kind, Route, backoff_s, last_word


def failure(reason: str, *, definite: bool) -> KvError:
    return error_of(reason, "a sentence", {}, definite=definite)


def course(kind: Kind, endpoints: int = 3, *, timeout_s: float = 10.0, pinned_at: int | None = None) -> Course:
    return Course(Route(endpoints), kind, now_s=0.0, timeout_s=timeout_s, pinned_at=pinned_at)


def after(one: Course, reason: str, *, definite: bool, now_s: float = 0.0) -> float | None:
    return one.after(failure(reason, definite=definite), now_s=now_s, chance=1.0)


def test_every_reason_of_the_table_exists():
    assert set(AGAIN) - set(errors.STATUS) <= {"RESTORED"}


def test_a_read_goes_around_all_replicas_at_once_and_then_waits():
    one = course(Kind.READ)
    asked = []
    for _ in range(4):
        wait_s = after(one, "UNAVAILABLE", definite=False)
        asked.append((one.at, wait_s))
    assert asked == [(1, 0.0), (2, 0.0), (0, 0.05), (1, 0.05)]


def test_a_write_that_may_be_done_stays_at_its_replica():
    one = course(Kind.WRITE)
    assert after(one, "UNAVAILABLE", definite=False) == 0.05
    assert one.at == 0
    assert after(one, "STOPPING", definite=True) == 0.1
    assert one.at == 0, "a later refusal does not undo the first attempt"


@pytest.mark.parametrize("reason", ["STOPPING", "PAST_MISSING", "TOO_STALE"])
def test_a_write_that_was_surely_not_done_moves_on(reason):
    one = course(Kind.WRITE)
    assert after(one, reason, definite=True) == 0.0
    assert one.at == 1 and not one.may_be_done


def test_a_write_that_may_be_done_does_not_move_because_its_past_is_missing():
    one = course(Kind.WRITE)
    after(one, "UNAVAILABLE", definite=False)
    assert after(one, "PAST_MISSING", definite=True) == 0.1
    assert one.at == 0
    last = failure("PAST_MISSING", definite=True)
    one.after(last, now_s=99.0, chance=0.0)
    assert last_word(last, one, ["x", "y", "z"]) is last and not last.definite, "it is not said that nothing was done"


def test_the_last_word_names_what_nobody_has():
    one = course(Kind.READ)
    for seq in ("5", "7"):
        one.after(PastMissing(site="x", origin="a", seq=seq, waited_ms=1), now_s=0.0, chance=0.0)
    gone = failure("UNAVAILABLE", definite=False)
    one.after(gone, now_s=99.0, chance=0.0)
    found = last_word(gone, one, ["x:1", "y:1", "z:1"])
    assert isinstance(found, PastMissing) and found.definite
    assert (found.details["origin"], found.details["seq"], found.details["tried"]) == ("a", "7", "x:1, y:1")
    wrong = failure("KEY_TOO_LONG", definite=True)
    assert last_word(wrong, one, ["x:1", "y:1", "z:1"]) is wrong


def test_a_session_has_a_route_of_its_own_and_stays_where_its_past_is():
    route = Route(3)
    route.failed(0, now_s=0.0)
    own = route.of_session()
    own.failed(1, now_s=0.0)
    assert (route.at, own.at) == (1, 2)
    assert own.first(Kind.READ, HOME_S + 1) == 2, "home may lack what it has seen"


def test_an_error_after_an_open_attempt_is_not_definite():
    one = course(Kind.WRITE)
    after(one, "DEADLINE_EXCEEDED", definite=False)
    last = failure("VERSION_MISMATCH", definite=True)
    assert one.after(last, now_s=0.0, chance=1.0) is None
    assert not last.definite


def test_a_refusal_alone_is_definite():
    last = failure("VERSION_MISMATCH", definite=True)
    assert course(Kind.WRITE).after(last, now_s=0.0, chance=1.0) is None
    assert last.definite


def test_without_a_request_id_a_write_that_may_be_done_is_not_repeated():
    assert after(course(Kind.ONCE), "UNAVAILABLE", definite=False) is None
    assert after(course(Kind.ONCE), "UNAVAILABLE", definite=True) == 0.0


def test_who_has_too_much_to_do_is_asked_later_and_nobody_else():
    one = course(Kind.WRITE)
    assert after(one, "INBOX_FULL", definite=True) == 0.05
    assert one.at == 0


@pytest.mark.parametrize("reason", ["OUTBOX_FULL", "CLOCK_SKEW", "RESTORED"])
def test_a_lasting_refusal_is_asked_for_once_at_each_replica(reason):
    one = course(Kind.WRITE, endpoints=2)
    assert after(one, reason, definite=True) == 0.0
    assert one.at == 1
    assert after(one, reason, definite=True) is None
    assert after(course(Kind.WRITE, endpoints=1), reason, definite=True) is None


def test_what_is_wrong_in_itself_is_not_repeated():
    assert after(course(Kind.READ), "KEY_TOO_LONG", definite=True) is None
    assert after(course(Kind.READ), "INTERNAL", definite=False) is None


def test_nothing_begins_after_the_deadline():
    one = course(Kind.READ, endpoints=1, timeout_s=1.0)
    assert after(one, "UNAVAILABLE", definite=False, now_s=0.96) is None


def test_an_attempt_gets_a_part_of_the_time_and_never_more_than_is_left():
    one = course(Kind.READ, timeout_s=12.0)
    assert one.attempt_s(0.0) == 4.0
    assert one.attempt_s(11.5) == 0.5
    assert course(Kind.READ, timeout_s=0.3).attempt_s(0.0) == pytest.approx(0.3)
    assert course(Kind.ONCE, timeout_s=12.0).attempt_s(0.0) == 12.0


def test_a_pinned_call_stays_whatever_happens():
    one = course(Kind.READ, pinned_at=2)
    assert one.at == 2
    assert after(one, "UNAVAILABLE", definite=False) == 0.05
    assert one.at == 2


def test_waits_grow_to_a_bound_and_chance_at_most_halves_them():
    assert [backoff_s(times, 1.0) for times in (1, 2, 3)] == [0.05, 0.1, 0.2]
    assert backoff_s(5_000, 1.0) == BACKOFF_MOST_S
    assert backoff_s(5_000, 0.0) == BACKOFF_MOST_S / 2


def test_a_client_stays_where_it_was_answered():
    route = Route(3)
    one = Course(route, Kind.WRITE, now_s=0.0, timeout_s=10.0)
    one.after(failure("STOPPING", definite=True), now_s=0.0, chance=0.0)
    one.worked()
    assert route.first(Kind.WRITE, 1.0) == 1


def test_a_read_looks_home_now_and_then_and_a_write_follows():
    route = Route(2)
    route.failed(0, now_s=0.0)
    assert route.first(Kind.READ, HOME_S - 1) == 1
    assert route.first(Kind.WRITE, HOME_S + 1) == 1, "a write could not leave again"
    assert route.first(Kind.READ, HOME_S + 1) == 0
    assert route.first(Kind.READ, HOME_S + 2) == 1, "one looks, the others go on"
    route.worked(0)
    assert route.first(Kind.WRITE, HOME_S + 3) == 0
