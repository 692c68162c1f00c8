"""docs/cli.md, typed as it stands: the commands that need a running cluster, which the tests of the pages leave out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kvstore.cluster import LocalCluster
from tests.docs.commands import ROOT, commands_in

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
TYPED = [command.text for command in commands_in(PAGE) if command.is_long]
LAST = TYPED.index("kvstore cluster down --purge") + 1  # of the first five minutes
TIMEOUT_S = 60


def type_in(lines: Sequence[str], folder: Path) -> str:
    """One shell for all of it, which ends at the first command that fails."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    command = ["sh", "-eu", "-c", "\n".join(lines)]
    settings = {name: value for name, value in os.environ.items() if not name.startswith("KVSTORE_")}
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**settings, "PATH": path, "KVSTORE_OUTPUT": "plain"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        if (folder / "kvstore-cluster" / "cluster.toml").exists():
            LocalCluster.open(folder / "kvstore-cluster").down()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_first_five_minutes_are_as_the_page_says(tmp_path: Path) -> None:
    said = type_in(TYPED[:LAST], tmp_path)
    assert "hello" in said and "hello again" in said
    assert list(tmp_path.iterdir()) == [], "it was purged"


def test_the_rest_of_the_page_works_on_a_running_cluster(tmp_path: Path) -> None:
    said = type_in([*TYPED[:2], *TYPED[LAST:]], tmp_path)
    assert " ff 00" in said and "raw\t\\xff\\x00" in said
    assert "c has held message" in said and "b had delivered message" in said
