"""How an execution's `Completion` travels: as what its activity and its workflow return."""

from __future__ import annotations

from typing import Any

from paceline.dispatch.model import Completion

MARK = "paceline:completion"
"""The member that marks a completion among a workflow's possible results."""


def completion_to_json(completion: Completion) -> dict[str, Any]:
    return {MARK: completion.result_json, "detail": completion.detail}


def completion_from_json(value: Any) -> Completion | None:
    """None for anything that is no completion."""
    if not isinstance(value, dict) or MARK not in value:
        return None
    result, detail = value[MARK], value.get("detail")
    return Completion(None if result is None else str(result), None if detail is None else str(detail))
