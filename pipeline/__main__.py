"""`python -m pipeline` is the command `kvstore-pipeline`."""

from __future__ import annotations

from pipeline.cli import main

main(prog_name="kvstore-pipeline")
