"""JSON in which every member occurs once. Of a member that occurs twice, some readers take the first and some the last:
of an amount or a bank's verdict, neither is a guess worth making. Pure."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any


class RepeatedMember(ValueError):
    """An object has a member twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} occurs twice")
        self.name = name


def strict_json(text: str | bytes) -> object:
    """The value of a JSON text.

    Raises:
        RepeatedMember: One of its objects has a member twice.
        ValueError: It is not valid JSON.
        RecursionError: It is nested too deeply.
    """
    value: object = json.loads(text, object_pairs_hook=_once)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedMember(name)
    return members
