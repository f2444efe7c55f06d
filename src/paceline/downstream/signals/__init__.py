"""How the other side says that it has had enough: readers of its responses. Pure.

A reader has one method, `pause_of(status, header)`, which returns seconds to pause; 0 if none. `standard.py` reads what
is standard or common, `providers.py` what single providers send beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from paceline.downstream.signals.providers import AnthropicSignals, GitHubSignals, OpenAISignals
from paceline.downstream.signals.standard import pause_of

__all__ = ["AnthropicSignals", "GitHubSignals", "OpenAISignals", "Signals", "StandardSignals"]


class Signals(Protocol):
    """Reads the limits that a response reports."""

    def pause_of(self, status: int, header: Callable[[str], str | None]) -> float:
        """Seconds to pause after a response with this status; `header` returns a field by its name."""
        ...


class StandardSignals:
    """`Retry-After`, `retry-after-ms`, RateLimit fields (all drafts) and `X-RateLimit-*`."""

    def pause_of(self, status: int, header: Callable[[str], str | None]) -> float:
        return pause_of(status, header)
