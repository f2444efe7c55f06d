"""Retries of a message that failed while its provider was available: in rounds of attempts, with growing pauses."""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 30
LONGEST_PAUSE_SECONDS = 600


def retry_at_ms(number: int, now_ms: int, expires_ms: int | None) -> int:
    """When the next round begins, after so many; at the latest when the message expires."""
    seconds = min(FIRST_PAUSE_SECONDS << min(number - 1, 10), LONGEST_PAUSE_SECONDS)
    at_ms = now_ms + seconds * 1000
    return at_ms if expires_ms is None else min(at_ms, expires_ms)
