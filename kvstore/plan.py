"""What a local cluster is made of: from a few wishes to a whole cluster file, with ports that are free.

Ports are taken from below the range that the system gives to outgoing connections. One from inside that range can be
lost while its replica is down: another program gets it for a connection, or a peer that tries to reconnect gets it for
its own end, and the connection ends up with itself. A port is tried before it is taken; nothing holds it until the
replica does, but among thousands chosen at random two clusters seldom meet, and then the second says so.
"""

from __future__ import annotations

import random
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from string import ascii_lowercase
from typing import Any, TypeVar

from kvstore.config import Cluster, Durability, LinkConfig, SiteConfig
from kvstore.errors import ConfigError
from kvstore.limits import Limits
from kvstore.toml import Table, expect, in_file, parse_toml, quoted, wrong
from kvstore.update import unescape

HOST = "127.0.0.1"
PORTS = range(10_000, 65_536)  # less the ones for outgoing connections
PORT_TRIES = 1000  # ports looked at; beyond it: there are none
_OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_OUTGOING_USUAL = (32_768, 60_999)

Placement = Mapping[bytes, Sequence[str]]
T = TypeVar("T")


def plan(
    *,
    replicas: int = 3,
    names: Sequence[str] | None = None,
    cluster_id: str | None = None,
    protocol: str = "optimal",
    options: Mapping[str, int] | None = None,
    durability: Durability | str = Durability.SYNC,
    placement: Placement | None = None,
    merge: Mapping[bytes, str] | None = None,
    link_delay_ms: float = 0.0,
    links: Sequence[LinkConfig] = (),
    limits: Limits | Mapping[str, int] | None = None,
    folder: Path = Path(),
    session_key_file: str = "",
) -> Cluster:
    """A cluster on this machine. Links that are not named have `link_delay_ms`; keys not placed live everywhere.

    The file with the keys is only named here; `write_key` makes one.
    """
    names = list(names) if names is not None else [site_name(number) for number in range(replicas)]
    ports = free_ports(2 * len(names))
    sites = tuple(
        SiteConfig(name, number, f"{HOST}:{ports[2 * number]}", f"{HOST}:{ports[2 * number + 1]}", f"data/{name}")
        for number, name in enumerate(names)
    )
    return Cluster(
        cluster_id=cluster_id or f"local-{secrets.token_hex(4)}",
        sites=sites,
        placement=_placed(names, placement or {}),
        protocol=protocol,
        options=dict(options or {}),
        durability=_durability(durability),
        merge={b"": "lww"} | dict(merge or {}),
        links=all_links(names, links, link_delay_ms),
        limits=limits if isinstance(limits, Limits) else make_limits(limits or {}),
        folder=folder,
        session_key_file=session_key_file,
    )


def _durability(text: str) -> Durability:
    try:
        return Durability(text)
    except ValueError:
        raise wrong("durability", f"there is no {text!r}; there are {', '.join(Durability)}") from None


def contradiction(cluster: Cluster, wishes: Mapping[str, Any]) -> str | None:
    """How these wishes differ from a cluster that is there already, as the end of a sentence about its file."""
    names = [site.name for site in cluster.sites]
    if "replicas" in wishes and wishes["replicas"] != len(names):
        return f"has {len(names)} replicas, not {wishes['replicas']}"
    if "names" in wishes and list(wishes["names"]) != names:
        return f"has the sites {', '.join(names)}, not {', '.join(wishes['names'])}"
    for field in ("protocol", "durability"):
        if field in wishes and wishes[field] != getattr(cluster, field):
            return f"has the {field} {getattr(cluster, field)}, not {wishes[field]}"
    if "options" in wishes and wishes["options"] != cluster.options:
        return f"has the options {dict(cluster.options)}, not {wishes['options']}"
    if "placement" in wishes and _placed(names, wishes["placement"]) != cluster.placement:
        return "places keys otherwise"
    if "merge" in wishes and {b"": "lww"} | wishes["merge"] != cluster.merge:
        return "merges keys otherwise"
    if wishes.keys() & {"links", "link_delay_ms"}:
        links = all_links(names, wishes.get("links", ()), wishes.get("link_delay_ms", 0.0))
        if set(links) != set(cluster.links):
            return "has other links"
    for name, value in wishes.get("limits", {}).items():
        if getattr(cluster.limits, name, None) != value:
            return f"does not have the limit {name} = {value}"
    return None


