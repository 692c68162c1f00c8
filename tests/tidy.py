"""The checkers behind test_tidy.py: from a text to a list of complaints, so that each can be shown a culprit.

Words that must not stand in the project are put together from pieces here, or this file would be its own finding.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

# Every file of causal/ that is not named here is core: it has no outside.
SHELL = {
    "bench.py",
    "cli.py",
    "compare.py",
    "demo.py",
    "diagram.py",
    "page.py",
    "plots.py",
    "provenance.py",
    "replay.py",
}
SEEDED = {"simulation.py", "workload.py"}  # between the two: chance that comes from a seed, and nothing else

CLOCKS = {"datetime", "sched", "time", "timeit"}
CHANCE = {"random", "secrets", "uuid"}
FILES = {"fileinput", "glob", "io", "logging", "mmap", "os", "pathlib", "shelve", "shutil", "sqlite3", "tempfile"}
NETWORK = {"http", "select", "selectors", "socket", "socketserver", "ssl", "urllib"}
CONCURRENCY = {"asyncio", "concurrent", "multiprocessing", "queue", "signal", "subprocess", "threading"}
BACK_DOORS = {"ctypes", "importlib", "pickle"}
OUTSIDE = CLOCKS | CHANCE | FILES | NETWORK | CONCURRENCY | BACK_DOORS
OUTSIDE_CALLS = {"print", "input", "open"}

# Who may import what from outside the standard library; `lazy` means inside functions only.
THIRD_PARTY = {"click": {"cli.py"}, "matplotlib": {"plots.py", "diagram.py"}}
LAZY = {"matplotlib"}

ORACLE_KNOWS = {"causal.model", "causal.execution"}  # it must judge protocols without sharing a line with them

# The store: these files decide and do nothing; generated code is known to those who speak gRPC only.
STORE_PURE = {
    "backlog.py",
    "clock.py",
    "effects.py",
    "errors.py",
    "explain.py",
    "hello.py",
    "keys.py",
    "layout.py",
    "limits.py",
    "link.py",
    "meaning.py",
    "merge.py",
    "notes.py",
    "opening.py",
    "past.py",
    "persist.py",
    "placement.py",
    "refusal.py",
    "replica.py",
    "requests.py",
    "seal.py",
    "sweep.py",
    "transit.py",
    "update.py",
}
GRPC_SPEAKERS = {"aio.py", "calls.py", "client.py"}  # and everything under kvstore/rpc
GENERATED = {"kvstore.v1", "kvstore.peer"}
NEVER_IN_A_SERVER = {"locust", "pyspark"}

UNSAFE_MODULES = {"pickle", "shelve", "marshal"}
UNSAFE_CALLS = {"eval", "exec", "__import__"}
DEBUGGERS = {"pdb", "ipdb", "pudb"}

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

UNFINISHED = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")
MERGE_MARKER = re.compile(r"^(?:<{7}|>{7}|\|{7})(?: |$)", re.MULTILINE)
MACHINE_PATH = re.compile(r"(?<![\w.$~})-])/(?:" + "|".join(("wo" + "rk", "ro" + "ot", "op" + "t", "ho" + "me")) + ")/")
REGISTRY = re.compile(r"--(?:(?:extra-)?index-ur[l]|find-link[s]|trusted-hos[t])|:/[/]\S+/simple\b")


class Import(NamedTuple):
    """One imported name, in full: `from causal import model` is `causal.model`."""

    name: str
    is_lazy: bool  # inside a function, or for the type checker only

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


def imports(source: str, *, package: str) -> Iterator[Import]:
    yield from _imports_below(ast.parse(source), package, is_lazy=False)


def _imports_below(node: ast.AST, package: str, *, is_lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, is_lazy) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            origin = _origin(child, package)
            yield from (Import(f"{origin}.{alias.name}", is_lazy) for alias in child.names)
        else:
            yield from _imports_below(child, package, is_lazy=is_lazy or _postpones(child))


def _origin(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    base = parents[: len(parents) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def _postpones(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def calls(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id


def is_one_of(path: PurePosixPath, names: Collection[str]) -> bool:
    """Whether the path is one of these files of causal/ itself: a namesake in a folder below has no privilege."""
    return len(path.parts) == 2 and path.name in names


def wall_complaints(path: PurePosixPath, source: str) -> list[str]:
    """What a file of causal/ imports or calls across its wall."""
    found = list(imports(source, package=".".join(path.parent.parts)))
    complaints = [*_third_party_complaints(path, found)]
    if not is_one_of(path, SHELL):
        complaints += _outside_complaints(path, found)
        complaints += [f"calls {name}() on line {line}" for line, name in calls(source) if name in OUTSIDE_CALLS]
    if is_one_of(path, SEEDED):
        complaints += _unseeded_complaints(source)
    if is_one_of(path, {"oracle.py"}):
        ours = (one.name for one in found if one.package == "causal")
        complaints += [f"imports {name}, which it judges" for name in ours if not _is_within(name, ORACLE_KNOWS)]
    return complaints


def store_complaints(path: PurePosixPath, source: str) -> list[str]:
    """What a file of kvstore/ imports across its walls."""
    found = list(imports(source, package=".".join(path.parent.parts)))
    complaints = [f"imports {one.name}: not in a server" for one in found if one.package in NEVER_IN_A_SERVER]
    if is_one_of(path, STORE_PURE):
        complaints += [f"imports {one.name}: no clock, I/O or chance here" for one in found if one.package in OUTSIDE]
        known = sys.stdlib_module_names | {"causal", "kvstore"}
        complaints += [f"imports {one.name} from outside" for one in found if one.package not in known]
        complaints += [f"calls {name}() on line {line}" for line, name in calls(source) if name in OUTSIDE_CALLS]
    if path.parts[1] != "rpc" and not is_one_of(path, GRPC_SPEAKERS):
        speaking = [one.name for one in found if _is_within(one.name, GENERATED) or one.package == "grpc"]
        complaints += [f"imports {name}: only rpc and the clients speak gRPC" for name in speaking]
    return complaints


def _third_party_complaints(path: PurePosixPath, found: list[Import]) -> Iterator[str]:
    for one in found:
        if one.package in sys.stdlib_module_names or one.package == "causal":
            continue
        if not is_one_of(path, THIRD_PARTY.get(one.package, ())):
            yield f"imports {one.name} from outside the standard library"
        elif one.package in LAZY and not one.is_lazy:
            yield f"imports {one.name} when it is itself imported; import it inside the function that needs it"


def _outside_complaints(path: PurePosixPath, found: list[Import]) -> Iterator[str]:
    is_seeded = is_one_of(path, SEEDED)
    forbidden = OUTSIDE - {"random"} if is_seeded else OUTSIDE
    above = {f"causal.{PurePosixPath(name).stem}" for name in (SHELL if is_seeded else SHELL | SEEDED)}
    for one in found:
        if one.package in forbidden:
            yield f"imports {one.name}: no clock, I/O or chance here"
        elif _is_within(one.name, above):
            yield f"imports {one.name}, which stands above it"


def _unseeded_complaints(source: str) -> Iterator[str]:
    """The functions of the module `random` share one hidden generator; only `random.Random(seed)` can be run again."""
    for one in imports(source, package="causal"):
        if one.package == "random" and one.name not in ("random", "random.Random"):
            yield f"imports {one.name}; use random.Random(seed)"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Attribute) or node.attr == "Random":
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "random":
            yield f"uses random.{node.attr} on line {node.lineno}; use random.Random(seed)"


def _is_within(name: str, modules: Collection[str]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def unsafe_complaints(source: str) -> list[str]:
    """Ways to run what somebody sent us. No file of a product package has a use for them."""
    modules = {one.name for one in imports(source, package="") if one.package in UNSAFE_MODULES}
    complaints = [f"imports {name}, which runs what it reads" for name in sorted(modules)]
    return complaints + [f"calls {name}() on line {line}" for line, name in calls(source) if name in UNSAFE_CALLS]


def debugger_complaints(source: str) -> list[str]:
    modules = {one.package for one in imports(source, package="")} & DEBUGGERS
    stops = [f"calls breakpoint() on line {line}" for line, name in calls(source) if name == "breakpoint"]
    return [f"imports {name}" for name in sorted(modules)] + stops


def size_complaints(source: str) -> list[str]:
    """A file or function that outgrows its bound holds two ideas."""
    lines = len(source.splitlines())
    complaints = [f"has {lines} lines, more than {FILE_LINES_MAX}"] if lines > FILE_LINES_MAX else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                complaints.append(f"{node.name} has {length} lines, more than {FUNCTION_LINES_MAX}")
    return complaints


def leftover_complaints(text: str) -> list[str]:
    """Signs of unfinished work, in any text file."""
    return [*_matches("unfinished work", UNFINISHED, text), *_matches("a merge marker", MERGE_MARKER, text)]


def machine_complaints(text: str) -> list[str]:
    """Traces of the machine somebody worked on: they are wrong on every other."""
    return [*_matches("a path of one machine", MACHINE_PATH, text), *_matches("a package registry", REGISTRY, text)]


def _matches(what: str, pattern: re.Pattern[str], text: str) -> Iterator[str]:
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{what} on line {line}: {match.group().strip()}"


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def targets_mentioned(text: str) -> set[str]:
    """The targets that a page or script tells its reader to call: in `code`, after a prompt, or as a whole line."""
    return set(re.findall(r"(?:`|^\s*\$ |^\s*)make ([a-z][a-z-]*)(?=`|\s*$| [A-Z_]+=|\s*#|\s*&&)", text, re.MULTILINE))


def lock_complaints(lock: str) -> list[str]:
    """Every requirement is one version with hashes, and nothing says where to get it."""
    complaints = []
    for entry in lock.replace("\\\n", " ").splitlines():
        if not entry.strip() or entry.lstrip().startswith("#"):
            continue
        name = entry.split()[0]
        if not re.fullmatch(r"[A-Za-z0-9._-]+==[^\s;]+", name):
            complaints.append(f"{name} is not one version of one package")
        elif not re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry):
            complaints.append(f"{name} has no hash")
    if re.search(r"[a-z]+:/" + "/", lock):
        complaints.append("holds a URL")
    return complaints


def complaints_about(paths: Collection[Path], root: Path, check: Callable[[str], list[str]]) -> list[str]:
    """All complaints of one checker about many files, each with the file's name in front."""
    found = []
    for path in paths:
        name = path.relative_to(root).as_posix()
        found += [f"{name}: {complaint}" for complaint in check(path.read_text(encoding="utf-8"))]
    return found
