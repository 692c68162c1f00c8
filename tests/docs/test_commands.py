"""Every command that a page shows works, and prints what the page says it prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import commands
from tests.docs.commands import PAGES, ROOT, BadPage, Command, commands_in, complaint_about, matches

README = ROOT / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_the_page_does_what_it_says(
    page: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    shown = commands_in(page.read_text(encoding="utf-8"))
    to_run = [command for command in shown if not command.is_long]
    name = page.relative_to(ROOT).as_posix()
    record_property("commands", f"{name}: {len(to_run)} run, {len(shown) - len(to_run)} long ones left out")
    complaints = [complaint for command in to_run if (complaint := complaint_about(command, tmp_path, ROOT))]
    assert not complaints, "\n\n".join([name, *complaints])


def test_the_readme_shows_commands_that_are_run() -> None:
    assert README.is_file(), "there is no README.md"
    shown = commands_in(README.read_text(encoding="utf-8"))
    assert [command for command in shown if not command.is_long], "README.md shows no command that this test can run"


# The runner itself notices what it is there to notice


def complaints(block: str, out: Path) -> list[str]:
    return [found for command in commands_in(block) if (found := complaint_about(command, out, ROOT))]


def test_a_failing_command_is_noticed_with_its_output(tmp_path: Path) -> None:
    (complaint,) = complaints("```console\n$ echo fine\n$ echo why >&2; false\n```\n", tmp_path)
    assert "line 3" in complaint
    assert "exits with 1, not 0" in complaint
    assert "why" in complaint


def test_a_command_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    assert complaints("```console\n$ causal-with-a-typo\n```\n", tmp_path)


def test_a_wrong_expected_output_is_noticed_and_a_right_one_is_not(tmp_path: Path) -> None:
    assert complaints("```console expect\n$ echo two\none\n```\n", tmp_path)
    assert not complaints("```console expect\n$ echo one\none\n\n$ printf 'a\\nb\\nc\\n'\na\n...\n```\n", tmp_path)


def test_an_output_that_is_only_shown_is_not_compared(tmp_path: Path) -> None:
    assert not complaints("```console\n$ echo two\none\n```\n", tmp_path)


def test_an_announced_exit_code_must_come(tmp_path: Path) -> None:
    assert not complaints("```console\n$ (exit 2)  # exit 2\n```\n", tmp_path)
    assert complaints("```console\n$ (exit 1)  # exit 2\n```\n", tmp_path)
    assert complaints("```console\n$ true  # exit 2\n```\n", tmp_path)


def test_a_command_that_hangs_is_ended_and_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 0.2)
    (complaint,) = complaints("```console\n$ sleep 30\n```\n", tmp_path)
    assert "still runs" in complaint


def test_commands_of_one_page_share_a_folder_outside_the_project(tmp_path: Path) -> None:
    page = '```console expect\n$ echo kept > "$OUT/note"\n$ cat "$HOME/note" "$TMPDIR/note"\nkept\nkept\n```\n'
    assert not complaints(page, tmp_path)
    assert (tmp_path / "note").exists()


def test_a_page_is_read_as_written() -> None:
    page = """
Text with `$ no command`.

```python
$ no command either
```

1. A step

   ```console expect
   $ causal simulate \\
       --sites 3
   output
   ```

~~~console long
$ make test
~~~
"""
    assert commands_in(page) == [
        Command(11, "causal simulate \\\n    --sites 3", ["output"], is_expected=True),
        Command(17, "make test", is_long=True),
    ]


@pytest.mark.parametrize(
    "page",
    [
        "```console\n$ true\n",
        "```console expekt\n$ true\n```\n",
        "```console\ntrue\n```\n",
        "```console\n```\n",
        "```console\n$ make test\n```\n",
        "```console\n$ git clone somewhere\n```\n",
        "```console\n$ cd causal-kvstore\n```\n",
    ],
    ids=["never closed", "unknown word", "no prompt", "empty", "make", "clone", "cd"],
)
def test_a_block_that_would_silently_not_run_is_refused(page: str) -> None:
    with pytest.raises(BadPage, match="line"):
        commands_in(page)


@pytest.mark.parametrize(
    ("shown", "printed", "verdict"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a", "b"], ["a"], False),
        (["a"], ["a", "b"], False),
        (["a", "...", "d"], ["a", "b", "c", "d"], True),
        (["a", "...", "d"], ["a", "d"], True),
        (["a", "...", "d"], ["a", "b"], False),
        (["a.c"], ["abc"], False),
        (["a", ""], ["a"], True),
        ([], [], True),
        ([], ["a"], False),
    ],
)
def test_shown_lines_match_exactly_but_for_dots(shown: list[str], printed: list[str], verdict: bool) -> None:
    assert matches(shown, printed) is verdict
