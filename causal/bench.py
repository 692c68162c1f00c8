"""How long a send, a delivery, an encoding and a decoding take, in microseconds, and how many bytes a stamp is.

Each protocol runs the simulated workload, so that logs and matrices have the size they have in use; `send` and
`receive` are timed call by call, less the cost of timing. Encoding and decoding are timed afterwards on the messages
of that run. Protocols take turns within a round, rounds are repeated and the best is taken: on a shared machine noise
only adds. The calibration loop runs in every round; two machines, or two days, compare by their calibration.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

from causal.codec import decode, encode
from causal.model import Mask, Message, Site
from causal.multicast import Effect, Multicast, Outgoing
from causal.protocols import PROTOCOLS
from causal.provenance import provenance
from causal.simulation import simulate
from causal.workload import Workload

SIZES = (3, 5, 10, 20, 40)
_SAMPLE = 300  # messages kept for timing the codec
_SKIP = 50  # messages before the first of them
_COPIES = 12_000  # that one timed run delivers, about
_LEGEND = (
    "Microseconds: send = all copies of a multicast, not encoded; deliver = one copy, not decoded; encode = all\n"
    "copies; decode = one copy; multicast = send + encode + fan-out * (decode + deliver).\n"
    "Mean fan-out n/2, vector: n - 1. The calibration loop is fixed work: compare machines, and days, by it."
)


class Timing(NamedTuple):
    """Microseconds, but for the last two."""

    send: float  # a whole multicast, not encoded
    deliver: float  # one copy, not decoded
    encode: float  # all copies of a multicast
    decode: float  # one copy
    fan_out: float
    bytes: float  # one copy

    @property
    def multicast(self) -> float:
        """Everything one multicast costs all sites together."""
        return self.send + self.encode + self.fan_out * (self.decode + self.deliver)


@dataclass(slots=True)
class Clockwork:
    """What a timed run adds up."""

    sends: int = 0
    send_ns: int = 0
    deliveries: int = 0
    receive_ns: int = 0
    receives: int = 0
    sample: list[Outgoing] = field(default_factory=list)  # for timing the codec


class Row(NamedTuple):
    sites: int
    protocol: str
    timing: Timing
    calibration: float  # microseconds of the calibration loop, next to this row's runs


def calibrate() -> float:
    """Microseconds for a fixed piece of plain Python work, of the kind the protocols do."""
    start = perf_counter_ns()
    table: dict[tuple[int, int], int] = {}
    for number in range(2000):
        table[number & 15, number] = number ^ 5
    total = sum([value & 7 for key, value in table.items() if key[0] & 1])
    assert total
    return (perf_counter_ns() - start) / 1000


def timing_cost_ns() -> float:
    """What the two readings of the clock around a call add to it."""
    best = min(_timed_nothing(2000) for _ in range(5))
    return best / 2000


def _timed_nothing(count: int) -> int:
    total = 0
    for _ in range(count):
        start = perf_counter_ns()
        total += perf_counter_ns() - start
    return total


def measure(protocol: str, sites: int, seed: int = 0) -> Timing:
    """One timed run."""
    clockwork = Clockwork()
    timed = _timed(PROTOCOLS[protocol], clockwork)
    members: dict[Site, Multicast[Any]] = {}

    def make(name: str, site: Site, sites: int, **options: Any) -> Multicast[Any]:
        members[site] = timed(site, sites, **options)
        return members[site]

    fan_out = "broadcast" if protocol == "vector" else "multicast"
    workload = Workload(sites, max(60, 2 * _COPIES // sites), seed=seed, fan_out=fan_out)
    gc.collect()
    gc.disable()
    try:
        simulate(workload, protocol, make=make)
        encode_us, decode_us, size = _time_codec(members, clockwork.sample)
    finally:
        gc.enable()
    cost = timing_cost_ns()
    return Timing(
        send=(clockwork.send_ns / clockwork.sends - cost) / 1000,
        deliver=(clockwork.receive_ns - cost * clockwork.receives) / clockwork.deliveries / 1000,
        encode=encode_us,
        decode=decode_us,
        fan_out=sum(outgoing.to.bit_count() for outgoing in clockwork.sample) / len(clockwork.sample),
        bytes=size,
    )


def _timed(protocol: type[Multicast[Any]], clockwork: Clockwork) -> type[Multicast[Any]]:
    """The same protocol with a stop-watch at its two doors."""

    def send(self: Any, to: Mask, *, payload: bytes = b"", semantic: bool = True) -> list[Outgoing]:
        start = perf_counter_ns()
        made = protocol.send(self, to, payload=payload, semantic=semantic)
        clockwork.send_ns += perf_counter_ns() - start
        clockwork.sends += 1
        if clockwork.sends > _SKIP and len(clockwork.sample) < _SAMPLE:
            clockwork.sample += [outgoing for outgoing in made if not outgoing.is_extra]
        return made

    def receive(self: Any, message: Message) -> list[Effect]:
        start = perf_counter_ns()
        effects = protocol.receive(self, message)
        clockwork.receive_ns += perf_counter_ns() - start
        clockwork.receives += 1
        clockwork.deliveries += sum(isinstance(effect, Message) for effect in effects)
        return effects

    return type(protocol.__name__, (protocol,), {"send": send, "receive": receive})


def _time_codec(members: dict[Site, Multicast[Any]], sample: list[Outgoing]) -> tuple[float, float, float]:
    """Microseconds to encode a multicast and to decode a copy, and a copy's bytes."""
    start = perf_counter_ns()
    encoded = [encode(members[outgoing.dot.site], outgoing) for outgoing in sample]
    encode_us = (perf_counter_ns() - start) / len(sample) / 1000
    arrivals = [(members[site], data) for copies in encoded for site, data in copies.items()]
    start = perf_counter_ns()
    for member, data in arrivals:
        decode(member, data)
    decode_us = (perf_counter_ns() - start) / len(arrivals) / 1000
    return encode_us, decode_us, sum(len(data) for _, data in arrivals) / len(arrivals)


