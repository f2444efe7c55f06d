"""The fields of single providers, read beside the standard ones. Malformed values are ignored."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

from paceline.downstream.signals.standard import pause_of

Header = Callable[[str], str | None]

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_LENGTH = 64


class OpenAISignals:
    """OpenAI, and those who send its fields: `x-ratelimit-remaining-requests: 0` with
    `x-ratelimit-reset-requests: 6m0s`, and the same for tokens.

    The time of the reset is that of a full budget, so it counts only where nothing remains."""

    def pause_of(self, status: int, header: Header) -> float:
        if wait := pause_of(status, header):
            return wait
        resets = [
            go_duration(header(f"x-ratelimit-reset-{budget}") or "")
            for budget in ("requests", "tokens")
            if (header(f"x-ratelimit-remaining-{budget}") or "").strip() == "0"
        ]
        return max((reset for reset in resets if reset is not None), default=0.0)


class AnthropicSignals:
    """Anthropic: `anthropic-ratelimit-requests-remaining: 0` with `anthropic-ratelimit-requests-reset`, a time in
    RFC 3339, and the same for tokens, input tokens and output tokens."""

    def pause_of(self, status: int, header: Header) -> float:
        if wait := pause_of(status, header):
            return wait
        resets = [
            seconds_until(header(f"anthropic-ratelimit-{budget}-reset") or "", time.time())
            for budget in ("requests", "tokens", "input-tokens", "output-tokens")
            if (header(f"anthropic-ratelimit-{budget}-remaining") or "").strip() == "0"
        ]
        return max((reset for reset in resets if reset is not None), default=0.0)


class GitHubSignals:
    """GitHub: the primary limit by `x-ratelimit-*`; the secondary one is a 403 or 429 with `Retry-After`, or, without
    one, asks for at least a minute."""

    MINUTE = 60.0

    def pause_of(self, status: int, header: Header) -> float:
        if wait := pause_of(status, header):
            return wait
        # A 403 while the primary limit has room left may be a missing permission: only a 429 is sure to be a limit.
        return self.MINUTE if status == 429 else 0.0


def go_duration(text: str) -> float | None:
    """The seconds of a duration such as `6m0s`, `1h2m3.5s` or `12ms`; `None` if it is none."""
    parts = _PART.findall(text) if len(text) <= _MAX_LENGTH else []
    if not parts or "".join(number + unit for number, unit in parts) != text.strip():
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def seconds_until(text: str, now: float) -> float | None:
    """The seconds until a time in RFC 3339; `None` if it is none, 0 if it has passed."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(moment.timestamp() - now, 0.0)
