"""The blocking client against real gRPC: what it gives, and what it does when a replica fails."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from kvstore import ABSENT, Change, Client, Delete, Entry, Get, Position, Put, Version, Written, connect
from kvstore.errors import (
    BadRange,
    BadRequest,
    BadToken,
    BadTtl,
    BadVersion,
    BatchTooLarge,
    DeadlineExceeded,
    InboxFull,
    KeyEmpty,
    KeyTooLong,
    KvError,
    OutboxFull,
    PositionTooOld,
    Stopping,
    TooManyWaiting,
    Unavailable,
    VersionMismatch,
)
from kvstore.v1 import admin_pb2, event_pb2, kv_pb2, model_pb2, status_pb2, watch_pb2
from tests.kvstore.script import LOST, REFUSED, SILENT, Script, serving


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def kv(script: Script) -> Iterator[Client]:
    with serving(script) as addresses, connect(addresses, timeout_s=5.0) as client:
        yield client


def dead_address() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


# What it gives


def test_a_value_comes_back_with_its_version(kv):
    written = kv.put(b"k", b"v")
    assert written == Written(Version(1, 0), "a", 1)
    assert kv.get(b"k") == Entry(b"k", b"v", written.version, 0, ())
    assert kv.get(b"other") is None


def test_an_empty_value_is_a_value(kv):
    kv.put(b"k", b"")
    assert kv.get(b"k").value == b""


def test_siblings_are_handed_on(kv, script):
    other = model_pb2.Sibling(value=b"w", version=model_pb2.Version(time=3, site=1), expires_ms=9)
    script.data[b"k"] = model_pb2.Entry(key=b"k", value=b"v", version=model_pb2.Version(time=4), siblings=[other])
    assert kv.get(b"k").siblings == ((b"w", Version(3, 1), 9),)


def test_a_time_to_live_and_conditions_travel(kv, script):
    first = kv.put(b"k", b"v", ttl_ms=500, expect=ABSENT)
    assert kv.get(b"k").expires_ms == 1_000_500
    with pytest.raises(VersionMismatch) as found:
        kv.put(b"k", b"w", expect=ABSENT)
    assert found.value.definite
    kv.put(b"k", b"w", expect=first.version)
    with pytest.raises(VersionMismatch):
        kv.delete(b"k", expect=first.version)
    kv.delete(b"k", expect=kv.get(b"k").version)
    assert kv.get(b"k") is None


def test_a_batch_gives_a_version_for_each_operation(kv, script):
    written = kv.batch([Put(b"a", b"1", expect=ABSENT), Put(b"b", b"2", ttl_ms=5), Delete(b"c", Version(9, 1))])
    assert [version.time for version in written.versions] == [1, 2, 3]
    (request,) = script.asked(kv_pb2.BatchRequest)
    assert request.operations[0].put.expect_absent and request.operations[1].put.ttl_ms == 5
    assert request.operations[2].delete.expect_version.time == 9


def test_a_pipeline_gives_each_call_its_own_result_or_error(kv):
    kv.put(b"k", b"v")
    found = kv.pipeline([Get(b"k"), Put(b"k", b"w", expect=ABSENT), Delete(b"k"), Get(b"k")])
    assert found[0].value == b"v" and found[0].key == b"k"
    assert isinstance(found[1], VersionMismatch) and found[1].definite
    assert isinstance(found[2], Written) and found[2].site == "a"
    assert found[3] is None


def test_many_keys_come_as_a_dictionary_of_those_that_are_there(kv):
    for key in (b"a", b"c"):
        kv.put(key, key * 2)
    assert {key: entry.value for key, entry in kv.get_many([b"c", b"b", b"a"]).items()} == {b"c": b"cc", b"a": b"aa"}


def test_a_scan_reads_page_by_page(kv, script):
    for number in range(5):
        kv.put(b"k%d" % number, b"v")
    kv.put(b"other", b"v")
    assert [entry.key for entry in kv.scan(b"k")] == [b"k0", b"k1", b"k2", b"k3", b"k4"]
    assert [entry.key for entry in kv.scan(start=b"k1", end=b"k3")] == [b"k1", b"k2"]
    assert [entry.key for entry in kv.scan(b"k", after=b"k2", limit=1, page_size=1)] == [b"k3"]


def test_operators_are_answered_as_the_replica_says_it(kv):
    assert isinstance(kv.status(), status_pb2.StatusResponse) and kv.status().site == "a"
    assert kv.explain().site == "a"
    assert kv.backup("somewhere").directory == "somewhere"


def test_events_come_until_the_connection_breaks(kv, script):
    events = kv.events(["held", "delivered"])
    assert next(events).events[0].index == 1
    assert [*script.requests[0].kinds] == [event_pb2.Event.KIND_HELD, event_pb2.Event.KIND_DELIVERED]
    with pytest.raises(Unavailable):
        next(events)
    with pytest.raises(BadRequest, match="no events of the kind 'dreamt'"):
        kv.events(["dreamt"])


def test_threads_can_share_a_client(kv, script):
    def work(name: int) -> None:
        for number in range(25):
            kv.put(b"%d-%d" % (name, number), b"v")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert script.effects == len(script.data) == 200
    assert len({one.request_id for one in script.asked(kv_pb2.PutRequest)}) == 200


# When something fails


def test_a_read_is_asked_again(kv, script):
    script.mishaps["Get"] += [REFUSED, REFUSED]
    assert kv.get(b"k") is None
    assert len(script.requests) == 3


def test_a_write_whose_answer_was_lost_is_repeated_with_its_id_and_has_one_effect(kv, script):
    script.mishaps["Put"] += [LOST]
    assert kv.put(b"k", b"v").version == Version(1, 0)
    first, second = script.asked(kv_pb2.PutRequest)
    assert first == second and len(first.request_id) == 16
    assert script.effects == 1


def test_a_batch_whose_answer_was_lost_has_one_effect(kv, script):
    script.mishaps["Batch"] += [LOST]
    kv.batch([Put(b"a", b"1")])
    assert script.effects == 1 and len(script.requests) == 2


def test_a_given_request_id_is_used_and_an_empty_one_forbids_repeats(kv, script):
    kv.put(b"k", b"v", request_id=b"mine")
    assert script.requests[0].request_id == b"mine"
    script.mishaps["Put"] += [LOST]
    with pytest.raises(Unavailable) as found:
        kv.put(b"k", b"v", request_id=b"")
    assert not found.value.definite and len(script.requests) == 2


def test_a_write_that_may_be_done_is_not_taken_to_another_replica():
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Put"] += [REFUSED] * 50
    with serving(first, second) as addresses, connect(addresses, timeout_s=0.4) as kv:
        with pytest.raises(Unavailable) as found:
            kv.put(b"k", b"v")
        assert not found.value.definite
        assert len(first.requests) > 1 and not second.requests
        assert kv.put(b"k", b"w").site == "b", "the next call need not suffer for that"


def test_a_read_is_taken_to_another_replica():
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Get"] += [REFUSED]
    with serving(first, second) as addresses, connect(addresses) as kv:
        kv.get(b"k")
        assert (len(first.requests), len(second.requests)) == (1, 1)


def test_a_write_moves_on_from_a_replica_that_cannot_be_reached_and_the_client_stays_there():
    script = Script("b", 1)
    with serving(script) as [address], connect([dead_address(), address]) as kv:
        assert kv.put(b"k", b"v").site == "b"
        assert kv.put(b"k", b"w").site == "b"
        assert len({one.request_id for one in script.requests}) == 2


def test_where_nobody_listens_a_write_surely_did_not_happen():
    with connect(dead_address(), timeout_s=0.3) as kv, pytest.raises(Unavailable, match="cannot be reached") as found:
        kv.put(b"k", b"v")
    assert found.value.definite


def test_a_name_that_nobody_knows_is_unavailable():
    with connect("no-such-host.invalid:1", timeout_s=0.3) as kv, pytest.raises(Unavailable) as found:
        kv.put(b"k", b"v")
    assert found.value.definite


def test_a_definite_refusal_moves_on():
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Put"] += [Stopping(site="a")]
    with serving(first, second) as addresses, connect(addresses) as kv:
        assert kv.put(b"k", b"v").site == "b"


def test_a_refusal_after_a_lost_answer_is_not_definite(kv, script):
    script.mishaps["Put"] += [LOST, VersionMismatch(key="k", found="1", expected="none")]
    with pytest.raises(VersionMismatch) as found:
        kv.put(b"k", b"v", expect=ABSENT)
    assert not found.value.definite, "the first attempt did it"


def test_a_lasting_refusal_is_raised_at_once(kv, script):
    script.mishaps["Put"] += [OutboxFull(peer="b", size=9, limit=8)]
    with pytest.raises(OutboxFull) as found:
        kv.put(b"k", b"v")
    assert found.value.definite and found.value.details["peer"] == "b"
    assert len(script.requests) == 1


def test_a_full_inbox_is_tried_again_later(kv, script):
    script.mishaps["Put"] += [InboxFull(limit=1, unit="writes"), InboxFull(limit=1, unit="writes")]
    assert kv.put(b"k", b"v").version == Version(1, 0)


def test_silence_ends_with_the_deadline(kv, script):
    script.mishaps["Put"] += [SILENT] * 9
    before = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="within 300 ms") as found:
        kv.put(b"k", b"v", timeout_s=0.3)
    assert not found.value.definite
    assert 0.25 < time.monotonic() - before < 2.0


def test_silence_of_one_replica_does_not_use_up_the_time_of_a_read():
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Get"] += [SILENT]
    with serving(first, second) as addresses, connect(addresses, timeout_s=3.0) as kv:
        assert kv.get(b"k") is None


def test_a_backup_is_not_repeated(kv, script):
    script.mishaps["Backup"] += [LOST]
    with pytest.raises(Unavailable):
        kv.backup("somewhere")
    assert script.effects == 1


def test_an_answer_that_is_too_large_says_so(script):
    with serving(script) as addresses, connect(addresses, receive_bytes_max=1000) as kv:
        kv.put(b"k", b"v" * 2000)
        with pytest.raises(BatchTooLarge, match=r"an answer of \d+ bytes; at most 1000"):
            kv.get(b"k")


def test_a_request_that_is_too_large_was_surely_not_done(script):
    with serving(script, receive_bytes_max=1000) as addresses, connect(addresses) as kv:
        with pytest.raises(BatchTooLarge, match=r"a request of \d+ bytes; at most 1000") as found:
            kv.put(b"k", b"v" * 2000)
        assert found.value.definite and not script.requests


# Scans and watches that break


def test_a_scan_goes_on_after_the_last_key_and_counts_what_it_gave(kv, script):
    for number in range(6):
        kv.put(b"k%d" % number, b"v")
    script.mishaps["Scan"] += [REFUSED, REFUSED]
    assert [entry.key for entry in kv.scan(b"k", limit=5)] == [b"k0", b"k1", b"k2", b"k3", b"k4"]
    requests = script.asked(kv_pb2.ScanRequest)
    assert [(one.after, one.limit) for one in requests] == [(b"", 5), (b"k1", 3), (b"k3", 1)]


def test_a_scan_that_breaks_when_it_has_all_it_wanted_asks_for_no_more(kv, script):
    for number in range(6):
        kv.put(b"k%d" % number, b"v")
    script.mishaps["Scan"] += [REFUSED]
    assert len([*kv.scan(b"k", limit=2)]) == 2
    assert len(script.asked(kv_pb2.ScanRequest)) == 1, "a limit of 0 would mean everything"


def test_the_time_of_a_scan_is_for_one_page(kv, script):
    for number in range(6):
        kv.put(b"k%d" % number, b"v")
    script.mishaps["Scan"] += [SILENT, SILENT]
    assert len([*kv.scan(b"k", timeout_s=0.2)]) == 6


def test_a_scan_that_takes_long_stays_at_its_replica():
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Scan"] += [SILENT]
    with serving(first, second) as addresses, connect(addresses) as kv:
        for number in range(4):
            kv.put(b"k%d" % number, b"v")
        assert len([*kv.scan(b"k", timeout_s=0.2)]) == 4
    assert not second.requests


def test_a_scan_that_is_left_early_ends_at_the_replica_too(kv, script):
    for number in range(3):
        kv.put(b"k%d" % number, b"v")
    script.mishaps["Scan"] += [SILENT]
    for entry in kv.scan(b"k"):
        assert entry.key == b"k0"
        break
    kv.put(b"k", b"v")


def says(index: int, *keys: bytes, deleted: bool = False, at: int | None = None) -> watch_pb2.WatchResponse:
    """A watch's answer: one batch of changes, and where it has come to."""
    kind = watch_pb2.Change.KIND_DELETE if deleted else watch_pb2.Change.KIND_PUT
    dot = model_pb2.Dot(site=0, seq=index)
    changes = [watch_pb2.Change(kind=kind, key=key, value=b"v", index=index, dot=dot) for key in keys]
    position = model_pb2.Position(site=0, incarnation=1, index=index if at is None else at)
    return watch_pb2.WatchResponse(changes=changes, position=position, site="a")


