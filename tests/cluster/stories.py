"""What every store must do, whatever protocol orders it, in one process or in three."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Protocol, TypeVar

import pytest

from kvstore import connect
from kvstore.client import Client
from kvstore.effects import ABSENT
from kvstore.errors import KeyTooLong, Unavailable, VersionMismatch
from kvstore.values import Delete, Put

WAIT_S = 20.0
T = TypeVar("T")


class Cluster(Protocol):
    @property
    def names(self) -> list[str]: ...

    def endpoint(self, name: str) -> str: ...

    def kill(self, name: str) -> None: ...

    def restart(self, name: str) -> None: ...

    def partition(self, *groups: list[str]) -> object: ...

    def heal(self) -> None: ...


@contextmanager
def clients_of(cluster: Cluster) -> Iterator[Mapping[str, Client]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(connect(cluster.endpoint(name))) for name in cluster.names}


def until(ask: Callable[[], T], is_right: Callable[[T], bool], what: str, wait_s: float = WAIT_S) -> T:
    """Ask until the answer is right; a replica that is starting is asked again."""
    deadline = time.monotonic() + wait_s
    answer: object = None
    while time.monotonic() < deadline:
        try:
            found = ask()
        except Unavailable as error:
            answer = error
        else:
            if is_right(found):
                return found
            answer = found
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen in {wait_s:.0f} s; the last answer was {answer!r}")


def until_value(kv: Client, key: bytes, value: bytes | None) -> None:
    until(lambda: _value(kv, key), lambda found: found == value, f"{key!r} = {value!r}")


def until_equal(clients: Mapping[str, Client], wait_s: float = WAIT_S) -> dict[bytes, bytes]:
    """All replicas have the same keys, values and versions."""

    def everything() -> list[list[tuple[bytes, bytes, object]]]:
        return [[(one.key, one.value, one.version) for one in kv.scan()] for kv in clients.values()]

    found = until(everything, lambda all_of: all(one == all_of[0] for one in all_of), "convergence", wait_s)
    return {key: value for key, value, _ in found[0]}


def _value(kv: Client, key: bytes) -> bytes | None:
    entry = kv.get(key)
    return None if entry is None else entry.value


def a_write_at_one_replica_is_read_at_all(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        for name, kv in clients.items():
            written = kv.put(b"from " + name.encode(), b"hello")
            entry = kv.get(b"from " + name.encode())
            assert entry is not None and entry.version == written.version
        for kv in clients.values():
            for name in clients:
                until_value(kv, b"from " + name.encode(), b"hello")


def concurrent_writes_end_equal_everywhere(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        cluster.partition(*([name] for name in cluster.names))
        for number in range(20):
            for name, kv in clients.items():
                kv.put(b"contended/%d" % number, name.encode())
        clients["a"].delete(b"contended/0")
        cluster.heal()
        values = until_equal(clients)
        assert b"contended/19" in values and b"contended/0" not in values


def a_batch_is_all_or_nothing(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        kv = clients["a"]
        written = kv.batch([Put(b"batch/1", b"one"), Put(b"batch/2", b"two"), Delete(b"batch/3")])
        with pytest.raises(KeyTooLong):
            kv.batch([Put(b"batch/4", b"four"), Put(b"k" * 481, b"too long")])
        with pytest.raises(VersionMismatch) as refused:
            kv.batch([Put(b"batch/4", b"four"), Put(b"batch/1", b"new", expect=ABSENT)])
        assert refused.value.definite
        assert kv.get(b"batch/4") is None
        until_value(clients["b"], b"batch/2", b"two")
        assert len(written.versions) == 3


def compare_and_set_takes_one_of_two(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        kv = clients["a"]
        first = kv.put(b"cas", b"1", expect=ABSENT)
        kv.put(b"cas", b"2", expect=first.version)
        with pytest.raises(VersionMismatch):
            kv.put(b"cas", b"3", expect=first.version)
        assert _value(kv, b"cas") == b"2"


def a_value_with_a_time_to_live_goes_everywhere(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        clients["a"].put(b"short", b"lived", ttl_ms=700)
        until_value(clients["b"], b"short", b"lived")
        for kv in clients.values():
            until_value(kv, b"short", None)


def a_retry_has_one_effect_also_after_a_restart(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        kv = clients["a"]
        first = kv.put(b"once", b"first", request_id=b"the same id")
        kv.put(b"once", b"second")
        cluster.restart("a")
        until(lambda: kv.get(b"once"), bool, "a is back")
        again = kv.put(b"once", b"first", request_id=b"the same id")
        assert again.version == first.version
        assert _value(kv, b"once") == b"second"


def a_watch_goes_on_after_a_restart_without_gap_or_repeat(cluster: Cluster) -> None:
    with clients_of(cluster) as clients, clients["b"].watch(b"watched/") as watch:
        for number in range(10):
            clients["a"].put(b"watched/%d" % number, b"before")
        seen = [next(watch).key for _ in range(10)]
        cluster.restart("b")
        for number in range(10, 20):
            clients["a"].put(b"watched/%d" % number, b"after")
        seen += [next(watch).key for _ in range(10)]
        assert seen == [b"watched/%d" % number for number in range(20)]


def a_replica_that_was_away_catches_up(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        clients["c"].put(b"away/last words", b"of c")
        cluster.kill("c")
        for number in range(300):
            clients["ab"[number % 2]].put(b"away/%d" % number, b"missed")
        cluster.restart("c")
        values = until_equal(clients)
        assert len([key for key in values if key.startswith(b"away/")]) == 301


def scans_and_snapshots_see_what_was_there(cluster: Cluster) -> None:
    with clients_of(cluster) as clients:
        kv = clients["a"]
        kv.batch([Put(b"scan/%03d" % number, b"v") for number in range(250)])
        assert [one.key for one in kv.scan(b"scan/", page_size=100)] == [b"scan/%03d" % number for number in range(250)]
        with kv.snapshot() as then:
            kv.put(b"scan/000", b"later")
            assert then.get_many([b"scan/000"])[b"scan/000"].value == b"v"
        assert _value(kv, b"scan/000") == b"later"


STORIES: list[Callable[[Cluster], None]] = [
    a_write_at_one_replica_is_read_at_all,
    concurrent_writes_end_equal_everywhere,
    a_batch_is_all_or_nothing,
    compare_and_set_takes_one_of_two,
    a_value_with_a_time_to_live_goes_everywhere,
    a_retry_has_one_effect_also_after_a_restart,
    a_watch_goes_on_after_a_restart_without_gap_or_repeat,
    scans_and_snapshots_see_what_was_there,
    a_replica_that_was_away_catches_up,
]
