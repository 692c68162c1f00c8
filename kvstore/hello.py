"""The hello of a link: who we are, what both must agree on, and whether one of us has lost its memory.

Two replicas that differ in the cluster, the protocol, the placement or the merge would send updates astray, so nothing
passes between them before all of it was compared (SAFETY 5). A refusal names both values: one of them is wrong, and
only an operator knows which.

*Amnesia* is worse, because a replica with an old copy of its data looks quite healthy (SAFETY 3). It would use dots
again for other updates, and nobody would ever get the first ones. But its peers remember what it said:

    the receiver has more messages of the sender than the sender ever sent   the sender has forgotten
    the receiver has heard, from anyone, of a dot the sender has not used    the sender has forgotten
    the receiver asks for a message that it has acknowledged                 the receiver has forgotten
    a lower incarnation than before says hello                               an old copy has come back

What a site ever sent is what was on disk when it started and what it put on a link since, not what it made in the
meantime: numbers that are used again would hide the loss. Sessions tell of messages too, before those are on a link.
Once a number was used again and is on one link, nothing tells it from the lost one on another; but a replica that lost
its memory dials all its peers at once, and each of them may find it out. A *newer* incarnation is a restored copy; it
may come in if it has lost nothing by these rules.

Here is only the judging; rpc/links.py says hello and rpc/peering.py answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from causal import make_site
from causal.model import Site
from kvstore.config import Cluster
from kvstore.errors import Amnesia, BadRequest, ClusterMismatch, KvError, error_of
from kvstore.replica import Replica

WIRE_VERSION = 1  # of the frames on a link and of the bytes in them; any other is refused
ENVELOPES_MAX = 4096  # messages in one frame, whatever the limits of either side; beyond it: the link is closed
VIEW = 1  # which members there are; they cannot change yet
SHOWN_MAX = 100  # characters of a peer's text in a sentence; beyond it: cut off
SENTENCE_MAX = 500  # characters of a peer's whole sentence; beyond it: the same

OF_THE_SENDER = frozenset(("sent", "incarnation", "known_seq"))  # fields that show that the sender has forgotten


class Greeting(NamedTuple):
    """What the sender of a link says first."""

    wire_version: int
    cluster_id: str
    view: int
    site: Site
    name: str
    incarnation: int
    to: Site
    protocol_hash: str
    placement_hash: str
    merge_hash: str
    sent: int  # the newest message that the receiver can have from us
    oldest: int  # the oldest message that we still keep; sent + 1 when none
    protocol: str = ""  # readable, for the sentence of a refusal
    software: str = ""  # for logs


class Accepted(NamedTuple):
    """What the receiver answers when all is well."""

    up_to: int  # applied and committed here; the next message must be the one after it
    incarnation: int
    known_seq: int  # the newest message of the sender that we have heard of, from anyone
    time: int  # hybrid clock
    wall_ms: int


class Refusal(NamedTuple):
    """A refusal as it travels."""

    reason: str
    message: str
    field: str
    yours: str  # what the sender said
    ours: str  # what the receiver has


def greeting(replica: Replica, peer: Site, *, sent: int, software: str = "") -> Greeting:
    """What we say to a peer. `sent` is the newest message that can have reached it."""
    cluster, hashes, link = replica.cluster, replica.hashes, replica.links[peer]
    return Greeting(
        wire_version=WIRE_VERSION,
        cluster_id=cluster.cluster_id,
        view=VIEW,
        site=replica.site,
        name=cluster.sites[replica.site].name,
        incarnation=replica.incarnation,
        to=peer,
        protocol_hash=hashes.protocol,
        placement_hash=hashes.placement,
        merge_hash=hashes.merge,
        sent=sent,
        oldest=min(link.acked, sent) + 1,
        protocol=protocol_text(cluster),
        software=software,
    )


def judge(replica: Replica, hello: Greeting, *, up_to: int, time: int, wall_ms: int) -> Accepted | KvError:
    """Whether the receiver takes this link. `up_to` is what it has committed of it, `time` what it may speak of."""
    for error in _mismatches(replica, hello):
        return error
    peer, us = hello.name, replica.cluster.sites[replica.site].name
    remembered = replica.links[hello.site].incarnation
    if not 1 <= hello.oldest <= hello.sent + 1:
        return BadRequest(why=f"a hello that keeps messages from {hello.oldest} on, of {hello.sent}", field="oldest")
    if hello.incarnation < remembered:
        return _amnesia("incarnation", "incarnation", who=peer, has=hello.incarnation, witness=us, knows=remembered)
    if up_to > hello.sent:
        return _amnesia("sent", "link message", who=peer, has=hello.sent, witness=us, knows=up_to)
    if up_to + 1 < hello.oldest:
        what = "the acknowledgement of link message"
        return _amnesia("oldest", what, who=us, has=up_to, witness=peer, knows=hello.oldest - 1)
    # A restored peer must learn what it once promised, or it would break the promise with its next message (SAFETY 16).
    time = max(time, replica.links[hello.site].promise)
    return Accepted(up_to, replica.incarnation, replica.known_seq(hello.site), time, wall_ms)


def judge_reply(replica: Replica, hello: Greeting, reply: Accepted, *, clock: int) -> KvError | None:
    """Whether the sender goes on after this answer. `clock` is the newest dot that anybody can have heard of."""
    peer, us = replica.cluster.sites[hello.to].name, hello.name
    remembered = max(replica.links[hello.to].incarnation, 1)
    if reply.incarnation < remembered:
        return _amnesia("incarnation", "incarnation", who=peer, has=reply.incarnation, witness=us, knows=remembered)
    if reply.known_seq > clock:
        return _amnesia("known_seq", "message", who=us, has=clock, witness=peer, knows=reply.known_seq)
    if reply.up_to > hello.sent:
        return _amnesia("sent", "link message", who=us, has=hello.sent, witness=peer, knows=reply.up_to)
    if reply.up_to + 1 < hello.oldest:
        what = "the acknowledgement of link message"
        return _amnesia("up_to", what, who=peer, has=reply.up_to, witness=us, knows=hello.oldest - 1)
    return None


def is_forgetful(error: KvError, name: str) -> bool:
    """Whether it is this site that has lost its memory."""
    return isinstance(error, Amnesia) and error.details.get("site") == name


def fence_of(error: KvError) -> KvError:
    """What a replica that lost its memory says to everybody from now on.

    It was found by a field of its own hello. Told to others, that would be a field of *their* hello, and they would
    take themselves for the one who forgot.
    """
    details = {name: value for name, value in error.details.items() if name != "field"}
    return error_of(error.reason, str(error), details, definite=True)


# A refusal on its way: the receiver's error becomes the sender's


def refusal(error: KvError) -> Refusal:
    """What the receiver answers instead of an Accepted."""
    details, field = error.details, error.details.get("field", "")
    here, there = details.get("here", ""), details.get("there", "")
    by_sender = isinstance(error, Amnesia) and field in OF_THE_SENDER  # then `here` is what the sender remembers
    yours, ours = (here, there) if by_sender else (there, here)
    return Refusal(error.reason, str(error), field, yours, ours)


def refused(answer: Refusal, *, name: str, peer: str) -> KvError:
    """The receiver's error as the sender sees it."""
    forgetful = name if answer.field in OF_THE_SENDER else peer
    here, there = _shown(answer.yours), _shown(answer.ours)
    details = {"field": _shown(answer.field), "here": here, "there": there, "peer": peer, "site": forgetful}
    message = f"{peer} refuses the link: {_shown(answer.message, most=SENTENCE_MAX)}"
    return error_of(answer.reason, message, details, definite=True)


