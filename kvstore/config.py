"""`cluster.toml`: what all replicas of a cluster must agree on, checked before anything starts.

The file is strict. An unknown key, a wrong type, a site that does not exist, an option that the protocol does not know:
each is a ConfigError that names file and key, because a misspelt limit that is silently ignored is found on the day
it would have helped. What can be made of values alone is checked in the values themselves, so a cluster put together
by a program is as sound as one that was read.

Some of it must be the same everywhere or updates go astray: protocol and options, placement, merge. Their `hashes`
travel in the hello of every link (SAFETY 5). Addresses, limits and link delays may differ from replica to replica.

The keys that seal sessions are in a file of their own, which `[auth]` names: whoever may know where the replicas are
need not be able to forge a token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

from causal import PROTOCOLS, CausalError, make_site, mask_of
from kvstore.errors import ConfigError, UnknownSite
from kvstore.keyfile import read_keys
from kvstore.limits import Limits
from kvstore.merge import MERGES
from kvstore.toml import Table, expect, in_file, parse_toml, quoted, section, wrong
from kvstore.update import escape, unescape

FORMAT = 1  # of cluster.toml; any other is refused
DELAY_MAX_MS = 60_000.0  # of a link in a dev cluster
LATER = "this version has no such thing yet; without it the table would protect nothing"  # of tls, and most of auth

K = TypeVar("K")
V = TypeVar("V")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_NAME_RULE = "1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first"
_ADDRESS = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})")


class Durability(StrEnum):
    SYNC = "sync"  # answered when it is on disk
    METASYNC_OFF = "metasync-off"  # the same with one sync less; after a power loss the last commit may be missing
    PERIODIC = "periodic"  # answered when applied, synced soon after; sends, acks and tokens wait for the sync


@dataclass(frozen=True, slots=True)
class SiteConfig:
    name: str
    number: int  # 0 to n - 1, never reused
    client: str  # host:port for clients
    peer: str  # host:port for the other replicas
    data: str  # directory; a relative one is below the folder of the cluster file


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """What a link of a dev cluster adds to every message, to feel like a wide area network."""

    origin: str
    target: str
    delay_ms: float = 0.0
    jitter_ms: float = 0.0


class Hashes(NamedTuple):
    """What the hello compares, each a short digest: two replicas that differ in one of these must not talk."""

    protocol: str  # with its options, defaults filled in
    placement: str  # with the sites in their order
    merge: str


@dataclass(frozen=True, slots=True)
class Cluster:
    cluster_id: str
    sites: tuple[SiteConfig, ...]  # by number
    placement: Mapping[bytes, tuple[str, ...]]  # key prefix -> the sites that hold such keys
    protocol: str = "optimal"
    options: Mapping[str, int] = field(default_factory=dict)
    durability: Durability = Durability.SYNC
    merge: Mapping[bytes, str] = field(default_factory=lambda: {b"": "lww"})  # key prefix -> its merge
    links: tuple[LinkConfig, ...] = ()
    limits: Limits = field(default_factory=Limits)
    folder: Path = field(default=Path(), compare=False)  # where the file is; data directories are relative to it
    session_key_file: str = ""  # a relative one is below the same folder; empty: there is none
    session_keys: tuple[bytes, ...] = field(default=(), repr=False)  # the first seals tokens, each one opens them

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.cluster_id):
            raise wrong("cluster_id", f"{self.cluster_id!r} is not {_NAME_RULE}")
        _check_sites(self.sites)
        _check_protocol(self)
        _check_placement(self)
        _check_merge(self)
        _check_links(self)

    def site(self, name: str) -> SiteConfig:
        for site in self.sites:
            if site.name == name:
                return site
        raise UnknownSite(site=repr(name), sites=", ".join(site.name for site in self.sites))

    def data_of(self, site: SiteConfig) -> Path:
        return self.folder / site.data

    def hashes(self) -> Hashes:
        options = make_site(self.protocol, 0, len(self.sites), **self.options).options
        names = [site.name for site in self.sites]
        placement = {escape(prefix): sorted(holders) for prefix, holders in self.placement.items()}
        merge = {escape(prefix): name for prefix, name in self.merge.items()}
        return Hashes(_digest([self.protocol, options]), _digest([names, placement]), _digest(merge))

    def to_toml(self) -> str:
        """A file that reads as this cluster. Limits are written where they differ from what they are anyway."""
        head = {"format": FORMAT, "cluster_id": self.cluster_id, "protocol": self.protocol}
        limits = {one.name: value for one in fields(Limits) if (value := getattr(self.limits, one.name)) != one.default}
        lines = [
            *section("", {**head, "durability": str(self.durability)}),
            *section("[options]", self.options),
            *(line for site in self.sites for line in section("[[site]]", asdict(site))),
            *section("[placement]", {quoted(escape(prefix)): names for prefix, names in self.placement.items()}),
            *section("[merge]", {quoted(escape(prefix)): name for prefix, name in self.merge.items()}),
            *(line for link in self.links for line in section("[[link]]", _link_rows(link))),
            *section("[limits]", limits),
            *section("[auth]", {"session_key_file": self.session_key_file} if self.session_key_file else {}),
        ]
        return "\n".join(lines[1:]) + "\n"


# What the values must be among themselves


def _check_sites(sites: tuple[SiteConfig, ...]) -> None:
    if not sites:
        raise wrong("site", "a cluster needs at least one")
    if [site.number for site in sites] != list(range(len(sites))):
        numbers = ", ".join(str(site.number) for site in sites)
        raise wrong("site.number", f"{numbers} are not the numbers from 0 to {len(sites) - 1}, each once")
    names: set[str] = set()
    addresses: dict[str, str] = {}
    for site in sites:
        if not _NAME.fullmatch(site.name):
            raise wrong("site.name", f"{site.name!r} is not {_NAME_RULE}")
        if site.name in names:
            raise wrong("site.name", f"{site.name} is the name of two sites")
        names.add(site.name)
        for key, address in ((f"site[{site.name}].client", site.client), (f"site[{site.name}].peer", site.peer)):
            _check_address(key, address)
            if address in addresses:
                raise wrong(key, f"{address} is {addresses[address]} too")
            addresses[address] = key
        if not site.data or "\0" in site.data:
            raise wrong(f"site[{site.name}].data", f"{site.data!r} is no directory")


def _check_address(key: str, address: str) -> None:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[1]) > 0xFFFF:
        raise wrong(key, f"{address!r} is not host:port with a port from 1 to 65535")


def _check_protocol(cluster: Cluster) -> None:
    key = "options" if cluster.protocol in PROTOCOLS and cluster.options else "protocol"
    try:
        make_site(cluster.protocol, 0, len(cluster.sites), **cluster.options)
    except CausalError as error:
        raise wrong(key, str(error)) from None


def _check_placement(cluster: Cluster) -> None:
    numbers = {site.name: site.number for site in cluster.sites}
    if b"" not in cluster.placement:
        raise wrong("placement", 'the prefix "" is required: it says where all other keys live')
    for prefix, names in cluster.placement.items():
        key = _prefix_key("placement", prefix, cluster.limits)
        if not names:
            raise wrong(key, "these keys would live nowhere; name at least one site")
        for name in names:
            if name not in numbers:
                raise wrong(key, f"there is no site {name!r}; there are {', '.join(numbers)}")
        if len(set(names)) != len(names):
            raise wrong(key, "a site is named twice")
        if len(names) < len(numbers) and not _can_send_to_some(cluster.protocol):
            raise wrong(key, f"{cluster.protocol} sends to everyone or to nobody, so every site must hold these keys")


def _can_send_to_some(protocol: str) -> bool:
    """Not every protocol can send to some sites and not to others; the smallest case that tells has three."""
    try:
        make_site(protocol, 0, 3).send(mask_of([1]))
    except CausalError:
        return False
    return True


def _check_merge(cluster: Cluster) -> None:
    if b"" not in cluster.merge:
        raise wrong("merge", 'the prefix "" is required')
    for prefix, name in cluster.merge.items():
        key = _prefix_key("merge", prefix, cluster.limits)
        if name not in MERGES:
            raise wrong(key, f"there is no merge {name!r}; there are {', '.join(MERGES)}")
        if name == "siblings" and not PROTOCOLS[cluster.protocol].is_causal:
            raise wrong(key, f"{cluster.protocol} keeps no causal order, so a value that was replaced could come back")


def _prefix_key(table: str, prefix: bytes, limits: Limits) -> str:
    key = f"{table}.{quoted(escape(prefix))}"
    if len(prefix) > limits.key_max:
        raise wrong(key, f"no key has {len(prefix)} bytes; at most {limits.key_max} are possible")
    return key


def _check_links(cluster: Cluster) -> None:
    names = [site.name for site in cluster.sites]
    pairs: set[tuple[str, str]] = set()
    for number, link in enumerate(cluster.links, start=1):
        key, pair = f"link[{number}]", (link.origin, link.target)
        for name in pair:
            if name not in names:
                raise wrong(key, f"there is no site {name!r}; there are {', '.join(names)}")
        if link.origin == link.target:
            raise wrong(key, f"{link.origin} has no link to itself")
        if pair in pairs:
            raise wrong(key, f"the link from {link.origin} to {link.target} is there twice")
        pairs.add(pair)
        for name, value in (("delay_ms", link.delay_ms), ("jitter_ms", link.jitter_ms)):
            if not 0 <= value <= DELAY_MAX_MS:
                raise wrong(f"{key}.{name}", f"{value} is not from 0 to {DELAY_MAX_MS:.0f}")


# The file


def load_cluster(path: Path | str, *, with_keys: bool = True) -> Cluster:
    """The cluster of a file. A client has no use for the keys, and may not be able to read them."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: {why}", file=str(path), key="", why=why) from None
    return parse_cluster(text, file=str(path), folder=path.parent, with_keys=with_keys)


