"""Makes the Python code of the protos again: the messages, the stubs of the services, and the types of both.

A generated module imports its neighbours by their path from the proto root, so a file must lie in the Python tree
where it lies in the proto tree: protos/kvstore/v1/kv.proto becomes kvstore/v1/kv_pb2.py, and no import needs patching.
What is made here is committed, and a test makes it once more and compares every byte; hence nothing in it may depend
on the machine: files are named by their path from the proto root and go in by name, and the plugins are those of the
Python that runs this. The versions of the tools do show: the code refuses a runtime that is older than the tools that
made it, so whoever upgrades the tools makes the code again and raises the floors in pyproject.toml.

    python protos/generate.py [--out DIR]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

PROTOS = Path(__file__).resolve().parent
MADE = "*_pb2*.py*"  # what a run makes; everything else in the folders it writes to is written by hand
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")  # mypy-protobuf installs them beside its Python


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the Python code of the protos again.")
    parser.add_argument("--out", type=Path, default=PROTOS.parent, help="the root of the Python tree to write into")
    out = parser.parse_args().out.resolve()
    sources = sorted(PROTOS.rglob("*.proto"))
    clear({out / path.relative_to(PROTOS).parent for path in sources})
    compile_protos(sources, {"python": str(out), "mypy": f"quiet,readable_stubs:{out}"})
    services = [path for path in sources if re.search(r"^service ", path.read_text(encoding="utf-8"), re.MULTILINE)]
    compile_protos(services, {"grpc_python": str(out), "mypy_grpc": f"quiet,readable_stubs:{out}"})


def clear(folders: set[Path]) -> None:
    """Make the folders, without what an earlier run left: the code of a proto that was removed must go too."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob(MADE):
            path.unlink()


def compile_protos(sources: list[Path], outputs: dict[str, str]) -> None:
    programs = Path(sys.executable).parent
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTOS}"]
    command += [f"--plugin={name}={programs / name}" for name in PLUGINS]
    command += [f"--{name}_out={value}" for name, value in outputs.items()]
    command += [path.relative_to(PROTOS).as_posix() for path in sources]
    if subprocess.run(command).returncode != 0:
        raise SystemExit("protoc failed; what it said stands above.")


if __name__ == "__main__":
    main()
