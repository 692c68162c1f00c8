"""Whether messages wait in vain, as replicas say it, against what clients really read and wrote.

Clients read at random sites, move, write alone or several in one step, say what their writes depend on or that they
depend on nothing, and some have no session at all. The test writes down which message each write really follows, and
asks the replicas nothing about it. Links are slow, so much is held. Whenever a replica then says true, the missing
message is in that real past of the held one; whenever it says false, it is not.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from types import SimpleNamespace
from typing import Any

import pytest

from causal.model import Dot, Missing, Site
from kvstore import meaning, past, replica
from kvstore.effects import Arrived, Committed, Input, Operation, Step, Write, Written
from kvstore.errors import VersionMismatch
from kvstore.explain import explain
from kvstore.holds import CAUSES, FALSE, TRUE, UNKNOWN, cause_of
from kvstore.meaning import EVERYTHING, Meaning
from kvstore.past import SEEN_MAX, Past
from kvstore.placement import Placement
from kvstore.rpc.reading import Look
from kvstore.sessions import Sessions
from kvstore.update import Version, unpack_record
from tests.kvstore.stage import CAN_SEND_TO_SOME, CAUSAL, Stage

SITES = 4
KEYS = [b"%s%d" % (prefix, number) for prefix in (b"ab", b"bc", b"cd", b"da", b"x") for number in range(2)]
SOME = {prefix: tuple(prefix.decode()) for prefix in (b"ab", b"bc", b"cd", b"da")} | {b"": ("a", "b", "c", "d")}
OPTIONS = {"extra-message": {"threshold": SITES + 1}}
CLIENTS = 6


class Client:
    """Somebody who reads and writes. What he carries is the product's; what he knows is the truth."""

    def __init__(self, carried: Past | None) -> None:
        self.carried = carried  # None: he has no session
        self.knows: set[Dot] = set()  # every message that he ever read or wrote something of