def parse_cluster(text: str, *, file: str = "cluster.toml", folder: Path = Path(), with_keys: bool = True) -> Cluster:
    table = parse_toml(text, file)
    try:
        return _read_cluster(table, folder, with_keys=with_keys)
    except ConfigError as error:
        raise in_file(error, file) from None


def _read_cluster(table: Table, folder: Path, *, with_keys: bool) -> Cluster:
    found = table.take("format", int)
    if found != FORMAT:
        raise wrong("format", f"{found}; this version reads format {FORMAT}")
    if "tls" in table:
        raise wrong("tls", LATER)
    key_file = _read_auth(table.table("auth")) if "auth" in table else ""
    sites = [_read_site(one) for one in table.tables("site")]
    placement = _read_prefixes(table.table("placement"), list, _read_names)
    merge = _read_prefixes(table.table("merge"), str, lambda _, name: name)
    cluster = Cluster(
        cluster_id=table.take("cluster_id", str),
        sites=tuple(sorted(sites, key=lambda site: site.number)),
        placement=placement,
        protocol=table.take("protocol", str),
        options=dict(table.table("options").rest(int)),
        durability=_read_durability(table),
        merge={b"": "lww"} | merge,
        links=tuple(_read_link(one) for one in table.tables("link")),
        limits=_read_limits(table.table("limits")),
        folder=folder,
        session_key_file=key_file,
        session_keys=read_keys(folder / key_file) if key_file and with_keys else (),
    )
    table.finish()
    return cluster


