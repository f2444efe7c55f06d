"""For domains without a workflow of their own: one that runs the domain's `execute` as an activity."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

from temporalio import activity, workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError

from paceline.dispatch import events
from paceline.dispatch.current_task import current_claim, current_task
from paceline.dispatch.downstream_turn import at_turn
from paceline.dispatch.engines.temporal.claim_memo import KEY, ClaimMemo
from paceline.dispatch.engines.temporal.claim_watch import ClaimWatch
from paceline.dispatch.engines.temporal.completions import completion_from_json, completion_to_json
from paceline.dispatch.engines.temporal.failures import Ending
from paceline.dispatch.engines.temporal.heartbeat import send_heartbeats
from paceline.dispatch.model import Completion, Postponed
from paceline.dispatch.ports import OutcomeSink
from paceline.dispatch.registry import Execute, Registry
from paceline.dispatch.task_errors import is_cancelling
from paceline.dispatch.worker.threads import is_coroutine_function

EXECUTE = "paceline.execute"
LONGEST_EXECUTION = timedelta(days=365)
"""Temporal requires a timeout. The queue has none: a task's own timeout is enforced inside the activity."""
HEARTBEAT_TIMEOUT = timedelta(seconds=10)
"""An activity whose worker died is detected after this."""
ONCE = RetryPolicy(maximum_attempts=1)
"""The queue does the retrying: it knows which attempts have begun, and what follows one whose effect nobody knows."""


@workflow.defn(dynamic=True)
class ItemWorkflow:
    """The workflow of every type that has no class of its own on its worker."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> Completion | None:
        memo = ClaimMemo.from_json(workflow.memo_value(KEY, None))
        if memo is None:
            raise ApplicationError("it was not started by a dispatcher", non_retryable=True)
        converter = workflow.payload_converter()
        item_id, context_json = (converter.from_payload(arg.payload, str) for arg in args)
        returned = await workflow.execute_activity(
            EXECUTE,
            args=[memo.claim.item_type, item_id, context_json],
            start_to_close_timeout=LONGEST_EXECUTION,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=ONCE,
        )
        return completion_from_json(returned)


class WorkerEnded(Postponed):
    """The worker ended while the execution ran: it goes back, so a deployment costs neither an attempt nor a retry,
    unless its task must know what became of it."""

    def __init__(self) -> None:
        super().__init__("its worker ended while it ran")


class ItemActivities:
    """Runs `execute` of the registered domains."""

    def __init__(self, registry: Registry, sink: OutcomeSink) -> None:
        self._registry = registry
        self._claims = ClaimWatch(sink)

    @activity.defn(name=EXECUTE)
    async def execute(self, item_type: str, item_id: str, context_json: str) -> dict[str, Any] | None:
        heartbeats = asyncio.create_task(send_heartbeats(HEARTBEAT_TIMEOUT))
        claim = current_claim()
        try:
            async with nullcontext() if claim is None else self._claims.watching(claim):
                result = await self._run(self._registry[item_type].execute, item_id, json.loads(context_json))
        except asyncio.CancelledError:
            if activity.is_worker_shutdown():
                raise WorkerEnded from None
            raise
        finally:
            heartbeats.cancel()
        return completion_to_json(result) if isinstance(result, Completion) else None

    async def _run(self, execute: Execute, item_id: str, context: Any) -> Any:
        try:
            turn = None if current_claim() is None else current_task().turn
            return await at_turn(turn, execute, partial(_executed, execute, item_id, context))
        except Postponed:
            raise  # for the activity guard
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelling():
                raise
            end = Ending.of(error)
            if end.traceback is not None and (claim := current_claim()) is not None:
                events.log_traceback(claim, end.traceback)
            raise end.as_error(type(error).__name__) from error


async def _executed(execute: Execute, item_id: str, context: Any) -> Any:
    if is_coroutine_function(execute):
        return await execute(item_id, context)
    result = await current_task().run_on_thread(partial(execute, item_id, context))
    return await result if inspect.isawaitable(result) else result