class World(Stage):
    def __init__(self, protocol: str, seed: int, *, to_all: bool = True, strangers: int = 1) -> None:
        super().__init__(SITES, protocol, options=OPTIONS.get(protocol, {}))
        self.rng = random.Random(f"meant {protocol} {seed}")
        if not to_all:
            object.__setattr__(self.cluster, "placement", SOME)
            for one in self.replicas:
                one.placement = Placement(self.cluster)
        self.records: list[dict[int, Committed]] = [{0: one.committed(0)} for one in self.replicas]
        self.sessions = [self._sessions(site) for site in range(SITES)]
        self.follows: dict[Dot, set[Dot]] = {}  # the truth: what each message really follows, in one step
        self.carries: dict[Version, Dot] = {}
        self.on_link: dict[tuple[Site, Site, int], Dot] = {}
        self.causes: Counter[str] = Counter()
        beginning = self.sessions[0].seal.beginning()
        self.clients = [Client(beginning if number >= strangers else None) for number in range(CLIENTS)]
        self._furnish()

    def _furnish(self) -> None:
        """Every key has a value everywhere."""
        for key in KEYS:
            written = self.step(0, Write((Operation(key, b"v"),), independent=True)).answers[0]
            assert isinstance(written, Written) and written.dot is not None
            self.carries[written.versions[0]] = written.dot
        while any(self.under_way.values()):
            for sender, receiver in list(self.under_way):
                self.carry(sender, receiver)

    def _sessions(self, site: Site) -> Sessions:
        loop: Any = SimpleNamespace(committed_by=self.records[site].__getitem__)
        where = (self.cluster, self.cluster.sites[site], self.replicas[site], loop, self.storages[site])
        return Sessions(*where, lambda: self.now_ms, lambda error: None)

    def step(self, site: Site, *inputs: Input) -> Step:
        self.now_ms += 1
        step = super().step(site, *inputs)
        number = self.storages[site].number
        self.records[site].setdefault(number, self.replicas[site].committed(number))
        for event in step.events:
            if event.kind == "sent":
                self.on_link[site, event.peer, event.number] = event.dot
        return step

    # What clients do

    def act(self) -> None:
        if self.rng.random() < 0.5:
            self._carry()
            return
        site = self.rng.randrange(SITES)
        clients = [one for one in self.rng.sample(self.clients, self.rng.choice((1, 1, 2))) if self._is_due(one, site)]
        if not clients:
            return
        for client in clients:
            if client.carried is None:
                client.knows.clear()  # it is somebody else: who has no session reads and writes at one site
            for key in self.rng.sample(KEYS, self.rng.choice((0, 1, 1, 2))):
                self._read(client, site, key)
        clients = [one for one in clients if self._is_due(one, site)]  # `false-causality` may know of more than is here
        said = [self._said(client, site) for client in clients]
        answers = self.step(site, *(write for write, _ in said)).answers
        for place, (client, (write, real)) in enumerate(zip(clients, said, strict=True)):
            written = answers[place]
            if isinstance(written, VersionMismatch):
                continue  # the other one was quicker
            assert isinstance(written, Written) and written.dot is not None, written
            self.follows.setdefault(written.dot, set()).update(real)
            self.carries.update(dict.fromkeys(written.versions, written.dot))
            client.knows.add(written.dot)
            if write.past is not None:
                client.carried = self.sessions[site].after_write(write, written)

    def _is_due(self, client: Client, site: Site) -> bool:
        if client.carried is None:
            return True
        return self.replicas[site].ordering.first_missing(client.carried.context) is None

    def _read(self, client: Client, site: Site, key: bytes) -> None:
        if not self._holds(site, key):
            return
        with self.storages[site].snapshot() as view:
            look = Look(view.number, self.now_ms)
            values = look.at(view, key)
        client.knows.update(self.carries[value.version] for value in values)
        if client.carried is not None:
            client.carried = self.sessions[site].after_read(client.carried, look.seen())

    def _holds(self, site: Site, key: bytes) -> bool:
        return bool(self.replicas[site].placement.sites_of(key) >> site & 1)

    def _said(self, client: Client, site: Site) -> tuple[Write, set[Dot]]:
        """A write, and what it really follows."""
        key, dice = self.rng.choice(KEYS), self.rng.random()
        there = self._version(site, key)
        expect = there if dice < 0.2 else None
        compared = set() if expect is None else {self.carries[expect]}
        write = Write((Operation(key, b"v", expect=expect),), past=client.carried)
        if self.rng.random() < 0.15:
            return write._replace(independent=True), compared
        if client.knows and self.rng.random() < 0.15:
            named = self.rng.choice(sorted(client.knows))
            versions = tuple(version for version, dot in self.carries.items() if dot == named)
            return write._replace(depends=versions), {named} | compared
        return write, client.knows | compared

    def _version(self, site: Site, key: bytes) -> Version | None:
        with self.storages[site].snapshot() as view:
            data = view.get("keys", key) if self._holds(site, key) else None
        return None if data is None else unpack_record(data).version

    # What is said of it

    def _carry(self) -> None:
        links = [pair for pair, wire in self.under_way.items() if wire]
        if not links:
            return
        links += [pair for pair in links if (pair[1] - pair[0]) % SITES != 1] * 4  # on a ring, next neighbours are slow
        sender, receiver = self.rng.choice(links)
        step = self.step(receiver, Arrived(sender, self.under_way[sender, receiver].popleft()))
        for event in step.events:
            if event.kind == "held" and event.missing is not None:
                self.causes[event.cause] += 1
                self.check(receiver, event.dot, event.missing, event.cause)
        if self.rng.random() < 0.2:
            for told in explain(self.replicas[receiver]):
                self.check(receiver, told.dot, told.missing, told.cause)

    def check(self, site: Site, held: Dot, missing: Missing, cause: str) -> None:
        assert cause in CAUSES
        wanted = self.on_link[missing.site, site, missing.seq] if missing.by_link else Dot(missing.site, missing.seq)
        is_needed = wanted in self.past_of(held)
        assert is_needed or cause != TRUE, f"{held} does not need {wanted}"
        assert not is_needed or cause != FALSE, f"{held} needs {wanted}"

    def past_of(self, dot: Dot) -> set[Dot]:
        found: set[Dot] = set()
        left = deque([dot])
        while left:
            new = self.follows.get(left.popleft(), set()) - found
            found |= new
            left.extend(new)
        return found


