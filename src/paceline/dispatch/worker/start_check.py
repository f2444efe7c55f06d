"""The check before an execution's first step: its claim, the kill switch and its turn."""

from __future__ import annotations

import asyncio

from paceline.batching import Batcher
from paceline.clock import uptime
from paceline.dispatch import events
from paceline.dispatch.downstream_turn import DownstreamTurn
from paceline.dispatch.kill_switch import SWITCH_SECONDS, admitted
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import OutcomeSink
from paceline.dispatch.worker.run import Run
from paceline.errors import ConfigurationError, NotFound, PacelineError, StoreError

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
SHORTEST_WATCH = 0.02
NO_PLAN_SECONDS = 5.0
"""The pause between attempts of an item type whose admission plan can't be used."""


LONGEST_ENTER = 1.0
"""Seconds that the call of an open downstream may take until it is entered."""


class StartRefused(Exception):
    """The execution must not begin."""

    def __init__(self, reason: str, *, lost: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lost = lost
        """The claim is lost, so this run must not release the item."""


class StartCheck:
    """Lets an execution begin if its claim is valid, its type is enabled and its turn has come; else raises
    `StartRefused`. It waits while the store is unavailable: the outcome could not be reported either."""

    def __init__(self, sink: OutcomeSink) -> None:
        self._sink = sink
        self._heartbeats: Batcher[Claim, bool] = Batcher(sink.alive)
        self._no_plan: dict[str, float] = {}

    def room(self, item_type: str, room: int) -> int:
        """How many items to claim, up to `room`: of a type without its plan, one per attempt."""
        since = self._no_plan.get(item_type)
        if since is None:
            return room
        return min(room, 1) if uptime() - since >= NO_PLAN_SECONDS else 0

    async def wait(self, run: Run) -> None:
        """Returns when the execution may begin; it must do so at once, or calls would come in bursts. That it begins is
        written last: what waits has not begun. The permit is confirmed after that, right before the body."""
        item_type = run.claim.item_type
        pause = SHORTEST_PAUSE
        while True:
            try:
                if run.silent and not await self._renew(run):
                    events.log_not_begun(item_type, run.claim.item_id)
                    raise StartRefused("its claim was lost", lost=True)
                if not await self._sink.enabled(item_type):
                    raise StartRefused("the kill switch was off at its time")
                if run.turn is not None and run.at_once:
                    await self._enter_at_once(run.turn)
                elif run.turn is not None and not await self._admitted(run, run.turn):
                    continue
                if not (run.counts or await self._begins(run)):
                    raise StartRefused("its claim was lost", lost=True)
                # Checked again after the wait, without the store: it may have been slow, or this process frozen.
                if not run.silent and self._sink.was_on(item_type):
                    self._no_plan.pop(item_type, None)
                    return
            except StoreError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _begins(self, run: Run) -> bool:
        """Writes that the body begins."""
        claim, sent_at = run.claim, uptime()
        run.counts = await self._sink.begins(claim)
        if run.claim is not claim:
            run.counts = False
            return True  # by the claim that took the run over meanwhile
        if run.counts:
            run.seen = sent_at
        return run.counts

    async def _renew(self, run: Run) -> bool:
        claim, sent_at = run.claim, uptime()
        is_held = await self._heartbeats.submit(claim)
        if run.claim is not claim:
            return True  # by the claim that took the run over meanwhile
        if is_held:
            run.seen = sent_at
        return is_held

    async def _admitted(self, run: Run, turn: DownstreamTurn) -> bool:
        """Whether its turn has come; False if the kill switch was turned off meanwhile."""
        config = run.request.config
        every = min(max(config.dispatch_interval_secs / 2, SHORTEST_WATCH), SWITCH_SECONDS)
        try:
            return await admitted(turn.enter(), self._sink, config.item_type, every)
        except (NotFound, ConfigurationError) as error:
            raise StartRefused(self._refuse_without_plan(config.item_type, error)) from None

    async def _enter_at_once(self, turn: DownstreamTurn) -> None:
        """Enters the call of a downstream that was open a moment ago. If it is not any more, the item goes back."""
        try:
            async with asyncio.timeout(LONGEST_ENTER):
                await turn.enter()
        except TimeoutError:
            raise StartRefused("its downstream takes no calls now") from None

    def _refuse_without_plan(self, item_type: str, error: PacelineError) -> str:
        """No item's failure: all are released, and retried later."""
        now = uptime()
        since = self._no_plan.get(item_type)
        if since is None or now - since >= NO_PLAN_SECONDS:
            events.log_no_plan(item_type, error)
        self._no_plan[item_type] = now
        return str(error)
