"""A shell for tests of the command `kvstore`: of its two replicas, a plays by a script and b is not there."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from kvstore.cli import main
from kvstore.plan import plan
from tests.kvstore.script import Script, serving


def run(*arguments: str, stdin: bytes | None = None, **environment: Any) -> Result:
    return CliRunner().invoke(main, arguments, input=stdin, env=environment)


@contextmanager
def started(*command: str, stderr: int = subprocess.PIPE, seconds: float = 30.0) -> Iterator[subprocess.Popen[str]]:
    """A command whose lines are read one by one. It is killed when that takes too long, so that no reader waits."""
    with subprocess.Popen(
        [sys.executable, "-m", "kvstore", *command], stdout=subprocess.PIPE, stderr=stderr, text=True
    ) as process:
        alarm = threading.Timer(seconds, process.kill)
        alarm.start()
        try:
            yield process
        finally:
            alarm.cancel()
            process.kill()


class Shell:
    """Asks site a of the cluster, whatever the command."""

    def __init__(self, cluster_file: str) -> None:
        self.file = cluster_file

    def __call__(self, *arguments: str, stdin: bytes | None = None, output: str = "plain") -> Result:
        return run(*arguments, "--cluster", self.file, "--site", "a", "--output", output, stdin=stdin)


@contextmanager
def shell_for(script: Script, folder: Path) -> Iterator[Shell]:
    with serving(script) as (address,):
        cluster = plan(replicas=2)
        sites = (replace(cluster.sites[0], client=address), cluster.sites[1])
        path = folder / "cluster.toml"
        path.write_text(replace(cluster, sites=sites).to_toml())
        yield Shell(str(path))
