"""Small histories with their verdicts, made by hand: what the audit must say, and why.

One table for the tests and for the planted bugs: a bug in the audit that changes no verdict here would go unnoticed.
"""

from __future__ import annotations

from typing import NamedTuple

from pipeline.audit import judge
from pipeline.audit.history import History
from tests.pipeline.notation import by_value, by_version

RYW, MR, MW, WFR = "ReadYourWrites", "MonotonicReads", "MonotonicWrites", "WritesFollowReads"


class Case(NamedTuple):
    name: str
    history: History
    patterns: frozenset[str]  # all that must be found, and nothing else


def verdict_of(history: History) -> frozenset[str]:
    return frozenset(violation.pattern for violation in judge(history).violations())


def mistakes() -> list[str]:
    """The cases that the audit, as it is at this moment, gets wrong."""
    return [case.name for case in CASES if verdict_of(case.history) != case.patterns]


def _value(name: str, text: str, *patterns: str) -> Case:
    return Case(name, by_value(text), frozenset(patterns))


def _version(name: str, text: str, *patterns: str) -> Case:
    return Case(name, by_version(text), frozenset(patterns))


def _siblings(name: str, text: str, *patterns: str) -> Case:
    return Case(name, by_version(text, siblings=(b"s",)), frozenset(patterns))


def _incomplete(name: str, text: str, *patterns: str) -> Case:
    return Case(name, by_version(text, is_complete=False), frozenset(patterns))


PAPER = [  # Bouajjani et al., figure 3; the third level there, CM, is not judged
    _value("paper 3a: CC, not CCv", "a: w x 1, r x 2\nb: w x 2, r x 1", "CyclicCF"),
    _value("paper 3b: CCv", "a: w z 1, w x 1, w y 1\nb: w x 2, r z -, r y 1, r x 2"),
    _value("paper 3c: CC, not CCv", "a: w x 1\nb: w x 2, r x 1, r x 2", "CyclicCF"),
    _value("paper 3d: CCv", "a: w x 1, r y -, w y 1, r x 1\nb: w x 2, r y -, w y 2, r x 2"),
    _value("paper 3e: not CC", "a: w x 1, w y 1\nb: r y 1, w x 2\nc: r x 2, r x 1", "WriteCORead", MR),
]

PATTERNS = [
    _value("nobody wrote it", "a: w x 1\nb: r x 2", "ThinAirRead"),
    _value("it was aborted", "a: w x 1!\nb: r x 1", "AbortedRead"),
    _value("it was aborted, then written again", "a: w x 1!, w x 1\nb: r x 1"),
    _value("it was in doubt, and seen", "a: w x 1?\nb: r x 1"),
    _value("reads before writes", "a: r x 1, w y 1\nb: r y 1, w x 1", "CyclicCO"),
    _value("read before its own write", "a: r x 1, w x 1", "CyclicCO"),
    _value("a cycle of three", "a: r x 1, w y 1\nb: r y 1, w z 1\nc: r z 1, w x 1", "CyclicCO"),
    _value("nothing there, far behind", "a: w x 1, w y 1\nb: r y 1, w z 1\nc: r z 1, r x -", "WriteCOInitRead"),
    _value("nothing there, nothing known", "a: w x 1, w y 1\nb: r x -, r y 1"),
    _value("overwritten, far behind", "a: w x 1, w x 2, w y 1\nb: r y 1, w z 1\nc: r z 1, r x 1", "WriteCORead"),
    _value("concurrent writes, two orders", "a: w x 1\nb: w x 2\nc: r x 1, r x 2\nd: r x 2, r x 1", "CyclicCF"),
    _value("concurrent writes, one order", "a: w x 1\nb: w x 2\nc: r x 1, r x 2\nd: r x 1, r x 2"),
    _value(
        "two orders of two keys, which no third admits",
        "a: w x 1, w y 1\nb: w y 2, w x 2\nc: r x 2, r x 1\nd: r y 1, r y 2",
        "CyclicCF",
    ),
    _value("two orders of two keys", "a: w x 1, w y 1\nb: w x 2, w y 2\nc: r x 2, r x 1\nd: r y 1, r x 1, r y 2"),
]

