"""For domains without a workflow of their own: one that runs the domain's `execute` as an activity."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RawValue, RetryPolicy
from temporalio.exceptions import ApplicationError

from headgate.dispatch.engines.temporal.claim_memo import KEY, ClaimMemo
from headgate.dispatch.engines.temporal.failures import gave_up
from headgate.dispatch.engines.temporal.heartbeat import send_heartbeats
from headgate.dispatch.model import GiveUp
from headgate.dispatch.registry import Registry
from headgate.dispatch.threads import Threads

EXECUTE = "headgate.execute"
LONGEST_EXECUTION = timedelta(hours=1)
LONGEST_SILENCE = timedelta(seconds=10)
"""An activity whose worker died is noticed after this."""
RETRY = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3)
"""For lost workers only: what `execute` raises is final, because the queue does the retrying."""


@workflow.defn(dynamic=True)
class ItemWorkflow:
    """Stands in for any workflow type that has no class of its own on its worker."""

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> None:
        memo = ClaimMemo.from_json(workflow.memo_value(KEY, None))
        if memo is None:
            raise ApplicationError("it was not started by a dispatcher", non_retryable=True)
        converter = workflow.payload_converter()
        item_id, context_json = (converter.from_payload(arg.payload, str) for arg in args)
        await workflow.execute_activity(
            EXECUTE,
            args=[memo.claim.item_type, item_id, context_json],
            start_to_close_timeout=LONGEST_EXECUTION,
            heartbeat_timeout=LONGEST_SILENCE,
            retry_policy=RETRY,
        )


class ItemActivities:
    """Runs `execute` of the registered domains."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._threads = Threads()

    @activity.defn(name=EXECUTE)
    async def execute(self, item_type: str, item_id: str, context_json: str) -> None:
        heartbeats = asyncio.create_task(send_heartbeats(LONGEST_SILENCE))
        try:
            await self._threads.call(self._registry[item_type].execute, item_id, json.loads(context_json))
        except asyncio.CancelledError:
            raise
        except GiveUp as error:
            raise gave_up(error) from error
        except Exception as error:
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
        finally:
            heartbeats.cancel()
