"""`python -m kvstore` is the command `kvstore`."""

from __future__ import annotations

from kvstore.cli import main

main(prog_name="kvstore")
