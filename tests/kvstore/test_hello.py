"""Who may open a link, and who has lost its memory: every rule once, each refusal with both values."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import hello
from kvstore.config import Cluster
from kvstore.errors import Amnesia, BadRequest, ClusterMismatch, KvError
from kvstore.hello import Accepted, Greeting, fence_of, greeting, is_forgetful, judge, judge_reply, refusal, refused
from kvstore.persist import open_replica
from kvstore.replica import Replica
from kvstore.storage.memory import MemoryStorage
from tests.simulation.cluster import make_cluster

A, B, C = range(3)


def replica_of(site: int, cluster: Cluster | None = None) -> Replica:
    with MemoryStorage().snapshot() as view:
        return open_replica(cluster or make_cluster(3, "optimal"), site, view)


def said_by_a(**changes: Any) -> Greeting:
    """What a says to b after ten messages, of which b has acknowledged four."""
    replica = replica_of(A)
    replica.links[B].sent, replica.links[B].acked = 10, 4
    return greeting(replica, B, sent=10, software="1.2.3")._replace(**changes)


def judged_by_b(said: Greeting, *, up_to: int = 7, remembered: int = 0) -> Accepted | KvError:
    replica = replica_of(B)
    replica.links[A].incarnation = remembered
    return judge(replica, said, up_to=up_to, time=5, wall_ms=6)


def test_a_hello_says_who_we_are_and_what_we_keep() -> None:
    said = said_by_a()
    assert (said.site, said.name, said.to, said.incarnation) == (A, "a", B, 1)
    assert (said.sent, said.oldest) == (10, 5)
    assert (said.protocol, said.software) == ("optimal", "1.2.3")


def test_a_fitting_hello_is_told_where_to_go_on() -> None:
    assert judged_by_b(said_by_a()) == Accepted(up_to=7, incarnation=1, known_seq=0, time=5, wall_ms=6)


@pytest.mark.parametrize("up_to", [4, 10])
def test_the_receiver_may_have_all_or_only_what_it_acknowledged(up_to: int) -> None:
    assert isinstance(judged_by_b(said_by_a(), up_to=up_to), Accepted)


MISMATCHES = [
    ({"wire_version": 2}, "wire_version", "the wire format is 1 here and 2 there"),
    ({"cluster_id": "other"}, "cluster_id", "the cluster id is simulated here and other there"),
    ({"view": 7}, "view", "the view is 1 here and 7 there"),
    ({"to": C}, "to", "the number of the receiving site is 1 here and 2 there"),
    ({"site": 3}, "site", "the number of the sending site is one of 0, 2 here and 3 there"),
    ({"site": B}, "site", "the number of the sending site is one of 0, 2 here and 1 there"),
    ({"name": "c"}, "name", "the name of site 0 is a here and c there"),
    ({"site": C}, "name", "the name of site 2 is c here and a there"),
    ({"protocol_hash": "0", "protocol": "matrix"}, "protocol_hash", "the protocol is optimal here and matrix there"),
    ({"placement_hash": "0123"}, "placement_hash", " here and 0123 there"),
    ({"merge_hash": "0123"}, "merge_hash", " here and 0123 there"),
    ({"incarnation": 0}, "incarnation", "the least incarnation is 1 here and 0 there"),
]


@pytest.mark.parametrize(("changes", "field", "sentence"), MISMATCHES, ids=[str(row[0]) for row in MISMATCHES])
def test_a_hello_that_does_not_fit_is_refused_with_both_values(
    changes: dict[str, Any], field: str, sentence: str
) -> None:
    error = judged_by_b(said_by_a(**changes))
    assert isinstance(error, ClusterMismatch)
    assert error.status == "FAILED_PRECONDITION"
    assert error.details["field"] == field
    assert sentence in str(error)


@pytest.mark.parametrize(
    ("there", "field"),
    [
        ({"protocol": "extra-message"}, "protocol_hash"),
        ({"placement": {b"": ("a", "b", "c"), b"x": ("a", "b")}}, "placement_hash"),
        ({"merge": {b"": "lww", b"x": "lww"}}, "merge_hash"),
    ],
)
def test_two_real_clusters_that_differ_do_not_talk(there: dict[str, Any], field: str) -> None:
    base = make_cluster(3, "optimal")
    settings = {"placement": base.placement, "protocol": "optimal", "merge": base.merge, **there}
    other = Cluster(base.cluster_id, base.sites, **settings)
    error = judged_by_b(greeting(replica_of(A, other), B, sent=0), up_to=0)
    assert isinstance(error, ClusterMismatch) and error.details["field"] == field


def test_options_are_a_part_of_the_protocol_and_named() -> None:
    here, there = (make_cluster(3, "extra-message", options={"threshold": size}) for size in (6, 7))
    error = judge(replica_of(B, here), greeting(replica_of(A, there), B, sent=0), up_to=0, time=0, wall_ms=0)
    assert str(error) == "the protocol is extra-message threshold=6 here and extra-message threshold=7 there"


def test_the_table_catches_a_hello_that_ignores_the_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: a mismatch of the placement is left out."""
    whole = hello._mismatches

    def forgetful(replica: Replica, said: Greeting) -> Any:
        return (error for error in whole(replica, said) if error.details["field"] != "placement_hash")

    monkeypatch.setattr(hello, "_mismatches", forgetful)
    caught = []
    for changes, field, sentence in MISMATCHES:
        try:
            test_a_hello_that_does_not_fit_is_refused_with_both_values(changes, field, sentence)
        except AssertionError:
            caught.append(field)
    assert caught == ["placement_hash"]


