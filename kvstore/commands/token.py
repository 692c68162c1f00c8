"""A session's token in readable form."""

from __future__ import annotations

import click

from kvstore.commands.common import Output, output_option, print_json, print_lines
from kvstore.show import outline, token_of


@click.command()
@click.argument("token")
@output_option
def token(token: str, output: str) -> None:
    """Print what the TOKEN of a session says: of which protocol it is, and which messages the session has seen.

    A token is printed by every command with --session. Its seal is not checked: only a replica has the key.

    \b
      kvstore token "$TOKEN"
      kvstore token "$TOKEN" --output json
    """
    try:
        data = token_of(token)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="TOKEN") from None
    from kvstore.seal import describe

    found = describe(data)
    if output == Output.JSON:
        print_json(found, indent=2)
    else:
        print_lines(outline(found))


COMMANDS = (token,)
