"""A small business domain on plain Temporal. It imports nothing of paceline: that is the point."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

TIMEOUT = timedelta(seconds=20)


@workflow.defn
class BillingExecWorkflow:
    """Charges, then writes the receipt; its context says what goes wrong on the way."""

    @workflow.run
    async def run(self, item_id: str, context_json: str) -> str:
        context = json.loads(context_json)
        if context.get("continue"):
            workflow.continue_as_new(args=[item_id, json.dumps({**context, "continue": context["continue"] - 1})])
        try:
            charged: str = await workflow.execute_activity(
                "charge",
                args=[item_id, context.get("declines", 0)],
                start_to_close_timeout=timedelta(seconds=context["timeout"]) if "timeout" in context else TIMEOUT,
                heartbeat_timeout=timedelta(seconds=1),
                retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=3),
            )
        except ActivityError:
            if context.get("forgives"):
                return "forgiven"
            raise
        if context.get("bug"):
            return {"no such": "key"}[context["bug"]]
        if context.get("sleep"):
            await workflow.sleep(context["sleep"])
        await workflow.execute_local_activity("receipt", item_id, start_to_close_timeout=TIMEOUT)
        return charged


@workflow.defn
class BillingInitWorkflow:
    """Prepares an invoice."""

    @workflow.run
    async def run(self, item_id: str) -> str:
        prepared: str = await workflow.execute_activity("prepare", item_id, start_to_close_timeout=TIMEOUT)
        return prepared


class Billing:
    """What was done, in memory."""

    def __init__(self) -> None:
        self.charges: Counter[str] = Counter()
        self.attempts: Counter[str] = Counter()
        self.receipts: Counter[str] = Counter()
        self.times: list[float] = []
        """When charges were tried."""

    @activity.defn
    async def prepare(self, item_id: str) -> str:
        return f"prepared {item_id}"

    @activity.defn
    async def charge(self, item_id: str, declines: int) -> str:
        self.times.append(time.monotonic())
        self.attempts[item_id] += 1
        if self.attempts[item_id] <= declines:
            raise ApplicationError(f"card of {item_id} declined", type="Declined")
        self.charges[item_id] += 1
        return f"charged {item_id}"

    @activity.defn
    def receipt(self, item_id: str) -> None:
        """A blocking one."""
        self.receipts[item_id] += 1
