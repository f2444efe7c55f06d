"""The exec worker's checks before each activity of an execution: the kill switch, and its turn.
Inside the activity, `current_task()` is the execution's item."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from paceline.dispatch.config import OnUnknown
from paceline.dispatch.current_task import CurrentTask, current_task, enter_task, is_inside_task
from paceline.dispatch.downstream_turn import DownstreamTurn, turn_of
from paceline.dispatch.engines.temporal.claim_memo import KEY, Call, ClaimMemo
from paceline.dispatch.engines.temporal.failures import Ending, lost_claim
from paceline.dispatch.engines.temporal.heartbeat import send_heartbeats
from paceline.dispatch.engines.temporal.item_places import ItemPlaces
from paceline.dispatch.engines.temporal.item_workflow import EXECUTE, WorkerEnded
from paceline.dispatch.engines.temporal.outcome_activities import OFF
from paceline.dispatch.kill_switch import SWITCH_SECONDS, admitted
from paceline.dispatch.model import Claim, Postponed
from paceline.dispatch.outcomes import OutcomeUnknown
from paceline.dispatch.ports import OutcomeSink
from paceline.dispatch.start_limits import StartLimits
from paceline.dispatch.worker.places import Place
from paceline.errors import ConfigurationError, NotFound, StoreError

NOT_ADMITTED = "NotAdmitted"
SWITCHED_OFF = "SwitchedOff"
POSTPONED = "Postponed"
"""The failure type of a `Postponed` that business code raised."""
STORE_PAUSE = 0.5
"""Seconds until the guard retries after its store failed."""
NO_PLAN_PAUSE = timedelta(seconds=5)
"""The pause of an item whose admission plan can't be used."""


class ActivityGuard(ActivityInboundInterceptor):
    """An activity that is not admitted ends as `NOT_ADMITTED` or `SWITCHED_OFF`, and one that raised `Postponed` as
    `POSTPONED`. Its workflow's `OutboundCalls` handles all three; business code sees none."""

    def __init__(
        self,
        next: ActivityInboundInterceptor,
        limits: StartLimits | None,
        guarded: Mapping[str, Collection[str]],
        sink: OutcomeSink | None,
        places: ItemPlaces | None = None,
    ) -> None:
        super().__init__(next)
        self._limits = limits
        self._guarded = guarded
        self._sink = sink
        self._places = places

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        place: Place | None = None
        turn: DownstreamTurn | None = None
        memo: ClaimMemo | None = None
        try:
            if KEY in input.headers:
                call = Call.from_json(PayloadConverter.default.from_payload(input.headers[KEY]))
                if call is not None:
                    memo = call.memo
                    with _given_back():
                        place = await self._place_of(memo)
                        turn = await self._turn_of(memo)
                        await self._check(call, turn)
                    self._enter(memo, place, turn)
            # The turn of `execute` is its own: a task takes it right before its function.
            execute = partial(super().execute_activity, input)
            return await (execute() if turn is None or _is_execute() else turn.around(execute))
        except Postponed as postponed:
            if isinstance(postponed, WorkerEnded) and memo is not None and _is_unknown(memo):
                raise Ending.of(OutcomeUnknown(str(postponed))).as_error(OutcomeUnknown.__name__) from postponed
            attempts = activity.info().attempt - 1
            raise _refusal(POSTPONED, str(postponed), attempts=attempts, pause=postponed.pause) from postponed
        finally:
            if place is not None:
                place.release()
            if turn is not None:
                await turn.leave()  # if its body was never reached

    def _enter(self, memo: ClaimMemo, place: Place | None, turn: DownstreamTurn | None) -> None:
        if self._sink is not None:
            current = CurrentTask(lambda: memo.claim, self._sink, memo.lane, memo.priority, place, _stopping(), turn)
            current.in_doubt, current.is_last_inquiry = memo.in_doubt, memo.is_last_inquiry
            current.is_used_up = memo.is_used_up
            enter_task(current)

    async def _turn_of(self, memo: ClaimMemo) -> DownstreamTurn | None:
        """The turn of this activity; None if it waits for none."""
        item_type = memo.claim.item_type
        if self._sink is None or not self._is_guarded(item_type):
            return None
        execute = self._places.execute(item_type) if self._places is not None and _is_execute() else None
        with _heartbeats(activity.info()):
            while True:
                try:
                    config = await self._sink.config(item_type)
                    return turn_of(execute, config, self._limits, self._sink.config)
                except StoreError:
                    await asyncio.sleep(STORE_PAUSE)

    def _is_guarded(self, item_type: str) -> bool:
        names = self._guarded.get(item_type)
        return names is None or activity.info().activity_type in names

    async def _place_of(self, memo: ClaimMemo) -> Place | None:
        """A place for an item's own function, before all other waits."""
        if self._places is None or not _is_execute():
            return None
        with _heartbeats(activity.info()):
            return await self._places.of(memo.claim, memo.lane, memo.priority)

    async def _check(self, call: Call, turn: DownstreamTurn | None) -> None:
        # An earlier attempt may have made the call.
        first = call.first and activity.info().attempt == 1
        item_type = call.memo.claim.item_type
        if self._is_guarded(item_type):
            await self._wait(call.memo, first, turn)
        elif first and not await self._enabled(item_type):
            raise _refusal(SWITCHED_OFF, OFF)
        elif first:
            await self._begin(call.memo.claim)

    async def _wait(self, memo: ClaimMemo, first: bool, turn: DownstreamTurn | None) -> None:
        """Waits for the kill switch and its turn, and gives the attempt back before the activity times out."""
        info = activity.info()
        limit = _wait_timeout(info)
        try:
            with _heartbeats(info):
                async with asyncio.timeout(limit):
                    while not await self._admitted(memo.claim.item_type, turn):
                        if first:
                            raise _refusal(SWITCHED_OFF, OFF)
                        # It has had an effect already: it continues from here when the switch is on again.
                        await asyncio.sleep(SWITCH_SECONDS)
                    if first or turn is not None:
                        await self._begin(memo.claim)
        except TimeoutError:
            message = f"its turn did not come within {limit} s" if turn is not None else OFF
            raise _refusal(NOT_ADMITTED, message, attempts=info.attempt - 1) from None
        except (NotFound, ConfigurationError) as error:
            raise Postponed(str(error), NO_PLAN_PAUSE) from None

    async def _admitted(self, item_type: str, turn: DownstreamTurn | None) -> bool:
        """Waits for its turn, if it needs one; False if the kill switch is off."""
        while True:
            try:
                is_on = await self._enabled(item_type)
                if turn is None or self._sink is None or not is_on:
                    return is_on
                return await admitted(turn.enter(), self._sink, item_type)
            except StoreError:
                await asyncio.sleep(STORE_PAUSE)

    async def _begin(self, claim: Claim) -> None:
        """From here on the attempt counts; one whose claim is lost must not begin."""
        while self._sink is not None:
            try:
                if not await self._sink.begins(claim):
                    raise lost_claim()
                return
            except StoreError:
                await asyncio.sleep(STORE_PAUSE)

    async def _enabled(self, item_type: str) -> bool:
        return self._sink is None or await self._sink.enabled(item_type)


