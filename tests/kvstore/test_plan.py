"""What a local cluster is made of: names, ports that are free, and the files that say the rest."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvstore import plan as planning
from kvstore.cluster import LocalCluster
from kvstore.commands.local import cluster as local
from kvstore.config import LinkConfig, parse_cluster
from kvstore.errors import ConfigError
from kvstore.keyfile import KEY_BYTES, read_keys, write_key
from kvstore.plan import contradiction, free_ports, is_free, plan, read_links, read_placement, site_name


def test_sites_are_named_by_letters() -> None:
    assert [site_name(number) for number in (0, 1, 25, 26, 27, 51, 52, 701, 702)] == [
        *("a", "b", "z", "aa", "ab", "az", "ba", "zz", "aaa")
    ]
    assert [site.name for site in plan(replicas=4).sites] == ["a", "b", "c", "d"]


def test_what_is_planned_is_what_its_file_reads_as() -> None:
    cluster = plan(
        names=("lisbon", "oslo", "tokyo"),
        protocol="extra-message",
        options={"threshold": 7},
        durability="metasync-off",
        placement={b"eu/\xff": ("lisbon", "oslo")},
        links=(LinkConfig("lisbon", "tokyo", 120.0, 10.0),),
        link_delay_ms=5.0,
        limits={"inbox_max": 7},
        merge={b"cart/": "siblings"},
    )
    assert parse_cluster(cluster.to_toml()) == cluster
    assert cluster.merge == {b"": "lww", b"cart/": "siblings"}
    delays = {(link.origin, link.target): link.delay_ms for link in cluster.links}
    assert len(delays) == 6 and delays["lisbon", "tokyo"] == 120.0 and delays["tokyo", "lisbon"] == 5.0
    assert cluster.placement[b""] == ("lisbon", "oslo", "tokyo")


def test_two_clusters_have_different_ids() -> None:
    assert plan().cluster_id != plan().cluster_id


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"protocol": "nonsense"}, "protocol"),
        ({"options": {"threshold": 7}}, "options"),
        ({"durability": "never"}, "there is no 'never'; there are sync"),
        ({"limits": {"inbox_maxx": 7}}, "limits.inbox_maxx: is unknown"),
        ({"limits": {"inbox_max": 0}}, "limits.inbox_max"),
        ({"placement": {b"x": ("nobody",)}}, "there is no site 'nobody'"),
        ({"links": [LinkConfig("a", "z")]}, "there is no site 'z'"),
        ({"merge": {b"x": "newest"}}, "there is no merge 'newest'"),
        ({"merge": {b"x": "siblings"}, "protocol": "fifo"}, "fifo keeps no causal order"),
        ({"names": ["a", "a"]}, "a is the name of two sites"),
        ({"names": ["../up"]}, "site.name"),
        ({"replicas": 0}, "at least one"),
    ],
)
def test_a_wish_that_makes_no_sense_is_named(wishes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan(**wishes)


# Ports


def test_ports_are_free_different_and_not_those_of_outgoing_connections() -> None:
    ports = free_ports(20)
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert len(set(ports)) == 20
    assert all(is_free(f"127.0.0.1:{port}") and not first <= port <= last for port in ports)


def test_a_port_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server has it: no proof by itself
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        address = f"127.0.0.1:{busy.getsockname()[1]}"
        assert not is_free(address)
    assert is_free(address)


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        taken = busy.getsockname()[1]
        spare = free_ports(1)[0]
        monkeypatch.setattr(planning, "PORTS", [taken, spare])
        monkeypatch.setattr(planning, "_outgoing", lambda: (0, 0))
        assert free_ports(1) == [spare]
        with pytest.raises(ConfigError, match="only 1 were found"):
            free_ports(2)


# Files


def test_placement_and_links_come_from_files_with_the_tables_of_a_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "placement.toml").write_text('[placement]\n"eu/\\\\xff" = ["a", "b"]\n')
    assert read_placement(tmp_path / "placement.toml") == {b"eu/\xff": ("a", "b")}
    (tmp_path / "links.toml").write_text('[[link]]\nfrom = "a"\nto = "b"\ndelay_ms = 40\n')
    assert read_links(tmp_path / "links.toml") == (LinkConfig("a", "b", 40.0, 0.0),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("[[link]]\nfrom = ?", "line 2"),
        ('[[link]]\nfrom = "a"\n', r"link\[1\].to: is missing"),
        ('[[link]]\nfrom = "a"\nto = "b"\ndelay = 4\n', "did you mean delay_ms"),
        ('[limits]\ninbox_max = 3\n[[link]]\nfrom = "a"\nto = "b"\n', "limits: is unknown"),
    ],
)
def test_a_wrong_file_is_named_with_its_key(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "links.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_links(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ['[placement]\n"\\\\q" = ["a"]\n', '[placement]\n"x" = [3]\n'])
def test_a_wrong_prefix_or_name_of_a_placement_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "placement.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"placement\."):
        read_placement(tmp_path / "placement.toml")


# The key of its sessions


def test_a_new_key_is_random_and_for_its_owner_alone(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    before = os.umask(0)
    try:
        write_key(one)
        write_key(other)
    finally:
        os.umask(before)
    assert stat.S_IMODE(one.stat().st_mode) == 0o600
    keys = [*read_keys(one), *read_keys(other)]
    assert len(set(keys)) == 2 and all(len(key) == KEY_BYTES for key in keys)


def test_a_key_that_is_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "session.key"
    path.write_text("11" * KEY_BYTES)
    write_key(path)
    assert read_keys(path) == (b"\x11" * KEY_BYTES,)


def test_a_planned_cluster_names_its_key_and_does_not_show_it(tmp_path: Path) -> None:
    write_key(tmp_path / "session.key")
    planned = plan(session_key_file="session.key", folder=tmp_path)
    cluster = parse_cluster(planned.to_toml(), folder=tmp_path)
    assert cluster.session_keys == read_keys(tmp_path / "session.key")
    assert cluster.session_keys[0].hex() not in planned.to_toml()
    assert plan().session_key_file == "" and "auth" not in plan().to_toml()


# How keys merge, on the command line


def test_a_merge_is_given_by_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalCluster, "start", lambda _: None)
    wishes = ["--merge", "cart/=siblings", "--merge", r"\xff==lww"]
    done = CliRunner().invoke(local, ["up", "--dir", str(tmp_path / "D"), "--detach", *wishes])
    assert done.exit_code == 0, done.output
    cluster = LocalCluster.open(tmp_path / "D").cluster
    assert cluster.merge == {b"": "lww", b"cart/": "siblings", b"\xff=": "lww"}


@pytest.mark.parametrize(
    ("wish", "words"), [("siblings", "not of the form PREFIX=MERGE"), (r"\q=lww", "a backslash must be followed")]
)
def test_a_merge_that_makes_no_sense_is_wrong_use(tmp_path: Path, wish: str, words: str) -> None:
    done = CliRunner().invoke(local, ["up", "--dir", str(tmp_path / "D"), "--merge", wish])
    assert done.exit_code == 2 and words in done.output
    assert not (tmp_path / "D").exists()


# A cluster that is there already


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"replicas": 5}, "has 3 replicas, not 5"),
        ({"names": ["x", "y", "z"]}, "has the sites a, b, c, not x, y, z"),
        ({"protocol": "matrix"}, "has the protocol optimal, not matrix"),
        ({"durability": "metasync-off"}, "has the durability sync, not metasync-off"),
        ({"options": {"threshold": 7}}, "has the options"),
        ({"placement": {b"x": ("b",)}}, "places keys otherwise"),
        ({"merge": {b"x": "siblings"}}, "merges keys otherwise"),
        ({"merge": {}}, "merges keys otherwise"),
        ({"link_delay_ms": 3.0}, "has other links"),
        ({"links": (LinkConfig("a", "b", 9.0),)}, "has other links"),
        ({"limits": {"inbox_max": 8}}, "does not have the limit inbox_max = 8"),
        ({"limits": {"nonsense": 8}}, "does not have the limit nonsense = 8"),
    ],
)
def test_a_wish_against_a_cluster_that_is_there_is_a_contradiction(wishes: dict, words: str) -> None:
    merge = {b"cart/": "siblings"}
    there = plan(placement={b"x": ("a",)}, merge=merge, link_delay_ms=2.0, limits={"inbox_max": 7})
    assert words in (contradiction(there, wishes) or "")


def test_what_a_cluster_has_anyway_is_no_contradiction() -> None:
    wishes: dict = {"placement": {b"x": ("a",)}, "link_delay_ms": 2.0, "limits": {"inbox_max": 7}}
    wishes["merge"] = {b"cart/": "siblings"}
    more = {"replicas": 3, "names": ["a", "b", "c"], "protocol": "optimal", "durability": "sync"}
    there = plan(**wishes)
    assert contradiction(there, {}) is None
    assert contradiction(there, wishes | more) is None
