"""The protocols, by name. Adding one is a file and a line; see docs/write-your-own-protocol.md."""

from __future__ import annotations

from typing import Any

from causal.errors import BadOption
from causal.model import Site
from causal.multicast import Multicast
from causal.protocols.direct import Direct
from causal.protocols.extra_message import ExtraMessage
from causal.protocols.false_causality import FalseCausality
from causal.protocols.fifo import Fifo
from causal.protocols.matrix import MatrixMulticast
from causal.protocols.optimal import Optimal
from causal.protocols.pruning import Pruning
from causal.protocols.unordered import Unordered
from causal.protocols.vector import Vector

PROTOCOLS: dict[str, type[Multicast[Any]]] = {
    "optimal": Optimal,
    "pruning": Pruning,
    "false-causality": FalseCausality,
    "extra-message": ExtraMessage,
    "matrix": MatrixMulticast,
    "direct": Direct,
    "vector": Vector,
    "fifo": Fifo,
    "unordered": Unordered,
}


def make_site(protocol: str, site: Site, sites: int, /, **options: Any) -> Multicast[Any]:
    """One site under the protocol of that name. Options that it does not know are refused."""
    if protocol not in PROTOCOLS:
        raise BadOption(f"unknown protocol {protocol!r}; there are {', '.join(PROTOCOLS)}")
    made_with = PROTOCOLS[protocol]
    if unknown := options.keys() - (made_with.__init__.__kwdefaults__ or {}).keys():
        raise BadOption(f"{protocol} does not know the option {', '.join(map(repr, sorted(unknown)))}")
    return made_with(site, sites, **options)
