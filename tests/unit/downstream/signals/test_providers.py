"""What single providers say of their limits, by the examples of their documents."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from paceline.downstream.signals import Signals, StandardSignals
from paceline.downstream.signals.providers import (
    AnthropicSignals,
    GitHubSignals,
    OpenAISignals,
    go_duration,
    seconds_until,
)


def fields(**given: str) -> Callable[[str], str | None]:
    known = {name.replace("_", "-"): value for name, value in given.items()}
    return lambda name: known.get(name.lower())


OPENAI = {
    "x_ratelimit_limit_requests": "60",
    "x_ratelimit_limit_tokens": "150000",
    "x_ratelimit_remaining_requests": "59",
    "x_ratelimit_remaining_tokens": "149984",
    "x_ratelimit_reset_requests": "1s",
    "x_ratelimit_reset_tokens": "6m0s",
}


def test_openai_pauses_only_where_nothing_remains() -> None:
    assert OpenAISignals().pause_of(200, fields(**OPENAI)) == 0
    assert OpenAISignals().pause_of(200, fields(**OPENAI | {"x_ratelimit_remaining_tokens": "0"})) == 360
    none_left = {"x_ratelimit_remaining_tokens": "0", "x_ratelimit_remaining_requests": "0"}
    assert OpenAISignals().pause_of(200, fields(**OPENAI | none_left)) == 360
    assert OpenAISignals().pause_of(429, fields(**OPENAI | {"retry_after_ms": "1250", "retry_after": "2"})) == 1.25
    # Azure's, where there is no such limit.
    odd = {"x_ratelimit_remaining_tokens": "-1", "x_ratelimit_reset_tokens": "0"}
    assert OpenAISignals().pause_of(200, fields(**OPENAI | odd)) == 0
    assert OpenAISignals().pause_of(200, fields(x_ratelimit_remaining_tokens="0", x_ratelimit_reset_tokens="soon")) == 0


def test_anthropic_gives_times() -> None:
    reset = datetime.fromtimestamp(time.time() + 30, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    left = {"anthropic_ratelimit_tokens_remaining": "0", "anthropic_ratelimit_tokens_reset": reset}
    assert 28 < AnthropicSignals().pause_of(200, fields(**left)) <= 30
    assert AnthropicSignals().pause_of(200, fields(**left | {"anthropic_ratelimit_tokens_remaining": "1000"})) == 0
    assert AnthropicSignals().pause_of(429, fields(**left | {"retry_after": "11"})) == 11
    assert AnthropicSignals().pause_of(200, fields(**left | {"anthropic_ratelimit_tokens_reset": "tomorrow"})) == 0


def test_github_has_a_secondary_limit() -> None:
    assert GitHubSignals().pause_of(403, fields(retry_after="60")) == 60
    assert GitHubSignals().pause_of(429, fields()) == 60
    assert GitHubSignals().pause_of(403, fields()) == 0, "a missing permission"
    reset = str(int(time.time()) + 100)
    assert 98 < GitHubSignals().pause_of(403, fields(x_ratelimit_remaining="0", x_ratelimit_reset=reset)) <= 100


@pytest.mark.parametrize("signals", [StandardSignals(), OpenAISignals(), AnthropicSignals(), GitHubSignals()])
def test_all_read_what_is_standard(signals: Signals) -> None:
    assert signals.pause_of(503, fields(retry_after="7")) == 7
    assert signals.pause_of(200, fields(retry_after="7")) == 0
    assert signals.pause_of(200, fields()) == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("6m0s", 360), ("1s", 1), ("12ms", 0.012), ("1h2m3.5s", 3723.5), ("", None), ("6", None), ("6m0s!", None)],
)
def test_durations_as_go_writes_them(text: str, seconds: float | None) -> None:
    assert go_duration(text) == seconds
    assert go_duration("1s" * 99) is None


def test_times_in_the_past_are_over() -> None:
    assert seconds_until("2024-01-01T00:00:00Z", 2e9) == 0
    assert seconds_until("2024-01-01T00:00:00", 1704067190) == 10
    assert seconds_until("no time", 0) is None
