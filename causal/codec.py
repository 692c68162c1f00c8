"""Messages, tokens and whole sites <-> bytes. Whatever comes in is checked; a failure changes nothing.

A copy is a kind, its dot, its destinations and its stamp; the payload travels beside it. Stamps carry no format number:
two sites agree on protocol, options and format before they talk. Tokens and dumps come back after a while, from outside
or from disk, and say what made them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from causal.blocks import Reader, pack_head, pack_numbers, pack_text
from causal.errors import BadOption, Foreign, Malformed
from causal.model import Message, Site, sites_of
from causal.multicast import C, Multicast, Outgoing
from causal.protocols import PROTOCOLS

FORMAT = 1  # of tokens and dumps; any other is refused
TOKEN_MAX = 1 << 24  # bytes; a longer token is refused unread
OPTIONS_MAX = 16  # options of one protocol in a dump


def encode(at: Multicast[Any], outgoing: Outgoing) -> dict[Site, bytes]:
    """Every copy of a message that `at` sends: its control information, by destination."""
    dot, to, stamps, _, is_extra = outgoing
    head = pack_head(is_extra, dot, to, at.sites)
    sites = list(sites_of(to))
    copies: dict[Site, bytes] = {}
    last, copy = None, b""
    for site, stamp in zip(sites, at._pack_stamps(stamps, sites), strict=True):
        if stamp is not last:  # where all copies are alike, they are one
            last, copy = stamp, head + stamp
        copies[site] = copy
    return copies


def decode(at: Multicast[Any], data: bytes, payload: bytes = b"") -> Message:
    """The copy that arrived at `at` as these bytes."""
    reader = Reader(data)
    kind, dot, to = reader.head(at.sites)
    if kind > at.makes_extras:
        raise Malformed(f"{at.name} has no messages of kind {kind}")
    stamp = at._unpack_stamp(reader, to, bool(kind))
    reader.finish()
    message = Message(dot, to, stamp, payload, bool(kind))
    at._check_message(message)
    return message


def encode_token(at: Multicast[C], token: C) -> bytes:
    at._check_sessions()
    return _pack_preamble(at) + at._pack_context(token)


def decode_token(at: Multicast[C], data: bytes) -> C:
    at._check_sessions()
    if len(data) > TOKEN_MAX:
        raise Malformed(f"a token of {len(data)} bytes; at most {TOKEN_MAX} are read")
    reader = Reader(data)
    number, sites = _unpack_preamble(reader)
    if (number, sites) != (at.number, at.sites):
        raise Foreign(f"a token of protocol number {number} among {sites} sites; here it is {at.name} among {at.sites}")
    token = at._unpack_context(reader)
    reader.finish()
    return token


def dump(at: Multicast[Any], *, with_held: bool = True) -> bytes:
    """The whole state of a site: one loaded from it behaves the same from here on.

    Without what it holds, it behaves as if that had not arrived yet: for whoever can have it sent again.
    """
    held = [message for message, _ in at.held] if with_held else []
    options = sorted(at.options.items())
    return b"".join(
        (
            _pack_preamble(at),
            pack_numbers((at.site, at.clock, len(options), len(held))),
            *(pack_text(name.encode()) + pack_numbers((value,)) for name, value in options),
            pack_numbers(at.delivered),
            at._pack_context(at.context),
            at._pack_state(),
            *(pack_text(_encode_held(at, message)) + pack_text(message.payload) for message in held),
        )
    )


def load(data: bytes, protocols: Mapping[str, type[Multicast[Any]]] = PROTOCOLS) -> Multicast[Any]:
    """The site that `dump` wrote."""
    reader = Reader(data)
    number, sites = _unpack_preamble(reader)
    protocol = {protocol.number: protocol for protocol in protocols.values()}.get(number)
    if protocol is None:
        raise Foreign(f"a dump of an unknown protocol, number {number}")
    site, clock, options_count, held_count = reader.numbers(4)
    if options_count > OPTIONS_MAX:
        raise Malformed(f"a dump with {options_count} options")
    options = {reader.text().decode("ascii", "replace"): reader.number() for _ in range(options_count)}
    if options.keys() != (protocol.__init__.__kwdefaults__ or {}).keys():
        raise BadOption(f"{protocol.name} is not made with the options {sorted(options)}")
    at = protocol(site, sites, **options)
    at.clock = clock
    at.delivered = reader.numbers(sites)
    at.context = at._unpack_context(reader)
    at._unpack_state(reader)
    for _ in range(held_count):
        message = decode(at, reader.text(), reader.text())
        missing = at._missing(message)
        if missing is None or message.dot in at._held:
            raise Malformed("a dump holds a message that is due, or one message twice")
        at._hold(message, missing)
    reader.finish()
    if at.context.highest(site) > clock:
        raise Malformed(f"a dump names message {at.context.highest(site)} of a site that sent {clock}")
    return at


def _encode_held(at: Multicast[Any], message: Message) -> bytes:
    dot, to, stamp, _, is_extra = message
    (packed,) = at._pack_stamps(stamp, [at.site])
    return pack_head(is_extra, dot, to, at.sites) + packed


def _pack_preamble(at: Multicast[Any]) -> bytes:
    return bytes((FORMAT, at.number)) + pack_numbers((at.sites,))


def _unpack_preamble(reader: Reader) -> tuple[int, int]:
    version, number = reader.take(2)
    if version != FORMAT:
        raise Foreign(f"format {version}; this version reads format {FORMAT}")
    return number, reader.number()
