"""The file with the keys that seal the tokens of sessions: 64 hexadecimal digits a line, the newest key first.

The first key seals, each one opens; so a new key is put in front, on all replicas, and the old one is taken out when no
token of it is under way any more. Blank lines and lines that begin with # mean nothing. What is wrong is said by its
line, and never by what stands there: an error ends up in a log, and a key must not.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from kvstore.errors import ConfigError
from kvstore.toml import wrong

KEY_BYTES = 32
KEYS_MAX = 8  # in a file; beyond it: it is refused, for each token may be tried with all of them
FILE_BYTES_MAX = 1 << 16  # of a key file; beyond it: it is none
_KEY = re.compile(rb"[0-9a-fA-F]{%d}" % (2 * KEY_BYTES))
_COMMENT = "# Seals the tokens of sessions. All replicas of the cluster need the same file, and nobody else any.\n"


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys, at least one. The ConfigError says what is wrong, and nothing of a key."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _wrong(path, error.strerror or str(error)) from None
    if len(data) > FILE_BYTES_MAX:
        raise _wrong(path, f"more than {FILE_BYTES_MAX} bytes are no key file")
    keys: list[bytes] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        text = line.strip()
        if not text or text.startswith(b"#"):
            continue
        if not _KEY.fullmatch(text):
            raise _wrong(path, f"line {number} is not a key of {2 * KEY_BYTES} hexadecimal digits")
        key = bytes.fromhex(text.decode())
        if key in keys:
            raise _wrong(path, f"line {number} has a key that was there before")
        keys.append(key)
        if len(keys) > KEYS_MAX:
            raise _wrong(path, f"line {number} has one key too many; {KEYS_MAX} are possible")
    if not keys:
        raise _wrong(path, "there is no key in it")
    return tuple(keys)


def _wrong(path: Path, why: str) -> ConfigError:
    return wrong("auth.session_key_file", f"{path}: {why}")


def write_key(path: Path) -> None:
    """A file with a new key, for its owner alone. One that is there stays as it is."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(_COMMENT + secrets.token_hex(KEY_BYTES) + "\n")
