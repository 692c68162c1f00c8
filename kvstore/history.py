"""What a client did and saw, written down for whoever checks later whether the store kept its promises.

    with connect("127.0.0.1:7400", history=History("history", run="today")) as kv: ...

A row is one operation on one key, with the version that was written or the versions that were read, when it began and
ended, and what the caller was told: ok, fail (a write that surely was not done), unknown. Whoever judges a history
must be able to trust it more than the store, so nothing is written down that was not promised:

- the rows of a session are in the order in which it did them. A read that was told not to wait for what its session
  has seen (`freshness="any"`), and the reads of a pipeline, which are in no order with the writes beside them, are
  written down as reads without a session;
- what a watch tells is not written down: it tells of changes, one after another, and not of a state at a moment.

A thread of its own writes the rows. A call waits only when that falls far behind: a history with holes proves nothing.
Rows are safe when their segment is sealed (historyfile.py), which happens when it is full or old enough, and at the
end: `close`, of the history or of its client.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from kvstore.errors import BadRequest, KvError, StorageFailed, Unavailable
from kvstore.historyfile import LINES, File, Lines, Row, Segments, read_history
from kvstore.terms import is_unordered, named_versions
from kvstore.values import Delete, Entry, Get, Put, Read, Written

if TYPE_CHECKING:
    from kvstore.answers import Item, Result
    from kvstore.calls import Call
    from kvstore.checks import Operation
    from kvstore.streams import Scanning

__all__ = ["History", "Row", "read_history"]

VALUES = ("digest", "full", "none")
ROWS_MAX = 50_000  # rows of a segment; beyond it: it is sealed, and another begins
AGE_MAX_S = 5.0  # seconds that a row waits to be sealed; beyond it: the same
WAITING_MAX = 20_000  # calls whose rows wait for the thread that writes; beyond it: callers wait
DIGEST_BYTES = 8


def digest(data: bytes) -> str:
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


class History:
    """One file (`….jsonl`) or folder of histories. Any number of clients and threads may share it.

    `run` names the rows that belong together; without one it is made up. `values` says what to keep of values: a
    digest, all of them, or nothing.
    """

    def __init__(self, path: Path | str, *, run: str = "", values: str = "digest") -> None:
        if values not in VALUES:
            raise BadRequest(why=f"there is no way {values!r} to keep values; there are {', '.join(VALUES)}")
        self.path = Path(path)
        self._writer = os.urandom(6).hex()
        self.run = run or f"run-{self._writer}"
        self.trouble = ""  # why nothing is written any more
        self._values = values
        self._file: File = Lines(self.path) if self.path.suffix == LINES else self._segments()
        self._sessions = count(1)
        self._waiting: Queue[list[Row] | None] = Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # Of calls without a session. Many histories may tell of one run; such calls must not look like the same.
        self.outside = Diary(self, "", first=int(self._writer[:6], 16) << 32)

    def _segments(self) -> Segments:
        return Segments(self.path, writer=self._writer, values=self._values)

    def session(self) -> Diary:
        """For a session that begins."""
        return Diary(self, f"s{next(self._sessions)}-{self._writer}")

    def append(self, rows: list[Row]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._write, name="history", daemon=True)
                self._thread.start()
            self._waiting.put(rows)

    def close(self) -> None:
        """Seal what there is; StorageFailed if something could not be written. What comes later goes on after it."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is not None:
                self._waiting.put(None)
                thread.join()
        if self.trouble:
            raise StorageFailed(path=str(self.path), why=self.trouble)

    def kept(self, value: bytes) -> bytes | None:
        if self._values == "digest":
            return digest(value).encode()
        return value if self._values == "full" else None

    # On the thread that writes

    def _write(self) -> None:
        rows: list[Row] = []
        seal_s = 0.0
        while True:
            try:
                came = self._waiting.get(timeout=max(seal_s - time.monotonic(), 0.0) if rows else None)
            except Empty:
                came = []
            if came and not rows:
                seal_s = time.monotonic() + AGE_MAX_S
            rows += came or ()
            if rows and (came is None or len(rows) >= ROWS_MAX or time.monotonic() >= seal_s):
                self._keep(rows)
                rows = []
            if came is None:
                return

    def _keep(self, rows: list[Row]) -> None:
        if self.trouble:
            return
        try:
            self._file.write(rows)
        except Exception as error:  # whatever it is: calls go on, and `close` says it
            self.trouble = f"{len(rows)} rows and all that follow are lost: {error}"


