"""The nine protocols once more, from the papers and ALGORITHMS.md alone, for reference.py to replay.

Nothing here is clever. Logs are dictionaries of Python sets, and matrices are lists of lists that count messages as the
papers do. A count in a cell becomes a message number only when a missing message is named, by looking it up in the
record of what was really sent on that link. The comments name the steps of the papers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]
Need = tuple[int, int]
Matrix = list[list[int]]
Log = dict[tuple[int, int], set[int]]  # (sender, time) -> the destinations that remain
Sent = defaultdict[tuple[int, int], list[int]]  # link -> the numbers of the messages sent on it, in order


@dataclass(eq=False)
class Message:
    sender: int
    number: int
    dests: set[int]
    links: dict[int, int]  # destination -> the how-manieth on that link
    stamps: dict[int, Any]
    units: dict[int, int]
    is_extra: bool = False
    name: str = ""


class Site:
    """What every protocol has: numbers for what it sends, counts of what it delivered. By itself it orders nothing."""

    def __init__(self, me: int, n: int, options: Line, sent: Sent) -> None:
        self.me, self.n, self.options, self.sent = me, n, options, sent
        self.number = 0
        self.newest = [0] * n  # the number of the newest message delivered from each site
        self.count = [0] * n  # DELIV: how many were delivered from each site

    def send(self, dests: set[int], semantic: bool) -> list[Message]:
        """The messages that a send makes, in order: itself, and extra messages before and after it."""
        self.number += 1
        return [self.message(dests, *self.stamp(dests, semantic))]

    def message(self, dests: set[int], stamps: dict[int, Any], units: dict[int, int], extra: bool = False) -> Message:
        for d in dests:
            self.sent[self.me, d].append(self.number)
        links = {d: len(self.sent[self.me, d]) for d in dests}
        return Message(self.me, self.number, set(dests), links, stamps, units, extra)

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        return dict.fromkeys(dests), dict.fromkeys(dests, 0)

    def unmet(self, m: Message) -> list[Need]:
        return []

    def deliver(self, m: Message) -> list[Message]:
        """The extra messages that this delivery makes."""
        self.newest[m.sender] = m.number
        self.count[m.sender] += 1
        self.learn(m, m.stamps[self.me])
        return []

    def learn(self, m: Message, stamp: Any) -> None:
        """Copies share a stamp, so a protocol copies what it wants to change."""

    def unmet_counts(self, needed: list[int]) -> list[Need]:
        """RST's wait, for one column: more were sent to me than I delivered. The newest of them is what is named."""
        return [(k, self.sent[k, self.me][c - 1]) for k, c in enumerate(needed) if c > self.count[k]]


class Unordered(Site):
    pass


class Fifo(Site):
    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        return dict.fromkeys(dests), dict.fromkeys(dests, 1)

    def unmet(self, m: Message) -> list[Need]:
        before = m.links[self.me] - 1
        return [(m.sender, before)] if self.count[m.sender] < before else []


class Vector(Site):
    """KS section 7.1, broadcast: the latest broadcast of each site."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.latest = [0] * self.n

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        before = list(self.latest)
        self.latest[self.me] = self.number
        return dict.fromkeys(dests, before), dict.fromkeys(dests, self.n)

    def unmet(self, m: Message) -> list[Need]:
        needed: list[int] = m.stamps[self.me]
        return [(k, t) for k, t in enumerate(needed) if k != self.me and t > self.newest[k]]

    def learn(self, m: Message, stamp: list[int]) -> None:
        self.latest = [max(pair) for pair in zip(self.latest, stamp, strict=True)]
        self.latest[m.sender] = m.number


def copy_log(log: Log) -> Log:
    return {entry: set(dests) for entry, dests in log.items()}


def purge_null_entries(log: Log) -> None:
    """KS's PURGE_NULL_ENTRIES; Jang's S3 and R9."""
    for s, t in list(log):
        if not log[s, t] and any(s == s2 and t < t2 for s2, t2 in log):
            del log[s, t]


def merge_logs(log: Log, o: Log) -> None:
    """KS RCV(4), Jang R5 to R7: mark first, delete afterwards."""
    marked_o = {(m, t) for m, t in o for s, t2 in log if s == m and t < t2 and (s, t) not in log}
    marked_log = {(s, t2) for m, t in o for s, t2 in log if s == m and t2 < t and (m, t2) not in o}
    for entry in marked_o:
        del o[entry]
    for entry in marked_log:
        del log[entry]
    for entry in set(log) & set(o):
        log[entry] &= o.pop(entry)
    log.update(o)


class Optimal(Site):
    """KS section 4.3, step by step."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log: Log = {(i, 0): set() for i in range(self.n)}

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        stamps = {}
        for d in dests:  # SND(2)
            o = copy_log(self.log)
            for entry in o:
                o[entry] = (o[entry] - dests) | ({d} if d in o[entry] else set())
            purge_null_entries(o)
            stamps[d] = o
        for entry in self.log:  # SND(3)
            self.log[entry] -= dests
        self.log[self.me, self.number] = set(dests)  # SND(4)
        purge_null_entries(self.log)  # SND(5)
        return stamps, {d: sum(map(len, stamps[d].values())) for d in dests}

    def unmet(self, m: Message) -> list[Need]:  # RCV(1)
        o: Log = m.stamps[self.me]
        return [(i, t) for (i, t), dests in o.items() if self.me in dests and t > self.newest[i]]

    def learn(self, m: Message, stamp: Log) -> None:
        o = copy_log(stamp)
        o[m.sender, m.number] = set(m.dests)  # RCV(3)
        for entry in o:
            o[entry] -= {self.me}
        merge_logs(self.log, o)  # RCV(4)
        purge_null_entries(self.log)  # RCV(5)


