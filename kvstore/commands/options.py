"""The options of reads and writes: how fresh an answer must be, what a write replaces and depends on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from kvstore.checks import AGE_MAX_MS, FRESHNESS
from kvstore.values import Version

F = TypeVar("F", bound=Callable[..., Any])


def _version(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Version | None:
    return None if text is None else Version.parse(text)


def _versions(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> list[Version] | None:
    return [Version.parse(text) for text in texts] or None


if_version_option = click.option(
    "--if-version", callback=_version, metavar="VERSION", help="Only if the key has this version at the replica."
)
replaces_option = click.option(
    "--replaces",
    multiple=True,
    callback=_versions,
    metavar="VERSION",
    help="A version that the write replaces, where keys merge by siblings; again for others.",
)


def depending(command: F) -> F:
    """Give a command what its write depends on, as one mapping `depends` of the client's options."""

    @click.option("--independent", is_flag=True, help="The write depends on nothing; some protocols make use of it.")
    @click.option(
        "--depends-on",
        multiple=True,
        callback=_versions,
        metavar="VERSION",
        help="A version that the write depends on, and on nothing else; again for others.",
    )
    @wraps(command)
    def told(independent: bool, depends_on: list[Version] | None, **rest: Any) -> Any:
        return command(depends={"independent": independent, "depends_on": depends_on}, **rest)

    return told  # type: ignore[return-value]


def fresh(command: F) -> F:
    """Give a command how fresh the answer must be, as one mapping `freshness` of the client's options."""

    @click.option(
        "--freshness",
        type=click.Choice(FRESHNESS),
        help="any: what the replica has now, and say how old that may be; session: what the session has seen.",
    )
    @click.option(
        "--max-age-ms",
        type=click.IntRange(1, AGE_MAX_MS),
        metavar="N",
        help="All that was written anywhere longer ago than N ms; wait for it if need be.",
    )
    @wraps(command)
    def told(freshness: str | None, max_age_ms: int | None, **rest: Any) -> Any:
        return command(freshness={"freshness": freshness, "max_age_ms": max_age_ms}, **rest)

    return told  # type: ignore[return-value]
