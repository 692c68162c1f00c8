"""`kvstore demo`: the store in one page, on three real processes with the delays of a wide area network.

It shows what the store is for: writes at local speed at every site, an effect that is held back until its cause has
come and a replica that can say why, and a kill -9 that loses nothing that was acknowledged. Every line that is printed
was measured or read from the replicas just then.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from kvstore.client import Client, connect
from kvstore.cluster import LocalCluster
from kvstore.config import LinkConfig
from kvstore.errors import KvError

SITES = ("paris", "tokyo", "quito")
DELAYS_MS = {("paris", "tokyo"): 40.0, ("tokyo", "quito"): 60.0, ("paris", "quito"): 400.0}
WAIT_S = 20.0
WRITES = 300  # at the replica that is killed in the middle of them

Say = Callable[[str], None]
T = TypeVar("T")


def run(say: Say, protocol: str = "optimal") -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kvstore-demo-") as folder, ExitStack() as stack:
        links = [LinkConfig(*pair, delay_ms=ms) for one, ms in DELAYS_MS.items() for pair in (one, one[::-1])]
        cluster = LocalCluster.create(folder, names=SITES, protocol=protocol, links=links)
        stack.enter_context(cluster)
        clients = {name: stack.enter_context(connect(cluster.endpoint(name))) for name in SITES}
        _open(say, cluster, protocol)
        _write_here_read_there(say, clients)
        _hold_and_explain(say, clients)
        _kill(say, cluster, clients)
        _numbers(say, clients)
    say(f"That took {time.monotonic() - began:.0f} s. By hand: kvstore cluster up --replicas 3 --dir my-cluster")


def _open(say: Say, cluster: LocalCluster, protocol: str) -> None:
    say(f"1. Three replicas, three processes, one cluster; updates are ordered by `{protocol}`")
    for site in cluster.cluster.sites:
        process = cluster.process(site.name)
        say(f"   {site.name} serves clients at {site.client} (process {process.pid if process else '?'})")
    delays = ", ".join(f"{one}-{other} {ms:.0f}" for (one, other), ms in DELAYS_MS.items())
    say(f"   The links between them are slow on purpose (ms each way): {delays}")
    say("")


def _write_here_read_there(say: Say, clients: Mapping[str, Client]) -> None:
    say("2. A write is taken where you are, and travels afterwards")
    took = []
    for number in range(20):
        start = time.perf_counter()
        clients["paris"].put(b"warm/%d" % number, b"up")
        took.append(time.perf_counter() - start)
    start = time.perf_counter()
    written = clients["paris"].put(b"greeting", b"bonjour")
    say(f"   paris  put greeting = bonjour     on disk and answered in {_ms(statistics.median(took))} (median of 20)")
    for name in ("tokyo", "quito"):
        _until(lambda name=name: clients[name].get(b"greeting"))  # type: ignore[misc]
        after = _ms(time.perf_counter() - start)
        say(f"   {name}  get greeting -> bonjour    visible {after} after the put, same version {written.version}")
    say("")


def _hold_and_explain(say: Say, clients: Mapping[str, Client]) -> None:
    say("3. An effect never shows before its cause")
    start = time.perf_counter()
    with clients["quito"].watch(b"chat/") as watch:
        clients["paris"].put(b"chat/1-question", b"shall we meet?")
        say("   paris  put chat/1-question        quito is 400 ms away from paris, tokyo only 40")
        _until(lambda: clients["tokyo"].get(b"chat/1-question"))
        clients["tokyo"].put(b"chat/2-reply", b"yes, at noon")
        say("   tokyo  reads it, put chat/2-reply the reply takes the fast way: it overtakes the question")
        held = _until(lambda: _held_with_updates(clients["quito"]))
        at = time.perf_counter() - start
        shows = clients["quito"].get_many([b"chat/1-question", b"chat/2-reply"])
        say(f"   quito  holds the reply back       {_ms(at)} after the question; it shows {len(shows)} of the two")
        say("          and why, as `kvstore explain` tells it:")
        for line in _explained(held):
            say(f"            {line}")
        order = [next(watch).key.decode() for _ in range(2)]
        say(f"   quito  shows {', then '.join(order)}   after {_ms(time.perf_counter() - start)}")
    say("")


def _held_with_updates(kv: Client) -> Any:
    """The first message with updates that is held at a replica, or None."""
    return next((held for held in kv.explain().held if held.updates), None)


def _explained(held: Any) -> Iterator[str]:
    yield (
        f"message {held.dot.seq} of {held.origin} has waited {held.held_ms} ms so far"
        f" for message {held.missing.seq} of {held.missing_origin}"
    )
    for step in held.chain:
        yield f"- {step.sentence}"


def _kill(say: Say, cluster: LocalCluster, clients: Mapping[str, Client]) -> None:
    say("4. kill -9 in the middle of writing")
    acknowledged: list[bytes] = []

    def write() -> None:
        for number in range(WRITES):
            key = b"kill/%04d" % number
            try:
                clients["tokyo"].put(key, b"written", timeout_s=WAIT_S)
            except KvError:
                continue
            acknowledged.append(key)

    with _beside(write):
        _until(lambda: len(acknowledged) > WRITES // 3)
        cluster.kill("tokyo")
        before = len(acknowledged)
        say(f"   tokyo  killed after {before} acknowledged writes; paris and quito go on without it")
        clients["paris"].put(b"meanwhile", b"life goes on")
        start = time.perf_counter()
        cluster.restart("tokyo")
        _until(lambda: len(acknowledged) > before)
        after = _ms(time.perf_counter() - start)
        say(f"   tokyo  back after {after}; its client has asked again by itself, each write with one effect")
    for name, kv in clients.items():
        there = _until(lambda kv=kv: _all_there(kv, acknowledged))  # type: ignore[misc]
        say(f"   {name}  has {there} of {len(acknowledged)} acknowledged writes")
    say("")


def _all_there(kv: Client, keys: list[bytes]) -> int:
    there = len(list(kv.scan(b"kill/")))
    return there if there >= len(keys) and kv.get(b"meanwhile") else 0


def _numbers(say: Say, clients: Mapping[str, Client]) -> None:
    say("5. The numbers (`kvstore status` shows more; those of tokyo count from its restart)")
    say("           sent   delivered   held now   held in all   control bytes a message   commits   alarms")
    for name, kv in clients.items():
        status = kv.status()
        done = status.activity
        a_message = done.control_bytes / done.messages_sent if done.messages_sent else 0.0
        say(
            f"   {name}  {done.messages_sent:>5} {done.messages_delivered:>11} {done.held:>10}"
            f" {done.held_total_ms:>10} ms {a_message:>25.1f} {status.commit:>9} {len(status.alarms):>8}"
        )
    say("")


@contextmanager
def _beside(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _until(ask: Callable[[], T | None]) -> T:
    """Ask until there is something; a replica that is away is asked again."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.002)
    raise TimeoutError(f"the demo waited {WAIT_S:.0f} s in vain")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
