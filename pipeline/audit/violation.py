"""A broken promise as a value: its name, and who was there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    pattern: str
    witness: tuple[str, ...]  # the operations concerned, for people

    def __str__(self) -> str:
        return f"{self.pattern}: {'; '.join(self.witness)}"
