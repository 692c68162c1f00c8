"""Causal multicast: nine ordering protocols, an oracle that judges them, and a simulator that runs them."""

from causal.codec import decode, decode_token, dump, encode, encode_token, load
from causal.errors import CausalError
from causal.model import Dot, Duplicate, Held, Message, Missing, mask_of, sites_of
from causal.multicast import Effect, Multicast, Outgoing
from causal.protocols import PROTOCOLS, make_site

__all__ = [
    "PROTOCOLS",
    "CausalError",
    "Dot",
    "Duplicate",
    "Effect",
    "Held",
    "Message",
    "Missing",
    "Multicast",
    "Outgoing",
    "decode",
    "decode_token",
    "dump",
    "encode",
    "encode_token",
    "load",
    "make_site",
    "mask_of",
    "sites_of",
]