def _read_auth(table: Table) -> str:
    key_file = table.take("session_key_file", str, "")
    table.finish(LATER)
    if not key_file or "\0" in key_file:
        raise wrong("auth.session_key_file", "must name a file")
    return key_file


def _read_site(table: Table) -> SiteConfig:
    site = SiteConfig(
        name=table.take("name", str),
        number=table.take("number", int),
        client=table.take("client", str),
        peer=table.take("peer", str),
        data=table.take("data", str),
    )
    table.finish()
    return site


def _read_durability(table: Table) -> Durability:
    text = table.take("durability", str, Durability.SYNC.value)
    if text not in set(Durability):
        raise wrong("durability", f"there is no {text!r}; there are {', '.join(Durability)}")
    return Durability(text)


def _read_prefixes(table: Table, kind: type[K], read: Callable[[str, K], V]) -> dict[bytes, V]:
    rows: dict[bytes, V] = {}
    for text, value in table.rest(kind):
        key = f"{table.path}.{quoted(text)}"
        try:
            prefix = unescape(text)
        except ValueError as error:
            raise wrong(key, str(error)) from None
        if prefix in rows:
            raise wrong(key, "the same prefix is there twice, written in two ways")
        rows[prefix] = read(key, value)
    return rows


def _read_names(key: str, names: list[object]) -> tuple[str, ...]:
    return tuple(expect(name, str, key) for name in names)


def _read_link(table: Table) -> LinkConfig:
    origin, target = table.take("from", str), table.take("to", str)
    link = LinkConfig(origin, target, table.take("delay_ms", float, 0.0), table.take("jitter_ms", float, 0.0))
    table.finish()
    return link


def _read_limits(table: Table) -> Limits:
    given = {one.name: table.take(one.name, int, one.default) for one in fields(Limits)}
    table.finish()
    return Limits(**given)


def _link_rows(link: LinkConfig) -> dict[str, object]:
    return {"from": link.origin, "to": link.target, "delay_ms": link.delay_ms, "jitter_ms": link.jitter_ms}


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