class Pruning(Site):
    """Jang et al. section 4.2; CI[k] holding (t, D) is the entry (k, t) -> D."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ci: Log = {}

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        dc: dict[int, set[Need]] = {j: set() for j in dests}
        for j in dests:  # S2
            for entry in self.ci:
                if j in self.ci[entry]:
                    dc[j].add(entry)
                    self.ci[entry].remove(j)
        purge_null_entries(self.ci)  # S3
        ci = copy_log(self.ci)
        stamps = {j: (ci, dc[j]) for j in dests}  # S4
        shared = sum(map(len, self.ci.values()))
        self.ci[self.me, self.number] = set(dests)  # S5
        return stamps, {j: shared + len(dc[j]) for j in dests}

    def unmet(self, m: Message) -> list[Need]:  # R1
        return [(k, t) for k, t in m.stamps[self.me][1] if t > self.newest[k]]

    def learn(self, m: Message, stamp: tuple[Log, set[Need]]) -> None:
        ci_m = copy_log(stamp[0])
        ci_m[m.sender, m.number] = m.dests - {self.me}  # R4
        merge_logs(self.ci, ci_m)  # R5, R6, R7
        for k, t in self.ci:  # R8
            for k2, v in self.ci:
                if k == k2 and t < v:
                    self.ci[k, t] -= self.ci[k2, v]
        purge_null_entries(self.ci)  # R9


def zeros(n: int) -> Matrix:
    return [[0] * n for _ in range(n)]


def copy_matrix(matrix: Matrix) -> Matrix:
    return [list(row) for row in matrix]


def column(matrix: Matrix, j: int) -> list[int]:
    return [row[j] for row in matrix]


class RaynalSchiperToueg(Site):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.m = zeros(self.n)

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        before = copy_matrix(self.m)
        for d in dests:
            self.m[self.me][d] += 1
        return dict.fromkeys(dests, before), dict.fromkeys(dests, self.n * self.n)

    def unmet(self, m: Message) -> list[Need]:
        return self.unmet_counts(column(m.stamps[self.me], self.me))

    def learn(self, m: Message, stamp: Matrix) -> None:
        told = copy_matrix(stamp)
        for d in m.dests:  # a multicast is one event: the receiver knows of all its copies
            told[m.sender][d] += 1
        for k in range(self.n):
            for j in range(self.n):
                self.m[k][j] = max(self.m[k][j], told[k][j])


class FalseCausality(Site):
    """Gambhire and Kshemkalyani, figure 3, with the FIFO links it assumes made by a link number (ALGORITHMS trap 2)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.prev, self.conc = zeros(self.n), zeros(self.n)

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        if semantic:  # E1
            for k in range(self.n):
                for j in range(self.n):
                    self.prev[k][j] += self.conc[k][j]  # E4
                    self.conc[k][j] = 0  # E5
        stamp = copy_matrix(self.prev), copy_matrix(self.conc)  # E6
        for d in dests:
            self.conc[self.me][d] += 1  # E7
        return dict.fromkeys(dests, stamp), dict.fromkeys(dests, 2 * self.n * self.n)

    def unmet(self, m: Message) -> list[Need]:  # R1; the link number only where nothing else holds the message
        before = m.links[self.me] - 1
        link = [(m.sender, before)] if self.count[m.sender] < before else []
        return self.unmet_counts(column(m.stamps[self.me][0], self.me)) or link

    def learn(self, m: Message, stamp: tuple[Matrix, Matrix]) -> None:
        sp, sc = stamp[0], copy_matrix(stamp[1])
        for d in m.dests:
            sc[m.sender][d] += 1  # R3
        for k in range(self.n):
            for j in range(self.n):
                known = max(self.conc[k][j] + self.prev[k][j], sp[k][j] + sc[k][j])
                self.conc[k][j] = known - max(self.prev[k][j], sp[k][j])  # R7
                self.prev[k][j] = max(self.prev[k][j], sp[k][j])  # R8


