"""A second `causal replay`, written from the papers and INTERFACES.md alone, to be compared with the first.

After every delivery everything held is looked at again, earliest arrival first. The lines it gives are those of the
command without `bytes`. It believes its input: a schedule that makes no sense is not its business.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from tests.causal.reference_protocols import PROTOCOLS, Message, Sent

Line = dict[str, Any]


class Replay:
    """One replay, line by line; `under_way` and `arrived` tell a maker of schedules what it may do next."""

    def __init__(self, first: Line) -> None:
        n = first["sites"]
        sent: Sent = defaultdict(list)
        self.sites = [PROTOCOLS[first["protocol"]](i, n, first.get("options", {}), sent) for i in range(n)]
        self.messages: dict[str, Message] = {}
        self.under_way: list[tuple[str, int]] = []
        self.arrived: list[tuple[str, int]] = []
        self.waiting: list[list[Message]] = [[] for _ in range(n)]  # at each site, in order of arrival
        self.extras = 0

    def step(self, line: Line) -> list[Line]:
        if "send" in line:
            made = self.sites[line["from"]].send(set(line["to"]), line.get("semantic", True))
            return list(self.put_under_way(made, line["send"]))
        if "arrive" in line:
            return list(self.arrive(line["arrive"], line["at"]))
        return list(self.drain())

    def put_under_way(self, made: list[Message], name: str) -> Iterator[Line]:
        for m in made:
            if m.is_extra:
                self.extras += 1
            m.name = f"x{self.extras}" if m.is_extra else name
            self.messages[m.name] = m
            for d in sorted(m.dests):
                self.under_way.append((m.name, d))
                kind = {"extra": m.name, "from": m.sender} if m.is_extra else {"sent": m.name}
                yield {**kind, "to": d, "units": m.units[d]}

    def arrive(self, name: str, at: int) -> Iterator[Line]:
        if (name, at) in self.arrived:
            yield {"duplicate": name, "at": at}
            return
        self.under_way.remove((name, at))
        self.arrived.append((name, at))
        self.waiting[at].append(self.messages[name])
        unmet = self.sites[at].unmet(self.messages[name])
        if unmet:
            site, seq = min(unmet)
            yield {"held": name, "at": at, "missing": {"site": site, "seq": seq}}
        while due := [m for m in self.waiting[at] if not self.sites[at].unmet(m)]:
            self.waiting[at].remove(due[0])
            yield {"delivered": due[0].name, "at": at}
            yield from self.put_under_way(self.sites[at].deliver(due[0]), "")

    def drain(self) -> Iterator[Line]:
        while self.under_way:
            yield from self.arrive(*self.under_way[0])


def replay(lines: Iterable[str]) -> Iterator[Line]:
    first, *rest = map(json.loads, lines)
    state = Replay(first)
    for line in [*rest, {"drain": True}]:
        yield from state.step(line)
