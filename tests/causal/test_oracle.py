"""The oracle judges everyone else, so here it is judged itself: by stories small enough to check by hand, by a second
implementation too simple to be wrong, and by valid executions that are spoilt in one place and must then be rejected.
"""

from __future__ import annotations

import ast
import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

import causal.oracle
from causal.execution import (
    Carried,
    Delivered,
    Execution,
    Fact,
    Record,
    Sent,
    TokenAdopted,
    TokenLanded,
    TokenMerged,
    TokenTaken,
)
from causal.model import Dot, mask_of, sites_of
from causal.oracle import (
    DeliveredToStranger,
    DeliveredTwice,
    DeliveredUnsent,
    HappensBefore,
    LandedTooEarly,
    NeverDelivered,
    OutOfOrder,
    SentTwice,
    TooLarge,
    Unrecorded,
    Verdict,
    WrongFacts,
    judge,
)

# --- stories: an execution in a line ------------------------------------------------------------------------------
#
#   a:0>12   0 sends a to 1 and 2 (sites are hexadecimal digits)    t=0    token t is taken at 0
#   a:0~12   the same, semantically independent                     t=u+v  t is u and v merged
#   a:0+12   the same, an extra message                             t?1    t lands at 1
#   a@1      a is delivered at 1                                    t!1    t is adopted at 1


class Story:
    def __init__(self, text: str, protocol: str = "matrix") -> None:
        self.dots: dict[str, Dot] = {}
        counts: dict[int, int] = defaultdict(int)
        for name, site in re.findall(r"(\w):(\w)", text):
            counts[int(site, 16)] += 1
            self.dots.setdefault(name, Dot(int(site, 16), counts[int(site, 16)]))
        self.execution = Execution(12, protocol, records=[self._record(word) for word in text.split()])
        self.graph = HappensBefore(self.execution)

    def _record(self, word: str) -> Record:
        if word[1] == ":":
            to = [int(digit, 16) for digit in word[4:]]
            carried = {site: Carried(len(to)) for site in to}
            site, kind = int(word[2], 16), word[3]
            return Sent(site, self.dots[word[0]], mask_of(to), carried, kind != "~", kind == "+")
        token = ord(word[0])
        if word[1] == "@":
            return Delivered(int(word[2], 16), self.dots.get(word[0], Dot(11, 99)))
        if word[1] == "=":
            parts = word[2:].split("+")
            return (
                TokenMerged(token, (ord(parts[0]), ord(parts[1])))
                if len(parts) == 2
                else TokenTaken(int(word[2], 16), token)
            )
        return (TokenLanded if word[1] == "?" else TokenAdopted)(int(word[2], 16), token)

    def judge(self, **options: bool) -> Verdict:
        return judge(self.execution, **options)

    def name(self, dot: Dot) -> str:
        return next(name for name, own in self.dots.items() if own == dot)

    def order(self, violations: tuple[OutOfOrder, ...]) -> list[str]:
        """As 'first<second@site'."""
        return [f"{self.name(v.first)}<{self.name(v.second)}@{v.site:x}" for v in violations]

    def facts(self, name: str, destination: int) -> str:
        """As 'a2 a6': the message and where it goes."""
        facts = self.graph.necessary_facts(self.dots[name], destination)
        return " ".join(sorted(f"{self.name(Dot(site, seq))}{x:x}" for site, seq, x in facts))


# --- safety -------------------------------------------------------------------------------------------------------

