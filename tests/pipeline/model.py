"""A causally consistent store in a few lines, and its clients: histories that the audit must find nothing wrong with.

Sites exchange messages in causal order (vector clocks); keys are lww by a hybrid clock, keys that begin with `s` keep
siblings; a session carries a vector and moves to another site on every operation. Values may have deadlines, by site
clocks that disagree; an answer may get lost, and then the write happened, did not, or happens much later. `bug` names
one thing that is done wrong, and the audit must notice it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from pipeline.audit.history import History, Kind, Operation, Outcome

Clock = dict[int, int]  # by site: how many of its messages

BUGS = (
    "order",  # sites apply messages as they come
    "session",  # sites do not wait for what a session has seen
    "clock",  # versions ignore what their session has seen
    "torn",  # a batch is applied key by key
    "merge",  # the last one to arrive wins
    "lost",  # a site forgets a message
    "siblings",  # what was replaced stays
)


@dataclass(frozen=True)
class Update:
    key: bytes
    version: str
    is_delete: bool
    deadline: int  # 0 is never
    replaces: tuple[str, ...]


@dataclass(frozen=True)
class Message:
    site: int
    number: int
    needs: Clock
    time: int
    updates: tuple[Update, ...]


@dataclass
class Site:
    number: int
    skew: int  # of its clock, for deadlines
    clock: Clock
    time: int = 0
    waiting: list[Message] = field(default_factory=list)
    stored: dict[bytes, dict[str, Update]] = field(default_factory=dict)  # lww: one version, a delete too

    def is_due(self, needs: Clock) -> bool:
        return all(self.clock[site] >= number for site, number in needs.items())


@dataclass
class Client:
    name: str
    needs: Clock
    time: int = 0
    index: int = 0
    last_seen: dict[bytes, tuple[str, ...]] = field(default_factory=dict)


class Model:
    def __init__(self, seed: int, *, sites: int = 3, clients: int = 5, keys: int = 3, bug: str = "") -> None:
        self.chance = random.Random(seed)
        self.bug = bug
        none = dict.fromkeys(range(sites), 0)
        self.sites = [Site(number, self.chance.randint(-5, 5), dict(none)) for number in range(sites)]
        self.clients = [Client(f"c{number}", dict(none)) for number in range(clients)]
        self.keys = [name + b"%d" % number for number in range(keys) for name in (b"k", b"s")]
        self.now = 100
        self.late: list[tuple[int, Message]] = []
        self.recorded: list[Operation] = []
        self.transactions = count()

    def run(self, operations: int) -> History:
        while len(self.recorded) < operations:
            self.now += 1
            for site in self.sites:
                if self.chance.random() < 0.4:
                    self.deliver(site, at_most=self.chance.randint(1, 3))
            self.step(self.chance.choice(self.clients), self.chance.choice(self.sites))
        return History.of(self.recorded, is_ordered=True, siblings=[b"s"])

    # The store

    def deliver(self, site: Site, *, at_most: int = 1 << 30) -> None:
        self.chance.shuffle(site.waiting)
        for _ in range(at_most):
            due = [m for m in site.waiting if self.bug == "order" or site.is_due(self.needs_of(m))]
            if not due:
                return
            site.waiting.remove(due[0])
            if self.bug == "lost" and self.chance.random() < 0.1:
                site.clock[due[0].site] = due[0].number
            else:
                self.apply(site, due[0])

    def needs_of(self, message: Message) -> Clock:
        return message.needs | {message.site: message.number - 1}

    def apply(self, site: Site, message: Message) -> None:
        site.clock[message.site] = max(site.clock[message.site], message.number)
        if self.bug != "clock":
            site.time = max(site.time, message.time)
        updates = message.updates
        if self.bug == "torn" and len(updates) > 1:
            rest = Message(message.site, message.number, message.needs, message.time, updates[1:])
            site.waiting.append(rest)
            updates = updates[:1]
        for update in updates:
            stored = site.stored.setdefault(update.key, {})
            if update.key.startswith(b"s"):
                for version in () if self.bug == "siblings" else update.replaces:
                    stored.pop(version, None)
                if not update.is_delete:
                    stored[update.version] = update
            elif self.bug == "merge" or not stored or update.version > max(stored):
                site.stored[update.key] = {update.version: update}

    def write(
        self, site: Site, client: Client, updates: list[tuple[bytes, bool, int, tuple[str, ...] | None]]
    ) -> Message:
        if self.bug != "clock":
            site.time = max(site.time, client.time)
        made = []
        for key, is_delete, deadline, named in updates:
            site.time += 1
            replaces = tuple(site.stored.get(key, ())) if named is None else named
            made.append(Update(key, f"{site.time:016x}-{site.number}", is_delete, deadline, replaces))
        needs = {number: max(seen, client.needs[number]) for number, seen in site.clock.items()}
        message = Message(site.number, site.clock[site.number] + 1, needs, site.time, tuple(made))
        self.apply(site, message)
        for other in self.sites:
            if other is not site:
                other.waiting.append(message)
        return message

    def visible(self, site: Site, key: bytes) -> tuple[str, ...]:
        alive = [
            update.version
            for update in site.stored.get(key, {}).values()
            if not update.is_delete and not 0 < update.deadline <= self.now + site.skew
        ]
        return tuple(sorted(alive))

    # A client

    def step(self, client: Client, site: Site) -> None:
        if self.bug != "session" and not site.is_due(client.needs):
            for other in self.sites:  # the network is patient, and so is the client
                self.deliver(other)
            if not site.is_due(client.needs):
                return
        keys = self.chance.sample(self.keys, min(len(self.keys), self.chance.choice((1, 1, 1, 2, 3))))
        if self.chance.random() < 0.55:
            self.read(client, site, keys)
        else:
            self.change(client, site, keys)

    def read(self, client: Client, site: Site, keys: list[bytes]) -> None:
        transaction = next(self.transactions)
        for key in keys:
            seen = self.visible(site, key)
            client.last_seen[key] = seen
            self.record(client, transaction, Kind.READ, key, observed=seen)
        self.learn(client, site)

    def change(self, client: Client, site: Site, keys: list[bytes]) -> None:
        plan: list[tuple[bytes, bool, int, tuple[str, ...] | None]] = []
        for key in keys:
            is_delete = self.chance.random() < 0.2
            deadline = self.now + self.chance.randint(1, 30) if not is_delete and self.chance.random() < 0.15 else 0
            named = None if is_delete else client.last_seen.get(key, ())
            plan.append((key, is_delete, deadline, named))
        fate = self.chance.choices(("ok", "done", "late", "not", "refused"), (85, 4, 4, 4, 3))[0]
        if fate == "late":
            self.keep_for_later(client, plan)
        elif fate in ("ok", "done"):
            message = self.write(site, client, plan)
        transaction = next(self.transactions)
        outcome = {"ok": Outcome.OK, "refused": Outcome.FAIL}.get(fate, Outcome.UNKNOWN)
        for place, (key, is_delete, deadline, named) in enumerate(plan):
            version = message.updates[place].version if fate == "ok" else None
            kind = Kind.DELETE if is_delete else Kind.WRITE
            replaces = named if self.chance.random() < 0.7 else None
            self.record(
                client, transaction, kind, key, version, outcome=outcome, expires=deadline > 0, replaces=replaces
            )
            if version:
                client.last_seen[key] = (version,)
        if fate == "ok":
            self.learn(client, site)

    def keep_for_later(self, client: Client, plan: list[tuple[bytes, bool, int, tuple[str, ...] | None]]) -> None:
        """The request is under way; it arrives when its session has long gone on."""
        then = Client(client.name, dict(client.needs), client.time)
        site = self.chance.choice(self.sites)
        for other in self.sites:
            self.deliver(other)
        if site.is_due(then.needs):
            self.write(site, then, plan)

    def learn(self, client: Client, site: Site) -> None:
        client.needs = {number: max(seen, client.needs[number]) for number, seen in site.clock.items()}
        client.time = max(client.time, site.time)

    def record(
        self, client: Client, transaction: int, kind: Kind, key: bytes, version: str | None = None, **more: object
    ) -> None:
        self.recorded.append(
            Operation(client.name, client.index, transaction, kind, key, version, **more)  # type: ignore[arg-type]
        )
        client.index += 1
