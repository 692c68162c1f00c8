"""The audit is an oracle: it shares nothing with what it judges, and has no outside but at its edge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy import OUTSIDE, OUTSIDE_CALLS, calls, imports

ROOT = Path(__file__).resolve().parents[2]
AUDIT = sorted((ROOT / "pipeline" / "audit").rglob("*.py"))
JUDGED = {"kvstore", "causal"}
EDGE = {"parquet.py": {"io", "pyarrow"}}
TEXT = {"pathlib"}  # a path as text, without a file behind it


def complaints(path: Path, source: str) -> list[str]:
    found = list(imports(source, package=".".join(path.relative_to(ROOT).parent.parts)))
    allowed = EDGE.get(path.name, set()) | (TEXT if path.name == "__init__.py" else set())
    names = [one for one in found if one.package not in allowed]
    own = {"pipeline", *sys.stdlib_module_names}
    return [
        *(f"imports {one.name}" for one in names if one.package in JUDGED or one.package in OUTSIDE),
        *(f"imports {one.name}" for one in names if one.package not in own),
        *(f"imports {one.name} at the top" for one in found if one.package == "pyarrow" and not one.is_lazy),
        *(f"calls {name}() on line {line}" for line, name in calls(source) if name in OUTSIDE_CALLS),
    ]


@pytest.mark.parametrize("path", AUDIT, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_file_of_the_audit_reaches_through_its_wall(path: Path) -> None:
    assert complaints(path, path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "from kvstore.update import Version",
        "import causal",
        "def f():\n    from kvstore import errors",
        "import time",
        "import random",
        "import pyarrow",
        "import click",
        "print(1)",
        "open('x')",
    ],
)
def test_the_wall_rejects(source: str) -> None:
    assert complaints(AUDIT[0].parent / "timeline.py", source)


def test_the_wall_wants_pyarrow_to_be_lazy() -> None:
    edge = ROOT / "pipeline" / "audit" / "formats" / "parquet.py"
    assert complaints(edge, "import pyarrow")
    assert complaints(edge, "def f():\n    import pyarrow") == []


def test_judging_loads_neither_the_store_nor_pyarrow() -> None:
    program = (
        "import sys; from pipeline.audit import judge, load; judge(load(b'w 1 1', 'awdit'));"
        "print([name for name in ('kvstore', 'causal', 'pyarrow', 'click', 'grpc') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