ORDER = {
    "a relay must not overtake its cause": ("a:0>12 a@1 b:1>2 b@2 a@2", "a<b@2"),
    "a relay may follow its cause": ("a:0>12 a@1 b:1>2 a@2 b@2", ""),
    "a sender's messages must not overtake each other": ("a:0>1 b:0>1 b@1 a@1", "a<b@1"),
    "a sender's messages may come in their order": ("a:0>1 b:0>1 a@1 b@1", ""),
    "a multicast is wrong only where it overtakes": ("a:0>123 b:0>123 a@1 b@1 b@2 a@2 b@3 a@3", "a<b@2 a<b@3"),
    "causality is transitive through a third site": ("a:0>3 b:0>1 b@1 c:1>2 c@2 d:2>3 d@3 a@3", "a<d@3"),
    "a transitive chain in order is fine": ("a:0>3 b:0>1 b@1 c:1>2 c@2 d:2>3 a@3 d@3", ""),
    "concurrent messages may come in one order": ("a:0>2 b:1>2 a@2 b@2", ""),
    "concurrent messages may come in the other": ("a:0>2 b:1>2 b@2 a@2", ""),
    "a reply sent before the cause came is concurrent": ("a:0>12 b:1>2 a@1 b@2 a@2", ""),
    "causes that go elsewhere hold up nobody": ("a:0>1 b:0>2 b@2 a@1", ""),
    "a cause that never comes was overtaken": ("a:0>1 b:0>1 b@1", "a<b@1"),
    "each missing cause is named": ("a:0>1 b:0>1 c:0>1 c@1 b@1 a@1", "a<c@1 b<c@1 a<b@1"),
    "an adopted token orders later sends": ("a:0>2 t=0 t!1 b:1>2 b@2 a@2", "a<b@2"),
    "an adopted token lets ordered sends pass": ("a:0>2 t=0 t!1 b:1>2 a@2 b@2", ""),
    "a token adopted after the send orders nothing": ("a:0>2 t=0 b:1>2 t!1 b@2 a@2", ""),
    "a token taken before the send orders nothing": ("t=0 a:0>2 t!1 b:1>2 b@2 a@2", ""),
    "a landing without adoption orders nothing": ("a:0>2 t=0 t?1 b:1>2 b@2 a@2", ""),
    "a merged token brings both pasts": ("a:0>3 b:1>3 t=0 u=1 v=t+u v!2 c:2>3 c@3 a@3 b@3", "a<c@3 b<c@3"),
    "a merge leaves its parts as they were": ("a:0>3 b:1>3 t=0 u=1 v=t+u u!2 c:2>3 b@3 c@3 a@3", ""),
    "a token taken after an adoption carries it on": ("a:0>3 t=0 t!1 u=1 u!2 b:2>3 b@3 a@3", "a<b@3"),
    "a second delivery is not judged again": ("a:0>1 b:0>1 b@1 a@1 b@1", "a<b@1"),
    "an extra message is not ordered": ("a:0>1 x:0+1 x@1 a@1", ""),
    "an extra message is not waited for": ("x:0+1 a:0>1 a@1 x@1", ""),
    "an extra message carries no order on": ("a:0>2 x:0+1 x@1 b:1>2 b@2 a@2", ""),
}


@pytest.mark.parametrize(("text", "expected"), ORDER.values(), ids=ORDER)
def test_happens_before_order(text: str, expected: str) -> None:
    story = Story(text)
    verdict = story.judge(complete=False)
    assert story.order(verdict.safety) == expected.split()
    assert verdict.semantic_safety == verdict.safety, "every send here depends on all before it"


SEMANTIC = {
    "an independent send may overtake": ("a:0>1 b:0~1 b@1 a@1", ""),
    "a dependent send may not": ("a:0>1 b:0>1 b@1 a@1", "a<b@1"),
    "a dependent send follows independent ones too": ("a:0~1 b:0>1 b@1 a@1", "a<b@1"),
    "an independent relay may overtake": ("a:0>12 a@1 b:1~2 b@2 a@2", ""),
    "a dependent relay of an independent message may not": ("a:0~12 a@1 b:1>2 b@2 a@2", "a<b@2"),
    "an independent middle breaks the chain": ("a:0>13 a@1 b:1~2 b@2 c:2>3 c@3 a@3", ""),
    "a dependent middle keeps the chain": ("a:0>13 a@1 b:1>2 b@2 c:2>3 c@3 a@3", "a<c@3"),
    "what follows a broken middle still follows the middle": ("a:0>1 a@1 b:1~23 b@2 c:2>3 c@3 b@3", "b<c@3"),
    "an independent send does not cut off its own site's later ones": ("a:0>1 b:0~2 c:0>1 c@1 b@2 a@1", "a<c@1"),
    "a token depends on all its site has seen": ("a:0~2 t=0 t!1 b:1>2 b@2 a@2", "a<b@2"),
    "a token reaches through a dependent send only": ("a:0>3 b:0~1 b@1 t=1 t!2 c:2>3 c@3 a@3", ""),
    "an independent send does not depend on an adoption": ("a:0>2 t=0 t!1 b:1~2 b@2 a@2", ""),
    "a merged token means both parts": ("a:0~3 b:1~3 t=0 u=1 v=t+u v!2 c:2>3 c@3 a@3 b@3", "a<c@3 b<c@3"),
}


@pytest.mark.parametrize(("text", "expected"), SEMANTIC.values(), ids=SEMANTIC)
def test_semantic_order(text: str, expected: str) -> None:
    story = Story(text, protocol="false-causality")
    verdict = story.judge()
    assert story.order(verdict.semantic_safety) == expected.split()
    assert verdict.safety, "each of these overtakes by happens-before"


def test_only_false_causality_is_judged_by_the_semantic_order() -> None:
    text = "a:0>1 b:0~1 b@1 a@1"
    assert Story(text, protocol="false-causality").judge().ok
    assert not Story(text, protocol="optimal").judge().ok
    assert not Story("a:0>1 b:0>1 b@1 a@1", protocol="false-causality").judge().ok


