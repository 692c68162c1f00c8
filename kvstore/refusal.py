"""Why a client's write cannot be taken now: asked before anything changes, so that every refusal is definite.

What depends on other keys or replicas is decided here alone: conditions, replaced versions, limits, a session's past.
What is wrong with a request in itself was found at the door (rpc/decode.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from causal.errors import FromTheFuture
from causal.model import Mask, sites_of
from kvstore.clock import time_ms
from kvstore.effects import ABSENT, Operation, Write
from kvstore.errors import (
    Amnesia,
    ClockSkew,
    KvError,
    OutboxFull,
    PastMissing,
    Restored,
    TooManySiblings,
    UnseenVersion,
    VersionMismatch,
)
from kvstore.merge import siblings_max
from kvstore.past import Past
from kvstore.update import REPLACES_MAX, Update, Version, escape, living, records_of

if TYPE_CHECKING:
    from kvstore.replica import Replica


def refusal_of_site(replica: Replica, write: Write, to: Mask) -> KvError | None:
    """Because of how this site is now, whatever the write is about."""
    limits, sites = replica.cluster.limits, replica.cluster.sites
    name = sites[replica.site].name
    if replica.fence is not None:
        return replica.fence
    if replica.unproven:
        return Restored(site=name, peers=", ".join(sites[peer].name for peer in sorted(replica.unproven)))
    ahead = [link.wall_ahead_ms for link in replica.links.values() if link.wall_ahead_ms is not None]
    if ahead and min(ahead) > limits.clock_skew_max_ms:
        return ClockSkew(site=name, ahead_ms=min(ahead), limit=limits.clock_skew_max_ms)
    for peer in sites_of(to):
        size = replica.links[peer].outbox_bytes
        if size >= limits.outbox_bytes_max:
            return OutboxFull(peer=sites[peer].name, size=size, limit=limits.outbox_bytes_max)
    return None


def refusal_of_past(replica: Replica, write: Write) -> KvError | None:
    """Because the session that writes has seen what is not here. Whoever brings the write has waited for it.

    Without a session, because of a version that it is said to follow.
    """
    sites = replica.cluster.sites
    name = sites[replica.site].name
    if write.past is None:
        for version in write.depends:
            if replica.messages.of((version,)) is None and version.time > _heard(replica, version.site):
                return UnseenVersion(version=str(version), key="what it depends on", site=name)
        return None
    try:
        missing = replica.ordering.first_missing(write.past.context)
    except FromTheFuture:  # it names a message of ours that we do not know to have sent (SAFETY 3)
        there = write.past.context.highest(replica.site)
        return Amnesia(peer="a session", what="message", there=there, site=name, here=replica.ordering.clock)
    if missing is not None:
        return PastMissing(site=name, origin=sites[missing.site].name, seq=missing.seq, waited_ms=0)
    return None


def refusal_of_key(replica: Replica, one: Operation, past: Past | None, clock_ms: int) -> KvError | None:
    """Because of what is under the key. What a session saw expire is gone, also by a clock that is behind."""
    record = replica.keys.record(one.key)
    values = living(record, clock_ms if past is None else max(clock_ms, time_ms(past.time)))
    if one.expect is not None:
        found = [value.version for value in values] or [ABSENT]
        if found != [one.expect]:
            shown = ", ".join(map(_shown, found))
            return VersionMismatch(key=escape(one.key), found=shown, expected=_shown(one.expect))
    here = [value.version for value in records_of(record)]
    for version in one.replaces:
        if version not in here and version.time > _heard(replica, version.site):
            site = replica.cluster.sites[replica.site].name
            return UnseenVersion(version=str(version), key=escape(one.key), site=site)
    if not replica.keys.is_siblings(one.key):
        return None
    most = siblings_max(len(replica.cluster.sites))
    gone = replaced(replica, one, None)
    is_full = one.value is not None and len(here) - len(gone) >= most
    if is_full or len(gone) >= REPLACES_MAX:
        return TooManySiblings(key=escape(one.key), count=len(here), limit=most)
    return None


def replaced(replica: Replica, one: Operation, before: Update | None) -> tuple[Version, ...]:
    """Where keys merge by siblings, what a write takes away: of what is here, what its client names; with a condition,
    or for a delete that names nothing, all of it; and what the same write took away before, in another operation.

    What is named and not here any more was replaced here before, so it is replaced everywhere before this write.
    """
    is_named = one.expect is None and (one.replaces or one.value is not None)
    here = [value.version for value in replica.keys.records(one.key)]
    gone = [version for version in here if not is_named or version in one.replaces]
    return tuple(gone) if before is None else tuple(dict.fromkeys((*before.replaces, *gone)))


def taken_unnamed(replica: Replica, write: Write) -> list[Version]:
    """What its deletes may take away without naming it."""
    deletes = [one.key for one in write.operations if one.value is None and replica.keys.is_siblings(one.key)]
    return [value.version for key in deletes for value in replica.keys.records(key)]


def _heard(replica: Replica, site: int) -> int:
    """Everything that a site wrote up to this time, for this site, has been here. Of nobody: nothing."""
    if site == replica.site:
        return replica.clock.latest
    link = replica.links.get(site)
    return -1 if link is None else link.promise


def _shown(version: Version) -> str:
    return str(version) if version != ABSENT else "none"
