"""An envelope that a peer sent, opened and checked while it can still be left where it is: on its link.

Whatever is wrong with it is a refusal that names the peer's message; nothing has changed then, and the link stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from causal import CausalError, Message, decode
from causal.errors import FromTheFuture
from causal.model import Site
from causal.multicast import Multicast
from kvstore.clock import TIME_BELIEVED
from kvstore.config import Cluster
from kvstore.effects import Envelope
from kvstore.errors import Amnesia, ClusterMismatch, MalformedUpdate
from kvstore.past import Seen, unpack_dots
from kvstore.update import Update, escape, unpack_updates


def opened(
    envelope: Envelope,
    peer: Site,
    ordering: Multicast[Any],
    cluster: Cluster,
    is_held_here: Callable[[bytes], bool] = lambda key: True,
) -> tuple[Message, list[Update], Seen]:
    try:
        message = decode(ordering, envelope.control)
        updates = unpack_updates(envelope.payload)
        meant = unpack_dots(envelope.meant, ordering.sites)
        _check(envelope, message, updates, peer)
    except FromTheFuture:  # it names a message of ours that we do not know to have sent (SAFETY 3)
        who, us = cluster.sites[peer].name, cluster.sites[ordering.site].name
        raise Amnesia(peer=who, what="message", there="a later one", site=us, here=ordering.clock) from None
    except (CausalError, MalformedUpdate) as error:
        raise ClusterMismatch(str(error), what="message", here="-", there=envelope.number) from None
    for update in updates:
        if not is_held_here(update.key):  # the sender must not have told us (SAFETY 15)
            raise ClusterMismatch(f"{escape(update.key)} is not held here", what="key", here="-", there=envelope.number)
    return message, updates, meant


def _check(envelope: Envelope, message: Message, updates: list[Update], peer: Site) -> None:
    if message.dot.site != peer:
        raise MalformedUpdate(why=f"message of site {message.dot.site} on the link of site {peer}")
    newest = max([update.version.time for update in updates], default=0)
    if not newest <= envelope.time <= TIME_BELIEVED:
        raise MalformedUpdate(why=f"a time of {envelope.time} with updates of {newest}")