def test_the_graph_answers_questions() -> None:
    story = Story("a:0>12 a@1 b:1~2 b@2 c:2>0 d:3>0 a@2")
    a, b, c, d = (story.dots[name] for name in "abcd")
    graph = story.graph
    pairs = [(one, other) for one in (a, b, c, d) for other in (a, b, c, d)]
    assert [pair for pair in pairs if graph.before(*pair)] == [(a, b), (a, c), (b, c)]
    assert [pair for pair in pairs if graph.semantically_before(*pair)] == [(b, c)]
    assert [pair for pair in pairs if graph.concurrent(*pair)] == [(a, d), (b, d), (c, d), (d, a), (d, b), (d, c)]
    assert graph.past(c) == {a, b}
    assert graph.past(a) == frozenset()


def test_sent_counts_are_the_messages_per_link_in_the_past() -> None:
    story = Story("a:0>12 b:0>1 a@1 b@1 c:1>2 d:1>02 e:2>0")
    counts = story.graph.sent_counts(story.dots["d"])
    assert [row[:3] for row in counts[:3]] == [[0, 2, 1], [0, 0, 1], [0, 0, 0]]
    assert sum(map(sum, story.graph.sent_counts(story.dots["e"]))) == 0


# --- exactly once, liveness, bound --------------------------------------------------------------------------------

COPIES = {
    "all is well": ("a:0>12 a@1 a@2", []),
    "an extra message comes once too": ("x:0+12 x@1 x@2", []),
    "a message for nobody is delivered": ("a:0>", []),
    "a copy is missing": ("a:0>12 a@1", [NeverDelivered(2, Dot(0, 1))]),
    "an extra copy is missing": ("x:0+12 x@1", [NeverDelivered(2, Dot(0, 1))]),
    "a copy is delivered twice": ("a:0>1 a@1 a@1", [DeliveredTwice(1, Dot(0, 1))]),
    "an extra copy is delivered twice": ("x:0+1 x@1 x@1", [DeliveredTwice(1, Dot(0, 1))]),
    "a stranger delivers": ("a:0>1 a@1 a@2", [DeliveredToStranger(2, Dot(0, 1))]),
    "the sender delivers to itself": ("a:0>1 a@1 a@0", [DeliveredToStranger(0, Dot(0, 1))]),
    "a message nobody sent is delivered": ("y@1", [DeliveredUnsent(1, Dot(11, 99))]),
    "a delivery before the send delivers nothing": (
        "a@1 a:0>1",
        [DeliveredUnsent(1, Dot(0, 1)), NeverDelivered(1, Dot(0, 1))],
    ),
    "a name is given twice": ("a:0>1 a:0>1 a@1", [SentTwice(0, Dot(0, 1))]),
}


@pytest.mark.parametrize(("text", "expected"), COPIES.values(), ids=COPIES)
def test_every_copy_is_delivered_exactly_once(text: str, expected: list[object]) -> None:
    verdict = Story(text).judge()
    assert list(verdict.violations) == expected
    assert verdict.ok == (not expected)


def test_an_execution_cut_short_is_not_accused_of_what_it_had_no_time_for() -> None:
    story = Story("a:0>12 b:0>1 a@1")
    assert not story.judge().ok
    assert story.judge(complete=False).ok
    assert not Story("a:0>12 b:0>1 b@1").judge(complete=False).ok, "but overtaking needs no end"


def test_no_user_message_is_larger_than_the_bound() -> None:
    execution = Story("a:0>12 x:0+123 a@1 a@2 x@1 x@2 x@3").execution  # a story's copies carry a unit a destination
    assert judge(execution, bound=2).ok, "the extra message carries 3, and may"
    assert judge(execution, bound=1).bound == (TooLarge(Dot(0, 1), 1, 2), TooLarge(Dot(0, 1), 2, 2))
    assert judge(execution).ok, "no bound, no violation"


def test_what_was_not_recorded_cannot_be_judged_good() -> None:
    execution = Execution(2, "optimal", records=[Sent(0, Dot(0, 1), 0b10, {}), Delivered(1, Dot(0, 1))])
    assert judge(execution).ok
    assert judge(execution, bound=5).violations == (Unrecorded(Dot(0, 1), 1),)
    assert judge(execution, optimality=True).violations == (Unrecorded(Dot(0, 1), 1),)
    assert Story("a:0>1 a@1").judge(optimality=True).violations == (Unrecorded(Dot(0, 1), 1),)


# --- tokens -------------------------------------------------------------------------------------------------------