def resumed_from(script: Script) -> list[int | None]:
    requests = script.asked(watch_pb2.WatchRequest)
    return [one.position.index if one.HasField("position") else None for one in requests]


def test_a_watch_has_begun_when_it_is_there(kv, script):
    script.watches += [[says(7), SILENT]]
    with kv.watch(b"p") as watch:
        assert watch.position == Position(0, 1, 7) and watch.site == "a"
    assert script.requests[0].prefix == b"p"


def test_a_watch_goes_on_by_itself_from_where_it_broke(kv, script):
    script.watches += [
        [says(7), says(8, b"a"), REFUSED],
        [says(8), says(9, b"b", deleted=True), TooManyWaiting(limit=1, what="watches")],
        [says(9), says(10, b"c")],  # and the stream ends
        [says(10), says(11, b"d"), SILENT],
    ]
    with kv.watch() as watch:
        changes = [next(watch) for _ in range(4)]
    assert [(one.key, one.value) for one in changes] == [(b"a", b"v"), (b"b", None), (b"c", b"v"), (b"d", b"v")]
    assert isinstance(changes[0], Change) and changes[0].dot.seq == 8
    assert resumed_from(script) == [None, 8, 9, 10]


def test_a_watch_survives_a_restart_of_its_replica(script):
    script.watches += [[says(7), SILENT], [says(7), says(8, b"a"), SILENT]]
    with serving(script) as [address]:
        kv = connect(address)
        watch = kv.watch()
    with serving(script, port=int(address.rpartition(":")[2])), kv:
        assert next(watch).key == b"a"
    assert resumed_from(script) == [None, 7]


