"""How a replica says that it is: every field of status.proto, in a cluster where there is something to say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor import Descriptor

from causal.protocols.optimal import Optimal
from kvstore.clock import time_ms
from kvstore.config import LinkConfig
from kvstore.effects import Operation, Write
from kvstore.limits import Limits
from kvstore.rpc import status as module
from kvstore.rpc.status import Counts, count_keys
from kvstore.v1 import admin_pb2, kv_pb2_grpc, status_pb2, watch_pb2
from kvstore.v1.status_pb2 import Activity, LinkStatus, ReplicaStatus, StatusResponse
from tests.kvstore.running import Running, running, until
from tests.kvstore.stage import Stage

A, B, C = range(3)
LIMITS = {"value_max": 1000, "message_bytes_max": 2000, "outbox_bytes_max": 4000, "outbox_alarm_percent": 1}
DELAY_MS = 3


class Seen(NamedTuple):
    """What the three said of themselves, and what they should have said."""

    a: StatusResponse
    b: StatusResponse
    c: StatusResponse
    cluster: Running
    began_ms: int


async def act(cluster: Running) -> Seen:
    """a writes, b hears it and replies, c holds the reply: the link from a to c is cut."""
    began_ms = time.time_ns() // 1_000_000
    await cluster.until_open()
    for key in (b"one", b"two", b"three"):
        await cluster.put("a", key)
    await cluster.put("a", b"two", None)
    await until(lambda: cluster["b"].replica.ordering.delivered[A] == 4)
    await cluster.put("b", b"reply")
    await until(lambda: cluster["c"].replica.held and cluster["a"].replica.ordering.delivered[B])
    await until(lambda: cluster["a"].replica.links[B].acked == 4 and cluster["b"].replica.links[A].acked == 1)
    await until(lambda: cluster["a"].alarms.current() and cluster["b"].alarms.current())
    keys = kv_pb2_grpc.KeyValueStub(cluster.channels["a"])
    watch = keys.Watch(watch_pb2.WatchRequest())
    await watch.read()
    await cluster.admin("a").Snapshot(admin_pb2.SnapshotRequest())
    await asyncio.sleep(0.02)
    a, b, c = [await cluster.admin(name).Status(status_pb2.StatusRequest()) for name in "abc"]
    watch.cancel()
    return Seen(a, b, c, cluster, began_ms)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    async def story() -> Seen:
        links = (LinkConfig("a", "b", DELAY_MS), LinkConfig("b", "a", DELAY_MS + 1))
        wishes: dict[str, Any] = {"limits": LIMITS, "links": links, "cluster_id": "seen"}
        wishes |= {"placement": {b"x/": ("a", "b")}, "merge": {b"y/": "lww"}}
        async with running(tmp_path_factory.mktemp("status"), cut=(("a", "c"),), **wishes) as cluster:
            return await asyncio.wait_for(act(cluster), 40)

    return asyncio.run(story())


# Every field


def link(status: StatusResponse, sender: str, receiver: str) -> LinkStatus:
    (found,) = [one for one in status.links if (one.sender, one.receiver) == (sender, receiver)]
    return found


def known(status: StatusResponse, name: str) -> ReplicaStatus:
    (found,) = [one for one in status.replicas if one.name == name]
    return found


def is_now(time_hybrid: int, seen: Seen) -> bool:
    return seen.began_ms - 1 <= time_ms(time_hybrid) <= seen.began_ms + 60_000


ALL = ["a", "b", "c"]
LINKS_OF_A = {("a", "b"), ("b", "a"), ("a", "c"), ("c", "a")}
FIELDS: dict[str, Callable[[Seen], bool]] = {
    "StatusResponse.cluster_id": lambda seen: seen.a.cluster_id == "seen",
    "StatusResponse.view": lambda seen: seen.a.view == 1,
    "StatusResponse.site_number": lambda seen: (seen.a.site_number, seen.c.site_number) == (A, C),
    "StatusResponse.incarnation": lambda seen: seen.a.incarnation == 1,
    "StatusResponse.protocol": lambda seen: seen.a.protocol == Optimal.name,
    "StatusResponse.options": lambda seen: not seen.a.options,  # see below for a protocol that has some
    "StatusResponse.durability": lambda seen: seen.a.durability == "sync",
    "StatusResponse.software": lambda seen: seen.a.software[0].isdigit(),
    "StatusResponse.uptime_ms": lambda seen: 0 < seen.a.uptime_ms < 60_000,
    "StatusResponse.replicas": lambda seen: [one.name for one in seen.b.replicas] == ["a", "b", "c"],
    "StatusResponse.links": lambda seen: {(one.sender, one.receiver) for one in seen.a.links} == LINKS_OF_A,
    "StatusResponse.alarms": lambda seen: [len(one.alarms) for one in seen[:3]] == [1, 1, 0],
    "StatusResponse.site": lambda seen: (seen.a.site, seen.b.site) == ("a", "b"),
    "StatusResponse.commit": lambda seen: 0 < seen.a.commit <= seen.cluster["a"].storage.number,
    "StatusResponse.activity": lambda seen: seen.a.HasField("activity"),
    "StatusResponse.limits": lambda seen: seen.a.limits.keys() == Limits.__dataclass_fields__.keys(),
    "StatusResponse.placement": lambda seen: [rule.prefix for rule in seen.a.placement] == [b"", b"x/", b"y/"],
    "Activity.held": lambda seen: (seen.a.activity.held, seen.c.activity.held) == (0, 1),
    "Activity.held_oldest_ms": lambda seen: 20 <= seen.c.activity.held_oldest_ms < 40_000,
    "Activity.held_total_ms": lambda seen: seen.c.activity.held_total_ms == seen.c.activity.held_oldest_ms,
    "Activity.held_false_ms": lambda seen: seen.c.activity.held_false_ms == 0,
    "Activity.log_units": lambda seen: seen.a.activity.log_units > 0,
    "Activity.control_bytes": lambda seen: seen.a.activity.control_bytes > 8 * 4,
    "Activity.messages_sent": lambda seen: [one.activity.messages_sent for one in seen[:3]] == [8, 2, 0],
    "Activity.messages_extra": lambda seen: seen.a.activity.messages_extra == 0,  # see below for some
    "Activity.messages_delivered": lambda seen: [one.activity.messages_delivered for one in seen[:3]] == [1, 4, 0],
    "Activity.duplicates": lambda seen: seen.a.activity.duplicates == 0,
    "Activity.commits_per_second": lambda seen: 0 < seen.a.activity.commits_per_second < 1000,
    "Activity.updates_per_second": lambda seen: 0 < seen.a.activity.updates_per_second < 1000,
    "Activity.inbox": lambda seen: seen.a.activity.inbox == 0,  # see below for a full one
    "Activity.watches": lambda seen: (seen.a.activity.watches, seen.b.activity.watches) == (1, 0),
    "Activity.snapshots": lambda seen: (seen.a.activity.snapshots, seen.b.activity.snapshots) == (1, 0),
    "Activity.keys": lambda seen: (seen.a.activity.keys, seen.c.activity.keys) == (3, 0),
    "Activity.tombstones": lambda seen: (seen.a.activity.tombstones, seen.c.activity.tombstones) == (1, 0),
    "Activity.storage_bytes": lambda seen: seen.a.activity.storage_bytes > 4096,
    "Activity.watch_oldest": lambda seen: oldest(seen.a.activity) == (A, 1, 0),
    "Activity.clock": lambda seen: is_now(seen.a.activity.clock, seen),
    "ReplicaStatus.name": lambda seen: known(seen.a, "b").name == "b",
    "ReplicaStatus.number": lambda seen: known(seen.a, "b").number == B,
    "ReplicaStatus.client": lambda seen: known(seen.a, "b").client == seen.cluster.cluster.sites[B].client,
    "ReplicaStatus.peer": lambda seen: known(seen.a, "b").peer == seen.cluster.cluster.sites[B].peer,
    "ReplicaStatus.incarnation": lambda seen: [one.incarnation for one in seen.a.replicas] == [1, 1, 1],
    "ReplicaStatus.connected": lambda seen: all(one.connected for one in (*seen.a.replicas, *seen.b.replicas)),
    "ReplicaStatus.delivered": lambda seen: [one.delivered for one in seen.b.replicas] == [4, 1, 0],
    "ReplicaStatus.heard_ms": lambda seen: (
        known(seen.a, "b").HasField("heard_ms") and known(seen.a, "b").heard_ms < 5_000
    ),
    "ReplicaStatus.clock_ahead_ms": lambda seen: abs(known(seen.b, "a").clock_ahead_ms) < 1_000,
    "ReplicaStatus.promise": lambda seen: is_now(known(seen.b, "a").promise, seen) and not known(seen.c, "a").promise,
    "LinkStatus.sender": lambda seen: link(seen.b, "a", "b").sender == "a",
    "LinkStatus.receiver": lambda seen: link(seen.b, "a", "b").receiver == "b",
    "LinkStatus.connected": lambda seen: (
        link(seen.a, "a", "b").connected
        and link(seen.b, "a", "b").connected
        and not link(seen.a, "a", "c").connected
        and not link(seen.c, "a", "c").connected
    ),
    "LinkStatus.trouble": lambda seen: "cut" in link(seen.a, "a", "c").trouble and not link(seen.a, "a", "b").trouble,
    "LinkStatus.delay_ms": lambda seen: (
        [link(one, "a", "b").delay_ms for one in (seen.a, seen.b)] == [DELAY_MS] * 2
        and [link(one, "b", "a").delay_ms for one in (seen.a, seen.b)] == [DELAY_MS + 1] * 2
    ),
    "LinkStatus.ack_ms": lambda seen: 2 * DELAY_MS <= link(seen.a, "a", "b").ack_ms < 5_000,
    "LinkStatus.made": lambda seen: [link(seen.a, "a", to).made for to in "bc"] == [4, 4],
    "LinkStatus.passed": lambda seen: (
        [link(one, "a", "b").passed for one in (seen.a, seen.b)] == [4, 4]
        and link(seen.a, "a", "c").passed == 0
        and link(seen.c, "b", "c").passed == 1
    ),
    "LinkStatus.acked": lambda seen: (
        [link(one, "a", "b").acked for one in (seen.a, seen.b)] == [4, 4] and link(seen.c, "b", "c").acked == 0
    ),
    "LinkStatus.queue": lambda seen: (link(seen.c, "b", "c").queue, link(seen.b, "a", "b").queue) == (1, 0),
    "LinkStatus.outbox_messages": lambda seen: [link(seen.a, "a", to).outbox_messages for to in "bc"] == [0, 4],
    "LinkStatus.outbox_bytes": lambda seen: [link(seen.a, "a", to).outbox_bytes > 0 for to in "bc"] == [False, True],
    "LinkStatus.connects": lambda seen: [link(seen.a, "a", to).connects for to in "bc"] == [1, 0],
    "Alarm.reason": lambda seen: seen.a.alarms[0].reason == "OUTBOX_FILLING",
    "Alarm.message": lambda seen: "4 messages wait for c" in seen.a.alarms[0].message,
    "Alarm.since_ms": lambda seen: seen.began_ms <= seen.a.alarms[0].since_ms < seen.began_ms + 60_000,
    "Alarm.details": lambda seen: seen.a.alarms[0].details["peer"] == "c",
    "PlacementRule.prefix": lambda seen: seen.a.placement[1].prefix == b"x/",
    "PlacementRule.sites": lambda seen: [list(rule.sites) for rule in seen.a.placement] == [ALL, ["a", "b"], ALL],
    "PlacementRule.merge": lambda seen: {rule.merge for rule in seen.a.placement} == {"lww"},
}
NOT_YET = {
    "Activity.waiting": "there are no sessions in this version",
}


def oldest(activity: Activity) -> tuple[int, int, int]:
    place = activity.watch_oldest
    return place.site, place.incarnation, place.index


def fields_below(message: Descriptor) -> Iterator[str]:
    """Every field of a message and of the messages in it, as far as they are of status.proto."""
    for field in message.fields:
        yield f"{message.name}.{field.name}"
        inner = field.message_type
        if inner is not None and inner.file == message.file and not inner.GetOptions().map_entry:
            yield from fields_below(inner)


def test_no_field_is_left_out() -> None:
    assert sorted(fields_below(StatusResponse.DESCRIPTOR)) == sorted([*FIELDS, *NOT_YET])


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_says_what_it_promises(seen: Seen, field: str) -> None:
    assert FIELDS[field](seen), seen[:3]


@pytest.mark.parametrize("field", NOT_YET)
def test_what_does_not_exist_yet_is_zero(seen: Seen, field: str) -> None:
    message, name = field.split(".")
    assert message == "Activity" and not getattr(seen.a.activity, name)


def test_a_site_that_was_never_heard_has_no_time_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        cut = (("a", "b"), ("b", "a"))
        async with running(tmp_path, replicas=2, cut=cut) as cluster:
            status = await cluster.admin("a").Status(status_pb2.StatusRequest())
            other = known(status, "b")
            assert not other.HasField("heard_ms") and not other.connected and not other.incarnation

    asyncio.run(asyncio.wait_for(story(), 40))


def test_options_extra_messages_and_a_full_inbox_are_shown_where_there_are_any(tmp_path: Path) -> None:
    async def story() -> None:
        wishes: dict[str, Any] = {"replicas": 4, "protocol": "extra-message", "options": {"threshold": 5}}
        async with running(tmp_path, **wishes) as cluster:
            await cluster.until_open()
            for number in range(5):  # all at once, so that each knows of messages that others do not have
                await asyncio.gather(*(cluster.put(name, b"%d" % number) for name in "abcd"))
            await until(lambda: any(node.replica.ordering.clock > 5 for node in cluster.nodes.values()))
            node = cluster["b"]
            waiting = [asyncio.create_task(cluster.put("b", b"w%d" % number)) for number in range(3)]
            await asyncio.sleep(0)
            in_inbox = module.status_of(node).activity.inbox
            await asyncio.gather(*waiting)
            statuses = [await cluster.admin(name).Status(status_pb2.StatusRequest()) for name in "abcd"]
            assert in_inbox == 3
            assert {status.options["threshold"] for status in statuses} == {5}
            assert sum(status.activity.messages_extra for status in statuses) > 0

    asyncio.run(asyncio.wait_for(story(), 40))


# Keys and tombstones


def counts(stage: Stage, site: int = A) -> Counts:
    with stage.storages[site].snapshot() as view:
        return count_keys(view)


def delete(stage: Stage, key: bytes) -> None:
    stage.step(A, Write((Operation(key, None),)))


def test_deleted_keys_are_counted_as_such_until_they_are_written_again() -> None:
    stage = Stage(2, "optimal")
    for key in (b"one", b"two", b"three"):
        stage.write(A, key)
    assert counts(stage) == Counts(3, 0)
    delete(stage, b"two")
    delete(stage, b"two")  # two marks, one tombstone
    delete(stage, b"three")
    assert counts(stage) == Counts(1, 2)
    stage.write(A, b"two")  # a mark that is not true any more
    assert counts(stage) == Counts(2, 1)


def test_values_that_will_expire_are_values() -> None:
    stage = Stage(2, "optimal")
    stage.step(A, Write((Operation(b"soon", b"v", 1_000),)))
    assert counts(stage) == Counts(1, 0)


def test_of_very_many_deletes_a_part_is_looked_at_and_the_rest_taken_to_be_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(2, "optimal")
    keys = [b"%03d" % number for number in range(100)]
    for key in keys:
        stage.write(A, key)
    for key in keys[:60]:
        delete(stage, key)
    stage.step(A, Write((Operation(b"soon", b"v", 1_000),)))
    exact = counts(stage)
    monkeypatch.setattr(module, "MARKS_MAX", 10)
    assert counts(stage) == exact == Counts(41, 60)
    monkeypatch.setattr(module, "EXPIRING_MAX", 1)
    assert counts(stage) == Counts(91, 10)  # at least so many are deleted