TOKENS = {
    "a token lands before the session's own write": ("a:0>1 t=0 t?1 a@1", "t1a"),
    "a token lands just in time": ("a:0>1 t=0 a@1 t?1", ""),
    "a token is adopted too early": ("a:0>1 t=0 t!1 a@1", "t1a"),
    "a token is adopted in time": ("a:0>1 t=0 a@1 t!1", ""),
    "a token knows what its site delivered": ("a:0>12 a@1 t=1 t?2 a@2", "t2a"),
    "a token knows nothing sent after it": ("t=0 a:0>1 t?1 a@1", ""),
    "a token knows nothing delivered after it": ("a:0>12 t=1 a@1 t?2 a@2", ""),
    "messages to other sites hold up no landing": ("a:0>2 t=0 t?1 a@2", ""),
    "an extra message holds up no landing": ("x:0+1 t=0 t?1 x@1", ""),
    "a merged token waits for the first part": ("a:0>2 b:1>2 t=0 u=1 v=t+u b@2 v?2 a@2", "v2a"),
    "a merged token waits for the second part": ("a:0>2 b:1>2 t=0 u=1 v=t+u a@2 v?2 b@2", "v2b"),
    "a merged token lands after both": ("a:0>2 b:1>2 t=0 u=1 v=t+u a@2 b@2 v?2", ""),
    "a token moves on with what was adopted": ("a:0>2 t=0 t!1 u=1 u?2 a@2", "u2a"),
    "a landing leaves nothing behind": ("a:0>2 t=0 t?1 u=1 u?2 a@2", ""),
    "a token comes home": ("a:0>1 t=0 t?0 a@1", ""),
}


@pytest.mark.parametrize("protocol", ["optimal", "false-causality"])
@pytest.mark.parametrize(("text", "expected"), TOKENS.values(), ids=TOKENS)
def test_a_token_lands_when_its_past_is_there(text: str, expected: str, protocol: str) -> None:
    story = Story(text, protocol)
    verdict = story.judge()
    assert [f"{chr(v.token)}{v.site}{story.name(v.dot)}" for v in verdict.tokens] == expected.split()
    assert verdict.ok == (not expected)


def test_a_token_waits_by_happens_before_also_for_independent_writes() -> None:
    story = Story("a:0>2 b:0~1 b@1 t=1 t?2 a@2", protocol="false-causality")
    assert story.judge().tokens == (LandedTooEarly(2, ord("t"), story.dots["a"]),)


def test_a_record_that_misuses_tokens_is_no_execution() -> None:
    for text in ("t?1", "t!1", "t=0 v=t+u"):
        with pytest.raises(KeyError):
            Story(text).judge()
    with pytest.raises(ValueError, match="twice"):
        Story("t=0 t=1")


# --- optimality: Kshemkalyani-Singhal 3.2 to 3.4 ------------------------------------------------------------------

FACTS = {
    "the first message has nothing to tell": ("a:0>12", "a", {1: "", 2: ""}),
    "a relay tells of the other destinations": ("a:0>12 a@1 b:1>2", "b", {2: "a2"}),
    "a sender tells of its own earlier messages": ("a:0>1 b:0>2", "b", {2: "a1"}),
    "FP1: a delivery in the past settles it": ("a:0>12 a@2 c:2>1 a@1 c@1 b:1>0", "b", {0: ""}),
    "FP1: a delivery not in the past does not": ("a:0>12 a@2 a@1 b:1>0", "b", {0: "a2"}),
    "FP1: a delivery known through a token settles it": ("a:0>12 a@2 a@1 t=2 t!1 b:1>0", "b", {0: ""}),
    "FP2: a later send to the same site settles it": ("a:0>2 b:0>2 c:0>1", "c", {1: "b2"}),
    "FP2: a concurrent send to the same site does not": ("a:0>23 b:1>23 a@3 b@3 c:3>0", "c", {0: "a2 b2"}),
    "FP2: through a third site": ("a:0>13 a@1 b:1>23 b@2 c:2>0", "c", {0: "b3"}),
    "FP2: at the send itself only its own copy tells": ("a:0>12 b:0>12", "b", {1: "a1", 2: "a2"}),
    "an adopted token brings facts": ("a:0>2 t=0 t!1 b:1>3", "b", {3: "a2"}),
    "an extra message is no fact and settles none": ("a:0>2 x:0+2 b:0>1", "b", {1: "a2"}),
    # Section 4.4: l.Dests = {2,3,4,6,8} in the log of j = 1, and M.Dests = {3,4,7,8,11}.
    "4.4, SND(2)": (
        "a:0>123468 a@1 b:1>3478b",
        "b",
        {3: "a2 a3 a6", 4: "a2 a4 a6", 8: "a2 a6 a8", 7: "a2 a6", 11: "a2 a6"},
    ),
    "4.4, SND(3) and SND(4)": ("a:0>123468 a@1 b:1>3478b c:1>5", "c", {5: "a2 a6 b3 b4 b7 b8 bb"}),
}