def bench(sizes: Iterable[int] = SIZES, protocols: Iterable[str] = tuple(PROTOCOLS), rounds: int = 3) -> Iterator[Row]:
    """One row a size and protocol, as they come; the best of several rounds, in which the protocols take turns."""
    for sites in sizes:
        calibration = math.inf
        timings: dict[str, list[Timing]] = {protocol: [] for protocol in protocols}
        for round_number in range(rounds):
            calibration = min(calibration, *(calibrate() for _ in range(5)))
            for protocol, taken in timings.items():
                taken.append(measure(protocol, sites, seed=round_number))
        for protocol, taken in timings.items():
            yield Row(sites, protocol, _best(taken), calibration)


def _best(taken: Sequence[Timing]) -> Timing:
    """The least of each time; fan-out and bytes are the workload's, so they are averaged."""
    least = Timing(*(min(values) for values in zip(*taken, strict=True)))
    count = len(taken)
    return least._replace(
        fan_out=sum(one.fan_out for one in taken) / count, bytes=sum(one.bytes for one in taken) / count
    )


def crossover(rows: Iterable[Row], one: str = "optimal", other: str = "matrix") -> int | None:
    """The least size from which on a whole multicast costs less under `one` than under `other`."""
    costs = {(row.sites, row.protocol): row.timing.multicast for row in rows}
    found = None
    for sites in sorted({sites for sites, _ in costs}, reverse=True):
        if costs.get((sites, one), 0.0) >= costs.get((sites, other), 0.0):
            break
        found = sites
    return found


def as_table(rows: Sequence[Row]) -> str:
    """Microseconds and bytes, a line a row, and the crossover in a sentence."""
    titles = ("n", "protocol", "send", "deliver", "encode", "decode", "multicast", "bytes", "calibration")
    lines = ["{:>3}  {:<16}{:>8}{:>9}{:>8}{:>8}{:>11}{:>7}{:>13}".format(*titles)]
    for sites, protocol, timing, calibration in rows:
        lines.append(
            f"{sites:>3}  {protocol:<16}{timing.send:>8.2f}{timing.deliver:>9.2f}{timing.encode:>8.1f}"
            f"{timing.decode:>8.2f}{timing.multicast:>11.1f}{timing.bytes:>7.0f}{calibration:>13.0f}"
        )
    return "\n".join([*lines, "", _LEGEND, crossover_sentence(rows)])


def crossover_sentence(rows: Sequence[Row]) -> str:
    sizes = sorted({row.sites for row in rows})
    found = crossover(rows)
    if not {"optimal", "matrix"} <= {row.protocol for row in rows}:
        return ""
    if found is None:
        return f"A whole multicast costs no less under optimal than under matrix up to n = {sizes[-1]}."
    return f"A whole multicast costs less under optimal than under matrix from n = {found} on (of {sizes})."


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "unit": "microseconds",
        "seeds": "0 for the first round, 1 for the second, and so on",
        **provenance(),
        "rows": [
            {
                "sites": row.sites,
                "protocol": row.protocol,
                **row.timing._asdict(),
                "multicast": row.timing.multicast,
                "calibration": row.calibration,
            }
            for row in rows
        ],
        "crossover_optimal_matrix": crossover(rows),
    }
