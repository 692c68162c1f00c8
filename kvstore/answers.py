"""What a replica answers, as values: the way back of calls.py.

Messages are read here and never made, so nothing of gRPC needs to be known: whoever has the same fields will do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from causal.model import Dot
from kvstore.errors import Internal, KvError, error_of
from kvstore.values import Change, Entry, Read, ReadMany, Sibling, Version, Written, WrittenBatch

Item = Entry | Written | KvError | None  # what became of one operation; None: there is nothing under the key
Result = Read | Written | KvError  # the same, and who said it


def version_of(message: Any) -> Version:
    return Version(message.time, message.site)


def entry_of(message: Any) -> Entry:
    others = message.siblings
    siblings = tuple([Sibling(one.value, version_of(one.version), one.expires_ms) for one in others]) if others else ()
    return Entry(message.key, message.value, version_of(message.version), message.expires_ms, siblings)


def change_of(message: Any, *, is_delete: bool) -> Change:
    value = None if is_delete else message.value
    dot = Dot(message.dot.site, message.dot.seq)
    return Change(message.key, value, version_of(message.version), message.expires_ms, message.index, dot)


def found(answer: Any) -> Read:
    return _found(answer, answer.site)


def _found(answer: Any, site: str) -> Read:
    entry = entry_of(answer.entry) if answer.HasField("entry") else None
    return Read(entry, site, answer.commit, _staleness_ms(answer))


def found_many(answer: Any) -> ReadMany:
    entries = {one.key: entry_of(one) for one in answer.entries}
    return ReadMany(entries, answer.site, answer.commit, _staleness_ms(answer))


def _staleness_ms(answer: Any) -> int | None:
    return answer.staleness_ms if answer.HasField("staleness_ms") else None


def written(answer: Any) -> Written:
    return Written(version_of(answer.version), answer.site, answer.commit)


def written_batch(answer: Any) -> WrittenBatch:
    return WrittenBatch(tuple([version_of(one) for one in answer.versions]), answer.site, answer.commit)


def each_written(batch: WrittenBatch) -> list[Written]:
    return [Written(version, batch.site, batch.commit) for version in batch.versions]


def results(answer: Any, calls: int) -> list[Result]:
    """Of a pipeline."""
    if len(answer.results) != calls:
        raise Internal(why=f"{len(answer.results)} results came for {calls} calls")
    return list(_results(answer.results, answer.site))


def _results(messages: Sequence[Any], site: str) -> Iterator[Result]:
    for one in messages:
        match one.WhichOneof("result"):
            case "put":
                yield Written(version_of(one.put.version), site, one.put.commit)
            case "get":
                yield _found(one.get, site)
            case "delete":
                yield Written(version_of(one.delete.version), site, one.delete.commit)
            case "error":
                error = one.error
                yield error_of(error.reason, error.message, error.details, definite=error.definite)
            case _:
                yield Internal(why="a result came that says nothing")


def items(answer: Any, calls: int) -> list[Item]:
    """The results of a pipeline, without who said it."""
    return [one.entry if isinstance(one, Read) else one for one in results(answer, calls)]
