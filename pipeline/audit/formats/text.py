"""What the formats in text share: lines with their numbers, and numbers that stay small."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.audit.errors import Malformed, shown

_DIGITS_MAX = 19  # of a number: no tool writes more, and a longer one would cost us time


def lines(data: bytes) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, from 1, without what surrounds them."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise Malformed(number, "it is no text in UTF-8") from None
        if text:
            yield number, text


def whole_number(text: str, line: int, what: str) -> int:
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdecimal() or len(digits) > _DIGITS_MAX:
        raise Malformed(line, f"{what} is {shown(text)}, which is no number of at most {_DIGITS_MAX} digits")
    return int(text)
