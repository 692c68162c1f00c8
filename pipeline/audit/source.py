"""Which write did each read see? The step from what clients recorded to the relation *reads from*.

A version that was observed did happen, whatever its writer was told. So each observed version is looked up, in this
order:

1. A write that was acknowledged with this version, or one of unknown outcome that has it: that one.
2. A write that failed: an *aborted read*. It was promised not to have happened.
3. Writes of unknown outcome to this key whose version was never learned. One such write and one such version: that
   one. Several, and at least as many writes as versions: some of them, nobody knows which. The version gets a
   *stranger*, a write by nobody that precedes its readers and follows nothing. More such versions than such writes:
   a *thin air read*, because a write has one effect however often it was tried.
4. Nobody wrote it: a *thin air read*.

In a history that is known to be incomplete, whatever has no known writer gets a stranger.

Thin air and aborted reads go on with strangers, so that the rest can still be judged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pipeline.audit.history import NO_SESSION, History, Kind, Operation, Outcome, key_text
from pipeline.audit.violation import Violation

THIN_AIR_READ = "ThinAirRead"
ABORTED_READ = "AbortedRead"

Writers = dict[tuple[bytes, str], int]  # who wrote which version of which key


@dataclass(frozen=True, slots=True)
class Sources:
    """The operations, with versions that were found out and strangers behind them, and what each read saw."""

    operations: tuple[Operation, ...]
    seen: tuple[tuple[int, ...], ...]  # by operation: the numbers of the writes that a read observed
    violations: tuple[Violation, ...]


def find_sources(history: History) -> Sources:
    operations = list(history.operations)
    writers = _writers(history, Outcome.UNKNOWN) | _writers(history, Outcome.OK)
    failed = _writers(history, Outcome.FAIL)
    nameless = _nameless_writes(history)
    violations: list[Violation] = []
    for key, readers in _unclaimed(history, writers).items():
        aborted = {version: reader for version, reader in readers.items() if (key, version) in failed}
        violations += [
            Violation(ABORTED_READ, (str(operations[failed[key, version]]), str(reader)))
            for version, reader in aborted.items()
        ]
        strange = {version: reader for version, reader in readers.items() if version not in aborted}
        if len(strange) == len(nameless[key]) == 1 and history.is_complete:
            (version,), (writer,) = strange, nameless[key]
            operations[writer] = replace(operations[writer], version=version)
            writers[key, version] = writer
            strange = {}
        elif len(strange) > len(nameless[key]) and history.is_complete:
            violations += _thin_air(key, strange, len(nameless[key]))
        for version in aborted | strange:
            writers[key, version] = len(operations)
            operations.append(_stranger(key, version))
    seen = (
        tuple(writers[one.key, version] for version in one.observed) if is_answered_read(one) else ()
        for one in operations
    )
    return Sources(tuple(operations), tuple(seen), tuple(violations))


def is_answered_read(one: Operation) -> bool:
    return one.kind is Kind.READ and one.outcome is Outcome.OK


def _writers(history: History, outcome: Outcome) -> Writers:
    """Deletes are not among them: nobody can see the version of a delete."""
    return {
        (one.key, one.version): number
        for number, one in enumerate(history.operations)
        if one.kind is Kind.WRITE and one.outcome is outcome and one.version is not None
    }


def _nameless_writes(history: History) -> defaultdict[bytes, list[int]]:
    """By key, the writes that may have happened under a version that their session never learned."""
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for number, one in enumerate(history.operations):
        if one.kind is Kind.WRITE and one.outcome is Outcome.UNKNOWN and one.version is None:
            found[one.key].append(number)
    return found


def _unclaimed(history: History, writers: Writers) -> dict[bytes, dict[str, Operation]]:
    """By key, the versions that were observed and that nobody is known to have written, with their first reader."""
    found: defaultdict[bytes, dict[str, Operation]] = defaultdict(dict)
    for one in filter(is_answered_read, history.operations):
        for version in one.observed:
            if (one.key, version) not in writers:
                found[one.key].setdefault(version, one)
    return found


def _thin_air(key: bytes, readers: Mapping[str, Operation], nameless: int) -> Iterator[Violation]:
    for version, reader in readers.items():
        why = f"nobody wrote {key_text(key)} = {version}"
        if nameless:
            why = f"{len(readers)} versions of {key_text(key)} have no writer, and only {nameless} writes are in doubt"
        yield Violation(THIN_AIR_READ, (str(reader), why))


def _stranger(key: bytes, version: str) -> Operation:
    """A write by nobody. It may have had a deadline, for all we know."""
    return Operation(NO_SESSION, 0, 0, Kind.WRITE, key, version, outcome=Outcome.UNKNOWN, expires=True)