def test_a_watch_does_not_go_on_at_another_replica():
    first, second = Script("a", 0), Script("b", 1)
    first.watches += [[says(7), REFUSED], [REFUSED], [says(7), says(8, b"a"), SILENT]]
    with serving(first, second) as addresses, connect(addresses) as kv, kv.watch() as watch:
        assert next(watch).key == b"a"
    assert not second.requests and len(first.requests) == 3


def test_a_watch_that_cannot_come_back_fails_in_the_end(kv, script):
    script.watches += [[says(7), REFUSED], *[[REFUSED]] * 50]
    with kv.watch(patience_s=0.3) as watch, pytest.raises(Unavailable):
        next(watch)
    assert watch.position == Position(0, 1, 7), "somebody may go on from there"


def test_a_position_that_is_too_old_is_raised(kv, script):
    script.watches += [[PositionTooOld(position=3, oldest=9)]]
    with pytest.raises(PositionTooOld):
        kv.watch(position=Position(0, 1, 3))
    assert resumed_from(script) == [3]


def test_a_position_is_taken_to_the_replica_that_gave_it():
    first, second = Script("a", 0), Script("b", 1)
    second.watches += [[says(3), SILENT]]
    with serving(first, second) as addresses, connect(addresses) as kv, kv.watch(position=Position(1, 1, 3)):
        assert resumed_from(second) == [3] and resumed_from(first) == []
        with pytest.raises(Unavailable, match="no endpoint answers as the site"):
            kv.watch(position=Position(7, 1, 3))


