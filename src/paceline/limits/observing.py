"""Observers that raise: the exception is logged and changes no decision."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from paceline.limits.model import Decision
from paceline.limits.ports import AdmissionObserver

log = logging.getLogger("paceline.limits")


class QuietObserver:
    """Logs the exceptions of an observer. Raised, they would reach a caller that is charged already and might retry."""

    __slots__ = ("_observer", "_raised")

    def __init__(self, observer: AdmissionObserver) -> None:
        self._observer = observer
        self._raised = 0

    def decided(self, decision: Decision) -> None:
        try:
            self._observer.decided(decision)
        except Exception:
            self._log_exception("decided")

    def decided_many(self, decisions: Sequence[Decision]) -> None:
        """Reports a batch at once, if the observer takes one; else one after another."""
        decided_many = getattr(self._observer, "decided_many", None)
        if decided_many is None:
            for decision in decisions:
                self.decided(decision)
            return
        try:
            decided_many(decisions)
        except Exception:
            self._log_exception("decided_many")

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        try:
            self._observer.store_called(operation, seconds, failed)
        except Exception:
            self._log_exception("store_called")

    def breaker_moved(self, state: str) -> None:
        try:
            self._observer.breaker_moved(state)
        except Exception:
            self._log_exception("breaker_moved")

    def leased(self, plan: str, tokens: int) -> None:
        try:
            self._observer.leased(plan, tokens)
        except Exception:
            self._log_exception("leased")

    def _log_exception(self, method: str) -> None:
        self._raised += 1
        if self._raised & (self._raised - 1) == 0:  # the 1st, 2nd, 4th, 8th … time: it may raise at every decision
            log.exception(
                "the observer %r raised in %s (%d in all); the decision stands", self._observer, method, self._raised
            )
