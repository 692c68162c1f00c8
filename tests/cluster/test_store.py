"""Every protocol of the table runs the same store: in one process here, and as real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from causal import PROTOCOLS
from kvstore.cluster import LocalCluster
from tests.cluster.inprocess import InProcessCluster
from tests.cluster.stories import STORIES, Cluster

QUICK = {"optimal", "extra-message"}  # as real processes on every change; the others with --long

stories = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)


@pytest.fixture(scope="module", params=PROTOCOLS)
def in_one_process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with InProcessCluster(tmp_path_factory.mktemp("cluster"), protocol=request.param) as cluster:
        yield cluster


@stories
def test_in_one_process(story: Callable[[Cluster], None], in_one_process: Cluster) -> None:
    story(in_one_process)


@pytest.fixture(
    scope="module",
    params=[name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PROTOCOLS],
)
def processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    with LocalCluster.create(folder, protocol=request.param) as cluster:
        yield cluster


@stories
def test_as_real_processes(story: Callable[[Cluster], None], processes: LocalCluster) -> None:
    story(processes)
