"""The examples of docs/client.md for sessions, freshness, siblings and histories, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvstore.cluster import LocalCluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client.md"
PRINTED = {
    "Sessions": ["b'shall we?'"],
    "Freshness": ["b'yes' c True", "None"],
    "Siblings": ["[b'apple', b'pear']", "b'apple and pear' 0"],
    "History": ["0 write b'k' ok", "1 read b'k' ok"],
}


def test_the_page_does_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^## ([^\n]*)\n(?:(?!^## ).)*?^```python cluster\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert [title for title, _ in found] == [*PRINTED]
    with LocalCluster.create(tmp_path / "cluster", replicas=3, merge={b"cart/": "siblings"}) as cluster:
        for title, code in found:
            for port, endpoint in zip((7400, 7410, 7420), cluster.endpoints, strict=True):
                code = code.replace(f"127.0.0.1:{port}", endpoint)
            exec(compile(code, f"client.md, {title}", "exec"), {})
            assert capsys.readouterr().out.splitlines() == PRINTED[title]