def test_changes_that_were_written_together_count_together(kv, script):
    both = says(8, b"a", b"b")
    both.changes.extend(says(9, b"c").changes)
    both.position.index = 12  # others followed that do not belong to the prefix
    script.watches += [[says(7), both, SILENT]]
    with kv.watch() as watch:
        places = [(next(watch).key, watch.position.index) for _ in range(3)]
    assert places == [(b"a", 7), (b"b", 8), (b"c", 12)]


def test_a_watch_can_be_ended_from_another_thread(kv, script):
    script.watches += [[says(7), SILENT]]
    watch = kv.watch()
    threading.Timer(0.1, watch.close).start()
    assert [*watch] == []


# Snapshots


def test_a_snapshot_reads_with_its_handle_and_is_given_back(kv, script):
    kv.put(b"k", b"v")
    with kv.snapshot(lease_ms=9) as then:
        assert (then.site, then.commit) == ("a", 7)
        assert [*then.get_many([b"k"])] == [b"k"]
        assert [entry.key for entry in then.scan()] == [b"k"]
    assert script.asked(admin_pb2.SnapshotRequest)[0].lease_ms == 9
    assert script.asked(kv_pb2.GetManyRequest)[0].snapshot == b"handle"
    assert script.asked(kv_pb2.ScanRequest)[0].snapshot == b"handle"
    assert script.asked(admin_pb2.ReleaseSnapshotRequest)[0].snapshot == b"handle"
    assert not script.asked(admin_pb2.RenewSnapshotRequest)


