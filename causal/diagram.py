"""The space-time diagram of a schedule: sites as lines, messages as arrows, what is held as a dashed stay.

A held copy arrives at an open ring, waits on its site's line, and is delivered at the full mark. Extra messages are
thin and grey. The horizontal axis is the order of events, not time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from causal.model import Site
from causal.replay import Line, Replay, parse

_PLATE = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}  # behind a name
_INK, _SENT, _HELD, _EXTRA = "#333333", "#1f6fb2", "#d1771a", "#8a8a8a"


@dataclass(slots=True)
class Arrow:
    """One copy on its way; positions are places in the order of events."""

    name: str
    sender: Site
    receiver: Site
    sent: int
    is_extra: bool
    arrived: int = 0
    delivered: int = 0


@dataclass(slots=True)
class Picture:
    title: str
    sites: int
    arrows: dict[tuple[str, Site], Arrow] = field(default_factory=dict)
    width: int = 0

    def note(self, happened: Line, sender: Site) -> None:
        """Give what happened its place."""
        match happened:
            case {"sent": name, "to": to} | {"extra": name, "to": to}:
                if not any(arrow.name == name for arrow in self.arrows.values()):
                    self.width += 1
                sender = happened.get("from", sender)
                self.arrows[name, to] = Arrow(name, sender, to, self.width, "extra" in happened)
            case {"held": name, "at": at}:
                self.width += 1
                self.arrows[name, at].arrived = self.width
            case {"delivered": name, "at": at}:
                self.width += 1
                arrow = self.arrows[name, at]
                arrow.delivered = self.width
                arrow.arrived = arrow.arrived or self.width


def picture(lines: Iterable[str | bytes]) -> Picture:
    """Run the schedule and place every event."""
    header, *rest = [parse(text) for text in lines if text.strip()]
    running = Replay(header)
    result = Picture(f"{header['protocol']}, {header['sites']} sites", header["sites"])
    for line in [*rest, {"drain": True}]:
        for happened in running.step(line):
            result.note(happened, line.get("from", 0))
    return result


def draw(lines: Iterable[str | bytes], out: Path) -> None:
    """Write the diagram; the ending of `out` says in which format."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = picture(lines)
    with pyplot.rc_context({"svg.fonttype": "none", "svg.hashsalt": "causal", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(1.6 + 0.42 * shown.width, 0.9 + 0.8 * shown.sites))
        for site in range(shown.sites):
            axes.plot([0.3, shown.width + 0.7], [-site, -site], color=_INK, linewidth=1, zorder=1)
        for arrow in shown.arrows.values():
            _draw_arrow(axes, arrow)
        for arrow in {arrow.name: arrow for arrow in shown.arrows.values()}.values():
            _label(axes, arrow)
        axes.set_yticks([-site for site in range(shown.sites)], [f"site {site}" for site in range(shown.sites)])
        axes.set_xticks([])
        axes.set_title(shown.title, loc="left", color=_INK)
        axes.set_ylim(-shown.sites + 0.45, 0.75)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.tick_params(length=0)
        figure.tight_layout()
        figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=150)
        pyplot.close(figure)


def _draw_arrow(axes: Any, arrow: Arrow) -> None:
    held = arrow.delivered > arrow.arrived
    colour = _HELD if held else _EXTRA if arrow.is_extra else _SENT
    far = abs(arrow.sender - arrow.receiver) > 1  # a straight one could run through a stranger's mark
    bend = f"arc3,rad={0.14 if far else 0}"
    axes.annotate(
        "",
        xy=(arrow.arrived, -arrow.receiver),
        xytext=(arrow.sent, -arrow.sender),
        arrowprops={
            "arrowstyle": "-|>",
            "color": colour,
            "linewidth": 0.9 if arrow.is_extra else 1.4,
            "shrinkB": 3,
            "connectionstyle": bend,
        },
        zorder=2,
    )
    axes.plot(arrow.sent, -arrow.sender, "o", color=colour if not held else _SENT, markersize=5, zorder=3)
    axes.plot(arrow.delivered, -arrow.receiver, "D", color=colour, markersize=4.5, zorder=3)
    if held:
        axes.plot(
            [arrow.arrived, arrow.delivered], [-arrow.receiver] * 2, color=_HELD, linewidth=3, alpha=0.5, zorder=2
        )
        axes.plot(arrow.arrived, -arrow.receiver, "o", markerfacecolor="white", color=_HELD, markersize=6, zorder=3)


def _label(axes: Any, arrow: Arrow) -> None:
    """The message's name at its send, on the side where its first arrow is not."""
    side = 6 if arrow.receiver > arrow.sender else -13
    place = (arrow.sent, -arrow.sender)
    axes.annotate(
        arrow.name, place, textcoords="offset points", xytext=(0, side), ha="center", color=_INK, zorder=4, bbox=_PLATE
    )