def _is_execute() -> bool:
    """Whether this activity is an item's own function."""
    return activity.info().activity_type == EXECUTE


def _is_unknown(memo: ClaimMemo) -> bool:
    """Whether nobody knows what became of an execution whose worker ended: not if it inquired, and not if its task
    may simply run again."""
    return memo.on_unknown != OnUnknown.RETRY and not (is_inside_task() and current_task().in_doubt)


@contextmanager
def _given_back() -> Iterator[None]:
    """What waits in the block when its worker ends goes back."""
    try:
        yield
    except asyncio.CancelledError:
        if activity.is_worker_shutdown():
            raise Postponed("its worker ended before it began") from None
        raise


@contextmanager
def _heartbeats(info: activity.Info) -> Iterator[None]:
    """Sends heartbeats while the block waits."""
    if not info.heartbeat_timeout or info.is_local:
        yield
        return
    heartbeats = asyncio.create_task(send_heartbeats(info.heartbeat_timeout))
    try:
        yield
    finally:
        heartbeats.cancel()


def _stopping() -> Callable[[], bool]:
    """Whether the activity's worker ends, for any thread: only the activity's own context can tell."""
    context = contextvars.copy_context()
    return lambda: bool(context.copy().run(activity.is_worker_shutdown))


def _refusal(type: str, message: str, *, attempts: int = 0, pause: timedelta | None = None) -> ApplicationError:
    """The guard's answer to the workflow: how many attempts were made, and for how many seconds the item pauses. It
    does not count as a failure."""
    seconds = None if pause is None else pause.total_seconds()
    details = (attempts, seconds)
    return ApplicationError(message, *details, type=type, non_retryable=True, category=ApplicationErrorCategory.BENIGN)


def _wait_timeout(info: activity.Info) -> float | None:
    """Half of the activity's remaining time, in seconds."""
    left = []
    if info.start_to_close_timeout:
        left.append(info.start_to_close_timeout)
    if info.schedule_to_close_timeout:
        left.append(info.schedule_to_close_timeout - (info.started_time - info.scheduled_time))
    return min(left).total_seconds() / 2 if left else None
