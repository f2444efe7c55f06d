"""A broken guarantee."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """Which guarantee, and what happened instead."""

    promise: str
    problem: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.problem}"
