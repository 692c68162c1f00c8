"""What can be wrong with a history before it can be judged, by name. A bad verdict is no error: it is a value."""

from __future__ import annotations

SHOWN_MAX = 60  # characters of the input that an error repeats


class AuditError(Exception):
    """The base of all errors that whoever gives us a file can cause."""


class Malformed(AuditError):
    """A file that does not keep to its format, and where. A line is a row in Parquet; 0 is the file as a whole."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}" if line else why)
        self.line = line


class TooLarge(AuditError):
    """More operations than can be judged here: every one of them costs memory for all others."""


class UnknownFormat(AuditError):
    """Nothing in the file says what format it has."""


class MissingLibrary(AuditError):
    """A format whose reader is not installed."""


def shown(text: object) -> str:
    """Somebody else's text in an error: quoted, and never long."""
    written = str(text)
    return repr(written if len(written) <= SHOWN_MAX else written[: SHOWN_MAX - 1] + "…")
