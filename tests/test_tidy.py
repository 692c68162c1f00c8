"""The house rules that a reader relies on and a reviewer forgets: import walls, no leftovers, no trace of a machine.

Every rule is tried on a planted offender first; a check that cannot fail keeps nothing out.
"""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.tidy import (
    complaints_about,
    debugger_complaints,
    leftover_complaints,
    lock_complaints,
    machine_complaints,
    make_targets,
    size_complaints,
    store_complaints,
    targets_mentioned,
    unsafe_complaints,
    wall_complaints,
)

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("causal", "kvstore", "pipeline", "loadtests")
IGNORED_FOLDERS = {".git", ".venv", "build", "dist", "__pycache__"}


@cache
def project_files() -> list[Path]:
    """Every text file that is or will be committed; without git (a source archive) every file that is not made."""
    command = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        paths = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [path for path in ROOT.rglob("*") if not IGNORED_FOLDERS & set(path.relative_to(ROOT).parts)]
    return sorted({path for path in paths if path.is_file() and b"\0" not in path.read_bytes()})


def python_files(*folders: str) -> list[Path]:
    files = [path for path in project_files() if path.suffix == ".py"]
    return [path for path in files if path.relative_to(ROOT).parts[0] in folders]


def pages() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


def requirements(name: str) -> set[str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return {line for line in lines if line and not line.startswith(("#", "-"))}


def test_there_is_something_to_check() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in project_files()}
    assert {"Makefile", "causal/model.py", "tests/test_tidy.py"} <= names


# Import walls


@pytest.mark.parametrize("path", python_files("causal"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_of_causal_reaches_through_its_wall(path: Path) -> None:
    assert wall_complaints(PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("causal/model.py", "import time"),
        ("causal/model.py", "from os import path"),
        ("causal/model.py", "import concurrent.futures"),
        ("causal/model.py", "def f():\n    import random"),
        ("causal/model.py", "import numpy"),
        ("causal/model.py", "print(1)"),
        ("causal/model.py", "def f(name):\n    return open(name)"),
        ("causal/codec.py", "import causal.simulation"),
        ("causal/codec.py", "from causal import cli"),
        ("causal/codec.py", "from causal.plots import draw"),
        ("causal/codec.py", "from . import simulation"),
        ("causal/protocols/matrix.py", "from .. import replay"),
        ("causal/protocols/cli.py", "import click"),
        ("causal/protocols/simulation.py", "import random"),
        ("causal/oracle.py", "from causal.multicast import Multicast"),
        ("causal/oracle.py", "from causal import protocols"),
        ("causal/oracle.py", "import causal"),
        ("causal/simulation.py", "import time"),
        ("causal/simulation.py", "from random import shuffle"),
        ("causal/workload.py", "import random\nrandom.seed(3)"),
        ("causal/workload.py", "import random\nx = random.random()"),
        ("causal/simulation.py", "from causal.plots import bar"),
        ("causal/replay.py", "import click"),
        ("causal/plots.py", "import matplotlib.pyplot as plt"),
        ("causal/plots.py", "try:\n    import matplotlib\nexcept ImportError:\n    matplotlib = None"),
        ("causal/plots.py", "class A:\n    from matplotlib import pyplot"),
        ("causal/compare.py", "def f():\n    import matplotlib"),
        ("causal/compare.py", "import requests"),
    ],
)
def test_the_wall_rejects(path: str, source: str) -> None:
    assert wall_complaints(PurePosixPath(path), source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("causal/codec.py", "import struct\nfrom collections.abc import Mapping\nfrom causal.model import Dot"),
        ("causal/protocols/matrix.py", "from causal.multicast import Multicast\nfrom ..model import Dot"),
        ("causal/oracle.py", "from causal.model import Dot\nfrom causal.execution import Execution"),
        ("causal/oracle.py", "from causal import model"),
        ("causal/simulation.py", "import random\nfrom causal.workload import Workload\nchance = random.Random(3)"),
        ("causal/cli.py", "import sys\nimport click\nfrom causal import simulation"),
        ("causal/plots.py", "def f():\n    import matplotlib.pyplot as plt"),
        (
            "causal/plots.py",
            "if TYPE_CHECKING:\n    from matplotlib.axes import Axes",
        ),
        ("causal/bench.py", "import time\nprint(time.time())"),
    ],
)
def test_the_wall_lets_through(path: str, source: str) -> None:
    assert wall_complaints(PurePosixPath(path), source) == []


STORE_FILES = [
    path
    for path in python_files("kvstore")
    if path.relative_to(ROOT).parts[1] not in ("v1", "peer")  # generated
]


