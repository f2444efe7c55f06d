"""Tokens of calls to language models: what a request may cost, and what its answer says that it has cost. Pure.

    transport = llm.transport(costs=openai_estimate, settle=openai_usage)

The functions of OpenAI serve everybody who speaks its protocol. Its limit is named `tokens`; those of Anthropic are
`input_tokens` and `output_tokens`, which it counts apart.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.downstream.verdicts import Answer

__all__ = ["anthropic_estimate", "anthropic_usage", "openai_estimate", "openai_usage"]

BYTES_PER_TOKEN = 4
"""Of English text. A text of short words or of other scripts has more tokens: the answer corrects it."""
USUAL_OUTPUT = 512
"""Tokens of an answer whose request sets no maximum."""


def openai_estimate(request: Any) -> dict[str, int]:
    """The tokens that a request may cost: its text, and as many as it lets the answer have."""
    body = _body_of(request)
    most = next(
        (body[name] for name in ("max_completion_tokens", "max_output_tokens", "max_tokens") if name in body), None
    )
    return {"tokens": _tokens_of(request) + _whole(most, USUAL_OUTPUT)}


def openai_usage(answer: Answer) -> dict[str, int] | None:
    """The tokens that a call has cost; None if the answer does not say.

    A stream says it in its last part, if the request has `stream_options={"include_usage": True}`."""
    documents = [answer.body] if answer.body is not None else list(answer.events())
    for document in reversed(documents):
        inner = _member(document, "response")
        total = _member(_member(inner or document, "usage"), "total_tokens")
        if isinstance(total, int):
            return {"tokens": total}
    return None


def anthropic_estimate(request: Any) -> dict[str, int]:
    """The tokens that a request may cost: its text, and as many as it lets the answer have."""
    most = _whole(_body_of(request).get("max_tokens"), USUAL_OUTPUT)
    return {"input_tokens": _tokens_of(request), "output_tokens": most}


def anthropic_usage(answer: Answer) -> dict[str, int] | None:
    """The tokens that a call has cost; None if the answer does not say. What was read from the cache is free."""
    usage: dict[str, int] = {}
    for document in [answer.body] if answer.body is not None else answer.events():
        for said in (_member(_member(document, "message"), "usage"), _member(document, "usage")):
            if isinstance(said, Mapping):
                usage |= {name: count for name, count in said.items() if isinstance(count, int)}
    if "input_tokens" not in usage or not answer.is_whole:
        return None
    written = usage.get("cache_creation_input_tokens", 0)
    return {"input_tokens": usage["input_tokens"] + written, "output_tokens": usage.get("output_tokens", 0)}


def _tokens_of(request: Any) -> int:
    return max(1, len(request.content) // BYTES_PER_TOKEN)


def _body_of(request: Any) -> Mapping[str, Any]:
    try:
        body = json.loads(request.content)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else otherwise


def _member(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, Mapping) else None
