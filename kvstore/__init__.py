"""A replicated key-value store: every replica takes writes, and no reader sees an effect before its cause.

    from kvstore import connect

    with connect("127.0.0.1:7400") as kv:
        kv.put(b"question", b"why?")

`kvstore.aio` has the same with await. Names are loaded when they are used: who wants an error or a value does not
load gRPC for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvstore.client import Client as Client
    from kvstore.client import Session as Session
    from kvstore.client import connect as connect
    from kvstore.errors import KvError as KvError
    from kvstore.history import History as History
    from kvstore.values import ABSENT as ABSENT
    from kvstore.values import Change as Change
    from kvstore.values import Delete as Delete
    from kvstore.values import Entry as Entry
    from kvstore.values import Get as Get
    from kvstore.values import Position as Position
    from kvstore.values import Put as Put
    from kvstore.values import Read as Read
    from kvstore.values import ReadMany as ReadMany
    from kvstore.values import Sibling as Sibling
    from kvstore.values import Version as Version
    from kvstore.values import Written as Written
    from kvstore.values import WrittenBatch as WrittenBatch

    __version__: str

__all__ = [
    "ABSENT",
    "Change",
    "Client",
    "Delete",
    "Entry",
    "Get",
    "History",
    "KvError",
    "Position",
    "Put",
    "Read",
    "ReadMany",
    "Session",
    "Sibling",
    "Version",
    "Written",
    "WrittenBatch",
    "connect",
]

_MODULES = {  # all others: kvstore.values
    "Client": "kvstore.client",
    "History": "kvstore.history",
    "KvError": "kvstore.errors",
    "Session": "kvstore.client",
    "connect": "kvstore.client",
}


def __getattr__(name: str) -> Any:
    if name in ("aio", "errors"):
        return import_module(f"kvstore.{name}")
    if name == "__version__":
        return import_module("kvstore.version").software_version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_MODULES.get(name, "kvstore.values")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
