"""Tokens, by the examples of the providers' documents."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.downstream.usage import anthropic_estimate, anthropic_usage, openai_estimate, openai_usage
from paceline.downstream.verdicts import Answer

OPENAI_STREAM = b"""data: {"id":"chatcmpl-123","choices":[{"index":0,"delta":{"content":"Hello"}}],"usage":null}

data: {"id":"chatcmpl-123","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}

data: [DONE]
"""
ANTHROPIC_STREAM = b"""event: message_start
data: {"type":"message_start","message":{"id":"msg_1","usage":{"input_tokens":25,"output_tokens":1}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}
"""


def answer(body: Any, *, whole: bool = True) -> Answer:
    return Answer.of(200, body if isinstance(body, bytes) else json.dumps(body).encode(), whole=whole)


def request(body: Any) -> Any:
    return SimpleNamespace(content=body if isinstance(body, bytes) else json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"usage": {"prompt_tokens": 19, "completion_tokens": 10, "total_tokens": 29}}, 29),
        ({"object": "response", "usage": {"input_tokens": 36, "output_tokens": 87, "total_tokens": 123}}, 123),
        (OPENAI_STREAM, 29),
        (b'data: {"type":"response.completed","response":{"usage":{"total_tokens":123}}}\n\n', 123),
        ({"error": {"message": "Rate limit reached"}}, None),
        (OPENAI_STREAM[:90], None),
        (b"", None),
    ],
)
def test_openai_says_what_a_call_has_cost(body: Any, tokens: int | None) -> None:
    assert openai_usage(answer(body)) == (None if tokens is None else {"tokens": tokens})


def test_anthropic_counts_input_and_output_apart() -> None:
    whole = {
        "usage": {
            "input_tokens": 10,
            "cache_creation_input_tokens": 5,
            "cache_read_input_tokens": 99,
            "output_tokens": 7,
        }
    }
    assert anthropic_usage(answer(whole)) == {"input_tokens": 15, "output_tokens": 7}
    assert anthropic_usage(answer(ANTHROPIC_STREAM)) == {"input_tokens": 25, "output_tokens": 15}
    assert anthropic_usage(answer(ANTHROPIC_STREAM, whole=False)) is None
    assert anthropic_usage(answer({"type": "error"})) is None


def test_an_estimate_is_the_text_and_the_longest_answer() -> None:
    asked = {"messages": [{"role": "user", "content": "x" * 4000}], "max_completion_tokens": 300}
    assert 1300 < openai_estimate(request(asked))["tokens"] < 1350
    assert openai_estimate(request({"input": "x"}))["tokens"] > 500
    assert anthropic_estimate(request({"messages": [], "max_tokens": 64})) == {"input_tokens": 8, "output_tokens": 64}
    assert openai_estimate(request(b"no json"))["tokens"] > 0