TRANSACTIONS = [
    _value("a torn batch", "a: [w x 1, w y 1]\nb: r y 1, r x -", "WriteCOInitRead", MW),
    _value("a torn batch in one read", "a: [w x 1, w y 1]\nb: [r x -, r y 1]", "WriteCOInitRead", MW),
    _value("a whole batch", "a: [w x 1, w y 1]\nb: [r y 1, r x 1]"),
    _value("two batches mixed", "a: [w x 1, w y 1]\nb: [w x 2, w y 2]\nc: [r x 1, r y 2]", "CyclicCF"),
    _version("two batches mixed by version", "a: [w x 1, w y 4]\nb: [w x 2, w y 3]\nc: [r x 2, r y 4]"),
    _version("a batch that loses on one key", "a: [w x 1, w y 4]\nb: [w x 2, w y 3]\nc: r x 1, r y 3", "CyclicCF", MW),
    _value("reads that disagree", "a: w x 1\nb: w x 2\nc: [r x 1, r x 2]", "CyclicCF"),
    _value("its own write", "a: w x 1\nb: [w x 2, r x 2]"),
    _value("another's write after its own", "a: w x 1\nb: [w x 2, r x 1]", "NotMyOwnWrite", RYW),
    _value("nothing after its own write", "a: [w x 1, r x -]", "NotMyOwnWrite", RYW),
    _value("the first of its own writes", "a: [w x 1, w x 2, r x 1]", "NotMyLastWrite"),
    _value("its own later write", "a: [r x 1, w x 1]", "FutureRead"),
    _value("a write that was overwritten at once", "a: [w x 1, w x 2]\nb: r x 1", "IntermediateRead"),
    _value("the last of a transaction", "a: [w x 1, w x 2]\nb: r x 2"),
    _value("lost update is causal", "a: w x 1\nb: [r x 1, w x 2]\nc: [r x 1, w x 3]"),
]

GUARANTEES = [
    _value("reads its write", "a: w x 1, r x 1"),
    _value("forgets its write", "a: w x 1, r x -", "WriteCOInitRead", RYW),
    _value("reads before its write", "a: r x 1, w x 2, r x 1\nb: w x 1", "WriteCORead", RYW),
    _value("sees a concurrent write", "a: w x 1, r x 2\nb: w x 2"),
    _value("reads backwards", "a: w x 1, w x 2\nb: r x 2, r x 1", "WriteCORead", MR),
    _value("loses sight", "a: w x 1\nb: r x 1, r x -", "WriteCOInitRead", MR),
    _value("the second write first", "a: w x 1, w y 1\nb: r y 1, r x -", "WriteCOInitRead", MW),
    _value("the reply before the question", "a: w x 1\nb: r x 1, w y 1\nc: r y 1, r x -", "WriteCOInitRead", WFR),
    _version("reads its write, by version", "a: w x 1, r x 1"),
    _version("sees a newer write", "a: w x 1, r x 2\nb: w x 2"),
    _version("sees an older write", "a: w x 2, r x 1\nb: w x 1", "CyclicCF", RYW),
    _version("reads backwards, by version", "a: w x 1\nb: w x 2\nc: r x 2, r x 1", "CyclicCF", MR),
    _version("reads forwards", "a: w x 1\nb: w x 2\nc: r x 1, r x 2"),
    _version("the second write first, by version", "a: w x 2, w y 3\nb: w x 1\nc: r y 3, r x 1", "CyclicCF", MW),
    _version("the first write too", "a: w x 2, w y 3\nb: w x 4\nc: r y 3, r x 4"),
    _version(
        "the reply before the question, by version",
        "a: w x 2\nb: w x 1\nc: r x 2, w y 3\nd: r y 3, r x 1",
        "CyclicCF",
        WFR,
    ),
    _version("the second write loses", "a: w x 2, w x 1", "CyclicCF", MW),
    _version("the second write wins", "a: w x 1, w x 2"),
    _version("a write loses against what was read", "a: w x 2\nb: r x 2, w x 1", "CyclicCF", WFR),
    _version("a write wins over what was read", "a: w x 2\nb: r x 2, w x 3"),
    _version("without a session nothing follows", "-: w x 2, w x 1, r x 1, r x 2, r x 1"),
    _version("written without a session", "-: w x 1\na: r x 1, r x -", "WriteCOInitRead", MR),
    _version("a torn batch without a session", "-: [w x 1, w y 2]\na: r y 2, r x -", "WriteCOInitRead", MW),
]