def _placed(names: Sequence[str], placement: Placement) -> dict[bytes, tuple[str, ...]]:
    return {b"": tuple(names)} | {prefix: tuple(holders) for prefix, holders in placement.items()}


def site_name(number: int) -> str:
    """a to z, then aa, ab, …"""
    name = ""
    while number >= 0:
        name = ascii_lowercase[number % 26] + name
        number = number // 26 - 1
    return name


def all_links(names: Sequence[str], links: Iterable[LinkConfig], delay_ms: float) -> tuple[LinkConfig, ...]:
    """These links, and for every other pair one with this delay, if it is one."""
    given = list(links)
    known = {(link.origin, link.target) for link in given}
    pairs = [(one, other) for one in names for other in names if one != other and (one, other) not in known]
    return (*given, *(LinkConfig(*pair, delay_ms) for pair in pairs if delay_ms))


def make_limits(given: Mapping[str, int]) -> Limits:
    known = Limits.__dataclass_fields__
    for name in given:
        if name not in known:
            raise wrong(f"limits.{name}", "is unknown")
    return Limits(**given)


# Ports


def free_ports(count: int) -> list[int]:
    outgoing = range(_outgoing()[0], _outgoing()[1] + 1)
    candidates = [port for port in PORTS if port not in outgoing] or list(PORTS)
    chosen: list[int] = []
    for port in random.SystemRandom().sample(candidates, min(PORT_TRIES, len(candidates))):
        if len(chosen) == count:
            break
        if is_free(f"{HOST}:{port}"):
            chosen.append(port)
    if len(chosen) < count:
        raise ConfigError(f"{count} free ports are needed on {HOST}, and only {len(chosen)} were found", key="", why="")
    return chosen


def is_free(address: str) -> bool:
    """Whether a server could listen there now. A name that does not resolve is for the server itself to report."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except OSError:
        return True
    with closing(socket.socket(family, kind)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: what is closing is no obstacle
        try:
            probe.bind(place)
            probe.listen(1)
        except OSError:
            return False
    return True


def accepts(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except OSError:
        return False


def _outgoing() -> tuple[int, int]:
    with suppress(OSError, ValueError):
        first, last = map(int, _OUTGOING.read_text(encoding="ascii").split())
        return first, last
    return _OUTGOING_USUAL


# Files that hold one table of a cluster file


def read_placement(path: Path) -> dict[bytes, tuple[str, ...]]:
    """The table `[placement]` of a file."""
    return _read(path, lambda table: dict(_placement(table.table("placement"))))


def read_links(path: Path) -> tuple[LinkConfig, ...]:
    """The tables `[[link]]` of a file."""
    return _read(path, lambda table: tuple(_link(one) for one in table.tables("link")))


def _placement(table: Table) -> Iterable[tuple[bytes, tuple[str, ...]]]:
    for text, names in table.rest(list):
        key = f"placement.{quoted(text)}"
        try:
            yield unescape(text), tuple(expect(name, str, key) for name in names)
        except ValueError as error:
            raise wrong(key, str(error)) from None


def _link(table: Table) -> LinkConfig:
    origin, target = table.take("from", str), table.take("to", str)
    link = LinkConfig(origin, target, table.take("delay_ms", float, 0.0), table.take("jitter_ms", float, 0.0))
    table.finish()
    return link


def _read(path: Path, take: Callable[[Table], T]) -> T:
    try:
        table = parse_toml(path.read_text(encoding="utf-8"), str(path))
        found = take(table)
        table.finish()
    except ConfigError as error:
        raise in_file(error, str(path)) if error.details["key"] else error from None
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: {why}", file=str(path), key="", why=why) from None
    return found
