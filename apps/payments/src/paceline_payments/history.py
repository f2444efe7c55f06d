"""What is known of a payment's earlier executions, and the steps that may follow. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Step(StrEnum):
    """What follows from the verdicts of all attempts, or from an inquiry."""

    ACCEPT = "ACCEPT"
    AWAIT = "AWAIT"
    """Pending: inquire until the downstream has decided."""
    REFUSE = "REFUSE"
    REPEAT = "REPEAT"
    """Another call, with the same key."""
    INQUIRE = "INQUIRE"
    """Ask before anything else."""
    POSTPONE = "POSTPONE"
    """Later, uncharged: nothing was executed."""
    STOP = "STOP"
    """The connection is wrong."""
    HOLD = "HOLD"
    """Nobody knows, and the downstream does not say."""


class History(NamedTuple):
    """What is known of a payment's earlier executions."""

    in_doubt: bool = False
    """One of them began, and nothing proves how it ended."""
    seconds: float | None = None
    """Since its first call may have left; None if none has."""

    def keeps_key(self, lifetime: float | None) -> bool:
        """Whether the downstream still knows the key of the first call. `lifetime` None: it keeps no keys."""
        return lifetime is not None and (self.seconds or 0.0) < lifetime

    def first_step(self, lifetime: float | None) -> Step:
        """INQUIRE before a payment is repeated whose key is forgotten, or that an operator retries after a decision."""
        if self.seconds is None or (self.in_doubt and self.keeps_key(lifetime)):
            return Step.REPEAT
        return Step.INQUIRE


NO_HISTORY = History()