# What must be equal


def _mismatches(replica: Replica, hello: Greeting) -> Iterator[KvError]:
    """Everything that differs, the most telling first: what follows a difference may make no sense any more."""
    cluster, hashes = replica.cluster, replica.hashes
    if hello.wire_version != WIRE_VERSION:
        yield _mismatch("wire_version", "wire format", WIRE_VERSION, hello.wire_version)
    if hello.cluster_id != cluster.cluster_id:
        yield _mismatch("cluster_id", "cluster id", cluster.cluster_id, hello.cluster_id)
    if hello.view != VIEW:
        yield _mismatch("view", "view", VIEW, hello.view)
    if hello.to != replica.site:
        yield _mismatch("to", "number of the receiving site", replica.site, hello.to)
    if hello.site not in replica.links:
        others = ", ".join(map(str, sorted(replica.links)))
        yield _mismatch("site", "number of the sending site", f"one of {others or 'none'}", hello.site)
    else:
        name = cluster.sites[hello.site].name
        if hello.name != name:
            yield _mismatch("name", f"name of site {hello.site}", name, hello.name)
    if hello.protocol_hash != hashes.protocol:
        texts = protocol_text(cluster), hello.protocol
        here, there = texts if texts[0] != texts[1] else (hashes.protocol, hello.protocol_hash)
        yield _mismatch("protocol_hash", "protocol", here, there)
    if hello.placement_hash != hashes.placement:
        yield _mismatch("placement_hash", "digest of the placement", hashes.placement, hello.placement_hash)
    if hello.merge_hash != hashes.merge:
        yield _mismatch("merge_hash", "digest of the merge table", hashes.merge, hello.merge_hash)
    if hello.incarnation < 1:
        yield _mismatch("incarnation", "least incarnation", 1, hello.incarnation)


def protocol_text(cluster: Cluster) -> str:
    """The protocol with its options, defaults filled in, as a person would write it."""
    options = make_site(cluster.protocol, 0, len(cluster.sites), **cluster.options).options
    return " ".join((cluster.protocol, *(f"{name}={value}" for name, value in sorted(options.items()))))


def _mismatch(field: str, what: str, here: object, there: object) -> ClusterMismatch:
    return ClusterMismatch(what=what, here=_shown(here), there=_shown(there), field=field)


def _amnesia(field: str, what: str, *, who: str, has: int, witness: str, knows: int) -> Amnesia:
    return Amnesia(peer=witness, what=what, there=knows, site=who, here=has, field=field)


def _shown(value: object, most: int = SHOWN_MAX) -> str:
    """A peer may say anything; a sentence and a terminal may not."""
    text = str(value)[:most]
    return text if text.isprintable() and text else repr(text)