@pytest.mark.parametrize(("text", "message", "expected"), FACTS.values(), ids=FACTS)
def test_necessary_facts(text: str, message: str, expected: dict[int, str]) -> None:
    story = Story(text)
    assert {x: story.facts(message, x) for x in expected} == expected
    assert set(story.graph.facts_by_copy(story.dots[message])) == set(expected)


def test_carried_facts_are_compared_with_the_necessary_ones() -> None:
    def carrying(*facts: Fact) -> Execution:
        nothing = Carried(0, frozenset())
        first = Sent(0, Dot(0, 1), 0b110, {1: nothing, 2: nothing})
        relay = Sent(1, Dot(1, 1), 0b100, {2: Carried(len(facts), frozenset(facts))})
        records: list[Record] = [
            first,
            Delivered(1, Dot(0, 1)),
            relay,
            Delivered(2, Dot(0, 1)),
            Delivered(2, Dot(1, 1)),
        ]
        return Execution(3, "optimal", records=records)

    needed, needless = (0, 1, 2), (0, 1, 1)
    assert judge(carrying(needed), optimality=True).ok
    assert judge(carrying()).ok, "judged only when asked"
    assert judge(carrying(needless), optimality=True).violations == (
        WrongFacts(Dot(1, 1), 2, frozenset([needed]), frozenset([needless])),
    )


def test_a_verdict_explains_itself() -> None:
    assert str(Story("a:0>1 a@1").judge()) == "matrix: nothing to object to"
    bad = Story("a:0>1 b:0>1 b@1 t=0 t?1 a@1 a@1").judge()
    assert str(bad).splitlines() == [
        "matrix: 3 violations; the first 3:",
        "  site 1 delivered message 2 of site 0 without message 1 of site 0, which comes before it and goes there too",
        "  site 1 delivered message 1 of site 0 again",
        "  token 116 landed at site 1 before message 1 of site 0, which lies in its past and goes there",
    ]
    assert len(bad.explain(most=1).splitlines()) == 2


def test_violations_of_different_kinds_are_never_equal() -> None:
    assert DeliveredTwice(1, Dot(0, 1)) == DeliveredTwice(1, Dot(0, 1))
    twice: object = DeliveredTwice(1, Dot(0, 1))
    assert twice != NeverDelivered(1, Dot(0, 1))


