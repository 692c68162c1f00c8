"""What the sites of a simulated network do, and how long their links take: everything that one seed decides.

The workload is that of Jang et al., section 6.2: each site sends with exponential gaps (mean 0.1 s) to evenly
distributed destinations, their number evenly distributed with mean n/2, or to one. What the paper leaves open is a
parameter here: how long a link takes, and whether it keeps order. Sends and delays are drawn apart from everything a
protocol does, so that every protocol meets the same messages and the same network.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from causal.errors import BadOption
from causal.model import Mask, Site

FAN_OUTS = ("multicast", "unicast", "broadcast")
DELAYS = ("exponential", "uniform", "constant", "lognormal")
SECONDS_MAX = 86_400.0  # of a mean gap or delay
_LOGNORMAL_SIGMA = 1.0


@dataclass(frozen=True)
class Workload:
    sites: int
    messages: int  # user messages, all sites together
    seed: int = 0
    fan_out: str = "multicast"
    gap_s: float = 0.1  # mean time between two sends of a site
    delay: str = "exponential"  # the distribution of a link's delay
    delay_s: float = 0.1  # and its mean
    fifo: bool = True  # links keep order; else copies overtake each other
    duplicates: float = 0.0  # share of copies that arrive a second time
    dependent: float = 1.0  # share of sends that depend on what their site has seen
    sessions: int = 0  # clients that move from site to site with a token
    warm_up: int = 0  # user messages before anything is counted

    def __post_init__(self) -> None:
        if self.fan_out not in FAN_OUTS:
            raise BadOption(f"unknown fan-out {self.fan_out!r}; there are {', '.join(FAN_OUTS)}")
        if self.delay not in DELAYS:
            raise BadOption(f"unknown delay distribution {self.delay!r}; there are {', '.join(DELAYS)}")
        if self.sites < 2:
            raise BadOption("a network needs at least two sites")
        if not (0 <= self.duplicates <= 1 and 0 <= self.dependent <= 1):
            raise BadOption("`duplicates` and `dependent` are shares, between 0 and 1")
        if not (0 < self.gap_s <= SECONDS_MAX and 0 < self.delay_s <= SECONDS_MAX):
            raise BadOption(f"gaps and delays must be above 0 and at most {SECONDS_MAX} s")
        if self.messages < 0 or self.sessions < 0 or not 0 <= self.warm_up <= self.messages:
            raise BadOption("counts cannot be negative, nor the warm-up be longer than the run")

    def command(self, protocol: str, options: Mapping[str, Any]) -> str:
        """The shell command that runs and judges exactly this again."""
        words = [f"causal simulate {protocol} --judge"]
        for item in fields(self):
            value = getattr(self, item.name)
            if value == item.default:
                continue
            flag = "--overtake" if item.name == "fifo" else f"--{item.name.replace('_', '-')} {value}"
            words.append(flag)
        words += [f"--option {name}={value}" for name, value in options.items()]
        return " ".join(words)

    def delay_of(self, rng: random.Random) -> float:
        """One link delay, with the mean that was asked for."""
        if self.delay == "exponential":
            return rng.expovariate(1 / self.delay_s)
        if self.delay == "uniform":
            return rng.uniform(0, 2 * self.delay_s)
        if self.delay == "lognormal":
            return self.delay_s * rng.lognormvariate(-(_LOGNORMAL_SIGMA**2) / 2, _LOGNORMAL_SIGMA)
        return self.delay_s

    def destinations(self, rng: random.Random, sender: Site) -> Mask:
        everyone = (1 << self.sites) - 1 ^ 1 << sender
        if self.fan_out == "broadcast":
            return everyone
        others = [site for site in range(self.sites) if site != sender]
        count = 1 if self.fan_out == "unicast" else rng.randint(1, self.sites - 1)
        return sum(1 << site for site in rng.sample(others, count))

    def sends(self) -> Iterator[Planned]:
        """The run's own sends, in order of time."""
        rng = random.Random(f"sends {self.seed}")
        now = 0.0
        for _ in range(self.messages):
            now += rng.expovariate(self.sites / self.gap_s)
            sender = rng.randrange(self.sites)
            to = self.destinations(rng, sender)
            yield Planned(now, sender, to, rng.random() < self.dependent, rng.getrandbits(64))


class Planned(NamedTuple):
    """A send that will happen. Its delays come from `seed`, whatever else happens meanwhile."""

    time: float
    sender: Site
    to: Mask
    semantic: bool
    seed: int
