"""How a replica is, put together from what its parts say of themselves: StatusResponse, as status.proto promises it.

Everything is asked in one go on the loop, so the numbers belong together. What memory says may be a commit ahead of the
disk; for a look at a running replica that is as good.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from causal.model import Site
from kvstore.alarms import Standing, heard_ms
from kvstore.hello import VIEW
from kvstore.layout import EXPIRY, TOMBSTONE, tombstone_of
from kvstore.placement import PrefixTable
from kvstore.storage.contract import Snapshot
from kvstore.update import unpack_record
from kvstore.v1 import model_pb2, status_pb2
from kvstore.version import software_version

if TYPE_CHECKING:
    from kvstore.node import Node

MARKS_MAX = 1000  # marks of deletes that one status looks at; beyond it: the rest is taken to be like them
EXPIRING_MAX = 10_000  # marks of values that will expire, counted then; beyond it: the rest of the deletes is left out


def status_of(node: Node) -> status_pb2.StatusResponse:
    cluster, replica = node.cluster, node.replica
    with node.storage.snapshot() as view:
        commit, counts = view.number, count_keys(view)
    return status_pb2.StatusResponse(
        cluster_id=cluster.cluster_id,
        view=VIEW,
        site_number=node.site.number,
        incarnation=replica.incarnation,
        protocol=cluster.protocol,
        options=replica.ordering.options,
        durability=str(cluster.durability),
        software=software_version(),
        uptime_ms=max(0, node.now_ms() - node.started_ms),
        replicas=[_replica(node, site.number) for site in cluster.sites],
        links=[link for peer in sorted(replica.links) for link in (_link_to(node, peer), _link_from(node, peer))],
        alarms=[_alarm(standing) for standing in node.alarms.current()],
        site=node.site.name,
        commit=commit,
        activity=_activity(node, counts),
        limits={name: float(value) for name, value in asdict(cluster.limits).items()},
        placement=list(_placement(node)),
    )


# What it does


def _activity(node: Node, counts: Counts) -> status_pb2.Activity:
    replica, now_ms = node.replica, node.now_ms()
    waited_ms = [max(0, now_ms - transit.since_ms) for transit in replica.held.values()]
    counted, rates = node.metrics.snapshot(), node.metrics.rates()
    oldest = model_pb2.Position(
        site=node.site.number, incarnation=replica.incarnation, index=replica.keys.changes_oldest - 1
    )
    return status_pb2.Activity(
        held=len(waited_ms),
        held_oldest_ms=max(waited_ms, default=0),
        held_total_ms=round(counted["kvstore_hold_seconds_sum"] * 1000) + sum(waited_ms),
        held_false_ms=round(counted["kvstore_hold_false_seconds_total"] * 1000),
        log_units=replica.ordering.context.units(),
        control_bytes=int(counted["kvstore_control_bytes_total"]),
        messages_sent=int(counted["kvstore_messages_sent_total"]),
        messages_extra=int(counted["kvstore_messages_extra_total"]),
        messages_delivered=int(counted["kvstore_messages_delivered_total"]),
        duplicates=int(counted["kvstore_messages_duplicate_total"]),
        commits_per_second=rates.commits,
        updates_per_second=rates.updates,
        inbox=node.loop.inbox,
        waiting=node.sessions.waiting,
        watches=node.feed.watches,
        snapshots=len(node.leases),
        keys=counts.keys,
        tombstones=counts.tombstones,
        storage_bytes=node.storage.size_bytes(),
        watch_oldest=oldest,
        clock=replica.clock.latest,
    )


class Counts(NamedTuple):
    keys: int  # with a value
    tombstones: int


def count_keys(view: Snapshot) -> Counts:
    """A deleted key stays in its table until its tombstone may go, so the deleted ones are taken off.

    A mark of a delete is only a hint: the key may have been written again since, or deleted again. So each is looked
    at; where there are too many, as many of the others are taken to be true.
    """
    looked_at = dead = 0
    for mark, _ in view.scan("tombstones", TOMBSTONE, limit=MARKS_MAX):
        version, key = tombstone_of(mark)
        data = view.get("keys", key)
        record = None if data is None else unpack_record(data, key=key)
        looked_at += 1
        dead += record is not None and record.value is None and record.version == version
    if looked_at == MARKS_MAX:
        expiring = sum(1 for _ in view.scan("tombstones", EXPIRY, TOMBSTONE, limit=EXPIRING_MAX))
        if expiring < EXPIRING_MAX:
            dead = dead * (view.count("tombstones") - expiring) // looked_at
    return Counts(max(0, view.count("keys") - dead), dead)


# Sites and links


def _replica(node: Node, number: Site) -> status_pb2.ReplicaStatus:
    site, replica = node.cluster.sites[number], node.replica
    shown = status_pb2.ReplicaStatus(name=site.name, number=number, client=site.client, peer=site.peer)
    if number == replica.site:
        shown.incarnation, shown.connected, shown.heard_ms = replica.incarnation, True, 0
        shown.delivered, shown.promise = replica.ordering.clock, replica.clock.latest
        return shown
    link, heard = replica.links[number], heard_ms(node, number)
    shown.incarnation = link.incarnation
    shown.connected = node.links.state(number).connected or node.peering.state(number).connected
    shown.delivered = replica.ordering.delivered[number]
    shown.clock_ahead_ms = -(link.wall_ahead_ms or 0)
    shown.promise = link.promise
    if heard is not None:
        shown.heard_ms = heard
    return shown


def _link_to(node: Node, peer: Site) -> status_pb2.LinkStatus:
    link, state = node.replica.links[peer], node.links.state(peer)
    return status_pb2.LinkStatus(
        sender=node.site.name,
        receiver=node.cluster.sites[peer].name,
        connected=state.connected,
        trouble=state.trouble,
        delay_ms=round(node.shape.delay_ms(peer)),
        ack_ms=state.ack_ms,
        made=link.sent,
        passed=max(state.passed, link.acked),  # what is acknowledged was sent, if not by this process
        acked=link.acked,
        queue=state.queue,
        outbox_messages=link.sent - link.acked,
        outbox_bytes=link.outbox_bytes,
        connects=state.connects,
    )


def _link_from(node: Node, peer: Site) -> status_pb2.LinkStatus:
    link, state = node.replica.links[peer], node.peering.state(peer)
    return status_pb2.LinkStatus(
        sender=node.cluster.sites[peer].name,
        receiver=node.site.name,
        connected=state.connected,
        trouble=state.trouble,
        delay_ms=round(node.shape.delay_ms(peer, incoming=True)),
        passed=max(state.passed, link.received),
        acked=link.applied,
        queue=state.queue,
        connects=state.connects,
    )


def _alarm(standing: Standing) -> status_pb2.Alarm:
    alarm, since_ms = standing
    return status_pb2.Alarm(reason=alarm.reason, message=alarm.message, since_ms=since_ms, details=dict(alarm.details))


def _placement(node: Node) -> Iterator[status_pb2.PlacementRule]:
    """A rule for every prefix of either table, so that the longest one that fits a key says both."""
    cluster = node.cluster
    sites, merges = PrefixTable(cluster.placement), PrefixTable(cluster.merge)
    for prefix in sorted({*cluster.placement, *cluster.merge}):
        yield status_pb2.PlacementRule(prefix=prefix, sites=sites.find(prefix), merge=merges.find(prefix))
