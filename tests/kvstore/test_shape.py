"""Delays and cuts of a dev cluster."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from kvstore import shape
from kvstore.config import LinkConfig
from kvstore.errors import ConfigError
from kvstore.shape import Delay, Line, Shape, read_cuts, write_cuts
from tests.simulation.cluster import make_cluster

A, B, C = range(3)


def shape_at(site: int, network_file: Path | None = None, *links: LinkConfig) -> Shape:
    cluster = make_cluster(3, "optimal", links=links)
    return Shape(cluster, cluster.sites[site], network_file)


def test_a_link_takes_its_delay_and_each_direction_has_its_own() -> None:
    links = LinkConfig("a", "b", 40), LinkConfig("b", "a", 70)
    here, there = shape_at(A, None, *links), shape_at(B, None, *links)
    assert (here.delay_ms(B), here.delay_ms(B, incoming=True), here.delay_ms(C)) == (40, 70, 0)
    assert here.delay(B).due(10.0) == pytest.approx(10.04)
    assert there.delay(A).due(10.0) == pytest.approx(10.07)
    assert here.delay(B) and not here.delay(C)


def test_jitter_comes_from_a_seed_and_never_turns_the_order_round() -> None:
    link = LinkConfig("a", "b", 10, 50)
    first, again = shape_at(A, None, link).delay(B), shape_at(A, None, link).delay(B)
    moments = [number / 1000 for number in range(200)]
    due = [first.due(now) for now in moments]
    assert due == [again.due(now) for now in moments]
    assert due == sorted(due)
    assert all(now + 0.01 <= one <= now + 0.25 for now, one in zip(moments, due, strict=True))
    assert due[0] <= 0.06 and len(set(due)) > 5


def test_a_delay_that_forgets_the_order_is_caught() -> None:
    """The planted bug: each due time by itself."""

    class Hasty(Delay):
        def due(self, now: float) -> float:
            self._due = 0.0
            return super().due(now)

    hasty = Hasty(LinkConfig("a", "b", 10, 50), Random(1))
    due = [hasty.due(number / 1000) for number in range(200)]
    assert due != sorted(due)


def drive_line(delay_ms: float, pieces: list[bytes]) -> list[tuple[float, bytes]]:
    came: list[tuple[float, bytes]] = []

    async def write(data: bytes) -> None:
        came.append((monotonic(), data))

    async def story() -> None:
        line = Line(Delay(LinkConfig("a", "b", delay_ms), Random(1)), write)
        running = asyncio.create_task(line.run())
        for piece in pieces:
            await line.put(piece)
        while len(came) < len(pieces):
            await asyncio.sleep(0.001)
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), 10))
    return came


def test_a_line_brings_everything_in_order_when_it_is_due_and_not_one_after_the_other() -> None:
    start = monotonic()
    came = drive_line(50, [b"%d" % number for number in range(20)])
    assert [data for _, data in came] == [b"%d" % number for number in range(20)]
    assert came[0][0] - start >= 0.05
    assert came[-1][0] - start < 0.5, "twenty pieces are under way together"


def test_a_line_without_a_delay_writes_at_once() -> None:
    assert [data for _, data in drive_line(0, [b"x", b"y"])] == [b"x", b"y"]


def test_a_line_that_is_full_lets_the_sender_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "UNDER_WAY_BYTES_MAX", 10)

    async def story() -> None:
        came: list[bytes] = []

        async def write(data: bytes) -> None:
            came.append(data)

        line = Line(Delay(LinkConfig("a", "b", 40), Random(1)), write)
        running = asyncio.create_task(line.run())
        await line.put(b"x" * 10)
        waiting = asyncio.create_task(line.put(b"y"))
        await asyncio.sleep(0.01)
        assert not waiting.done() and not came
        await waiting
        assert came == [b"x" * 10]
        running.cancel()

    asyncio.run(asyncio.wait_for(story(), 10))


# Cuts


def test_cuts_are_written_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    assert read_cuts(path) == frozenset()
    write_cuts(path, [("b", "a"), ("a", "b"), ("a", "b")])
    assert read_cuts(path) == {("a", "b"), ("b", "a")}
    assert path.read_text() == '{"cut": [["a", "b"], ["b", "a"]]}\n'
    write_cuts(path, [])
    assert read_cuts(path) == frozenset()
    assert [one.name for one in tmp_path.iterdir()] == ["network.json"], "no draft is left behind"


def test_a_cut_is_of_one_direction(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    write_cuts(path, [("a", "b")])
    here, there = shape_at(A, path), shape_at(B, path)
    assert here.is_cut(B) and not here.is_cut(B, incoming=True)
    assert there.is_cut(A, incoming=True) and not there.is_cut(A)
    assert not here.is_cut(C)


def test_changes_are_seen_and_told_once(tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    here, told = shape_at(A, path), []
    here.on_change(lambda: told.append(here.is_cut(B)))
    assert not here.refresh() and not here.is_cut(B)
    write_cuts(path, [("a", "b")])
    assert here.refresh() and here.is_cut(B)
    assert not here.refresh()
    write_cuts(path, [("a", "b")])
    assert not here.refresh(), "written again, and nothing is new"
    path.unlink()
    assert here.refresh() and not here.is_cut(B)
    assert told == [True, False]


def test_without_a_file_nothing_is_ever_cut() -> None:
    here = shape_at(A)
    assert not here.refresh() and not here.is_cut(B)


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"cut": 3}',
    b'{"cuts": []}',
    b'{"cut": [["a"]]}',
    b'{"cut": [["a", 3]]}',
    b'{"cut": ["ab"]}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("content", MALFORMED, ids=lambda content: str(content[:20]))
def test_a_malformed_file_changes_nothing_and_is_reported_once(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "network.json"
    write_cuts(path, [("a", "b")])
    here = shape_at(A, path)
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"network\.json"):
        read_cuts(path)
    with caplog.at_level(logging.WARNING):
        assert not here.refresh() and not here.refresh()
    assert here.is_cut(B)
    assert len(caplog.records) == 1 and "stay as they are" in caplog.text
    write_cuts(path, [])
    assert here.refresh() and not here.is_cut(B)


def test_a_file_that_cannot_be_written_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Path, target: Any) -> Path:
        raise OSError("no")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="no"):
        write_cuts(tmp_path / "network.json", [("a", "b")])
    assert list(tmp_path.iterdir()) == []
