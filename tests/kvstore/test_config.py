"""A cluster file: one good example for each feature, and for each mistake the sentence that names it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from causal import PROTOCOLS, make_site
from kvstore import errors, limits
from kvstore.config import Cluster, Durability, LinkConfig, SiteConfig, load_cluster, parse_cluster
from kvstore.errors import ConfigError, UnknownSite
from kvstore.limits import MIB, Limits

HEAD = """\
format = 1
cluster_id = "shop"
protocol = "optimal"
"""
SITE = """
[[site]]
name = "{name}"
number = {number}
client = "127.0.0.1:700{number}"
peer = "127.0.0.1:710{number}"
data = "data/{name}"
"""
SITES = "".join(SITE.format(name=name, number=number) for number, name in enumerate("abc"))
PLACEMENT = """
[placement]
"" = ["a", "b", "c"]
"""
PLAIN = HEAD + SITES + PLACEMENT


def plain(**changes: object) -> Cluster:
    return replace(parse_cluster(PLAIN), **changes)  # type: ignore[arg-type]


# Good files


def test_the_plainest_file_has_a_default_for_all_the_rest() -> None:
    cluster = parse_cluster(PLAIN)
    assert [site.name for site in cluster.sites] == ["a", "b", "c"]
    assert cluster.site("b") == SiteConfig("b", 1, "127.0.0.1:7001", "127.0.0.1:7101", "data/b")
    assert cluster.placement == {b"": ("a", "b", "c")}
    assert (cluster.durability, cluster.options, cluster.links) == (Durability.SYNC, {}, ())
    assert (cluster.merge, cluster.limits) == ({b"": "lww"}, Limits())


GOOD: dict[str, tuple[str, Callable[[Cluster], object], object]] = {
    "another protocol": (PLAIN.replace("optimal", "matrix"), lambda c: c.protocol, "matrix"),
    "options": (
        PLAIN.replace("optimal", "extra-message") + "[options]\nthreshold = 8\n",
        lambda c: c.options,
        {"threshold": 8},
    ),
    "durability": (
        HEAD + 'durability = "metasync-off"\n' + SITES + PLACEMENT,
        lambda c: c.durability,
        Durability.METASYNC_OFF,
    ),
    "sites in any order": (
        PLAIN.replace("number = 0", "number = 9")
        .replace("number = 2", "number = 0")
        .replace("number = 9", "number = 2"),
        lambda c: [site.name for site in c.sites],
        ["c", "b", "a"],
    ),
    "names and IPv6 addresses": (
        PLAIN.replace("127.0.0.1:7000", "db-1.example.org:7000").replace("127.0.0.1:7100", "[::1]:7100"),
        lambda c: (c.site("a").client, c.site("a").peer),
        ("db-1.example.org:7000", "[::1]:7100"),
    ),
    "partial placement": (
        PLAIN + '"eu/" = ["a", "c"]\n',
        lambda c: c.placement,
        {b"": ("a", "b", "c"), b"eu/": ("a", "c")},
    ),
    "prefixes of bytes": (
        PLAIN + '\'\\xff\\\\\' = ["b"]\n"\\\\x00é" = ["a"]\n',
        lambda c: list(c.placement),
        [b"", b"\xff\\", b"\x00\xc3\xa9"],
    ),
    "vector, full": (PLAIN.replace("optimal", "vector") + '"x" = ["c", "b", "a"]\n', lambda c: c.protocol, "vector"),
    "merge": (
        PLAIN + '[merge]\n"cart/" = "siblings"\n"cart/x" = "lww"\n',
        lambda c: c.merge,
        {b"": "lww", b"cart/": "siblings", b"cart/x": "lww"},
    ),
    "siblings everywhere": (PLAIN + '[merge]\n"" = "siblings"\n', lambda c: c.merge, {b"": "siblings"}),
    "links": (
        PLAIN + '[[link]]\nfrom = "a"\nto = "c"\ndelay_ms = 80\njitter_ms = 2.5\n[[link]]\nfrom = "c"\nto = "a"\n',
        lambda c: c.links,
        (LinkConfig("a", "c", 80.0, 2.5), LinkConfig("c", "a")),
    ),
    "limits": (PLAIN + "[limits]\nkey_max = 100\n", lambda c: c.limits, Limits(key_max=100)),
    "one site": (
        HEAD + SITE.format(name="solo", number=0) + '[placement]\n"" = ["solo"]\n',
        lambda c: [site.name for site in c.sites],
        ["solo"],
    ),
}


@pytest.mark.parametrize(("text", "ask", "expected"), GOOD.values(), ids=GOOD)
def test_a_good_file_says_what_it_means_and_is_written_as_it_was_read(
    text: str, ask: Callable[[Cluster], object], expected: object
) -> None:
    cluster = parse_cluster(text)
    assert ask(cluster) == expected
    assert parse_cluster(cluster.to_toml()) == cluster


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_protocol_of_the_table_can_be_chosen(protocol: str) -> None:
    assert parse_cluster(PLAIN.replace("optimal", protocol)).protocol == protocol


PREFIXES = st.binary(max_size=8) | st.text(max_size=4).map(str.encode)
HOLDERS = st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple)
DELAYS = st.floats(0, 60_000)
CLUSTERS = st.builds(
    plain,
    cluster_id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True),
    placement=st.dictionaries(PREFIXES, HOLDERS).map(lambda rows: {b"": ("a",)} | rows),
    merge=st.dictionaries(PREFIXES, st.sampled_from(("lww", "siblings"))).map(lambda rows: {b"": "lww"} | rows),
    durability=st.sampled_from((Durability.SYNC, Durability.METASYNC_OFF)),
    links=st.builds(LinkConfig, st.just("a"), st.just("c"), DELAYS, DELAYS).map(lambda link: (link,)) | st.just(()),
    limits=st.builds(Limits, key_max=st.integers(40, 480), inbox_max=st.integers(1, 1 << 48)),
)


@given(CLUSTERS)
def test_any_cluster_is_read_as_it_was_written(cluster: Cluster) -> None:
    again = parse_cluster(cluster.to_toml())
    assert again == cluster
    assert again.hashes() == cluster.hashes()


@given(st.text(max_size=20).filter(lambda text: text and "\0" not in text))
def test_any_directory_is_read_as_it_was_written(data: str) -> None:
    cluster = plain(sites=(SiteConfig("a", 0, "h:1", "h:2", data),), placement={b"": ("a",)})
    assert parse_cluster(cluster.to_toml()) == cluster


# Bad files


def without(line: str) -> str:
    assert line in PLAIN
    return PLAIN.replace(line + "\n", "", 1)


def changed(old: str, new: str) -> str:
    assert old in PLAIN
    return PLAIN.replace(old, new, 1)


EXTRA, VECTOR = changed("optimal", "extra-message") + "[options]\n", changed("optimal", "vector")
LIMITS = PLAIN + "[limits]\n"
SIBLINGS = '[merge]\n"x" = "siblings"\n'
LINK = PLAIN + '[[link]]\nfrom = "a"\nto = "b"\n'
BAD = [
    ("format = = 1", "Invalid value (at line 1, column 10)"),
    (changed("format = 1", "format = 1\nformat = 1"), "Cannot overwrite a value (at line 2, column 11)"),
    (HEAD + "x = " + "9" * 5000, "Exceeds the limit"),
    (HEAD + "x = " + "[" * 100_000, "it is nested too deeply"),
    (without("format = 1"), "format: is missing"),
    (changed("format = 1", "format = 2"), "format: 2; this version reads format 1"),
    (changed("format = 1", "format = true"), "format: must be a whole number"),
    (without('cluster_id = "shop"'), "cluster_id: is missing"),
    (
        changed('"shop"', '""'),
        "cluster_id: '' is not 1 to 63 letters, digits, dots, dashes or underscores, a letter or",
    ),
    (changed('"shop"', "7"), "cluster_id: must be a text in quotes"),
    (without('protocol = "optimal"'), "protocol: is missing"),
    (changed("optimal", "optimum"), "protocol: unknown protocol 'optimum'; there are optimal, pruning,"),
    (PLAIN + "[options]\nthreshold = 8\n", "options: optimal does not know the option 'threshold'"),
    (PLAIN + "[options]\nsite = 1\n", "options: optimal does not know the option 'site'"),
    (EXTRA + "threshold = 99\n", "options: threshold 99: it must be above n = 3 and at most n * n = 9"),
    (EXTRA + 'threshold = "8"\n', 'options."threshold": must be a whole number'),
    ('durability = "maybe"\n' + PLAIN, "durability: there is no 'maybe'; there are sync, metasync-off, periodic"),
    ("colour = 3\n" + PLAIN, "colour: is unknown"),
    ('durabilty = "sync"\n' + PLAIN, "durabilty: is unknown; did you mean durability?"),
    (PLAIN + "[tls]\n", "tls: this version has no such thing yet; without it the table would protect nothing"),
    (PLAIN + "[auth]\nx = 1\n", "auth.x: this version has no such thing yet; without it the table would protect"),
    (PLAIN + '[auth]\nsession_key_fil = "k"\n', "auth.session_key_fil: is unknown; did you mean session_key_file?"),
    (PLAIN + '[auth]\nsession_key_file = "k"\ntoken = "t"\n', "auth.token: this version has no such thing yet"),
    (PLAIN + "[auth]\n", "auth.session_key_file: must name a file"),
    (PLAIN + "[auth]\nsession_key_file = 3\n", "auth.session_key_file: must be a text in quotes"),
    (PLAIN + '[auth]\nsession_key_file = "\\u0000"\n', "auth.session_key_file: must name a file"),
    (PLAIN + '[auth]\nsession_key_file = "no/such"\n', "auth.session_key_file: no/such: No such file or directory"),
    ("auth = 3\n" + PLAIN, "auth: must be a table"),
    (HEAD + PLACEMENT, "site: a cluster needs at least one"),
    (HEAD + '[site]\nname = "a"\n' + PLACEMENT, "site: must be a list"),
    (HEAD + "site = [1]\n" + PLACEMENT, "site[1]: must be a table"),
    (without('peer = "127.0.0.1:7101"'), "site[2].peer: is missing"),
    (changed('data = "data/b"', 'data = "b"\nport = 3'), "site[2].port: is unknown"),
    (changed('name = "b"', 'name = "a"'), "site.name: a is the name of two sites"),
    (changed('name = "b"', 'name = "b,c"'), "site.name: 'b,c' is not 1 to 63 letters"),
    (changed("number = 1", "number = 0"), "site.number: 0, 0, 2 are not the numbers from 0 to 2, each once"),
    (changed("number = 2", "number = 3"), "site.number: 0, 1, 3 are not the numbers from 0 to 2"),
    (changed("number = 0", "number = -1"), "site.number: -1, 1, 2 are not the numbers from 0 to 2"),
    (changed("number = 1", "number = 1.0"), "site[2].number: must be a whole number"),
    (changed("127.0.0.1:7101", "127.0.0.1:7000"), "site[b].peer: 127.0.0.1:7000 is site[a].client too"),
    (
        changed("127.0.0.1:7000", "127.0.0.1"),
        "site[a].client: '127.0.0.1' is not host:port with a port from 1 to 65535",
    ),
    (changed("127.0.0.1:7000", "127.0.0.1:0"), "site[a].client: '127.0.0.1:0' is not host:port"),
    (changed("127.0.0.1:7000", "127.0.0.1:65536"), "site[a].client: '127.0.0.1:65536' is not host:port"),
    (changed('data = "data/a"', 'data = ""'), "site[a].data: '' is no directory"),
    (HEAD + SITES, 'placement: the prefix "" is required: it says where all other keys live'),
    (changed('"" =', '"x" ='), 'placement: the prefix "" is required'),
    (PLAIN + '"x" = ["d"]\n', "placement.\"x\": there is no site 'd'; there are a, b, c"),
    (PLAIN + '"x" = []\n', 'placement."x": these keys would live nowhere; name at least one site'),
    (PLAIN + '"x" = ["a", "a"]\n', 'placement."x": a site is named twice'),
    (PLAIN + '"x" = "a"\n', 'placement."x": must be a list'),
    (PLAIN + '"x" = [1]\n', 'placement."x": must be a text in quotes'),
    (
        PLAIN + '"x" = ["a"]\n\'\\x78\' = ["b"]\n',
        'placement."\\\\x78": the same prefix is there twice, written in two ways',
    ),
    (PLAIN + "'\\q' = [\"a\"]\n", 'placement."\\\\q": a backslash must be followed by another'),
    (PLAIN + f'{"x" * 481} = ["a"]\n', "no key has 481 bytes; at most 480 are possible"),
    (VECTOR + '"x" = ["b", "c"]\n', 'placement."x": vector sends to everyone or to nobody, so every site must hold'),
    (VECTOR + '"x" = ["b"]\n', 'placement."x": vector sends to everyone or to nobody'),
    (VECTOR.replace('"a", "b", "c"', '"a", "b"'), 'placement."": vector sends to everyone or to nobody'),
    (changed('"a", "b", "c"', '"a", "d"'), "placement.\"\": there is no site 'd'; there are a, b, c"),
    (changed('"a", "b", "c"', ""), 'placement."": these keys would live nowhere; name at least one site'),
    (PLAIN + '[merge]\n"x" = "sibling"\n', "merge.\"x\": there is no merge 'sibling'; there are lww, siblings"),
    (
        changed("optimal", "fifo") + SIBLINGS,
        'merge."x": fifo keeps no causal order, so a value that was replaced could',
    ),
    (changed("optimal", "unordered") + SIBLINGS, 'merge."x": unordered keeps no causal order'),
    (PLAIN + '[merge]\n"x" = 1\n', 'merge."x": must be a text in quotes'),
    (LINK.replace('from = "a"', 'from = "d"'), "link[1]: there is no site 'd'; there are a, b, c"),
    (LINK.replace('to = "b"', 'to = "a"'), "link[1]: a has no link to itself"),
    (LINK + '[[link]]\nfrom = "a"\nto = "b"\n', "link[2]: the link from a to b is there twice"),
    (LINK.replace('to = "b"\n', ""), "link[1].to: is missing"),
    (LINK + "delay_ms = -1\n", "link[1].delay_ms: -1.0 is not from 0 to 60000"),
    (LINK + "delay_ms = inf\n", "link[1].delay_ms: inf is not from 0 to 60000"),
    (LINK + "jitter_ms = nan\n", "link[1].jitter_ms: nan is not from 0 to 60000"),
    (LINK + f"delay_ms = {10**400}\n", "link[1].delay_ms: must be a number"),
    (LINK + 'delay_ms = "long"\n', "link[1].delay_ms: must be a number"),
    ("limits = 3\n" + PLAIN, "limits: must be a table"),
    (LIMITS + "inbox = 3\n", "limits.inbox: is unknown; did you mean inbox_max?"),
    (LIMITS + "inbox_max = 0\n", "limits.inbox_max: 0 is not a whole number from 1 to"),
    (LIMITS + "inbox_max = true\n", "limits.inbox_max: must be a whole number"),
    (LIMITS + "key_max = 481\n", "limits.key_max: 481 is not a whole number from 1 to 480"),
    (LIMITS + "message_bytes_max = 999\n", f"message_bytes_max: the largest key and value alone take {MIB + 480 + 64}"),
    (LIMITS + "outbox_bytes_max = 999\n", "limits.outbox_bytes_max: it must hold at least one message"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD, ids=[sentence for _, sentence in BAD])
def test_a_bad_file_is_refused_with_the_file_the_key_and_the_reason(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_cluster(text, file="shop.toml")
    message = str(caught.value)
    assert message.startswith("shop.toml: ") and sentence in message, message
    assert caught.value.details["file"] == "shop.toml"
    assert caught.value.details["why"] in message and caught.value.details["key"] in message
    assert caught.value.definite


def test_a_cluster_made_by_a_program_is_checked_like_a_file() -> None:
    with pytest.raises(ConfigError, match="protocol: unknown protocol"):
        plain(protocol="optimum")
    with pytest.raises(ConfigError, match=r"limits\.key_max"):
        Limits(key_max=0)
    with pytest.raises(ConfigError, match=r"limits\.inbox_max: 2\.5 is not a whole number"):
        Limits(inbox_max=2.5)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, len(PLAIN) - 1), st.characters(codec="utf-8")), min_size=1, max_size=3))
def test_a_mutated_file_is_read_or_refused_and_nothing_else(edits: list[tuple[int, str]]) -> None:
    text = list(PLAIN)
    for place, character in edits:
        text[place] = character
    try:
        cluster = parse_cluster("".join(text))
    except ConfigError:
        return
    assert parse_cluster(cluster.to_toml()) == cluster


# On disk


def test_data_directories_are_below_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(PLAIN.replace('"data/c"', '"/srv/c"'))
    cluster = load_cluster(path)
    assert cluster.data_of(cluster.site("a")) == tmp_path / "data" / "a"
    assert cluster.data_of(cluster.site("c")) == Path("/srv/c")
    assert cluster == load_cluster(str(path))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    foreign = tmp_path / "latin.toml"
    foreign.write_bytes(b"format = 1 # \xe9")
    cases = {tmp_path / "none.toml": "No such file", tmp_path: "Is a directory", foreign: "not UTF-8"}
    for path, why in cases.items():
        with pytest.raises(ConfigError, match=f"{re.escape(str(path))}: .*{why}"):
            load_cluster(path)


def test_a_site_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UnknownSite, match="there is no site 'd'; there are a, b, c"):
        parse_cluster(PLAIN).site("d")


# Keys of sessions


ONE, TWO = bytes(range(32)), bytes(range(100, 132))
AUTH = PLAIN + '[auth]\nsession_key_file = "session.key"\n'


def written(folder: Path, keys: str | bytes) -> Path:
    (folder / "session.key").write_bytes(keys.encode() if isinstance(keys, str) else keys)
    (folder / "cluster.toml").write_text(AUTH)
    return folder / "cluster.toml"


def test_the_keys_of_sessions_are_in_a_file_beside_the_cluster_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"# new\n{ONE.hex()}\n\n  \n#{'f' * 64}\r\n {TWO.hex().upper()} \r\n")
    cluster = load_cluster(path)
    assert cluster.session_keys == (ONE, TWO)
    assert parse_cluster(cluster.to_toml(), folder=tmp_path) == cluster
    assert parse_cluster(PLAIN).session_keys == ()


def test_the_keys_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(ONE.hex())
    text = AUTH.replace("session.key", str(tmp_path / "keys"))
    assert parse_cluster(text, folder=tmp_path / "deep").session_keys == (ONE,)


def test_a_client_needs_no_keys(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(AUTH)
    cluster = load_cluster(tmp_path / "cluster.toml", with_keys=False)
    assert (cluster.session_keys, cluster.session_key_file) == ((), "session.key")
    assert "session.key" in cluster.to_toml()


def test_keys_are_shown_nowhere_and_no_peer_is_told(tmp_path: Path) -> None:
    cluster = load_cluster(written(tmp_path, f"{ONE.hex()}\n"))
    shown = repr(cluster) + str(cluster) + cluster.to_toml()
    assert ONE.hex() not in shown and repr(ONE) not in shown and repr(ONE)[2:20] not in shown
    assert cluster.hashes() == plain().hashes() == replace(cluster, session_keys=(TWO,)).hashes()


DIGITS = ONE.hex()
BAD_KEYS = {
    "empty": ("", "there is no key in it"),
    "comments alone": ("# nothing\n\n", "there is no key in it"),
    "too short": (f"\n{DIGITS[:-1]}\n", "line 2 is not a key of 64 hexadecimal digits"),
    "too long": (DIGITS + "0", "line 1 is not a key"),
    "no digit": (f"{TWO.hex()}\n# x\n{DIGITS[:-1]}g", "line 3 is not a key"),
    "two on a line": (f"{DIGITS} {TWO.hex()}", "line 1 is not a key"),
    "a comment behind it": (f"{DIGITS} # mine", "line 1 is not a key"),
    "spaces between": (" ".join(DIGITS), "line 1 is not a key"),
    "no text": (DIGITS.encode() + b"\n\xff\xfe", "line 2 is not a key"),
    "digits of another script": ("٣" * 64, "line 1 is not a key"),
    "twice": (f"{DIGITS}\n{DIGITS.upper()}\n", "line 2 has a key that was there before"),
    "nine": ("\n".join(f"{number:064x}" for number in range(9)), "line 9 has one key too many; 8 are possible"),
    "huge": (f"{DIGITS}\n" * 2000, "more than 65536 bytes are no key file"),
}


@pytest.mark.parametrize(("keys", "why"), BAD_KEYS.values(), ids=BAD_KEYS)
def test_a_bad_file_of_keys_is_named_with_its_line_and_nothing_of_a_key(
    tmp_path: Path, keys: str | bytes, why: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster(written(tmp_path, keys))
    folder = str(tmp_path)
    told = str(caught.value) + repr(caught.value.details) + repr(caught.value.__context__)
    assert f"{folder}/cluster.toml: auth.session_key_file: {folder}/session.key: {why}" in told
    said = told.replace(folder, "")
    for secret in (DIGITS, TWO.hex()):
        assert not any(secret[at : at + 6] in said.lower() for at in range(58)), said


def test_a_file_of_keys_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "session.key").mkdir()
    (tmp_path / "cluster.toml").write_text(AUTH)
    with pytest.raises(ConfigError, match=f"auth.session_key_file: {re.escape(str(tmp_path))}/session.key: Is a dir"):
        load_cluster(tmp_path / "cluster.toml")


# What replicas must agree on


def test_what_must_be_the_same_everywhere_shows_in_the_hashes() -> None:
    base = plain(protocol="extra-message")
    swapped = plain(
        protocol="extra-message",
        sites=tuple(replace(site, name=name) for site, name in zip(base.sites, "bac", strict=True)),
    )
    different = {
        "protocol": [plain(), plain(protocol="extra-message", options={"threshold": 8})],
        "placement": [plain(protocol="extra-message", placement={b"": ("a", "b")}), swapped],
        "merge": [
            plain(protocol="extra-message", merge={b"": "lww", b"x": "lww"}),
            plain(protocol="extra-message", merge={b"": "siblings"}),
        ],
    }
    for field, clusters in different.items():
        for other in clusters:
            pairs = zip(base.hashes()._fields, base.hashes(), other.hashes(), strict=True)
            assert [name for name, ours, theirs in pairs if ours != theirs] == [field]


def test_what_may_differ_does_not_show_in_the_hashes() -> None:
    base = plain(protocol="extra-message")
    default = make_site("extra-message", 0, 3).options
    elsewhere = tuple(replace(site, client=f"h:{n + 1}", data="x") for n, site in enumerate(base.sites))
    for other in (
        plain(protocol="extra-message", options=default),
        plain(protocol="extra-message", placement={b"": ("c", "b", "a")}),
        plain(protocol="extra-message", sites=elsewhere),
        plain(protocol="extra-message", limits=Limits(inbox_max=1), durability=Durability.PERIODIC),
        plain(protocol="extra-message", links=(LinkConfig("a", "b", 5.0),)),
    ):
        assert other.hashes() == base.hashes()
    assert all(re.fullmatch("[0-9a-f]{16}", digest) for digest in base.hashes())


# Limits


def test_every_limit_says_its_unit_and_what_happens_beyond_it() -> None:
    source = inspect.getsource(limits)
    for one in fields(Limits):
        line = next(line for line in source.splitlines() if line.startswith(f"    {one.name}: int = limit("))
        consequence = re.search(r"  # (bytes|ms|percent|[a-z ]+) .*; beyond it: (.+)$", line)
        assert consequence, line
        for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", consequence[2]):
            assert hasattr(errors, name), f"{one.name} speaks of {name}"
