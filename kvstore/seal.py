"""Tokens: the past of a session as sealed bytes.

A token comes from outside, so it is input like any other, and dangerous input: a forged one could let an effect pass
its cause, or block a link for ever (SAFETY 10). Each carries a keyed digest (BLAKE2b) over the cluster, the protocol,
the placement and all of its content; what does not match is refused unread. The content is not secret: it names
messages, not keys or values.

    format | digest | time | bytes of seen | seen | bytes of witness | witness | context, as `causal` packs a token

The keys are the cluster's (`[auth] session_key_file`): the first one seals, each one opens, so that keys can be
exchanged one restart at a time. Without a key file, the key is made from the cluster's id: that keeps apart what does
not belong together, but whoever knows the id can forge.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct
from typing import Any

from causal import CausalError, decode_token, encode_token, make_site
from causal.blocks import Reader, pack_text
from causal.multicast import Multicast
from causal.protocols import PROTOCOLS
from kvstore.clock import TIME_BELIEVED, time_ms
from kvstore.config import Cluster
from kvstore.errors import BadToken, ConfigError, NoSessions
from kvstore.past import Past, pack_dots, unpack_dots

FORMAT = 1  # of a token; any other is refused
DIGEST_BYTES = 16
CACHED = 4096  # tokens that were opened or sealed lately, and need not be opened again

_TIME = Struct("<Q")
_CONTENT_AT = 1 + DIGEST_BYTES


class Seal:
    """Seals and opens the tokens of one cluster under one protocol."""

    def __init__(self, cluster: Cluster) -> None:
        # Bytes and contexts are the same at every site of a protocol, so any site can pack them.
        self._ordering = make_site(cluster.protocol, 0, len(cluster.sites), **cluster.options)
        self.has_sessions = self._ordering.is_causal
        self._bytes_max = cluster.limits.token_bytes_max
        self._protocol = cluster.protocol
        if cluster.session_key_file and not cluster.session_keys:
            raise ConfigError(file="-", key="auth.session_key_file", why="it was not read, and tokens need its keys")
        hashes = cluster.hashes()
        parts = (cluster.cluster_id, hashes.protocol, hashes.placement)
        domain = b"".join(pack_text(part.encode()) for part in parts)
        keys = cluster.session_keys or (blake2b(cluster.cluster_id.encode(), digest_size=32).digest(),)
        self._digests = [blake2b(domain, key=key, digest_size=DIGEST_BYTES, person=b"kvstore token") for key in keys]
        self._pasts: OrderedDict[bytes, Past] = OrderedDict()
        self.on_seal: Callable[[Past], None] = lambda past: None  # who wants to know what sessions are told

    def check_sessions(self) -> None:
        if not self.has_sessions:
            raise NoSessions(protocol=self._protocol)

    def beginning(self) -> Past:
        """Of a session that has seen nothing."""
        self.check_sessions()
        return Past(self._ordering.token(), 0, ())

    def seal(self, past: Past) -> bytes:
        content = b"".join(
            (
                _TIME.pack(past.time),
                pack_text(pack_dots(past.seen)),
                pack_text(past.witness),
                encode_token(self._ordering, past.context),
            )
        )
        digest = self._digest(0, content)
        token = bytes((FORMAT,)) + digest + content
        if len(token) > self._bytes_max:
            raise BadToken(why=f"it would take {len(token)} bytes; at most {self._bytes_max} are possible")
        self.on_seal(past)
        self._keep(token, past._replace(name=digest.hex()))
        return token

    def open(self, token: bytes) -> Past:
        found = self._pasts.get(token)
        if found is not None:
            return found
        self.check_sessions()
        if len(token) > self._bytes_max:
            raise BadToken(why=f"{len(token)} bytes; at most {self._bytes_max} are possible")
        if len(token) <= _CONTENT_AT or token[0] != FORMAT:
            raise BadToken(why="it is cut short, or of another format")
        digest, content = token[1:_CONTENT_AT], token[_CONTENT_AT:]
        if not any(compare_digest(digest, self._digest(place, content)) for place in range(len(self._digests))):
            raise BadToken(why="its seal is not of this cluster, protocol and placement")
        try:
            past = _unpack(self._ordering, content, digest.hex())
        except CausalError as error:
            raise BadToken(why=str(error)) from None
        self._keep(token, past)
        return past

    def _digest(self, place: int, content: bytes) -> bytes:
        digest = self._digests[place].copy()
        digest.update(content)
        return digest.digest()

    def _keep(self, token: bytes, past: Past) -> None:
        self._pasts[token] = past
        if len(self._pasts) > CACHED:
            self._pasts.popitem(last=False)


def _unpack(ordering: Multicast[Any], content: bytes, name: str) -> Past:
    reader = Reader(content)
    (time,) = _TIME.unpack(reader.take(_TIME.size))
    seen = unpack_dots(reader.text(), ordering.sites)
    witness = reader.text()
    if witness:
        clocks = Reader(witness)
        clocks.numbers(ordering.sites)
        clocks.finish()
    context = decode_token(ordering, reader.take(reader.left()))
    return Past(context, min(time, TIME_BELIEVED), seen, witness, name)


def describe(token: bytes) -> dict[str, Any]:
    """What a token says, for people. Its seal is not checked: only a replica has the key."""
    if len(token) <= _CONTENT_AT or token[0] != FORMAT:
        raise BadToken(why="it is cut short, or of another format")
    try:
        ordering = _ordering_of(token[_CONTENT_AT:])
        past = _unpack(ordering, token[_CONTENT_AT:], "")
    except CausalError as error:
        raise BadToken(why=str(error)) from None
    newest = {site: past.context.highest(site) for site in range(ordering.sites)}
    return {
        "bytes": len(token),
        "digest": token[1:_CONTENT_AT].hex(),
        "protocol": ordering.name,
        "sites": ordering.sites,
        "time": f"{past.time:016x}",
        "time_ms": time_ms(past.time),
        "units": past.context.units(),
        "newest": {str(site): seq for site, seq in newest.items() if seq},
        "seen": "everything" if past.seen is None else [f"message {dot.seq} of site {dot.site}" for dot in past.seen],
    }


def _ordering_of(content: bytes) -> Multicast[Any]:
    """A site of the protocol that the token is of: the preamble of its context says which."""
    reader = Reader(content)
    reader.take(_TIME.size)
    reader.text()
    reader.text()
    _, number = reader.take(2)
    sites = reader.number()
    for name, protocol in PROTOCOLS.items():
        if protocol.number == number and protocol.is_causal:
            return make_site(name, 0, sites)
    raise BadToken(why=f"there is no causal protocol number {number}")
