"""What all commands share: whom to ask, how to print, and which exit code an error becomes.

A script reads the exit code first, so there are six and no more: done, not found, wrong use, unavailable or late,
refused, corrupt data. An error's gRPC status already says what its caller should do about it; one table goes on from
there, and a few errors that mean something else on a command line have a line of their own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import click

from kvstore.config import Cluster, load_cluster
from kvstore.errors import AddressTaken, ConfigError, KvError, SnapshotGone, UnknownSite
from kvstore.show import milliseconds, token_of, token_text
from kvstore.update import unescape

if TYPE_CHECKING:
    from kvstore.client import Client, Session

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    DONE = 0
    NOT_FOUND = 1
    WRONG_USE = 2
    UNAVAILABLE = 3  # or late: the same command may work later, or at another replica
    REFUSED = 4
    CORRUPT = 5


NEW = "new"  # the token of a session that begins
INTERRUPTED = 130  # as shells have it: ended by Ctrl-C
PIPE_CLOSED = 141  # as shells have it: nobody reads the output any more

EXIT_BY_STATUS: Mapping[str, Exit] = {
    "INVALID_ARGUMENT": Exit.WRONG_USE,
    "FAILED_PRECONDITION": Exit.REFUSED,
    "OUT_OF_RANGE": Exit.REFUSED,
    "NOT_FOUND": Exit.REFUSED,
    "RESOURCE_EXHAUSTED": Exit.UNAVAILABLE,
    "UNAVAILABLE": Exit.UNAVAILABLE,
    "DEADLINE_EXCEEDED": Exit.UNAVAILABLE,
    "INTERNAL": Exit.UNAVAILABLE,
    "DATA_LOSS": Exit.CORRUPT,
}
EXIT_BY_ERROR: Mapping[type[KvError], Exit] = {
    ConfigError: Exit.WRONG_USE,
    UnknownSite: Exit.WRONG_USE,
    AddressTaken: Exit.UNAVAILABLE,
    SnapshotGone: Exit.REFUSED,
}


def exit_code(error: KvError) -> Exit:
    ended_with = getattr(error, "exit_code", None)  # a replica that did not start has said it already
    if ended_with in (Exit.WRONG_USE, Exit.REFUSED, Exit.CORRUPT):
        return Exit(ended_with)
    return EXIT_BY_ERROR.get(type(error)) or EXIT_BY_STATUS[error.status]


def fail(code: Exit, sentence: str) -> NoReturn:
    click.echo(f"kvstore: {sentence}", err=True)
    sys.exit(code)


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Ask:
    """Which replica to ask, how long to wait, how to print."""

    cluster_file: Path | None
    site: str | None
    output: Output
    timeout_s: float
    token: bytes | None = None  # of the session; empty: one that begins; None: no session

    def cluster(self, *, with_keys: bool = False) -> Cluster:
        """As its file says; who only asks need not be able to read its secrets."""
        if self.cluster_file is None:
            fail(Exit.WRONG_USE, "which cluster? Name its file with --cluster FILE or in KVSTORE_CLUSTER")
        path = self.cluster_file
        return load_cluster(path / "cluster.toml" if path.is_dir() else path, with_keys=with_keys)

    def endpoints(self) -> list[str]:
        """The one replica that was named, or all of them, for the client to choose from."""
        cluster = self.cluster()
        if self.site is not None:
            return [cluster.site(self.site).client]
        return [site.client for site in cluster.sites]

    @contextmanager
    def connect(self) -> Iterator[Client]:
        from kvstore.client import connect

        with connect(self.endpoints(), timeout_s=self.timeout_s) as client:
            yield client

    @contextmanager
    def store(self) -> Iterator[Client | Session]:
        """The keys: with the session that was named, if one was."""
        with self.connect() as client:
            yield client if self.token is None else client.session(self.token)

    @contextmanager
    def store_to_write(self) -> Iterator[Client | Session]:
        """The same; an error that leaves it open whether the write was done says so."""
        try:
            with self.store() as store:
                yield store
        except KvError as error:
            if error.definite:
                raise
            fail(exit_code(error), f"{error}; the write may have been done all the same")

    def told(self, store: Client | Session, **facts: object) -> dict[str, object]:
        """Facts beside the answer, and the session's new token: for the JSON to print, else on standard error."""
        if self.token is not None:
            facts["session"] = token_text(cast("Session", store).token())
        if self.output is Output.JSON:
            return facts
        for name, value in facts.items():
            click.echo(f"{name}: {'unknown' if value is None else value}", err=True)
        return {}


def _default_output() -> str:
    return str(Output.TABLE if sys.stdout.isatty() else Output.PLAIN)


def _duration(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else milliseconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def duration_option(name: str, **settings: Any) -> Callable[[F], F]:
    """An option that takes 30s and the like, and gives milliseconds."""
    return click.option(name, callback=_duration, metavar="DURATION", **settings)


output_option = click.option(
    "--output",
    type=click.Choice([str(one) for one in Output]),
    default=_default_output,
    envvar="KVSTORE_OUTPUT",
    help="How to print; else a table on a terminal, plain lines into a pipe.  [env var: KVSTORE_OUTPUT]",
)
cluster_option = click.option(
    "--cluster",
    "cluster_file",
    type=click.Path(path_type=Path),
    envvar="KVSTORE_CLUSTER",
    show_envvar=True,
    metavar="FILE",
    help="The cluster file, or a directory that has a cluster.toml.",
)
site_option = click.option(
    "--site",
    envvar="KVSTORE_SITE",
    show_envvar=True,
    metavar="NAME",
    help="The replica to ask. Without it: any that answers; `status` and `explain` ask all.",
)


def _token(_context: click.Context, _parameter: click.Parameter, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return b"" if text == NEW else token_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


session_option = click.option(
    "--session",
    "token",
    callback=_token,
    metavar="TOKEN",
    help="Go on with the session of this token, as the command before printed it; `new` begins one.",
)
escape_option = click.option(
    "-e",
    "--escape",
    "is_escaped",
    is_flag=True,
    help=r"Keys, prefixes and VALUE are written as tables and plain lines show them: \xNN is a byte, \\ a backslash.",
)


def asking_for(timeout: str) -> Callable[[F], F]:
    """Give a command the options that say whom to ask, as one `Ask`, with this time to wait if nothing is said."""

    def decorate(command: F) -> F:
        @cluster_option
        @site_option
        @output_option
        @duration_option("--timeout", default=timeout, show_default=True, help="How long to try to get an answer.")
        @wraps(command)
        def asked(
            cluster_file: Path | None,
            site: str | None,
            output: str,
            timeout: int,
            token: bytes | None = None,
            **rest: Any,
        ) -> Any:
            return command(Ask(cluster_file, site, Output(output), timeout / 1000, token), **rest)

        return asked  # type: ignore[return-value]

    return decorate


asking = asking_for("10s")


def asking_keys(command: F) -> F:
    """The same for those that can be part of a session."""
    return session_option(asking(command))


def raw(text: str, *, is_escaped: bool) -> bytes:
    """The bytes of an argument, exactly as the shell gave them, or as the escapes in it say."""
    if not is_escaped:
        return os.fsencode(text)
    try:
        return unescape(text)
    except (ValueError, UnicodeEncodeError) as error:
        raise click.UsageError(f"{text!r}: {error}") from None


def print_json(value: object, *, indent: int | None = None) -> None:
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        click.echo(line)