class Diary:
    """What one session did, in its order; the one without a name is of all calls that have no session."""

    def __init__(self, history: History, session: str, *, first: int = 0) -> None:
        self._history = history
        self._session = session
        self._lock = threading.Lock()
        self._index = count(first)
        self._transaction = count(first)

    def answered(self, call: Call[Any], result: Any, *, site: str, started_ns: int, token: bytes = b"") -> None:
        self._call(call, call.items(result), site=site, started_ns=started_ns, token=token)

    def failed(self, call: Call[Any], error: BaseException, *, started_ns: int, token: bytes = b"") -> None:
        failure = _failure(error)
        items, site = [failure] * len(call.operations), failure.details.get("site", "")
        self._call(call, items, site=site, started_ns=started_ns, token=token)

    def single(self, operation: Operation, result: Result | BaseException, *, started_ns: int) -> None:
        """One of many calls that travelled together."""
        if isinstance(result, Read):
            self.note([(operation, result.entry)], site=result.site, started_ns=started_ns)
        elif isinstance(result, Written):
            self.note([(operation, result)], site=result.site, started_ns=started_ns)
        else:
            failure = _failure(result)
            self.note([(operation, failure)], site=failure.details.get("site", ""), started_ns=started_ns)

    def _call(self, call: Call[Any], items: Sequence[Item], *, site: str, started_ns: int, token: bytes) -> None:
        both = list(zip(call.operations, items, strict=True))
        if call.method == "Pipeline":
            for one in both:
                diary = self._history.outside if isinstance(one[0], Get) else self
                diary.note([one], site=site, started_ns=started_ns, token=token)
        else:
            diary = self._history.outside if is_unordered(call.request) else self
            diary.note(both, site=site, started_ns=started_ns, token=token, replaced=named_versions(call.request))

    def page(self, entries: Sequence[Entry], source: Scanning, *, started_ns: int) -> None:
        """Of a scan."""
        diary = self._history.outside if source.is_unordered else self
        token = source.strand.memory.token if source.strand.memory is not None else b""
        diary.note([(Get(one.key), one) for one in entries], site=source.site, started_ns=started_ns, token=token)

    def note(
        self,
        done: Sequence[tuple[Operation, Item]],
        *,
        site: str,
        started_ns: int,
        token: bytes = b"",
        replaced: Sequence[list[str]] = (),
    ) -> None:
        """Rows of one moment. `replaced`: the versions that each of its writes named."""
        ended_ns = time.monotonic_ns()
        name = digest(token) if token and self._session else None
        with self._lock:
            transaction = next(self._transaction)
            rows = [
                self._row(operation, item, transaction, site, started_ns, ended_ns, name) for operation, item in done
            ]
            for row, versions in zip(rows, replaced, strict=False):
                row.replaces = versions or None
            if rows:
                self._history.append(rows)

    def _row(
        self,
        operation: Operation,
        item: Item,
        transaction: int,
        site: str,
        started_ns: int,
        ended_ns: int,
        token: str | None,
    ) -> Row:
        entry, is_read = item if isinstance(item, Entry) else None, isinstance(operation, Get)
        value = operation.value if isinstance(operation, Put) else entry.value if entry else None
        return Row(
            run=self._history.run,
            session=self._session,
            index=next(self._index),
            transaction=transaction,
            operation="read" if is_read else "delete" if isinstance(operation, Delete) else "write",
            key=operation.key,
            value=None if value is None else self._history.kept(value),
            version=str(item.version) if isinstance(item, Written) else None,
            observed=[str(one) for one in entry.versions] if entry else [],
            replica=site,
            start_ns=started_ns,
            end_ns=ended_ns,
            outcome=_outcome(item, is_read=is_read),
            token=token,
            expires=_expires(operation, entry),
        )


def _failure(error: BaseException) -> KvError:
    """Of a call that was cancelled, nobody knows."""
    return error if isinstance(error, KvError) else Unavailable(site="", why="given up")


def _outcome(item: Item, *, is_read: bool) -> str:
    if not isinstance(item, KvError):
        return "ok"
    return "fail" if is_read or item.definite else "unknown"


def _expires(operation: Operation, entry: Entry | None) -> bool:
    if entry is not None:
        return any((entry.expires_ms, *[one.expires_ms for one in entry.siblings]))
    return isinstance(operation, Put) and operation.ttl_ms is not None
