"""What the stories of sessions share: links that are surely cut, sessions that move, and onlookers at every replica."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from kvstore.client import Client, Session
from kvstore.cluster import LocalCluster
from kvstore.values import Entry
from tests.cluster.stories import clients_of, until, until_value

SHORT_S = 1.5  # of a call that is to fail
LONG_S = 30.0  # of a call that is to work, also on a busy machine
GRACE_S = 1.0  # that an error may come late

Clients = Mapping[str, Client]
State = Mapping[bytes, bytes]


def until_connected(cluster: LocalCluster) -> None:
    with clients_of(cluster) as clients:
        for kv in clients.values():
            until(lambda kv=kv: kv.status().links, lambda links: all(one.connected for one in links), "links open")  # type: ignore[misc]


def part(cluster: LocalCluster, clients: Clients, *groups: str) -> None:
    """Cut all links between these groups of sites, and wait until every replica has noticed."""
    cluster.partition(*groups)
    until_cut(cluster, clients)


def until_cut(cluster: LocalCluster, clients: Clients) -> None:
    for pair in cluster.cuts():
        for name in pair:
            until(lambda name=name, pair=pair: is_open(clients[name], pair), lambda found: not found, f"{pair} is cut")  # type: ignore[misc]


def is_open(kv: Client, pair: tuple[str, str]) -> bool:
    return any(one.connected for one in kv.status().links if (one.sender, one.receiver) == pair)


def moved(session: Session, to: Client) -> Session:
    """The same session at another replica: nothing goes along but the token."""
    return to.session(session.token())


def value_of(entry: Entry | None) -> bytes | None:
    return None if entry is None else entry.value


def write_everywhere(clients: Clients, key: bytes, value: bytes) -> None:
    clients["a"].put(key, value)
    for kv in clients.values():
        until_value(kv, key, value)


@contextmanager
def in_time(timeout_s: float = SHORT_S) -> Iterator[None]:
    started_s = time.monotonic()
    yield
    took_s = time.monotonic() - started_s
    assert took_s < timeout_s + GRACE_S, f"it took {took_s:.2f} s where {timeout_s} were allowed"


class Onlooker(threading.Thread):
    """Reads some keys at one replica, all at one moment, again and again, and remembers each state that it saw."""

    def __init__(self, kv: Client, keys: Sequence[bytes]) -> None:
        super().__init__(name="onlooker", daemon=True)
        self._kv = kv
        self._keys = keys
        self.states: list[State] = []
        self.stopping = threading.Event()
        self.mistake: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                state = {key: entry.value for key, entry in self._kv.get_many(self._keys).items()}
                if not self.states or self.states[-1] != state:
                    self.states.append(state)
                time.sleep(0.002)
        except BaseException as error:
            self.mistake = error


@contextmanager
def looked_at(clients: Clients, keys: Sequence[bytes], *, last: State) -> Iterator[dict[str, list[State]]]:
    """What is seen at each replica, from now on until all have come to their last state."""
    onlookers = {name: Onlooker(kv, keys) for name, kv in clients.items()}
    seen: dict[str, list[State]] = {}
    try:
        for one in onlookers.values():
            one.start()
        yield seen
        until(lambda: [one.states[-1:] for one in onlookers.values()], lambda all_of: all_of == [[last]] * 3, "the end")
    finally:
        for one in onlookers.values():
            one.stopping.set()
        for one in onlookers.values():
            one.join(LONG_S)
    assert [one.mistake for one in onlookers.values() if one.mistake] == []
    seen.update((name, one.states) for name, one in onlookers.items())


def until_values(clients: Clients, key: bytes, *values: bytes) -> dict[str, Entry | None]:
    """Every replica has these values side by side, with the same versions."""

    def all_equal(found: dict[str, Entry | None]) -> bool:
        return all(sorted(values_in(one)) == sorted(values) for one in found.values()) and len(set(found.values())) == 1

    return until(lambda: {name: kv.get(key) for name, kv in clients.items()}, all_equal, f"{key!r} = {values}")


def values_in(entry: Entry | None) -> list[bytes]:
    return [] if entry is None else [entry.value, *(one.value for one in entry.siblings)]