def test_a_snapshot_is_renewed_while_it_is_used(kv, script):
    script.lease_ms = 0
    with kv.snapshot() as then:
        then.get_many([b"k"])
    assert script.asked(admin_pb2.RenewSnapshotRequest)[0].snapshot == b"handle"


def test_a_snapshot_stays_at_its_replica():
    first, second = Script("a", 0), Script("b", 1)
    first.mishaps["Snapshot"] += [REFUSED]
    second.mishaps["GetMany"] += [REFUSED]
    with serving(first, second) as addresses, connect(addresses) as kv, kv.snapshot() as then:
        then.get_many([b"k"])
        assert then.site == "b"
    assert not first.asked(kv_pb2.GetManyRequest) and len(second.asked(kv_pb2.GetManyRequest)) == 2


# Wrong use


@pytest.mark.parametrize(
    ("wrong", "kind", "sentence"),
    [
        (lambda kv: kv.get("k"), TypeError, r"a key is bytes, not str; a text needs an encoding: text.encode\(\)"),
        (lambda kv: kv.get(None), TypeError, "a key is bytes, not NoneType"),
        (lambda kv: kv.get(b""), KeyEmpty, "at least one byte"),
        (lambda kv: kv.get(b"k" * 481), KeyTooLong, "481 bytes; at most 480"),
        (lambda kv: kv.put(b"k", "v"), TypeError, "a value is bytes, not str"),
        (lambda kv: kv.put(b"k", None), TypeError, "a value is bytes, not NoneType"),
        (lambda kv: kv.put(b"k", b"v", ttl_ms=0), BadTtl, "from 1 to"),
        (lambda kv: kv.put(b"k", b"v", ttl_ms=1.5), TypeError, "whole number of milliseconds"),
        (lambda kv: kv.put(b"k", b"v", expect="1-2"), TypeError, "a text is read by Version.parse"),
        (lambda kv: kv.put(b"k", b"v", expect=Version(-1, 0)), BadVersion, "is no version"),
        (lambda kv: kv.put(b"k", b"v", request_id=b"i" * 65), BadRequest, "at most 64"),
        (lambda kv: kv.put(b"k", b"v", request_id="i"), TypeError, "a request id is bytes"),
        (lambda kv: kv.delete(b"k", expect=ABSENT), BadRequest, "cannot expect the key to be absent"),
        (lambda kv: kv.batch([Put(b"k", b"v"), Get(b"k")]), TypeError, "a batch holds Put and Delete, not Get"),
        (lambda kv: kv.pipeline([b"k"]), TypeError, "a pipeline holds Get, Put and Delete, not bytes"),
        (lambda kv: kv.get_many(b"key"), TypeError, "keys is a list of bytes, not bytes"),
        (lambda kv: kv.scan("k"), TypeError, "a prefix is bytes, not str"),
        (lambda kv: kv.scan(b"k", start=b"a"), BadRequest, "a prefix or a range, not both"),
        (lambda kv: kv.scan(start=b"b", end=b"a"), BadRange, "the end is not after the start"),
        (lambda kv: kv.scan(limit=0), BadRequest, "limit is 0"),
        (lambda kv: kv.watch("k"), TypeError, "a prefix is bytes"),
        (lambda kv: kv.watch(position=7), TypeError, "a position is a Position"),
        (lambda kv: kv.get(b"k", timeout_s=0), BadRequest, "it must be positive"),
        (lambda kv: kv.get(b"k", timeout_s=float("inf")), BadRequest, "it must be positive"),
        (lambda kv: kv.get(b"k", timeout_s="1"), TypeError, "a number of seconds"),
        (lambda kv: kv.session("text"), TypeError, "a token is bytes, not str"),
        (lambda kv: kv.session(b"t" * ((16 << 20) + 1)), BadToken, "16777217 bytes; at most 16777216"),
        (lambda kv: kv.get(b"k", freshness="session"), BadRequest, r"needs a session: kv.session\(\)"),
        (
            lambda kv: kv.session().get(b"k", freshness="fresh"),
            BadRequest,
            "no freshness 'fresh'; there are any, session",
        ),
        (lambda kv: kv.get(b"k", freshness="any", max_age_ms=5), BadRequest, "freshness or max_age_ms, not both"),
        (lambda kv: kv.get(b"k", max_age_ms=0), BadRequest, "max_age_ms is 0"),
        (lambda kv: kv.read_many([b"k"], max_age_ms="5"), TypeError, "max_age_ms is a whole number"),
        (lambda kv: kv.put(b"k", b"v", replaces=Version(1, 0)), TypeError, r"not one alone: \[version\]"),
        (lambda kv: kv.put(b"k", b"v", replaces=["1-2"]), TypeError, "not of str; Version.parse reads a text"),
        (lambda kv: kv.put(b"k", b"v", replaces="1-2"), TypeError, "replaces is a list of versions, not str"),
        (lambda kv: kv.put(b"k", b"v", replaces=7), TypeError, "replaces is a list of versions, not int"),
        (lambda kv: kv.delete(b"k", replaces=[ABSENT]), BadVersion, "is no version"),
        (lambda kv: kv.batch([Put(b"k", b"v", replaces=[Version(1, -1)])]), BadVersion, "is no version"),
        (lambda kv: kv.put(b"k", b"v", depends_on=[]), BadRequest, "depends on nothing is independent=True"),
        (lambda kv: kv.put(b"k", b"v", depends_on=[7]), TypeError, "depends_on is a list of versions, not of int"),
        (lambda kv: kv.put(b"k", b"v", independent=1), TypeError, "independent is True or False"),
        (
            lambda kv: kv.put(b"k", b"v", independent=True, depends_on=[Version(1, 0)]),
            BadRequest,
            "depends on versions is not independent",
        ),
        (lambda kv: kv.put(b"k", b"v", independent=True, expect=ABSENT), BadRequest, "expects or replaces a version"),
        (
            lambda kv: kv.batch([Delete(b"k", replaces=[Version(1, 0)])], independent=True),
            BadRequest,
            "expects or replaces a version",
        ),
    ],
)
def test_wrong_use_is_said_before_anything_is_sent(kv, script, wrong, kind, sentence):
    with pytest.raises(kind, match=sentence):
        wrong(kv)
    assert not script.requests