ABSENCE = [
    _version("deleted by itself", "a: w x 1, d x 2, r x -"),
    _version("deleted by another", "a: w x 1, r x -\nb: d x 2"),
    _version("the delete was older", "a: w x 2, r x -\nb: d x 1", "WriteCOInitRead", RYW),
    _version("the delete came after the read", "a: w x 1, r x -, w y 2\nb: r y 2, d x 3", "WriteCOInitRead", RYW),
    _version("its own delete came after the read", "a: w x 1, r x -, d x 2", "WriteCOInitRead", RYW),
    _version("the delete is in doubt", "a: w x 1, r x -\nb: d x ?"),
    _version("the delete in doubt came after the read", "a: w x 1, r x -, d x ?", "WriteCOInitRead", RYW),
    _version("the delete failed", "a: w x 1, r x -\nb: d x 2!", "WriteCOInitRead", RYW),
    _version("the delete has no version", "a: w x 1, r x -\nb: d x -"),
    _version("back from the dead", "a: w x 1, d x 2, r x 1", "WriteCORead", RYW),
    _version("back from the dead for another", "a: w x 1, d x 2, w y 3\nb: r y 3, r x 1", "WriteCORead", MW),
    _version("the only delete was seen", "a: w x 1\nb: d x 2\nc: r x 1, r x -, r x 1", "CyclicCF", MR),
    _version("one of two deletes was seen", "a: w x 1\nb: d x 2\nc: d x 3\nd: r x 1, r x -, r x 1"),
    _version("who saw the delete saw what was before it", "a: w z 1, d x 3\nb: w x 2, r x -, r z 1"),
    _version("what was before the only delete", "a: w z 1, d x 3\nb: w x 2, r x -, r z -", "WriteCOInitRead", MW),
    _version("deleted and written at once", "a: w x 1, r x -\nb: [d x 2, w x 3]", "WriteCOInitRead", RYW),
    _version("written and deleted at once", "a: w x 1, r x -\nb: [w x 2, d x 3]"),
    _version("a value with a deadline is gone", "a: w x 1~, r x -"),
    _version("a value with a deadline comes back", "a: w x 1~, r x -, r x 1"),
    _version("replaced by a value with a deadline", "a: w x 1, r x -\nb: w x 2~"),
    _version("a value with a deadline was older", "a: w x 2, r x -\nb: w x 1~", "WriteCOInitRead", RYW),
    _version("older than one with a deadline", "a: w x 1, w x 2~, r x 1", "WriteCORead", RYW),
    _version("the version of a delete is nothing to see", "a: d x 1\nb: r x 1", "ThinAirRead"),
]