def test_the_oracle_shares_nothing_with_the_protocols() -> None:
    tree = ast.parse(Path(causal.oracle.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    assert imported <= {
        "__future__", "collections", "collections.abc", "dataclasses", "typing", "causal.execution", "causal.model"
    }  # fmt: skip


# --- the naive oracle: events, edges, depth-first search ----------------------------------------------------------


class Naive:
    """An event is a place in the record, a past is a set of them, and every question is a search."""

    def __init__(self, execution: Execution, *, semantic: bool = False) -> None:
        self.records = execution.records
        self.send_of: dict[Dot, int] = {}
        self.deliveries_of: dict[Dot, list[int]] = defaultdict(list)
        self.made: dict[int, int] = {}
        self.pasts: dict[int, set[int]] = {}
        local: dict[int, list[int]] = defaultdict(list)
        self.edges: list[list[int]] = []
        for i, record in enumerate(self.records):
            self.edges.append(self._causes(record, local, semantic))
            if isinstance(record, Sent) and not record.is_extra:
                self.send_of[record.dot] = i
            if isinstance(record, Delivered):
                self.deliveries_of[record.dot].append(i)
            if isinstance(record, TokenTaken | TokenMerged):
                self.made[record.token] = i
            is_user_event = record.dot in self.send_of if isinstance(record, Sent | Delivered) else True
            if is_user_event and not isinstance(record, TokenMerged | TokenLanded):
                local[record.site].append(i)

    def _causes(self, record: Record, local: dict[int, list[int]], semantic: bool) -> list[int]:
        match record:
            case Sent():
                free = record.is_extra or (semantic and not record.semantic)
                return [] if free else list(local[record.site])
            case Delivered():
                if record.dot not in self.send_of:
                    return []
                return [self.send_of[record.dot], *([] if semantic else local[record.site])]
            case TokenTaken():
                return list(local[record.site])
            case TokenMerged():
                return [self.made[part] for part in record.parts]
            case TokenAdopted():
                return [self.made[record.token], *([] if semantic else local[record.site])]
            case TokenLanded():
                return [self.made[record.token]]

    def past(self, event: int) -> set[int]:
        if event in self.pasts:
            return self.pasts[event]
        seen = self.pasts[event] = set()
        stack = list(self.edges[event])
        while stack:
            cause = stack.pop()
            if cause not in seen:
                seen.add(cause)
                stack += self.edges[cause]
        return seen

    def sends(self, events: set[int]) -> list[Sent]:
        found = [self.records[i] for i in sorted(events)]
        return [record for record in found if isinstance(record, Sent) and not record.is_extra]

    def delivered_at(self, site: int, dot: Dot) -> int | None:
        """The event of the first delivery."""
        return next((i for i in self.deliveries_of[dot] if self.records[i].site == site), None)  # type: ignore[union-attr]

    def missing(self, site: int, event: int, past: set[int]) -> list[Dot]:
        """Of the messages in `past`, those that go to `site` and were not delivered there before `event`."""
        there = [sent.dot for sent in self.sends(past) if sent.to >> site & 1]
        return [dot for dot in there if (at := self.delivered_at(site, dot)) is None or at > event]

    def out_of_order(self) -> list[OutOfOrder]:
        found = []
        for i, record in enumerate(self.records):
            if not isinstance(record, Delivered) or record.dot not in self.send_of:
                continue
            (sent,) = self.sends({self.send_of[record.dot]})
            if sent.to >> record.site & 1 and self.delivered_at(record.site, record.dot) == i:
                past = self.past(self.send_of[record.dot])
                found += [OutOfOrder(record.site, dot, record.dot) for dot in self.missing(record.site, i, past)]
        return found

    def landed_too_early(self) -> list[LandedTooEarly]:
        found = []
        for i, record in enumerate(self.records):
            if isinstance(record, TokenLanded | TokenAdopted):
                past = self.past(self.made[record.token])
                found += [LandedTooEarly(record.site, record.token, dot) for dot in self.missing(record.site, i, past)]
        return found

    def facts(self, dot: Dot) -> dict[int, frozenset[Fact]]:
        """The four conditions of KS 3.3, one after the other."""
        event = self.send_of[dot]
        past = self.past(event)
        (this,) = self.sends({event})
        facts = []
        for sent in self.sends(past):
            for x in sites_of(sent.to):
                delivered = self.delivered_at(x, sent.dot) in past
                followed = any(
                    other.to >> x & 1 and self.send_of[sent.dot] in self.past(self.send_of[other.dot])
                    for other in self.sends(past)
                )
                if not delivered and not followed:
                    facts.append((*sent.dot, x))
        return {
            d: frozenset(fact for fact in facts if fact[2] == d or not this.to >> fact[2] & 1)
            for d in sites_of(this.to)
        }


# --- random executions: causal delivery by carrying the whole history ---------------------------------------------


class History:
    """Sites that remember everything. `rule` says what a delivery waits for: all, meant, link or nothing."""

    def __init__(self, seed: int, *, rule: str, protocol: str = "matrix", sites: int = 5, steps: int = 90) -> None:
        self.random = random.Random(seed)
        self.rule = rule
        self.sites = sites
        self.records: list[Record] = []
        self.sent: dict[Dot, Sent] = {}
        self.seq = [0] * sites
        self.known: list[set[Dot]] = [set() for _ in range(sites)]
        self.meant: list[set[Dot]] = [set() for _ in range(sites)]
        self.has: list[set[Dot]] = [set() for _ in range(sites)]
        self.waits_for: dict[Dot, set[Dot]] = {}
        self.pasts: dict[Dot, tuple[set[Dot], set[Dot]]] = {}
        self.tokens: list[tuple[set[Dot], set[Dot]]] = []
        self.under_way: list[tuple[Dot, int]] = []
        for _ in range(steps):
            self.random.choices([self.send, self.arrive, self.move], [3, 6, 2])[0]()
        while self.under_way:
            self.arrive()
        self.execution = Execution(sites, protocol, records=self.records)

    def send(self) -> None:
        site = self.random.randrange(self.sites)
        others = [x for x in range(self.sites) if x != site]
        to = mask_of(self.random.sample(others, self.random.randint(1, len(others))))
        self.seq[site] += 1
        dot, is_semantic, is_extra = Dot(site, self.seq[site]), self.random.random() < 0.6, self.random.random() < 0.1
        self.sent[dot] = Sent(site, dot, to, {}, is_semantic, is_extra)
        self.records.append(self.sent[dot])
        self.pasts[dot] = self.known[site].copy(), self.meant[site].copy() if is_semantic else set()
        link = {own for own in self.sent if own.site == site and own != dot}
        all_of = {"all": self.pasts[dot][0], "meant": self.pasts[dot][1], "link": link, "nothing": set()}
        self.waits_for[dot] = set() if is_extra else all_of[self.rule]
        self.under_way += [(dot, x) for x in sites_of(to)]
        if not is_extra:
            self.known[site].add(dot)
            self.meant[site].add(dot)

    def missing(self, site: int, past: set[Dot]) -> set[Dot]:
        return {dot for dot in past - self.has[site] if self.sent[dot].to >> site & 1 and not self.sent[dot].is_extra}

    def arrive(self) -> None:
        due = [(dot, x) for dot, x in self.under_way if not self.missing(x, self.waits_for[dot])]
        if not due:
            assert not self.under_way
            return
        dot, x = self.random.choice(due)
        self.under_way.remove((dot, x))
        self.records.append(Delivered(x, dot))
        self.has[x].add(dot)
        if not self.sent[dot].is_extra:
            self.known[x] |= self.pasts[dot][0] | {dot}
            self.meant[x] |= self.pasts[dot][1] | {dot}

    def move(self) -> None:
        """Take a token, merge two, or bring one to a site, which in a careless history need not be ready."""
        token, site = len(self.tokens), self.random.randrange(self.sites)
        what = self.random.choice(["take", "merge", "land", "adopt"])
        if what == "take" or not self.tokens:
            self.tokens.append((self.known[site].copy(), self.meant[site].copy()))
            self.records.append(TokenTaken(site, token))
        elif what == "merge":
            one, other = self.random.randrange(token), self.random.randrange(token)
            self.tokens.append(tuple(a | b for a, b in zip(self.tokens[one], self.tokens[other], strict=True)))  # type: ignore[arg-type]
            self.records.append(TokenMerged(token, (one, other)))
        else:
            old = self.random.randrange(token)
            if self.rule in ("all", "meant") and self.missing(site, self.tokens[old][0]):
                return
            self.records.append((TokenLanded if what == "land" else TokenAdopted)(site, old))
            if what == "adopt":
                self.known[site] |= self.tokens[old][0]
                self.meant[site] |= self.tokens[old][1]


def with_facts(execution: Execution) -> Execution:
    """The same, with every copy carrying what the naive oracle finds necessary."""
    naive, records = Naive(execution), list(execution.records)
    for dot, i in naive.send_of.items():
        carried = {x: Carried(len(facts), facts) for x, facts in naive.facts(dot).items()}
        records[i] = records[i]._replace(carried=carried)  # type: ignore[call-arg]
    return replace(execution, records=records)


def careless(seed: int) -> Execution:
    """Any order, and a copy lost, repeated or led astray here and there."""
    chance = random.Random(seed)
    records: list[Record] = []
    for record in History(seed, rule="nothing").records:
        fate = chance.random() if isinstance(record, Delivered) else 1.0
        if isinstance(record, Delivered) and fate > 0.95:
            records.append(Delivered((record.site + 1) % 5, record.dot))
        records += [] if fate < 0.05 else [record, record] if fate < 0.1 else [record]
    return Execution(5, "matrix", records=records)


ALL_RULES = [
    *(pytest.param(careless(seed), id=f"careless-{seed}") for seed in range(120)),
    *(pytest.param(History(seed, rule="link").execution, id=f"link-{seed}") for seed in range(60)),
    *(pytest.param(History(seed, rule="meant").execution, id=f"meant-{seed}") for seed in range(60)),
    *(pytest.param(History(seed, rule="all").execution, id=f"all-{seed}") for seed in range(60)),
]


@pytest.mark.parametrize("execution", ALL_RULES)
def test_bit_masks_and_depth_first_search_agree(execution: Execution) -> None:
    naive, meant, graph = Naive(execution), Naive(execution, semantic=True), HappensBefore(execution)
    for dot, event in naive.send_of.items():
        past = naive.past(event)
        assert graph.past(dot) == {sent.dot for sent in naive.sends(past)}
        semantic_past = {sent.dot for sent in meant.sends(meant.past(event))}
        assert {other for other in naive.send_of if graph.semantically_before(other, dot)} == semantic_past
        counts = [[0] * execution.sites for _ in range(execution.sites)]
        for sent in naive.sends(past):
            for x in sites_of(sent.to):
                counts[sent.site][x] += 1
        assert graph.sent_counts(dot) == counts
        assert graph.facts_by_copy(dot) == naive.facts(dot)
    verdict = judge(execution)
    assert list(verdict.safety) == naive.out_of_order()
    assert list(verdict.semantic_safety) == meant.out_of_order()
    assert list(verdict.tokens) == naive.landed_too_early()


# --- valid executions pass, and fail when spoilt ------------------------------------------------------------------

SEEDS = range(40)


@pytest.mark.parametrize("seed", SEEDS)
def test_causal_delivery_by_full_history_is_accepted(seed: int) -> None:
    execution = with_facts(History(seed, rule="all").execution)
    verdict = judge(execution, optimality=True)
    assert verdict.ok, verdict
    assert not verdict.semantic_safety, "the semantic order is the weaker one"


@pytest.mark.parametrize("seed", SEEDS)
def test_semantic_delivery_is_accepted_for_false_causality_alone(seed: int) -> None:
    execution = History(seed, rule="meant", protocol="false-causality").execution
    verdict = judge(execution)
    assert verdict.ok, verdict
    assert judge(replace(execution, protocol="matrix")).ok == (not verdict.safety)


@pytest.mark.parametrize("rule", ["nothing", "link", "meant"])
def test_the_oracle_rejects_deliveries_that_ignore_causality(rule: str) -> None:
    rejected = [seed for seed in SEEDS if judge(History(seed, rule=rule).execution).safety]
    assert len(rejected) > len(SEEDS) / 2, "by chance a careless rule may do no harm, but not mostly"


def spoilt(execution: Execution, records: list[Record]) -> Execution:
    return replace(execution, records=records)


def deliveries(execution: Execution) -> list[tuple[int, Delivered]]:
    return [(i, record) for i, record in enumerate(execution.records) if isinstance(record, Delivered)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_delivery_moved_behind_its_effect_is_rejected(seed: int) -> None:
    execution, tried = History(seed, rule="all").execution, 0
    pairs = [(one, other) for one in deliveries(execution) for other in deliveries(execution) if one[0] < other[0]]
    for (i, first), (j, second) in random.Random(seed).sample(pairs, len(pairs)):
        moved = [*execution.records[:i], *execution.records[i + 1 : j + 1], first, *execution.records[j + 1 :]]
        naive = Naive(spoilt(execution, moved))
        if first.site != second.site or not {first.dot, second.dot} <= naive.send_of.keys():
            continue
        # The delivery itself may have been the link between the two; then moving it makes them concurrent.
        if naive.send_of[first.dot] in naive.past(naive.send_of[second.dot]):
            assert OutOfOrder(first.site, first.dot, second.dot) in judge(spoilt(execution, moved)).safety
            tried += 1
            if tried == 10:
                return
    assert tried, "a history without a single ordered pair tests nothing"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_or_repeated_delivery_is_rejected(seed: int) -> None:
    execution = History(seed, rule="all").execution
    for i, record in deliveries(execution):
        before, after = execution.records[:i], execution.records[i + 1 :]
        assert judge(spoilt(execution, before + after)).liveness == (NeverDelivered(record.site, record.dot),)
        again = judge(spoilt(execution, [*before, record, *after, record]))
        assert again.violations == (DeliveredTwice(record.site, record.dot),)
        stranger = judge(spoilt(execution, [*execution.records, Delivered(record.dot.site, record.dot)]))
        assert stranger.violations == (DeliveredToStranger(record.dot.site, record.dot),)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("landing", [TokenLanded, TokenAdopted])
def test_a_token_that_lands_early_is_rejected(seed: int, landing: type[TokenLanded | TokenAdopted]) -> None:
    execution = History(seed, rule="all").execution
    for i, sent in enumerate(execution.records):
        if isinstance(sent, Sent) and not sent.is_extra:
            x = next(sites_of(sent.to))
            before, after = execution.records[: i + 1], execution.records[i + 1 :]
            early = judge(spoilt(execution, [*before, TokenTaken(sent.site, 999), landing(x, 999), *after]))
            assert LandedTooEarly(x, 999, sent.dot) in early.tokens
            late = judge(spoilt(execution, [*before, TokenTaken(sent.site, 999), *after, landing(x, 999)]))
            assert late.ok, late


@pytest.mark.parametrize("seed", SEEDS)
def test_one_fact_too_many_or_too_few_is_rejected(seed: int) -> None:
    execution = with_facts(History(seed, rule="all").execution)
    for i, sent in enumerate(execution.records):
        if not isinstance(sent, Sent) or sent.is_extra:
            continue
        x, carried = next(iter(sent.carried.items()))
        facts = carried.facts or frozenset()
        for changed in [facts | {(sent.site, sent.dot.seq, x)}, *(facts - {fact} for fact in facts)]:
            copies = {**sent.carried, x: Carried(carried.units, changed)}
            records = [*execution.records[:i], sent._replace(carried=copies), *execution.records[i + 1 :]]
            verdict = judge(spoilt(execution, records), optimality=True)
            assert verdict.violations == (WrongFacts(sent.dot, x, facts - changed, changed - facts),)
