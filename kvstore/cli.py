"""The `kvstore` command: serve a replica, ask one, look inside, take care of its disk, run a cluster on this machine.

What is wrong is said in one sentence on standard error, and the exit code says which kind of wrong it is
(commands/common.py). gRPC is reached through the client and the node only, and is loaded by the commands that need it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

from kvstore.commands import disk, keys, local, look, token
from kvstore.commands.common import INTERRUPTED, PIPE_CLOSED, Ask, Exit, Output, cluster_option, exit_code, fail
from kvstore.errors import KvError

LEVELS = ("debug", "info", "warning", "error")


class Program(click.Group):
    """The outermost command. Whatever ends one of the others passes here, and becomes a sentence and an exit code."""

    def list_commands(self, context: click.Context) -> list[str]:
        """In the order in which one comes to need them."""
        return list(self.commands)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KvError as error:
            fail(exit_code(error), str(error))
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
            sys.exit(PIPE_CLOSED)
        except OSError as error:
            fail(Exit.UNAVAILABLE, f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except (KeyboardInterrupt, click.Abort):
            sys.exit(INTERRUPTED)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="causal-kvstore", prog_name="kvstore")
def main() -> None:
    """A replicated key-value store: write at any replica, and never see an effect before its cause.

    \b
    A cluster of three on this machine, and a key that travels:
      kvstore cluster up --detach
      export KVSTORE_CLUSTER=kvstore-cluster/cluster.toml
      kvstore put --site a greeting hello
      kvstore get --site b greeting
      kvstore cluster down

    \b
    Exit codes: 0 done, 1 not found, 2 wrong use, 3 unavailable or late, 4 refused, 5 corrupt data.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # what gRPC has to say in passing is not for standard error


@main.command()
@cluster_option
@click.option("--site", envvar="KVSTORE_SITE", show_envvar=True, required=True, metavar="NAME", help="Which replica.")
@click.option(
    "--trace", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Record every message there."
)
@click.option(
    "--network",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Which links are cut, for clusters on one machine; looked at again and again.",
)
@click.option("--no-reflection", is_flag=True, help="Do not tell clients which services there are.")
@click.option("--with-parent", is_flag=True, help="End also when standard input does: whoever holds it is gone.")
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="How much to log.")
def serve(
    cluster_file: Path | None,
    site: str,
    trace: Path | None,
    network: Path | None,
    no_reflection: bool,
    with_parent: bool,
    log_level: str,
) -> None:
    """Run one replica in this process, until SIGTERM or Ctrl-C. Logs go to standard error.

    \b
      kvstore serve --cluster cluster.toml --site a
    """
    cluster = Ask(cluster_file, site, Output.PLAIN, 0).cluster(with_keys=True)
    cluster.site(site)
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)-7s %(message)s")
    if with_parent:
        threading.Thread(target=_end_with_standard_input, name="parent", daemon=True).start()
    from kvstore.node import serve as run

    run(cluster, site, trace=trace, network=network, reflection=not no_reflection)


def _end_with_standard_input() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


for one in (*keys.COMMANDS, *token.COMMANDS, *look.COMMANDS, *disk.COMMANDS, local.cluster):
    main.add_command(one)


@main.command()
@click.option("--protocol", default="optimal", show_default=True, help="What orders the updates.")
def demo(protocol: str) -> None:
    """The store in one page: three real replicas, a message held and explained, a kill -9. Takes some seconds."""
    from kvstore.demo import run

    run(click.echo, protocol)