def checked(protocol: str, *, seeds: int = 6, steps: int = 250, **settings: Any) -> Counter[str]:
    """How often each cause was said, truly."""
    causes: Counter[str] = Counter()
    for seed in range(seeds):
        world = World(protocol, seed, **settings)
        for _ in range(steps):
            world.act()
        causes += world.causes
    shares = ", ".join(f"{cause} {causes[cause]} ({causes[cause] / causes.total():.0%})" for cause in CAUSES)
    print(f"{protocol}, {settings}: {shares}")
    return causes


@pytest.mark.parametrize("protocol", CAUSAL)
def test_what_is_said_is_true_where_everything_goes_everywhere(protocol: str) -> None:
    causes = checked(protocol)
    assert min(causes[cause] for cause in CAUSES) > 20


@pytest.mark.parametrize("protocol", CAN_SEND_TO_SOME)
def test_what_is_said_is_true_where_messages_go_to_some_sites_only(protocol: str) -> None:
    causes = checked(protocol, to_all=False)
    assert causes[TRUE] > 10 and causes[FALSE] > 10


@pytest.mark.parametrize("protocol", CAUSAL)
def test_where_every_client_has_a_session_most_is_known(protocol: str) -> None:
    causes = checked(protocol, strangers=0)
    assert causes[UNKNOWN] < causes[TRUE] + causes[FALSE]


# Planted bugs


def unknown_is_false(*asked: Any) -> str:
    return FALSE if (said := cause_of(*asked)) == UNKNOWN else said


def unknown_is_true(*asked: Any) -> str:
    return TRUE if (said := cause_of(*asked)) == UNKNOWN else said


def without_the_way_through_others(missing: Missing, meant: Any, held: Any, is_here: Any) -> str:
    return cause_of(missing, meant, {}, lambda dot: is_here(dot) or dot in held)


def what_has_not_come_follows_nothing(missing: Missing, meant: Any, held: Any, is_here: Any) -> str:
    known = {
        dot: SimpleNamespace(meant=()) for seq in range(1, 1000) for dot in (Dot(site, seq) for site in range(SITES))
    }
    return cause_of(missing, meant, known | held, is_here)


def the_newest_alone(_: Meaning, other: Meaning) -> Meaning:
    return other


def nothing_but_what_was_read_last(_: Any, other: Any) -> Any:
    return other


def all_that_the_site_had(write: Write, messages: Any, taken: Any = ()) -> Meaning:
    dots = list(messages._dots.values())
    return Meaning(True, tuple(dots[-SEEN_MAX:])) if dots else EVERYTHING


PLANTED = [
    (replica, "cause_of", unknown_is_false),
    (replica, "cause_of", unknown_is_true),
    (replica, "cause_of", without_the_way_through_others),
    (replica, "cause_of", what_has_not_come_follows_nothing),
    (replica, "meaning_of", all_that_the_site_had),
    (meaning.Meaning, "also", the_newest_alone),
    (past, "merged_seen", nothing_but_what_was_read_last),
]


@pytest.mark.parametrize("protocol", ["vector", "optimal", "false-causality"])
@pytest.mark.parametrize(("where", "name", "bug"), PLANTED, ids=[bug.__name__ for _, _, bug in PLANTED])
def test_a_replica_that_is_surer_than_it_may_be_is_caught(
    monkeypatch: pytest.MonkeyPatch, protocol: str, where: Any, name: str, bug: Any
) -> None:
    monkeypatch.setattr(where, name, bug)
    with pytest.raises(AssertionError, match=r"(needs|does not need) message"):
        checked(protocol, seeds=40)


@pytest.mark.parametrize("bug", [lambda *_: FALSE, lambda *_: TRUE])
def test_a_replica_that_always_says_the_same_is_caught(monkeypatch: pytest.MonkeyPatch, bug: Any) -> None:
    monkeypatch.setattr(replica.Replica, "cause_of", bug)
    with pytest.raises(AssertionError, match="need"):
        checked("vector", seeds=40)