@pytest.mark.parametrize("path", STORE_FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_of_the_store_reaches_through_its_wall(path: Path) -> None:
    assert store_complaints(PurePosixPath(path.relative_to(ROOT).as_posix()), path.read_text()) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kvstore/replica.py", "import time"),
        ("kvstore/clock.py", "from datetime import datetime"),
        ("kvstore/replica.py", "import lmdb"),
        ("kvstore/update.py", "print(1)"),
        ("kvstore/loop.py", "import grpc"),
        ("kvstore/loop.py", "from kvstore.v1 import kv_pb2"),
        ("kvstore/storage/lmdb.py", "from kvstore.peer.v1 import peer_pb2"),
        ("kvstore/rpc/service.py", "import pyspark"),
        ("kvstore/node.py", "def f():\n    import locust"),
    ],
)
def test_the_wall_of_the_store_rejects(path: str, source: str) -> None:
    assert store_complaints(PurePosixPath(path), source)


# No leftovers, nothing dangerous, nothing oversized


def test_no_product_file_runs_what_it_reads() -> None:
    assert complaints_about(python_files(*PRODUCT), ROOT, unsafe_complaints) == []


@pytest.mark.parametrize("source", ["import pickle", "from pickle import loads", "eval('1')", "def f(s):\n    exec(s)"])
def test_what_runs_its_input_is_noticed(source: str) -> None:
    assert unsafe_complaints(source)


def test_no_debugger_is_left_behind() -> None:
    assert complaints_about(python_files("tests", *PRODUCT), ROOT, debugger_complaints) == []


@pytest.mark.parametrize("source", ["import pdb", "def f():\n    import pdb; pdb.set_trace()", "breakpoint()"])
def test_a_debugger_is_noticed(source: str) -> None:
    assert debugger_complaints(source)


def test_product_files_and_functions_stay_small() -> None:
    written = [path for path in python_files(*PRODUCT) if "_pb2" not in path.name]  # the rest is made from the protos
    assert complaints_about(written, ROOT, size_complaints) == []


def test_a_file_or_function_that_outgrew_its_bound_is_noticed() -> None:
    assert size_complaints("x = 1\n" * 401)
    assert size_complaints("def f():\n" + "    x = 1\n" * 60)
    assert size_complaints("def f():\n" + "    x = 1\n" * 59 + "x = 1\n" * 340) == []


def test_nothing_unfinished_is_left_in_any_file() -> None:
    assert complaints_about(project_files(), ROOT, leftover_complaints) == []


@pytest.mark.parametrize(
    "text",
    [
        "# TO" + "DO: later",
        "x = 1  # FIX" + "ME",
        "# X" + "XX",
        "a HA" + "CK",
        "a\n" + "<" * 7 + " ours",
        ">" * 7 + " b",
    ],
)
def test_unfinished_work_is_noticed(text: str) -> None:
    assert leftover_complaints(text)


# The same on every machine


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    assert complaints_about(project_files(), ROOT, machine_complaints) == []


@pytest.mark.parametrize(
    "text",
    [
        "see /" + "work/notes",
        "file:///" + "opt/wheels",
        "cd '/" + "root/x'",
        "/" + "home/me/x",
        "--index" + "-url x",
        "--find" + "-links y",
        "https:/" + "/mirror.example/simple",
    ],
)
def test_a_trace_of_a_machine_is_noticed(text: str) -> None:
    assert machine_complaints(text)


@pytest.mark.parametrize("text", ["frame/" + "work/x", "--no-emit" + "-index-url", "a simple thing", "$OUT/" + "opt/"])
def test_what_only_looks_like_a_trace_is_left_alone(text: str) -> None:
    assert machine_complaints(text) == []


def test_every_lock_pins_with_hashes_and_names_no_place() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    assert complaints_about(locks, ROOT, lock_complaints) == []


@pytest.mark.parametrize(
    "lock",
    [
        "click==8.5.1\n",
        "click>=8 \\\n    --hash=sha256:" + "0" * 64,
        "--index" + "-url x\n",
        "# from https:/" + "/x.example\n",
    ],
)
def test_a_loose_lock_is_noticed(lock: str) -> None:
    assert lock_complaints(lock)


def test_what_is_locked_is_what_the_package_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert requirements("base.in") == set(project["dependencies"])
    assert requirements("dev.in") == {one for extra in extras.values() for one in extra}


# Pages and the Makefile agree


def test_every_make_target_that_a_page_names_exists() -> None:
    targets = make_targets((ROOT / "Makefile").read_text())
    callers = [*pages(), ROOT / ".ci" / "run"]
    assert complaints_about(callers, ROOT, lambda text: sorted(targets_mentioned(text) - targets)) == []


def test_make_targets_are_found_in_pages_and_in_the_makefile() -> None:
    page = "Run `make all-of-it`, but make sure of it.\n```console\n$ make test\n$ make bench N=3\n```\n"
    assert targets_mentioned(page) == {"all-of-it", "test", "bench"}
    assert make_targets("BIN := x\ntest: setup ## run\n\tmake no\nlint:\n") == {"test", "lint"}
