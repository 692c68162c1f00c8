"""How large a stamp is on paper: the dependents and bytes of Jang et al., section 6.

The paper gives a time 4 bytes and a process id 2. It counts RST (`matrix`) as n*n cells of one time each, PRS
(`direct`) as tuples (id, time), and its own algorithm as tuples (time, ids) in a vector by sender plus delivery
constraints (id, time). What it does not compare is counted alike: an entry of `optimal` is (id, time, ids), and a unit
of `extra-message`, or of any protocol not named here, (id, id, time). Positions in a vector cost nothing, nor does the
message's own name: bookkeeping is left out for all, as in the paper.
"""

from __future__ import annotations

from typing import NamedTuple

from causal.columns import Columns
from causal.links import LinkStamp
from causal.log import LogStamp
from causal.model import Message
from causal.protocols.false_causality import MeantStamp
from causal.protocols.vector import Clock
from causal.rows import Matrix

TIME_BYTES = 4
ID_BYTES = 2


class PaperSize(NamedTuple):
    dependents: int
    bytes: int


def paper_size(protocol: str, message: Message) -> PaperSize:
    stamp = message.stamp
    match stamp:
        case LogStamp():
            return _log_size(protocol, stamp)
        case Matrix() | MeantStamp() | Clock():
            return PaperSize(stamp.units(), TIME_BYTES * stamp.units())
        case Columns():
            return PaperSize(stamp.units(), (ID_BYTES + TIME_BYTES) * stamp.units())
        case LinkStamp():
            return PaperSize(0, TIME_BYTES * stamp.units())
        case _:
            return PaperSize(stamp.units(), (2 * ID_BYTES + TIME_BYTES) * stamp.units())


def _log_size(protocol: str, stamp: LogStamp) -> PaperSize:
    """A dependent is a message that is named at all, also as a sender's newest with no destinations left."""
    named = stamp.pending.keys() | set(stamp.needs)
    empty = sum(1 for site, seq in enumerate(stamp.newest) if seq and (site, seq) not in named)
    destinations = sum(map(int.bit_count, stamp.pending.values()))
    if protocol == "pruning":
        entries = len(stamp.pending) + sum(
            1 for site, seq in enumerate(stamp.newest) if seq and (site, seq) not in stamp.pending
        )
        constraints = (ID_BYTES + TIME_BYTES) * len(stamp.needs)
        return PaperSize(len(named) + empty, TIME_BYTES * entries + ID_BYTES * destinations + constraints)
    entries = len(named) + empty
    return PaperSize(entries, (ID_BYTES + TIME_BYTES) * entries + ID_BYTES * (destinations + len(stamp.needs)))
