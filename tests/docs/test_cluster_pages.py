"""The commands and the Python that the README shows for a cluster, run against a real one."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstore.cluster import LocalCluster
from tests.docs.commands import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_cluster_of_the_readme_works_as_it_stands(tmp_path: Path) -> None:
    section = README.partition("## For those who run it")[2]
    block = re.search(r"```console long\n(.*?)```", section, re.DOTALL)
    assert block is not None
    script = "set -e\n" + "\n".join(line.removeprefix("$ ") for line in block[1].splitlines())
    script = script.replace("\nkvstore get", "\nsleep 1; kvstore get")  # a person needs longer than that to type it
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        if (tmp_path / "my-cluster").exists():
            LocalCluster.open(tmp_path / "my-cluster").down()
    assert done.returncode == 0, done.stderr
    assert re.search(r"^hello(?! again)", done.stdout, re.MULTILINE) and done.stdout.count("hello again") == 1


PAGES = {
    "README.md": "b'shall we?'\n[b'shall we?', b'shall we now?']\n",
    "docs/client.md": "[b'k/1', b'k/3']\n[b'k/1', b'k/3']\n2 1\nVERSION_MISMATCH True\n",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs_against_a_replica(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block = re.search(r"```python cluster\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    with LocalCluster.create(tmp_path, replicas=1) as cluster:
        exec(compile(block[1].replace("127.0.0.1:7400", cluster.endpoints[0]), page, "exec"), {})
    assert capsys.readouterr().out.endswith(PAGES[page])


def test_the_asyncio_of_the_page_runs_against_a_replica(tmp_path: Path) -> None:
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs/client.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {}
    exec(compile(block[1], "client.md", "exec"), names)
    with LocalCluster.create(tmp_path, replicas=1) as cluster:
        assert asyncio.run(names["fill"](cluster.endpoints[0])) == 1001
