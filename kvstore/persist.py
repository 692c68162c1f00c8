"""A replica's state in its tables: one record for all that a step changes beside keys and messages, written with it.

Opening a data directory means reading that record, the request ids and the sizes of the outboxes, and refusing what is
not ours: another cluster, another site, another protocol or order of sites (SAFETY 5).
"""

from __future__ import annotations

from causal import CausalError, dump, load, make_site
from causal.blocks import Reader, pack_count, pack_numbers, pack_text
from causal.model import Site
from kvstore.config import Cluster
from kvstore.errors import CorruptRecord, ForeignData
from kvstore.layout import SITE, outbox_key, outbox_number
from kvstore.replica import Replica
from kvstore.storage.contract import Batch, Snapshot

FORMAT = 1  # of the record in meta; any other is refused


def save(replica: Replica, batch: Batch) -> None:
    """Everything a restart needs, into the batch that changed it."""
    links = [replica.links[peer] for peer in sorted(replica.links)]
    hashes = replica.hashes
    numbers = (
        FORMAT,
        replica.site,
        replica.incarnation,
        replica.reserved,
        replica.keys.changes,
        replica.keys.changes_oldest,
    )
    record = b"".join(
        (
            pack_numbers(numbers),
            pack_text(replica.cluster.cluster_id.encode()),
            pack_text(hashes.protocol.encode()),
            pack_text(hashes.placement.encode()),
            pack_text(hashes.merge.encode()),
            pack_count(len(links)),
            pack_numbers([link.sent for link in links]),
            pack_numbers([link.applied for link in links]),
            pack_numbers([link.promise for link in links]),
            pack_numbers([link.incarnation for link in links]),
            pack_count(len(replica.unproven)),
            pack_numbers(sorted(replica.unproven)),
            pack_text(pack_numbers(replica.notes.witness) if replica.notes.witness is not None else b""),
            pack_text(dump(replica.ordering, with_held=False)),
        )
    )
    batch.puts.append(("meta", SITE, record))


def open_replica(cluster: Cluster, site: Site, view: Snapshot, path: str = "the data directory") -> Replica:
    """The replica that the tables describe; a new one where they are empty."""
    ordering = make_site(cluster.protocol, site, len(cluster.sites), **cluster.options)
    replica = Replica(cluster, site, ordering)
    record = view.get("meta", SITE)
    if record is None:
        if view.number:
            raise ForeignData(path=path, why="it has commits, but no replica wrote them")
        return replica
    try:
        _load(replica, Reader(record), path)
    except CausalError as error:
        raise CorruptRecord(table="meta", key="site", why=str(error)) from None
    replica.requests.load(view)
    _count_outboxes(replica, view)
    return replica


def _load(replica: Replica, reader: Reader, path: str) -> None:
    version, site, replica.incarnation, latest, replica.keys.changes, replica.keys.changes_oldest = reader.numbers(6)
    hashes = replica.hashes
    there = [reader.text().decode() for _ in range(4)]
    here = [replica.cluster.cluster_id, hashes.protocol, hashes.placement, hashes.merge]
    compared: list[tuple[str, object, object]] = [("format", FORMAT, version), ("site number", replica.site, site)]
    compared += zip(("cluster id", "protocol and options", "placement", "merge table"), here, there, strict=True)
    for what, ours, theirs in compared:
        if ours != theirs:
            raise ForeignData(path=path, why=f"its {what} is {theirs}, but this replica's is {ours}")
    replica.clock.latest = replica.reserved = latest
    count = reader.count(len(replica.links))
    columns = zip(*(reader.numbers(count) for _ in range(4)), strict=True)
    for peer, (sent, applied, promise, incarnation) in zip(sorted(replica.links), columns, strict=True):
        link = replica.links[peer]
        link.incarnation = incarnation
        link.sent = link.acked = sent
        link.applied = link.received = applied
        link.promise = promise
    replica.unproven = set(reader.numbers(reader.count(len(replica.links))))
    witness = reader.text()
    replica.notes.witness = Reader(witness).numbers(len(replica.cluster.sites)) if witness else None
    replica.ordering = load(reader.text())
    reader.finish()


def _count_outboxes(replica: Replica, view: Snapshot) -> None:
    for peer, link in replica.links.items():
        for key, packed in view.scan("outbox", outbox_key(peer, 0), outbox_key(peer + 1, 0)):
            link.acked = min(link.acked, outbox_number(key) - 1)
            link.keep(outbox_number(key), len(packed))
