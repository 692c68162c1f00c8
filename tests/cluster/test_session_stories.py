"""What sessions promise, told as stories, with real processes, a slow link, partitions and kill -9.

The link from a to c takes long; all others are fast. So whatever goes from a by way of b to c overtakes what went
straight, and c is the replica that is behind. Links that must be silent for sure are cut.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from causal import PROTOCOLS
from kvstore import connect
from kvstore.cluster import LocalCluster
from kvstore.config import LinkConfig
from kvstore.errors import PastMissing, TooStale
from tests.cluster.stage import (
    LONG_S,
    SHORT_S,
    Clients,
    in_time,
    looked_at,
    moved,
    part,
    until_connected,
    until_cut,
    until_values,
    value_of,
    values_in,
    write_everywhere,
)
from tests.cluster.stories import clients_of, until, until_value

SLOW_MS = 700  # from a to c

CAUSAL = [name for name, protocol in PROTOCOLS.items() if protocol.is_causal]
QUICK = {"optimal", "false-causality"}  # on every change; the others with --long


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in CAUSAL],
)
def processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    is_placed = request.param != "vector"  # it stamps broadcasts only
    with LocalCluster.create(
        tmp_path_factory.mktemp("cluster"),
        protocol=request.param,
        links=[LinkConfig("a", "c", SLOW_MS)],
        placement={b"at-a/": ("a",)} if is_placed else {},
        merge={b"cart/": "siblings"},
    ) as cluster:
        yield cluster


@pytest.fixture
def cluster(processes: LocalCluster) -> Iterator[LocalCluster]:
    """With all replicas alive and all links open, also after a story that ended badly."""
    until_connected(processes)
    yield processes
    processes.heal()
    processes.start()


@pytest.fixture
def clients(cluster: LocalCluster) -> Iterator[Clients]:
    """One for each replica: a session moves only when the story says so."""
    with clients_of(cluster) as clients:
        yield clients


# What others see


def test_a_reply_never_comes_before_its_question(clients: Clients) -> None:
    """Without sessions too: b had applied the question when it took the reply."""
    question, reply = b"forum/question", b"forum/reply"
    with looked_at(clients, [question, reply], last={question: b"why?", reply: b"because"}) as seen:
        clients["a"].put(question, b"why?")
        until_value(clients["b"], question, b"why?")
        clients["b"].put(reply, b"because")
        held = until(lambda: clients["c"].explain().held, bool, "the reply overtakes the question", SLOW_MS / 1000)
        assert (held[0].origin, held[0].missing_origin) == ("b", "a")
    for name, states in seen.items():
        assert [state for state in states if reply in state and question not in state] == [], f"at {name}"
    assert seen["c"][0] == {}, "the onlooker at c came before them"


def test_who_read_the_reply_finds_the_question_wherever_it_goes(clients: Clients) -> None:
    question, reply = b"thread/question", b"thread/reply"
    clients["a"].put(question, b"why?")
    until_value(clients["b"], question, b"why?")
    clients["b"].put(reply, b"because")
    reader = clients["b"].session()
    assert value_of(reader.get(reply)) == b"because"
    at_c = moved(reader, clients["c"])
    assert value_of(at_c.get(question, timeout_s=LONG_S)) == b"why?"
    assert value_of(at_c.get(reply)) == b"because"


def test_nobody_sees_the_photo_with_the_old_list(clients: Clients) -> None:
    access, photo = b"album/access", b"album/photo"
    write_everywhere(clients, access, b"friends, boss")
    with looked_at(clients, [access, photo], last={access: b"friends", photo: b"of the party"}) as seen:
        owner = clients["a"].session()
        assert value_of(owner.get(access)) == b"friends, boss"
        owner.put(access, b"friends")
        moved(owner, clients["b"]).put(photo, b"of the party")
    for name, states in seen.items():
        assert [state for state in states if photo in state and b"boss" in state[access]] == [], f"at {name}"


def test_nobody_sees_the_comment_with_the_photo_that_was_removed_before_it(clients: Clients) -> None:
    photo, comment = b"page/photo", b"page/comment"
    write_everywhere(clients, photo, b"of the party")
    with looked_at(clients, [photo, comment], last={comment: b"it is gone"}) as seen:
        owner = clients["a"].session()
        owner.delete(photo)
        moved(owner, clients["b"]).put(comment, b"it is gone")
    for name, states in seen.items():
        assert [state for state in states if comment in state and photo in state] == [], f"at {name}"


# The reader that moves


def test_who_moves_to_a_replica_that_is_behind_waits_for_what_it_has_seen(clients: Clients) -> None:
    key = b"moving/slow"
    write_everywhere(clients, key, b"old")
    written_s = time.monotonic()
    clients["a"].put(key, b"new")
    reader = clients["a"].session()
    assert value_of(reader.get(key)) == b"new"
    behind = value_of(clients["c"].get(key))
    assert behind == b"old" or time.monotonic() - written_s > SLOW_MS / 1000, "c is behind"
    assert value_of(moved(reader, clients["c"]).get(key, timeout_s=LONG_S)) == b"new"


def test_in_a_partition_it_is_told_in_time_and_never_gets_a_stale_answer(
    cluster: LocalCluster, clients: Clients
) -> None:
    key, refused_key, later = b"moving/cut", b"moving/refused", b"moving/later"
    write_everywhere(clients, key, b"old")
    part(cluster, clients, "a", "bc")
    writer = clients["a"].session()
    writer.put(key, b"new")
    reader = moved(writer, clients["c"])
    token = reader.token()
    for call in (lambda: reader.get(key, timeout_s=SHORT_S), lambda: reader.get_many([key], timeout_s=SHORT_S)):
        with in_time(), pytest.raises(PastMissing) as missing:
            call()
        assert (missing.value.details["site"], missing.value.details["origin"]) == ("c", "a")
        assert int(missing.value.details["seq"]) > 0
    with in_time(), pytest.raises(PastMissing) as refused:
        reader.put(refused_key, b"too early", timeout_s=SHORT_S)
    assert refused.value.definite and refused.value.details["origin"] == "a"
    assert reader.token() == token, "a call that failed teaches nothing"
    cluster.heal()
    assert value_of(reader.get(key, timeout_s=LONG_S)) == b"new"
    assert value_of(clients["c"].session(token).get(key)) == b"new", "the same token goes on"
    reader.put(later, b"in time")
    for kv in clients.values():
        until_value(kv, later, b"in time")
        assert kv.get(refused_key) is None, "it was surely not done, nowhere"


def test_in_a_partition_who_does_not_wait_is_told_how_stale_the_answer_may_be(
    cluster: LocalCluster, clients: Clients
) -> None:
    key = b"moving/stale"
    write_everywhere(clients, key, b"old")
    part(cluster, clients, "a", "bc")
    writer = clients["a"].session()
    writer.put(key, b"new")
    written_s = time.monotonic()
    reader = moved(writer, clients["c"])
    time.sleep(0.3)
    for store in (reader, clients["c"]):
        age_ms = (time.monotonic() - written_s) * 1000
        with in_time(0.0):
            found = store.read(key, freshness="any")
        assert (value_of(found.entry), found.site) == (b"old", "c")
        assert found.staleness_ms is not None and found.staleness_ms >= int(age_ms) - 1, (
            "it lacks what was written then"
        )
    with in_time(), pytest.raises(PastMissing):
        reader.get(key, timeout_s=SHORT_S)
    cluster.heal()
    assert value_of(reader.get(key, timeout_s=LONG_S)) == b"new"


def test_in_a_partition_who_wants_it_fresh_is_told_which_site_is_silent(
    cluster: LocalCluster, clients: Clients
) -> None:
    key, bound_ms = b"moving/fresh", SLOW_MS + 500
    write_everywhere(clients, key, b"old")
    reader = clients["b"].session()
    reader.get(key)
    part(cluster, clients, "a", "bc")
    clients["a"].put(key, b"new")
    time.sleep(bound_ms / 1000)
    for store in (clients["c"], moved(reader, clients["c"])):
        with in_time(), pytest.raises(TooStale) as stale:
            store.read(key, max_age_ms=bound_ms, timeout_s=SHORT_S)
        assert (stale.value.details["site"], stale.value.details["silent"]) == ("c", "a")
        assert int(stale.value.details["age_ms"]) >= bound_ms == int(stale.value.details["bound_ms"])
    cluster.heal()
    found = clients["c"].read(key, max_age_ms=bound_ms, timeout_s=LONG_S)
    assert value_of(found.entry) == b"new", "that was written longer ago"


# The replica that dies


def test_a_session_leaves_a_replica_that_dies_and_keeps_what_it_has_seen(
    cluster: LocalCluster, clients: Clients
) -> None:
    key, later = b"dying/key", b"dying/later"
    with connect(cluster.endpoints, timeout_s=LONG_S) as kv:
        session = kv.session()
        assert session.put(key, b"mine").site == "a"
        until_value(clients["b"], key, b"mine")
        cluster.kill("a")
        found = session.read(key)
        assert value_of(found.entry) == b"mine" and found.site != "a"
        written = session.put(later, b"elsewhere")
        assert written.site != "a"
        assert value_of(session.get(later)) == b"elsewhere"
        cluster.start("a")
        assert {key: one.value for key, one in session.get_many([key, later]).items()} == {
            key: b"mine",
            later: b"elsewhere",
        }
        assert value_of(moved(session, clients["a"]).get(later, timeout_s=LONG_S)) == b"elsewhere"


def test_when_no_live_replica_has_what_it_saw_the_message_is_named(cluster: LocalCluster, clients: Clients) -> None:
    key, timeout_s = b"dying/alone", 4.0
    write_everywhere(clients, key, b"old")
    with connect(cluster.endpoints, timeout_s=timeout_s) as kv:
        session = kv.session()
        part(cluster, clients, "a", "bc")
        assert session.put(key, b"new").site == "a"
        cluster.kill("a")
        cluster.heal()
        for call in (lambda: session.get(key), lambda: session.put(key, b"newer")):
            with (
                in_time(timeout_s),
                pytest.raises(PastMissing, match="no replica that answered has message") as missing,
            ):
                call()
            assert missing.value.details["origin"] == "a" and int(missing.value.details["seq"]) > 0
            tried = missing.value.details["tried"].split(", ")
            assert sorted(tried) == sorted([cluster.endpoint("b"), cluster.endpoint("c")])
            assert missing.value.definite
        cluster.start("a")
        assert value_of(session.get(key, timeout_s=LONG_S)) == b"new"
        for name in ("b", "c"):
            assert value_of(moved(session, clients[name]).get(key, timeout_s=LONG_S)) == b"new"


# Keys that live elsewhere


@pytest.fixture
def placed(cluster: LocalCluster) -> None:
    if b"at-a/" not in cluster.cluster.placement:
        pytest.skip("this protocol holds every key everywhere")


@pytest.mark.usefixtures("placed")
def test_what_was_written_where_it_is_not_held_is_read_where_it_is_not_held(
    cluster: LocalCluster, clients: Clients
) -> None:
    key, second = b"at-a/key", b"at-a/second"
    session = clients["b"].session()
    assert session.put(key, b"1").site == "b"
    session.put(second, b"1")
    found = moved(session, clients["c"]).read(key, timeout_s=LONG_S)
    assert (value_of(found.entry), found.site) == (b"1", "a")
    at_c = moved(session, clients["c"])
    assert {key: one.value for key, one in at_c.get_many([key, second]).items()} == {key: b"1", second: b"1"}

    cluster.cut([("b", "a")])
    until_cut(cluster, clients)
    session.put(key, b"2")
    at_c = moved(session, clients["c"])
    with in_time(), pytest.raises(PastMissing) as missing:
        at_c.get(key, timeout_s=SHORT_S)
    assert (missing.value.details["site"], missing.value.details["origin"]) == ("a", "b")
    assert value_of(clients["c"].get(key)) == b"1", "who has seen nothing may read what there is"
    cluster.heal()
    assert value_of(at_c.get(key, timeout_s=LONG_S)) == b"2"
    at_c.delete(key)
    assert moved(at_c, clients["b"]).get(key, timeout_s=LONG_S) is None


# Siblings


def test_what_two_sessions_wrote_at_once_stands_side_by_side_until_a_session_has_seen_both(
    cluster: LocalCluster, clients: Clients
) -> None:
    key = b"cart/one"
    part(cluster, clients, "a", "b", "c")
    milk = clients["a"].session().put(key, b"milk")
    eggs = clients["c"].session().put(key, b"eggs")
    cluster.heal()
    found = until_values(clients, key, b"milk", b"eggs")
    for entry in found.values():
        assert entry is not None and set(entry.versions) == {milk.version, eggs.version}

    shopper = clients["b"].session()
    assert sorted(values_in(shopper.get(key))) == [b"eggs", b"milk"]
    both = shopper.put(key, b"milk and eggs")
    found = until_values(clients, key, b"milk and eggs")
    assert {entry.versions for entry in found.values() if entry} == {(both.version,)}
    assert value_of(shopper.get(key)) == b"milk and eggs"
    shopper.delete(key)
    assert shopper.get(key) is None
    until_values(clients, key)


def test_a_delete_in_a_session_takes_away_what_it_has_seen_and_nothing_else(
    cluster: LocalCluster, clients: Clients
) -> None:
    key = b"cart/two"
    clients["a"].session().put(key, b"milk")
    until_values(clients, key, b"milk")
    at_a, at_c = clients["a"].session(), clients["c"].session()
    assert value_of(at_a.get(key)) == value_of(at_c.get(key)) == b"milk"
    part(cluster, clients, "a", "b", "c")
    at_a.delete(key)
    at_c.put(key, b"more milk")
    assert at_a.get(key) is None and values_in(at_c.get(key)) == [b"more milk"]
    cluster.heal()
    until_values(clients, key, b"more milk")
    assert values_in(moved(at_c, clients["a"]).get(key, timeout_s=LONG_S)) == [b"more milk"]


# The command line


def kvstore(cluster: LocalCluster, *arguments: str, site: str) -> subprocess.CompletedProcess[str]:
    where = ["--cluster", str(cluster.file), "--site", site, "--timeout", f"{LONG_S:.0f}s"]
    command = [sys.executable, "-m", "kvstore", *arguments, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * LONG_S, check=False)


def test_a_token_goes_as_text_from_one_command_to_the_next(cluster: LocalCluster) -> None:
    put = kvstore(cluster, "put", "told", "in text", "--session", "new", "--output", "json", site="a")
    assert put.returncode == 0, put.stderr
    token = json.loads(put.stdout)["session"]
    get = kvstore(cluster, "get", "told", "--session", token, "--output", "json", site="c")
    assert get.returncode == 0, get.stderr
    answer = json.loads(get.stdout)
    assert answer["value"] == "in text" and answer["version"] == json.loads(put.stdout)["version"]
    plain = kvstore(cluster, "get", "told", "--session", answer["session"], "--output", "plain", site="b")
    assert plain.stdout == "in text" and plain.stderr.startswith("session: ")


def test_a_token_that_was_changed_on_the_way_is_refused(cluster: LocalCluster) -> None:
    put = kvstore(cluster, "put", "told", "in text", "--session", "new", "--output", "json", site="a")
    token = json.loads(put.stdout)["session"]
    forged = token[:-6] + ("AAAAAA" if not token.endswith("AAAAAA") else "BBBBBB")
    get = kvstore(cluster, "get", "told", "--session", forged, site="a")
    assert get.returncode == 2 and "no token of a session here" in get.stderr and get.stdout == ""
