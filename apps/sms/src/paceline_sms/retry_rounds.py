"""Retries of a message that failed while its provider was available: when, and when no more."""

from __future__ import annotations

from typing import NamedTuple

FIRST_PAUSE_SECONDS = 30
LONGEST_PAUSE_SECONDS = 600
FAULTY_ROUNDS = 3
"""The most rounds, if other messages were accepted during the last of them."""
LONE_FAULTY_ROUNDS = 8
"""The most rounds, if none was: it may be an outage that no other message shows. About 35 minutes."""


class Round(NamedTuple):
    """A series of failed attempts."""

    number: int
    """1 for a message's first."""
    is_fault: bool = False
    """Whether the providers' own code failed at every attempt (`ProviderFault`)."""
    others_accepted: bool = False
    """Whether a provider accepted other messages meanwhile."""


def retry_at_ms(last: Round, now_ms: int, expires_ms: int | None) -> int | None:
    """When the next round begins; None if the message itself is at fault."""
    if last.is_fault and last.number >= (FAULTY_ROUNDS if last.others_accepted else LONE_FAULTY_ROUNDS):
        return None
    seconds = min(FIRST_PAUSE_SECONDS << min(last.number - 1, 10), LONGEST_PAUSE_SECONDS)
    at_ms = now_ms + seconds * 1000
    return at_ms if expires_ms is None else min(at_ms, expires_ms)
