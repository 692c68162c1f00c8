"""The `kvstore-pipeline` command: what was recorded goes in, a judgement comes out."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import click

from pipeline.audit import FORMATS, AuditError, Verdict, judge
from pipeline.audit.formats import detect, load_parts

VIOLATED = 1
WRONG_USE = 2
PATIENCE_S = 2.0  # how long we stay silent before we say how far we are


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="causal-kvstore", prog_name="kvstore-pipeline")
def main() -> None:
    """Judge and analyse what clusters and clients recorded."""


@main.command()
@click.argument("paths", nargs=-1, required=True, metavar="FILE_OR_DIR...", type=click.Path(path_type=Path))
@click.option("--format", "format_", type=click.Choice(list(FORMATS)), help="Of all files; otherwise each one tells.")
@click.option("--together", is_flag=True, help="The files are parts of one run (jsonl, parquet): one verdict for all.")
@click.option("--siblings", multiple=True, metavar="PREFIX", help="Keys that keep siblings; may be repeated.")
@click.option("--incomplete", is_flag=True, help="Not every client was recorded: what nobody wrote is no violation.")
@click.option("--explain", is_flag=True, help="Tell every broken promise on stderr, with the operations concerned.")
def audit(
    paths: Sequence[Path],
    format_: str | None,
    together: bool,
    siblings: Sequence[str],
    incomplete: bool,
    explain: bool,
) -> None:
    """Is a recorded history causally consistent, and did every session get what it was promised?

    Prints one JSON line a file: cc and ccv (causal consistency, weak and convergent) and sessions (read your writes,
    monotonic reads, monotonic writes, writes follow reads) are true when they hold. pattern names the first that
    does not, witness the operations that show it. A directory stands for the files in it and below it, without
    README, LICENSE and pages.

    Formats: awdit, plume and edn are those of other tools, by value; jsonl and parquet are the store's own
    histories, by version. The versions of a key order its writes (the last one wins), unless the key keeps siblings:
    name those with --siblings, or a read that saw two versions shows it.

    Exit code: 0 all of it holds, 1 something is violated, 2 wrong use, or a file that is not what it should be.

    \b
    kvstore-pipeline audit history.parquet
    kvstore-pipeline audit --together recorded/ --explain
    """
    files = list(_files(paths))
    groups = [files] if together else [[file] for file in files]
    exit_code = 0
    for group in _with_progress(groups):
        name = str(paths[0]) if together else str(group[0])
        try:
            formats, verdict = _judge(group, format_, [one.encode() for one in siblings], is_complete=not incomplete)
        except (AuditError, OSError) as error:
            click.echo(f"kvstore-pipeline: {click.format_filename(name)}: {_sentence(error)}", err=True)
            exit_code = WRONG_USE
            continue
        click.echo(verdict.line(name, formats[0]))
        if explain:
            for violation in verdict.violations():
                click.echo(f"{click.format_filename(name)}: {violation}", err=True)
        if not verdict.holds:
            exit_code = exit_code or VIOLATED
    sys.exit(exit_code)


def _judge(
    files: Sequence[Path], format_: str | None, siblings: Sequence[bytes], *, is_complete: bool
) -> tuple[list[str], Verdict]:
    parts = [file.read_bytes() for file in files]
    formats = [format_ or detect(data, name=file.name) for file, data in zip(files, parts, strict=True)]
    return formats, judge(load_parts(parts, formats, siblings=siblings, is_complete=is_complete))


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            found = sorted(file for file in path.rglob("*") if file.is_file() and _may_be_history(file, path))
            if not found:
                _fail(f"there is no history in {path}")
            yield from found
        elif path.exists():
            yield path
        else:
            _fail(f"there is no {path}")


def _may_be_history(file: Path, folder: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return not is_hidden and file.suffix != ".md" and not file.name.startswith(("README", "LICENSE"))


def _with_progress(groups: Sequence[list[Path]]) -> Iterator[list[Path]]:
    """The groups, one after another. Whoever looks at a terminal for long learns how far we are."""
    began = time.monotonic()
    for number, group in enumerate(groups):
        is_late = _is_watched() and number > 0 and time.monotonic() - began > PATIENCE_S
        if is_late:
            click.echo(f"\r{number} of {len(groups)} judged", nl=False, err=True)
        yield group
        if is_late and number == len(groups) - 1:
            click.echo("\r\033[K", nl=False, err=True)


def _is_watched() -> bool:
    return sys.stderr.isatty()


def _sentence(error: AuditError | OSError) -> str:
    return str(error) if isinstance(error, AuditError) else error.strerror or str(error)


def _fail(sentence: str) -> NoReturn:
    click.echo(f"kvstore-pipeline: {sentence}", err=True)
    sys.exit(WRONG_USE)
