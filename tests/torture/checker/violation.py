"""A promise that was not kept."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """Which promise, and what happened instead."""

    promise: str
    problem: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.problem}"