@pytest.mark.parametrize("endpoints", ["host", "host:", ":7400", "host:0", "host:65536", [], ["a:1", 7], "a:1,b:2"])
def test_an_endpoint_is_host_and_port(endpoints):
    with pytest.raises(BadRequest):
        connect(endpoints)


@pytest.mark.parametrize("endpoint", ["localhost:7400", "10.0.0.1:1", "[::1]:7400", "db-1.example.org:65535"])
def test_names_and_addresses_are_endpoints(endpoint):
    connect(endpoint).close()


def test_security_that_is_not_there_is_refused():
    with pytest.raises(BadRequest, match="tls is not in this version"):
        connect("a:1", tls=object())  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="auth is not in this version"):
        connect("a:1", auth="secret")  # type: ignore[arg-type]


def test_a_closed_client_says_so(kv):
    kv.close()
    with pytest.raises(Unavailable, match="closed") as found:
        kv.put(b"k", b"v")
    assert found.value.definite


def test_a_call_under_way_when_the_client_is_closed_fails(kv, script):
    script.mishaps["Put"] += [SILENT]
    threading.Timer(0.1, kv.close).start()
    with pytest.raises(KvError) as found:
        kv.put(b"k", b"v")
    assert not found.value.definite


def test_values_and_errors_do_not_load_grpc():
    names = "ABSENT, Entry, KvError, Put, Version, errors, __version__"
    check = (
        f"import sys; from kvstore import {names}; assert 'grpc' not in sys.modules; from kvstore import connect, aio"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
