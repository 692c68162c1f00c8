"""Random placement, random writes, and a judge who has only the trace files and the list of what was written.

Five sites, three groups that overlap, and for each site some keys that it holds alone. Every site has a writer of its
own that writes one thing after the other, so the n-th write that was answered at a site is the n-th message that the
site made for a client: that is how the judge knows which keys a message in the trace brought, without any help of the
product. Sites stop and start again while the others go on writing.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import pyarrow.parquet

from kvstore.config import LinkConfig
from kvstore.v1 import kv_pb2 as kv
from kvstore.v1 import kv_pb2_grpc
from kvstore.v1 import model_pb2 as model

NAMES = "abcde"
SITES = range(5)
WAIT_S = 60.0

Groups = dict[bytes, tuple[str, ...]]
DotOf = tuple[int, int]  # site and number


class Cluster(Protocol):
    def endpoint(self, name: str) -> str: ...

    def stop(self, name: str, /) -> object: ...

    def start(self, name: str, /) -> object: ...


def random_placement(rng: random.Random) -> Groups:
    """Three groups of two to four sites; each shares a site with the next. All other keys live everywhere."""
    groups: list[set[str]] = [set(rng.sample(NAMES, rng.randint(2, 4)))]
    for _ in range(2):
        shared = rng.choice(sorted(groups[-1]))
        groups.append({shared, *rng.sample(NAMES, rng.randint(1, 3))})
        if len(groups[-1]) == 1:
            groups[-1].add(NAMES[(NAMES.index(shared) + 1) % len(NAMES)])
    placed = {b"g%d/" % number: tuple(sorted(group)) for number, group in enumerate(groups)}
    return placed | {b"only-%s/" % name.encode(): (name,) for name in NAMES}


def random_links(rng: random.Random) -> tuple[LinkConfig, ...]:
    pairs = [(one, other) for one in NAMES for other in NAMES if one != other]
    return tuple(LinkConfig(*pair, rng.choice((0, 0, 2, 10, 25))) for pair in pairs)


def holders(groups: Groups, key: bytes) -> set[int]:
    names = next((names for prefix, names in groups.items() if key.startswith(prefix)), tuple(NAMES))
    return {NAMES.index(name) for name in names}


class Plan:
    """What each site writes, decided by the seed alone: the same for every protocol."""

    def __init__(self, seed: int, writes: int, rounds: int = 4) -> None:
        rng = random.Random(f"partial {seed}")
        self.groups = random_placement(rng)
        self.links = random_links(rng)
        share = writes // (rounds * len(SITES))
        self.away = [rng.choice(NAMES) for _ in range(rounds)]  # who is down in each round
        self._number = 0
        self.rounds = [{name: [self._write(rng) for _ in range(share)] for name in NAMES} for _ in range(rounds)]

    def _write(self, rng: random.Random) -> kv.BatchRequest:
        """One operation, or some over several groups; keys that come again, and keys that never do."""
        self._number += 1
        number = self._number
        prefixes = [*self.groups, b""]
        request = kv.BatchRequest()
        keys: list[bytes] = []  # each once
        for place in range(rng.choice((1, 1, 1, 2, 3, 4))):
            name = b"k%d" % rng.randrange(20) if rng.random() < 0.5 else b"new %d %d" % (number, place)
            keys.append(rng.choice(prefixes) + name)
        for key in dict.fromkeys(keys):
            if rng.random() < 0.1:
                request.operations.add().delete.key = key
            else:
                put = request.operations.add().put
                put.key, put.value = key, b"%d" % number
        return request


class Wrote(NamedTuple):
    """A write that was answered."""

    keys: tuple[bytes, ...]
    values: tuple[bytes | None, ...]
    versions: tuple[tuple[int, int], ...]


def run(cluster: Cluster, plan: Plan) -> dict[int, list[Wrote]]:
    """Do it all, and wait until everybody has everything. What was written at each site, in order."""
    done = write(cluster, plan)
    settle(cluster, plan, done)
    return done


def write(cluster: Cluster, plan: Plan) -> dict[int, list[Wrote]]:
    done: dict[int, list[Wrote]] = {site: [] for site in SITES}
    for writes, away in zip(plan.rounds, plan.away, strict=True):
        cluster.stop(away)
        _write_all(cluster, {name: some for name, some in writes.items() if name != away}, done)
        cluster.start(away)
        _write_all(cluster, {away: writes[away]}, done)
    return done


def settle(cluster: Cluster, plan: Plan, done: dict[int, list[Wrote]]) -> None:
    """Until every site has all that it holds, and nothing else."""
    expected = final(plan.groups, done)
    deadline = time.monotonic() + WAIT_S
    with ExitStack() as stack:
        stubs = [_stub(cluster, name, stack) for name in NAMES]
        for site, stub in enumerate(stubs):
            while (found := _held(stub)) != expected[site]:
                assert time.monotonic() < deadline, f"{NAMES[site]} has {len(found)} of {len(expected[site])} keys"
                time.sleep(0.05)


def final(groups: Groups, done: dict[int, list[Wrote]]) -> list[dict[bytes, tuple[bytes, tuple[int, int]]]]:
    """What each site holds at the end: of each key the greatest version, if it is no delete."""
    newest: dict[bytes, tuple[tuple[int, int], bytes | None]] = {}
    for write in (one for some in done.values() for one in some):
        for key, value, version in zip(write.keys, write.values, write.versions, strict=True):
            newest[key] = max(newest.get(key, (version, value)), (version, value), key=lambda pair: pair[0])
    alive = {key: (value, version) for key, (version, value) in newest.items() if value is not None}
    return [{key: found for key, found in alive.items() if site in holders(groups, key)} for site in SITES]


def _write_all(cluster: Cluster, writes: dict[str, list[kv.BatchRequest]], done: dict[int, list[Wrote]]) -> None:
    def one_site(name: str) -> None:
        with ExitStack() as stack:
            stub = _stub(cluster, name, stack)
            for request in writes[name]:
                response = stub.Batch(request, timeout=30, wait_for_ready=True)
                puts = [
                    (one.put, one.put.value) if one.HasField("put") else (one.delete, None)
                    for one in request.operations
                ]
                versions = tuple((version.time, version.site) for version in response.versions)
                keys, values = tuple(one.key for one, _ in puts), tuple(value for _, value in puts)
                done[NAMES.index(name)].append(Wrote(keys, values, versions))

    with ThreadPoolExecutor(len(writes)) as pool:
        list(pool.map(one_site, writes))


def _stub(cluster: Cluster, name: str, stack: ExitStack) -> Any:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50))
    return kv_pb2_grpc.KeyValueStub(stack.enter_context(grpc.insecure_channel(cluster.endpoint(name), options=options)))


def _held(stub: Any) -> dict[bytes, tuple[bytes, tuple[int, int]]]:
    freshness = model.Freshness(level=model.Freshness.LEVEL_ANY)
    pages = stub.Scan(kv.ScanRequest(only_held=True, freshness=freshness), timeout=30, wait_for_ready=True)
    entries = (entry for page in pages for entry in page.entries)
    return {entry.key: (entry.value, (entry.version.time, entry.version.site)) for entry in entries}


# The judge


@dataclass
class Judged:
    messages: int = 0  # of clients, that went to anybody
    copies: int = 0
    alone: int = 0  # messages that went to nobody
    extras: int = 0
    held: int = 0
    control_bytes: int = 0  # of the copies of clients' messages
    units: int = 0
    complaints: list[str] = field(default_factory=list)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of a folder of traces, each site's in its own order."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet")):
        rows += pyarrow.parquet.read_table(path, partitioning=None).to_pylist()
    return sorted(rows, key=lambda row: (row["site"], row["incarnation"], row["index"]))


def judge(rows: Iterable[dict[str, Any]], groups: Groups, done: dict[int, list[Wrote]]) -> Judged:
    rows = list(rows)
    judged = Judged()
    by_event: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        row["name"] = (row["dot"]["site"], row["dot"]["seq"])
        by_event[row["event"]].append(row)
    brought = _brought(by_event["applied"], done, judged)
    sent = {row["name"]: row for row in by_event["sent"]}
    _judge_messages(by_event["sent"], brought, groups, judged)
    _judge_arrivals(by_event, brought, groups, judged)
    _judge_order(rows, sent, judged)
    judged.held = len(by_event["held"])
    return judged


def _brought(applied: list[dict[str, Any]], done: dict[int, list[Wrote]], judged: Judged) -> dict[DotOf, Wrote]:
    """Which write each message of a client was."""
    brought: dict[DotOf, Wrote] = {}
    for site, writes in done.items():
        mine = [row["name"] for row in applied if row["site"] == site == row["dot"]["site"] and not row["is_extra"]]
        if len(mine) != len(writes) or mine != sorted(mine):
            judged.complaints.append(f"{NAMES[site]} made {len(mine)} messages of {len(writes)} writes")
        brought |= dict(zip(mine, writes, strict=False))
    return brought


def _judge_messages(sent: list[dict[str, Any]], brought: dict[DotOf, Wrote], groups: Groups, judged: Judged) -> None:
    links: dict[DotOf, set[int]] = defaultdict(set)
    for row in sent:
        links[row["name"]].add(row["link"])
        if row["is_extra"]:
            judged.extras += 1
        else:
            judged.copies += 1
            judged.control_bytes += row["control_bytes"]
            judged.units += row["units"]
        if row["link"] not in row["destinations"]:
            judged.complaints.append(f"{row['name']} went to {row['link']}, not one of {row['destinations']}")
    for name, write in brought.items():
        to = {site for key in write.keys for site in holders(groups, key)} - {name[0]}
        if links.get(name, set()) != to:
            judged.complaints.append(f"{name} went to {links.get(name)}, and its keys live at {to}")
        judged.alone += not to
        judged.messages += bool(to)


def _judge_arrivals(
    by_event: dict[str, list[dict[str, Any]]], brought: dict[DotOf, Wrote], groups: Groups, judged: Judged
) -> None:
    """Nobody gets a key that it does not hold, and what a message brings is applied at once, and once."""
    for row in by_event["received"] + by_event["delivered"]:
        if not row["is_extra"]:
            mine = [key for key in brought[row["name"]].keys if row["site"] in holders(groups, key)]
            if row["updates"] != len(mine) or not mine:
                judged.complaints.append(f"{row['name']} brought {row['updates']} updates to {row['site']}, not {mine}")
    applied: dict[tuple[int, DotOf], dict[str, Any]] = {}
    for row in by_event["applied"]:
        place = (row["site"], row["name"])
        if place in applied:
            judged.complaints.append(f"{row['name']} was applied twice at {row['site']}")
        applied[place] = row
        if row["is_extra"]:
            continue
        keys = brought[row["name"]].keys
        mine = [key for key in keys if row["site"] in holders(groups, key)]
        fresh = [key for key in mine if b"new " in key]  # nothing can have been there that was newer
        if not len(fresh) <= row["updates"] <= len(mine):
            judged.complaints.append(f"{row['name']} changed {row['updates']} keys at {row['site']}, of {mine}")
        if row["keys"] is not None and not set(fresh) <= set(row["keys"]) <= set(mine):
            judged.complaints.append(f"{row['name']} changed {row['keys']} at {row['site']}, of {mine}")
    delivered = {(row["site"], row["name"]) for row in by_event["delivered"]}
    wanted = {(site, row["name"]) for row in by_event["sent"] for site in row["destinations"]}
    if delivered != wanted:
        judged.complaints.append(f"{len(wanted - delivered)} copies are missing, {len(delivered - wanted)} too many")


def _judge_order(rows: list[dict[str, Any]], sent: dict[DotOf, dict[str, Any]], judged: Judged) -> None:
    """Whatever is in a message's witnessed past and was destined for a site is delivered there before.

    What a protocol made for itself is not ordered: it stands for other messages and has nothing to say.
    """
    destined: dict[tuple[int, int], list[int]] = defaultdict(list)  # by receiver and sender: numbers, rising
    for site, seq in sorted(name for name, row in sent.items() if not row["is_extra"]):
        for receiver in sent[site, seq]["destinations"]:
            destined[receiver, site].append(seq)
    at: dict[tuple[int, int], int] = defaultdict(int)  # how many of those have been delivered, none left out
    for row in rows:
        if row["event"] != "delivered" or row["is_extra"]:
            continue
        here, (sender, seq) = row["site"], row["name"]
        witness = sent[row["name"]]["witness"]
        for origin in SITES:
            newest = witness[origin] if origin != sender else seq - 1
            rest = destined[here, origin][at[here, origin] :]
            if rest and rest[0] <= newest:
                judged.complaints.append(f"{row['name']} was delivered at {here} before {rest[0]} of {origin}")
        if seq in destined[here, sender][at[here, sender] : at[here, sender] + 1]:
            at[here, sender] += 1
        else:
            judged.complaints.append(f"{row['name']} was delivered at {here} out of its sender's order")
