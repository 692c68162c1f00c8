"""A schedule, line by line, through the protocol it names: what was sent, held, delivered, and with which stamps.

JSON lines in, JSON lines out; the format is fixed (see docs/replay.md). Copies travel as the protocol's own bytes. The
replay itself keeps only who sent what, and which copies are still under way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Any, NamedTuple

from causal.codec import decode, encode
from causal.errors import CausalError
from causal.model import Dot, Duplicate, Held, Message, Site, mask_of
from causal.multicast import Multicast, Outgoing
from causal.protocols import make_site

Line = dict[str, Any]


class ScheduleError(Exception):
    """A line that makes no sense. The lines before it stand."""


class Posted(NamedTuple):
    """A message that was made, and its copies as bytes."""

    name: str
    number: int  # in order of making
    copies: dict[Site, bytes]


class Replay:
    """One schedule after its first line, which says who takes part."""

    def __init__(self, header: Line) -> None:
        _check_keys(header, {"sites", "protocol"}, {"options"})
        sites = _integer(header, "sites")
        protocol, options = header["protocol"], header.get("options", {})
        if not isinstance(protocol, str) or not isinstance(options, dict):
            raise ScheduleError("`protocol` is a name, `options` an object")
        for name in options:
            _integer(options, name)
        try:
            self.sites: list[Multicast[Any]] = [make_site(protocol, 0, sites, **options)]
            self.sites += [make_site(protocol, site, sites, **options) for site in range(1, sites)]
        except CausalError as error:
            raise ScheduleError(str(error)) from None
        self._posted: dict[str, Posted] = {}
        self._names: dict[Dot, str] = {}
        self._under_way: set[tuple[int, Site]] = set()
        self._oldest: list[tuple[int, Site]] = []  # the same as a heap; what has arrived is skipped
        self._by_number: list[Posted] = []
        self._extras = 0

    def step(self, line: Line) -> Iterator[Line]:
        """What one line of the schedule makes happen."""
        for verb, act in self._verbs().items():
            if verb in line:
                return act(line)
        raise ScheduleError("a line has one of `send`, `arrive` and `drain`")

    def drain(self) -> Iterator[Line]:
        """Every copy still under way arrives, the oldest first, then by destination; also those made meanwhile."""
        while self._oldest:
            number, site = heappop(self._oldest)
            if (number, site) in self._under_way:
                yield from self._arrived(self._by_number[number], site)

    def _verbs(self) -> dict[str, Callable[[Line], Iterator[Line]]]:
        return {"send": self._send, "arrive": self._arrive, "drain": self._drain}

    def _send(self, line: Line) -> Iterator[Line]:
        _check_keys(line, {"send", "from", "to"}, {"semantic"})
        name, sender = _name(line, "send"), self._site(line["from"])
        to, semantic = line["to"], line.get("semantic", True)
        if name.startswith("x"):
            raise ScheduleError(f"the name {name!r} is reserved: names that start with x belong to extra messages")
        if name in self._posted:
            raise ScheduleError(f"the name {name!r} is used already")
        if not isinstance(to, list) or not isinstance(semantic, bool):
            raise ScheduleError("`to` is a list of sites, `semantic` is true or false")
        destinations = [self._site(site) for site in to]
        if len(set(destinations)) != len(destinations):
            raise ScheduleError("a destination is named twice")
        try:
            made = self.sites[sender].send(mask_of(destinations), semantic=semantic)
        except CausalError as error:
            raise ScheduleError(str(error)) from None
        return self._made(made, name)

    def _arrive(self, line: Line) -> Iterator[Line]:
        _check_keys(line, {"arrive", "at"}, set())
        name, site = _name(line, "arrive"), self._site(line["at"])
        posted = self._posted.get(name)
        if posted is None:
            raise ScheduleError(f"{name!r} arrives before it is sent")
        if site not in posted.copies:
            raise ScheduleError(f"{name!r} does not go to site {site}")
        return self._arrived(posted, site)

    def _drain(self, line: Line) -> Iterator[Line]:
        _check_keys(line, {"drain"}, set())
        if line["drain"] is not True:
            raise ScheduleError("`drain` is true, or not there")
        return self.drain()

    def _made(self, made: Iterable[Outgoing], name: str = "") -> Iterator[Line]:
        for outgoing in made:
            sender = self.sites[outgoing.dot.site]
            if outgoing.is_extra:
                self._extras += 1
            own_name = f"x{self._extras}" if outgoing.is_extra else name
            posted = Posted(own_name, len(self._by_number), encode(sender, outgoing))
            self._posted[own_name] = posted
            self._by_number.append(posted)
            self._names[outgoing.dot] = posted.name
            for site, data in posted.copies.items():
                self._under_way.add((posted.number, site))
                heappush(self._oldest, (posted.number, site))
                size = {"units": sender.units(outgoing.copy(site)), "bytes": len(data)}
                if outgoing.is_extra:
                    yield {"extra": posted.name, "from": sender.site, "to": site, **size}
                else:
                    yield {"sent": posted.name, "to": site, **size}

    def _arrived(self, posted: Posted, site: Site) -> Iterator[Line]:
        self._under_way.discard((posted.number, site))
        at = self.sites[site]
        for effect in at.receive(decode(at, posted.copies[site])):
            match effect:
                case Message():
                    yield {"delivered": self._names[effect.dot], "at": site}
                case Held():
                    missing = {"site": effect.missing.site, "seq": effect.missing.seq}
                    yield {"held": posted.name, "at": site, "missing": missing}
                case Duplicate():
                    yield {"duplicate": posted.name, "at": site}
                case Outgoing():
                    yield from self._made([effect])

    def _site(self, value: Any) -> Site:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < len(self.sites):
            raise ScheduleError(f"there is no site {json.dumps(value)}; sites are numbered 0 to {len(self.sites) - 1}")
        return value


def replay(lines: Iterable[str | bytes]) -> Iterator[Line]:
    """Run a whole schedule. Raises `ScheduleError`, with the line's number, after yielding what came before."""
    running: Replay | None = None
    number = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = parse(text)
            if running is None:
                running = Replay(line)
            else:
                yield from running.step(line)
        except ScheduleError as error:
            raise ScheduleError(f"line {number}: {error}") from None
    if running is None:
        raise ScheduleError(f"line {number + 1}: the schedule is empty; its first line names sites and protocol")
    yield from running.drain()


def parse(text: str | bytes) -> Line:
    try:
        line = json.loads((text.decode() if isinstance(text, bytes) else text).strip())
    except UnicodeDecodeError:
        raise ScheduleError("this is no text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ScheduleError(f"this is no JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise ScheduleError("this is no JSON: a number is too long, or too much is nested") from None
    if not isinstance(line, dict):
        raise ScheduleError("a line is a JSON object")
    return line


def _check_keys(line: Line, required: set[str], optional: set[str]) -> None:
    if missing := required - line.keys():
        raise ScheduleError(f"{_listed(missing)} must be given")
    if unknown := line.keys() - required - optional:
        raise ScheduleError(f"{_listed(unknown)} does not belong here")


def _listed(keys: set[str]) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys))


def _integer(line: Line, key: str) -> int:
    value = line[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScheduleError(f"`{key}` is a number, not {json.dumps(value)}")
    return value


def _name(line: Line, key: str) -> str:
    name = line[key]
    if not isinstance(name, str) or not name:
        raise ScheduleError(f"`{key}` takes a name")
    return name