class ExtraMessage(Site):
    """Sanchez and Alvarez section 3, with the multicast of ALGORITHMS trap 1 and the relief of trap 3."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.m = zeros(self.n)
        self.k = self.options.get("threshold", max(self.n + 1, (self.n - 1) ** 2))

    def weight(self, j: int) -> int:
        return sum(1 for cell in column(self.m, j) if cell)

    def entries(self) -> int:
        return sum(1 for row in self.m for cell in row if cell)

    def clear(self, j: int) -> None:
        newest = self.m[self.me][j] + 1
        for row in self.m:
            row[j] = 0
        self.m[self.me][j] = newest

    def relieve(self) -> Message:
        """An extra message to the site that causes the most uncertainty (the first of several), with its column."""
        j = max(range(self.n), key=lambda site: (self.weight(site), -site))
        needed, units = column(self.m, j), self.weight(j)
        self.clear(j)
        self.number += 1
        return self.message({j}, {j: needed}, {j: units}, extra=True)

    def relief(self) -> list[Message]:
        made = []
        while self.entries() > self.k:
            made.append(self.relieve())
        return made

    def copies(self, dests: set[int]) -> dict[int, Matrix]:
        """For each copy the other destinations' columns as after the send, the receiver's own as before it."""
        before = copy_matrix(self.m)
        for d in dests:
            self.clear(d)
        after, self.m = self.m, before
        stamps = {}
        for d in dests:
            stamps[d] = copy_matrix(after)
            for k in range(self.n):
                stamps[d][k][d] = before[k][d]
        return stamps

    def send(self, dests: set[int], semantic: bool) -> list[Message]:
        made = []
        while True:
            stamps = self.copies(dests)
            units = {d: sum(1 for row in stamps[d] for cell in row if cell) for d in dests}
            if max(units.values()) <= self.k:
                break
            made.append(self.relieve())
        for d in dests:
            self.clear(d)
        self.number += 1
        made.append(self.message(dests, stamps, units))
        return made + self.relief()

    def unmet(self, m: Message) -> list[Need]:
        stamp = m.stamps[self.me]
        return self.unmet_counts(stamp if m.is_extra else column(stamp, self.me))

    def deliver(self, m: Message) -> list[Message]:
        super().deliver(m)
        return self.relief()

    def learn(self, m: Message, stamp: Any) -> None:
        if m.is_extra:
            return
        for k in range(self.n):
            for j in range(self.n):
                if j != self.me:  # one's own column is always zero
                    self.m[k][j] = max(self.m[k][j], stamp[k][j])


class Direct(Site):
    """ALGORITHMS.md: for every site d, by sender, what the next message to d must wait for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waits: list[dict[int, int]] = [{} for _ in range(self.n)]

    def stamp(self, dests: set[int], semantic: bool) -> tuple[dict[int, Any], dict[int, int]]:
        before = [dict(waits) for waits in self.waits]
        for d in dests:
            self.waits[d] = {self.me: self.number}
        return dict.fromkeys(dests, before), dict.fromkeys(dests, sum(map(len, before)))

    def unmet(self, m: Message) -> list[Need]:
        return [(k, t) for k, t in m.stamps[self.me][self.me].items() if t > self.newest[k]]

    def learn(self, m: Message, stamp: list[dict[int, int]]) -> None:
        for d in range(self.n):
            if d in m.dests:
                kept = {k: t for k, t in self.waits[d].items() if not (k in stamp[d] and stamp[d][k] >= t)}
                kept[m.sender] = max(kept.get(m.sender, 0), m.number)
                self.waits[d] = kept
            else:
                for k, t in stamp[d].items():
                    self.waits[d][k] = max(self.waits[d].get(k, 0), t)
        self.waits[self.me] = {}


PROTOCOLS: dict[str, type[Site]] = {
    "optimal": Optimal,
    "pruning": Pruning,
    "false-causality": FalseCausality,
    "extra-message": ExtraMessage,
    "matrix": RaynalSchiperToueg,
    "direct": Direct,
    "vector": Vector,
    "fifo": Fifo,
    "unordered": Unordered,
}
