"""One execution in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from paceline.clock import uptime
from paceline.dispatch.downstream_turn import DownstreamTurn
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import StartRequest
from paceline.dispatch.registry import Execute

SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT = 0.05, 15.0


@dataclass(slots=True, eq=False)
class Run:
    """One execution, from its start to the report of its outcome."""

    claim: Claim
    request: StartRequest
    execute: Execute
    seen: float
    """The last heartbeat of its claim, by `uptime`."""
    execution_id: str
    on_thread: bool = False
    """It runs a plain function."""
    turn: DownstreamTurn | None = None
    """What it waits for last; None for nothing."""
    at_once: bool = False
    """Its turn comes at once: its downstream was open when it was claimed."""
    after: asyncio.Task[None] | None = None
    """An earlier run of the same item whose task has not ended yet."""
    task: asyncio.Task[None] | None = None
    counts: bool = False
    """That its body begins is written."""
    begun: bool = False
    executed: bool = False
    """It was executed; only the report is missing."""
    succeeded: bool = False
    """It was executed, and succeeded."""
    waits_since: float | None = None
    """When it began to wait for a place, by `uptime`; None if it does not."""
    recalled: str = ""
    """Why it was cancelled before it began, and is released."""
    lost: bool = False
    """Its claim is void; it was cancelled."""

    def current_claim(self) -> Claim:
        """The claim under which it runs now."""
        return self.claim

    @property
    def needs_permit(self) -> bool:
        """Its starts are limited, or its task has a downstream for whose turn it waits."""
        return self.turn is not None and not self.at_once

    @property
    def over(self) -> bool:
        """It has no further effect: another claim of its item is another run."""
        return self.lost or bool(self.recalled) or (self.executed and not self.succeeded)

    @property
    def silent(self) -> bool:
        """Its last heartbeat is so old that stale recovery may soon take its claim, or has."""
        return uptime() - self.seen >= self.request.config.stale_claim_threshold_mins * 30


def heartbeat_interval(request: StartRequest) -> float:
    """Seconds between two heartbeats of a run."""
    return min(max(request.config.stale_claim_threshold_mins * 15, SHORTEST_HEARTBEAT), LONGEST_HEARTBEAT)
