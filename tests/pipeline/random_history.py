"""Random histories of a few operations, in the notation of notation.py; most of them wrong, as they should be."""

from __future__ import annotations

import random
from collections import defaultdict


def random_by_value(chance: random.Random, *, operations_max: int) -> str:
    """Reads see any value that is ever written to their key, or the initial one, or, rarely, one that nobody wrote."""
    is_conflict = chance.random() < 0.3  # two writes to one key, and readers who see them in any order
    count = chance.randint(2, operations_max)
    if is_conflict:
        plan = [("a", "w", "x"), ("b", "w", "x"), *((chance.choice("abcd"), "r", "x") for _ in range(count - 2))]
    else:
        keys, sessions = "xy"[: chance.choice((1, 2, 2))], "abc"[: chance.choice((1, 2, 3, 3))]
        plan = [(chance.choice(sessions), chance.choice("wr"), chance.choice(keys)) for _ in range(count)]
    written: defaultdict[str, list[int]] = defaultdict(list)
    for _, kind, key in plan:
        if kind == "w":
            written[key].append(len(written[key]) + 1)
    left = {key: list(values) for key, values in written.items()}
    by_session: defaultdict[str, list[str]] = defaultdict(list)
    for session, kind, key in plan:
        seen = chance.choice(["-", *written[key] * (9 if is_conflict else 2)]) if chance.random() < 0.98 else "9"
        by_session[session].append(f"w {key} {left[key].pop(0)}" if kind == "w" else f"r {key} {seen}")
    grouping = 0.4 if not is_conflict and chance.random() < 0.5 else 0.0
    return "\n".join(f"{session}: {_grouped(chance, those, grouping)}" for session, those in by_session.items())


def _grouped(chance: random.Random, operations: list[str], share: float) -> str:
    groups = [[operations[0]]]
    for one in operations[1:]:
        if chance.random() < share:
            groups[-1].append(one)
        else:
            groups.append([one])
    return ", ".join(f"[{', '.join(group)}]" if len(group) > 1 else group[0] for group in groups)


def random_by_version(chance: random.Random, *, operations_max: int, is_plain: bool = False) -> str:
    """Versions mostly in the order of the text; with deletes, deadlines, failures and doubts, unless it is plain."""
    keys = "xy"[: chance.choice((1, 1, 2))]
    sessions = "abc"[: chance.choice((1, 2, 3, 3))]
    versions = list(range(1, chance.randint(2, operations_max) + 1))
    if chance.random() < 0.3:
        chance.shuffle(versions)
    plan = [
        (chance.choice(sessions), chance.choice("wwwrrrr" if is_plain else "wwwrrrrd"), chance.choice(keys), version)
        for version in versions
    ]
    by_session: defaultdict[str, list[str]] = defaultdict(list)
    for session, kind, key, version in plan:
        if kind == "r":
            written = [number for _, other, that, number in plan if (other, that) == ("w", key)]
            is_real = is_plain or chance.random() < 0.97
            by_session[session].append(f"r {key} {chance.choice(['-', *written]) if is_real else 9}")
            continue
        fate = chance.choices(("", "?", "!", "~"), (76, 12, 4, 8))[0]
        if is_plain or (kind == "d" and fate == "~"):
            fate = ""
        by_session[session].append(f"{kind} {key} {'' if fate == '?' else version}{fate}")
    return "\n".join(f"{session}: {', '.join(those)}" for session, those in by_session.items())