DOUBT = [
    _version("in doubt and never seen", "a: w x ?, r x -"),
    _version("in doubt and seen", "a: w x ?\nb: r x 1, r x 1"),
    _version("in doubt, seen, then lost", "a: w x ?\nb: r x 1, r x -", "WriteCOInitRead", MR),
    _version("in doubt, seen, and before it another", "a: w y 1, w x ?\nb: r x 2, r y -", "WriteCOInitRead", MW),
    _version("in doubt, and it came late", "a: w x ?, w y 1\nb: r y 1, r x -, r x 2"),
    _version("in doubt, and it came late and lost", "a: w x ?, w x 2, r x 2\nb: r x 1, r x 2"),
    _version("in doubt, and seen before", "b: r x 1, w y 2\na: r y 2, w x ?", "CyclicCO"),
    _version("one in doubt cannot be two versions", "a: w x ?\nb: r x 1, r x 2", "ThinAirRead"),
    _version("two in doubt can", "a: w x ?, w x ?\nb: r x 1, r x 2"),
    _version("two in doubt cannot be three", "a: w x ?, w x ?\nb: r x 1, r x 2, r x 3", "ThinAirRead"),
    _version("two in doubt have an order", "a: w x ?, w x ?\nb: r x 2, r x 1", "CyclicCF", MR),
    _version("a write in doubt explains no other key", "a: w x ?\nb: r y 1", "ThinAirRead"),
    _version("nobody wrote this version", "a: w x 1\nb: r x 2", "ThinAirRead"),
    _version("a failed write was seen", "a: w x 1!\nb: r x 1", "AbortedRead"),
    _version("a failed write, beside one in doubt", "a: w x 1!, w x ?\nb: r x 1", "AbortedRead"),
    _version("reads without an answer saw nothing", "a: w x 1, r x -?, r x -!"),
    _incomplete("somebody else wrote it", "a: r x 1, r x 2"),
    _incomplete("somebody else's writes have an order", "a: r x 2, r x 1", "CyclicCF", MR),
    _incomplete("somebody else deleted it", "a: w x 1, r x -"),
    _incomplete("one in doubt need not be it", "a: w y 1, w x ?\nb: r x 2, r y -"),
    _incomplete("still its own write", "a: w x 2, r x 1", "CyclicCF", RYW),
]

SIBLINGS = [
    _siblings("two values side by side", "a: w s 1\nb: w s 2\nc: r s 1+2"),
    _siblings("the older beside the newer", "a: w s 1\nb: w s 2\nc: r s 2, r s 1+2"),
    _siblings("one of them is lost", "a: w s 1\nb: w s 2/, r s 2\nc: r s 1, r s 2", "LostSibling", MR),
    _siblings("a write of its own is lost", "a: w s 1/, r s 2\nb: w s 2/", "LostSibling", RYW),
    _siblings("somebody may have replaced it", "a: w s 1, r s 2\nb: w s 2"),
    _siblings("somebody did replace it", "a: w s 1\nb: r s 1, w s 2/1, r s 2"),
    _siblings("replaced, and back again", "a: w s 1\nb: r s 1, w s 2/1, r s 1+2", "WriteCORead", RYW),
    _siblings("replaced, and not yet known", "a: w s 1, r s 1\nb: r s 1, w s 2/1"),
    _siblings("deleted by one who named it", "a: w s 1\nb: r s 1, d s 2/1, r s -"),
    _siblings("deleted, and back again", "a: w s 1\nb: r s 1, d s 2/1, r s 1", "WriteCORead", RYW),
    _siblings("deleted by one who named another", "a: w s 1, r s -\nb: w s 2/, d s 3/2", "WriteCOInitRead", RYW),
    _siblings("a newer one deleted, an older one left", "a: w s 1\nb: w s 2, r s 2, d s 3/2, r s 1"),
    _siblings("the delete is in doubt, siblings", "a: w s 1, r s -\nb: d s ?"),
    _siblings("one in doubt who named it", "a: w s 1, r s -\nb: r s 1, d s ?"),
    _siblings("one in doubt who named another", "a: w s 1/, r s -\nb: w s 2/, d s /2?", "WriteCOInitRead", RYW),
    _siblings("only a write after the read", "a: w s 1, r s -, w s 2", "WriteCOInitRead", RYW),
    _siblings("only a write before it", "a: w s 1, w s 2, r s 1", "LostSibling", RYW),
    _siblings("a deadline takes a sibling away", "a: w s 1/~, r s -"),
    _siblings("a batch replaces its own", "a: [w s 1/, w s 2/], r s 2"),
    _version("two versions show what key it is", "a: w x 1\nb: w x 2\nc: r x 2, r x 1+2, r x 1"),
]

CASES = [*PAPER, *PATTERNS, *TRANSACTIONS, *GUARANTEES, *ABSENCE, *DOUBT, *SIBLINGS]
