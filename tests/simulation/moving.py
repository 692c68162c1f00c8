"""One session that moves with every operation, and writes down what it did and saw.

A session whose past is not where it came waits, then goes elsewhere. A write of which nobody knows what became is asked
again where it was asked first, or left in doubt. Some keys are only ever written, so that an absent value proves
something; the others are deleted and expire.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from kvstore.errors import KvError, VersionMismatch
from kvstore.update import Version
from kvstore.v1 import kv_pb2, model_pb2
from pipeline.audit import Operation, Outcome
from pipeline.audit.history import Kind
from tests.simulation.replicas import EPOCH_MS, Life

if TYPE_CHECKING:
    from tests.simulation.sessions import Run

PATIENCE_S = 2.0  # that a session waits at one replica for its past
DESPAIR_S = 30.0  # after which a session that got no answer anywhere gives up, and the run with it
PASSING = (
    "PAST_MISSING",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "STOPPING",
    "CLOCK_SKEW",
)  # of what a session may be told
CALLS = ("get", "get_many", "put", "delete", "batch")
TTL_MS = 1_500  # that a value lives, at most
FRESH_ENOUGH = model_pb2.Freshness(level=model_pb2.Freshness.LEVEL_SESSION)


class Task(NamedTuple):
    """One operation of a session: a call, and the rows that it will be."""

    call: str
    request: Any
    keys: tuple[bytes, ...]
    kinds: tuple[Kind, ...]
    expires: tuple[bool, ...]

    @property
    def is_write(self) -> bool:
        return self.call not in ("get", "get_many")


class Session:
    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.name = name
        self.token = b""
        self.rng = run.rng
        self.index = self.transaction = 0
        self.last_site = -1
        self.seen: dict[bytes, Version] = {}  # the newest that it saw of a key

    async def act(self) -> None:
        run = self.run
        await asyncio.sleep(self.rng.uniform(0, 0.02))
        task = self._task()
        run.counts["operations"] += 1
        self.transaction += 1
        start_ns = _now_ns()
        answer = await self._do(task)
        if answer is None:
            observed: list[str | None] = [None] * len(task.keys)
        elif isinstance(answer, VersionMismatch):
            run.counts["mismatches"] += 1
            self._note(task, [None] * len(task.keys), Outcome.FAIL, start_ns)
            return
        elif task.is_write:
            versions = answer.versions if task.call == "batch" else [answer.version]
            observed = [str(Version(one.time, one.site)) for one in versions]
        else:
            entries = answer.entries if task.call == "get_many" else [answer.entry] if answer.HasField("entry") else []
            found = {one.key: Version(one.version.time, one.version.site) for one in entries}
            self.seen |= found
            observed = [str(found[key]) if key in found else None for key in task.keys]
        self._note(task, observed, Outcome.UNKNOWN if answer is None else Outcome.OK, start_ns)
        if answer is not None:
            self.token = answer.session

    def _note(self, task: Task, versions: list[str | None], outcome: Outcome, start_ns: int) -> None:
        for key, kind, expires, version in zip(task.keys, task.kinds, task.expires, versions, strict=True):
            self.index += 1
            is_read = kind is Kind.READ
            self.run.rows.append(
                Operation(
                    self.name,
                    self.index,
                    self.transaction,
                    kind,
                    key,
                    version=None if is_read else version,
                    observed=(version,) if is_read and version else (),
                    outcome=outcome,
                    expires=expires,
                    replica=str(self.last_site),
                    start_ns=start_ns,
                    end_ns=_now_ns(),
                )
            )

    # Asking, until something is known

    async def _do(self, task: Task) -> Any:
        """The answer; None when nobody knows what became of a write, and a VersionMismatch when it is one."""
        counts = self.run.counts
        self._seal(task)
        stays = self.last_site in self.run.replicas.lives and self.rng.random() < self.run.stays
        life = await (self._again_at(self.last_site) if stays else self._somewhere())
        despair_s = asyncio.get_running_loop().time() + DESPAIR_S
        while True:
            counts["moves"] += life.site.number != self.last_site
            self.last_site = life.site.number
            now_s = asyncio.get_running_loop().time()
            try:
                answer = await life.call(task.call, task.request, now_s + PATIENCE_S)
            except VersionMismatch as error:
                return error
            except KvError as error:
                if now_s > despair_s or error.reason not in PASSING:
                    self.run.replicas.complain(f"session {self.name} can go on nowhere: {error}")
                    await asyncio.Event().wait()
                if error.definite or not task.is_write:
                    counts["in_vain"] += error.reason == "PAST_MISSING"
                    life = await self._somewhere()
                    continue
                counts["lost"] += 1
                if self.rng.random() < 0.5:
                    counts["doubts"] += 1
                    return None
                counts["repeats"] += 1
                life = await self._again_at(self.last_site)
                continue
            return answer

    async def _somewhere(self) -> Life:
        """Any replica that lives, but not the same again."""
        while True:
            lives = self.run.replicas.lives
            others = [site for site in sorted(lives) if site != self.last_site or len(lives) == 1]
            if others:
                return lives[self.rng.choice(others)]
            await asyncio.sleep(0.05)

    async def _again_at(self, site: int) -> Life:
        while site not in self.run.replicas.lives:
            await asyncio.sleep(0.05)
        return self.run.replicas.lives[site]

    def _seal(self, task: Task) -> None:
        task.request.session = self.token
        task.request.freshness.CopyFrom(FRESH_ENOUGH)

    # What to do next

    def _task(self) -> Task:
        prefix = self.rng.choice(self.run.prefixes)
        match self.rng.choices(CALLS, self.run.shares)[0]:
            case "get":
                key = self._key(prefix)
                return Task("get", kv_pb2.GetRequest(key=key), (key,), (Kind.READ,), (False,))
            case "get_many":
                keys = tuple({self._key(prefix): None for _ in range(self.rng.randint(2, 6))})
                request = kv_pb2.GetManyRequest(keys=keys)
                return Task("get_many", request, keys, (Kind.READ,) * len(keys), (False,) * len(keys))
            case "put":
                return self._put(self._key(prefix))
            case "delete":
                key = self._fleeting(prefix)
                request_id = self._request_id()
                return Task(
                    "delete", kv_pb2.DeleteRequest(key=key, request_id=request_id), (key,), (Kind.DELETE,), (False,)
                )
        return self._batch()

    def _put(self, key: bytes) -> Task:
        request = kv_pb2.PutRequest(key=key, value=self._value(), request_id=self._request_id())
        if key[1:2] == b"f" and self.rng.random() < 0.5:
            request.ttl_ms = self.rng.randint(1, TTL_MS)
        elif key in self.seen and self.rng.random() < 0.1:
            request.expect_version.time, request.expect_version.site = self.seen[key]
        return Task("put", request, (key,), (Kind.WRITE,), (bool(request.ttl_ms),))

    def _batch(self) -> Task:
        keys = tuple({self._key(self.rng.choice(self.run.prefixes)): None for _ in range(self.rng.randint(2, 4))})
        request = kv_pb2.BatchRequest(request_id=self._request_id())
        kinds = []
        for key in keys:
            if key[1:2] == b"f" and self.rng.random() < 0.3:
                request.operations.add().delete.key = key
                kinds.append(Kind.DELETE)
            else:
                put = request.operations.add().put
                put.key, put.value = key, self._value()
                kinds.append(Kind.WRITE)
        return Task("batch", request, keys, tuple(kinds), (False,) * len(keys))

    def _key(self, prefix: bytes) -> bytes:
        if self.rng.random() < 1 / 3:
            return self._fleeting(prefix)
        return b"%sl%d" % (prefix, self.rng.randrange(2 * self.run.keys))

    def _fleeting(self, prefix: bytes) -> bytes:
        return b"%sf%d" % (prefix, self.rng.randrange(self.run.keys))

    def _value(self) -> bytes:
        return b"%s/%d" % (self.name.encode(), self.transaction)

    def _request_id(self) -> bytes:
        return b"%s/%d" % (self.name.encode(), self.transaction)


def _now_ns() -> int:
    return EPOCH_MS * 1_000_000 + int(asyncio.get_running_loop().time() * 1e9)
