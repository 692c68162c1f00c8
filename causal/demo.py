"""One small execution, told for every protocol: a reply that overtakes its question."""

from __future__ import annotations

import json

from causal.protocols import PROTOCOLS
from causal.replay import replay

SCHEDULE: list[dict[str, object]] = [
    {"send": "question", "from": 0, "to": [1, 2]},
    {"arrive": "question", "at": 1},
    {"send": "reply", "from": 1, "to": [0, 2]},
    {"arrive": "reply", "at": 2},
    {"arrive": "question", "at": 2},
]

_STORY = """\
Three sites. Site 0 asks a question to both others. Site 1 has it and replies to both others.
The link from 0 to 2 is slow: at site 2 the reply arrives before its question.

        0 ──●─────────────────────────────○──      ● sends   ○ delivers
             ╲ ╲                        ╱
        1 ────○─╲──────●───────────────╱─────
                 ╲      ╲ reply
        2 ────────╲──────◌──────○──○─────────      ◌ arrives too early, is held
                   ╲___________╱ question

What each protocol does at site 2, and what its stamps cost (units and bytes, reply to site 2):
"""

_CLOSING = """
Units are each protocol's own measure. With three sites all stamps are small; `causal compare` shows what
happens with fifty. The controls at the end show what the others prevent.

Next: `causal protocols`, `causal simulate optimal --judge`, and docs/algorithms.md."""


def demo() -> str:
    """The story, and a line a protocol."""
    lines = [_STORY, f"  {'protocol':<17}{'at site 2':<44}{'units':>6}{'bytes':>6}"]
    for protocol in PROTOCOLS:
        happened, units, size = _told(protocol)
        lines.append(f"  {protocol:<17}{happened:<44}{units:>6}{size:>6}")
    lines.append(_CLOSING)
    return "\n".join(lines)


def _told(protocol: str) -> tuple[str, int, int]:
    out = list(replay(map(json.dumps, [{"sites": 3, "protocol": protocol}, *SCHEDULE])))
    here = [line for line in out if line.get("at") == 2]
    words = [f"holds {line['held']}" if "held" in line else line["delivered"] for line in here]
    copy = next(line for line in out if line.get("sent") == "reply" and line["to"] == 2)
    return ", ".join(words), copy["units"], copy["bytes"]
