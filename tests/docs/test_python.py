"""The Python that README and docs show runs as it stands, page by page; later blocks see what earlier ones define."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.commands import PAGES, ROOT

SHOWING_PYTHON = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]


def run_python(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "a_page_of_the_docs"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "<page>", "exec", dont_inherit=True), names)
    return names


def test_some_pages_show_python() -> None:
    assert {"README.md", "write-your-own-protocol.md"} <= {page.name for page in SHOWING_PYTHON}


@pytest.mark.parametrize("page", SHOWING_PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path) -> None:
    run_python(page.read_text(encoding="utf-8"))


def test_python_that_fails_is_noticed() -> None:
    with pytest.raises(ZeroDivisionError):
        run_python("text\n```python\n1 / 0\n```\n")


def test_the_protocol_of_the_docs_is_caught_when_it_forgets() -> None:
    """Section 3 says that the oracle would notice. It does."""
    from causal.oracle import judge
    from causal.simulation import simulate
    from causal.workload import Workload

    names = run_python((ROOT / "docs/write-your-own-protocol.md").read_text(encoding="utf-8"))
    history, past = names["History"], names["Past"]

    class Forgetful(history):  # type: ignore[misc, valid-type]
        def _stamp(self, dot, to, semantic):
            stamp = super()._stamp(dot, to, semantic)
            return past(dict(list(stamp.messages.items())[1:]))

    def caught(seed: int) -> bool:
        workload = Workload(sites=5, messages=60, seed=seed, fifo=False)
        outcome = simulate(workload, "history", make=lambda name, site, sites: Forgetful(site, sites), record=True)
        assert outcome.execution is not None
        return not judge(outcome.execution).ok

    assert any(caught(seed) for seed in range(10))


def test_the_page_leads_from_an_empty_file_to_the_contract_suite(tmp_path: Path) -> None:
    """Section 4, as a reader does it: the file, the two lines, and the tests over the table."""
    for name in ("causal", "tests", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    page = (ROOT / "docs/write-your-own-protocol.md").read_text(encoding="utf-8")
    past, history, *_ = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "causal/protocols/history.py").write_text(past + history)
    table = tmp_path / "causal/protocols/__init__.py"
    text = table.read_text()
    neighbour = "from causal.protocols.matrix"
    text = text.replace(neighbour, f"from causal.protocols.history import History\n{neighbour}", 1)
    table.write_text(text.replace('    "fifo": Fifo,', '    "history": History,\n    "fifo": Fifo,', 1))
    files = [f"tests/causal/test_{name}.py" for name in ("contract", "bad_input", "random_executions")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "history",
        *files,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=85, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