@pytest.mark.parametrize(("sent", "oldest"), [(10, 0), (10, 12)])
def test_a_hello_that_contradicts_itself_makes_no_sense(sent: int, oldest: int) -> None:
    assert isinstance(judged_by_b(said_by_a(sent=sent, oldest=oldest)), BadRequest)


def test_what_a_stranger_says_is_cut_short_and_cannot_write_on_a_terminal() -> None:
    error = judged_by_b(said_by_a(cluster_id="\x1b[31m" + "x" * 10_000))
    assert "\x1b" not in str(error) and len(str(error)) < 200


# Amnesia, as the receiver sees it


def test_a_sender_that_remembers_less_than_it_sent_is_refused() -> None:
    error = judged_by_b(said_by_a(), up_to=11)
    assert str(error) == "b knows of link message 11 of a, which remembers only 10"
    assert isinstance(error, Amnesia) and is_forgetful(error, "a") and not is_forgetful(error, "b")


def test_a_receiver_that_wants_what_it_acknowledged_has_forgotten() -> None:
    error = judged_by_b(said_by_a(), up_to=3)
    assert str(error) == "a knows of the acknowledgement of link message 4 of b, which remembers only 3"
    assert isinstance(error, Amnesia) and is_forgetful(error, "b") and not is_forgetful(error, "a")


def test_an_old_copy_that_comes_back_is_refused() -> None:
    error = judged_by_b(said_by_a(incarnation=2), remembered=3)
    assert str(error) == "b knows of incarnation 3 of a, which remembers only 2"
    assert isinstance(error, Amnesia) and is_forgetful(error, "a")


@pytest.mark.parametrize("remembered", [0, 2, 1])
def test_an_incarnation_that_is_new_here_the_same_or_newer_comes_in(remembered: int) -> None:
    assert isinstance(judged_by_b(said_by_a(incarnation=2), remembered=remembered), Accepted)


def test_a_newer_incarnation_comes_in_only_if_it_has_lost_nothing() -> None:
    assert isinstance(judged_by_b(said_by_a(incarnation=2), remembered=1, up_to=11), Amnesia)


# Amnesia, as the sender sees it


def judged_by_a(*, clock: int = 20, remembered: int = 0, **changes: Any) -> KvError | None:
    replica = replica_of(A)
    replica.links[B].incarnation = remembered
    reply = Accepted(up_to=7, incarnation=2, known_seq=20, time=0, wall_ms=0)._replace(**changes)
    return judge_reply(replica, said_by_a(), reply, clock=clock)


def test_an_answer_that_fits_is_no_error() -> None:
    assert judged_by_a() is None
    assert judged_by_a(up_to=4) is judged_by_a(up_to=10) is None
    assert judged_by_a(remembered=1) is judged_by_a(remembered=2) is None


@pytest.mark.parametrize(
    ("changes", "forgetful", "sentence"),
    [
        ({"known_seq": 21}, "a", "b knows of message 21 of a, which remembers only 20"),
        ({"up_to": 11}, "a", "b knows of link message 11 of a, which remembers only 10"),
        ({"up_to": 3}, "b", "a knows of the acknowledgement of link message 4 of b, which remembers only 3"),
        ({"remembered": 3}, "b", "a knows of incarnation 3 of b, which remembers only 2"),
        ({"incarnation": 0}, "b", "a knows of incarnation 1 of b, which remembers only 0"),
    ],
)
def test_an_answer_tells_who_has_forgotten(changes: dict[str, int], forgetful: str, sentence: str) -> None:
    error = judged_by_a(**changes)
    assert isinstance(error, Amnesia) and str(error) == sentence
    assert [is_forgetful(error, name) for name in ("a", "b")] == [forgetful == "a", forgetful == "b"]


# A refusal on its way


@pytest.mark.parametrize(
    ("up_to", "changes", "yours", "ours", "forgetful"),
    [
        (11, {}, "10", "11", "a"),
        (3, {}, "4", "3", "b"),
        (7, {"cluster_id": "other"}, "other", "simulated", ""),
    ],
)
def test_a_refusal_means_the_same_at_both_ends(
    up_to: int, changes: dict[str, str], yours: str, ours: str, forgetful: str
) -> None:
    error = judged_by_b(said_by_a(**changes), up_to=up_to)
    assert isinstance(error, KvError)
    travelling = refusal(error)
    assert (travelling.yours, travelling.ours, travelling.reason) == (yours, ours, error.reason)
    arrived = refused(travelling, name="a", peer="b")
    assert type(arrived) is type(error) and str(error) in str(arrived)
    assert [name for name in ("a", "b") if is_forgetful(arrived, name)] == ([forgetful] if forgetful else [])


def test_a_refusal_of_a_later_version_is_still_a_refusal() -> None:
    answer = refusal(BadRequest(why="x"))._replace(reason="SOMETHING_NEW", message="no\x1b" * 1000)
    error = refused(answer, name="a", peer="b")
    assert error.status == "INTERNAL" and "\x1b" not in str(error) and len(str(error)) < 4000


@pytest.mark.parametrize("changes", [{"known_seq": 21}, {"up_to": 11}])
def test_a_fence_is_about_no_hello_any_more(changes: dict[str, int]) -> None:
    """a has forgotten, and says so to c, who dials it: c has not."""
    error = judged_by_a(**changes)
    assert error is not None
    relayed = refused(refusal(fence_of(error)), name="c", peer="a")
    assert isinstance(relayed, Amnesia) and is_forgetful(relayed, "a") and not is_forgetful(relayed, "c")
    as_it_was = refused(refusal(error), name="c", peer="a")
    assert is_forgetful(as_it_was, "c"), "the field would say so"
