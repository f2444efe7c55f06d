"""`TemporalEngine`: an execution is a workflow with the deterministic id `exec-{itemType}-{itemId}`.

Temporal rejects a second start of a running or completed workflow within its retention; after that, the queue's
database prevents it. No execution timeout is ever set, because it would include the start delay; a run timeout starts
after it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import TerminatedError, WorkflowAlreadyStartedError
from temporalio.service import RPCError

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.engines.temporal.claim_memo import KEY, ClaimMemo
from paceline.dispatch.engines.temporal.completions import completion_from_json
from paceline.dispatch.engines.temporal.failures import EndKind, ending, is_no_workflow, reason, refusal
from paceline.dispatch.engines.temporal.trace_interceptor import MEMO as TRACE
from paceline.dispatch.model import Claim, Completion
from paceline.dispatch.ports import STARTED, Execution, ExecutionState, OutcomeSink, Start, StartOutcome, StartRequest
from paceline.dispatch.registry import Registry, inquires
from paceline.dispatch.turns import DEFAULT_LANE, DEFAULT_PRIORITY
from paceline.errors import StoreError

log = logging.getLogger("paceline.dispatch")

RPC_TIMEOUT = timedelta(seconds=10)
START_TIMEOUT = 15.0
"""The timeout of a start, in seconds; then the claim goes back. A client's first call also connects, and the SDK
retries that for 90 seconds against a server that accepts connections and never answers, whatever the call's timeout."""
UNANSWERED = f"no response within {START_TIMEOUT:g} s"
CLOSING_SECONDS = 2.0
"""A failed execution reports before it closes; a retry that comes in between waits this long for it."""
CLOSING_PAUSE = 0.05
LONGEST_FAIRNESS_KEY = 64
"""Bytes."""
NOT_BEGUN = 2
"""Events in the history of a workflow that has not run yet: started, and perhaps its first task scheduled."""


class TemporalEngine:
    """A `WorkflowEngine` on Temporal. Give it a client of `connect_for_dispatch`.

    With `sink`, an item whose execution turns out to have succeeded, when it is started again, is completed at once.
    `registry` says which item types can inquire; items in doubt of others are held.
    """

    def __init__(
        self,
        client: Client,
        sink: OutcomeSink | None = None,
        *,
        registry: Registry | None = None,
        concurrency: int = 64,
        run_timeout: timedelta | None = None,
    ) -> None:
        self._client = client
        self._registry = registry or Registry()
        self._sink = sink
        self._calls = asyncio.Semaphore(concurrency)
        self._run_timeout = run_timeout

    # -- WorkflowEngine ------------------------------------------------------------------------------------------

    async def start(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        batch = _Batch()
        return await asyncio.gather(*(self._start(request, batch) for request in requests))

    async def describe(self, claims: Sequence[Claim]) -> list[ExecutionState]:
        return await asyncio.gather(*(self._describe(claim) for claim in claims))

    async def stop(self, claims: Sequence[Claim], *, running: bool = False) -> None:
        await asyncio.gather(*(self._stop(claim, running) for claim in claims))

    async def _stop(self, claim: Claim, running: bool) -> None:
        handle = self._client.get_workflow_handle(claim.execution_id)
        async with self._calls:
            try:
                description = await handle.describe(rpc_timeout=RPC_TIMEOUT)
                if description.status is WorkflowExecutionStatus.RUNNING and description.history_length <= NOT_BEGUN:
                    # Terminated, since a cancellation would only be seen when the start delay is over.
                    await self._end(description, "its item was cancelled")
                elif description.status is WorkflowExecutionStatus.RUNNING and running:
                    await handle.cancel(rpc_timeout=RPC_TIMEOUT)
            except (RPCError, RuntimeError):
                return

    def room(self, config: DispatchConfig) -> int | None:
        return None

    def reserved(self, config: DispatchConfig, limit: int) -> AbstractContextManager[int]:
        return nullcontext(0)

    def inquires(self, item_type: str) -> bool:
        return item_type in self._registry and inquires(self._registry[item_type].execute)

    def looks_ahead(self, item_type: str) -> bool:
        return True

    async def close(self) -> None:
        """Executions run on the server; there is nothing to release."""

    # -- starting ------------------------------------------------------------------------------------------------

    async def _start(self, request: StartRequest, batch: _Batch) -> StartOutcome:
        async with self._calls:
            if batch.refusal is not None:
                return batch.refusal
            try:
                async with asyncio.timeout(START_TIMEOUT):
                    outcome = await self._start_or_find(request)
            except TimeoutError:
                outcome = StartOutcome(Start.EXHAUSTED, UNANSWERED)
            except Exception as error:
                outcome = refusal(error)
            if outcome.start is Start.EXHAUSTED:
                # The other starts of this batch would be refused as well, and add load.
                batch.refusal = outcome
            return outcome

    async def _start_or_find(self, request: StartRequest) -> StartOutcome:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CLOSING_SECONDS
        while True:
            try:
                await self._start_workflow(request)
            except WorkflowAlreadyStartedError:
                outcome = await self._existing_outcome(request.claim, last_look=loop.time() >= deadline)
                if outcome is not None:
                    return outcome
                await asyncio.sleep(CLOSING_PAUSE)
            else:
                return STARTED

    async def _start_workflow(self, request: StartRequest) -> None:
        config = request.config
        memo: dict[str, Any] = {KEY: ClaimMemo.of(request).to_json()}
        if request.traceparent is not None:
            memo[TRACE] = request.traceparent
        await self._client.start_workflow(
            config.exec_workflow_type,
            args=[request.claim.item_id, request.context_json],
            id=request.execution_id,
            task_queue=config.exec_task_queue,
            start_delay=request.start_delay or None,
            run_timeout=self._run_timeout,
            memo=memo,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            rpc_timeout=RPC_TIMEOUT,
            priority=_priority(request),
        )

    async def _existing_outcome(self, claim: Claim, *, last_look: bool) -> StartOutcome | None:
        """The outcome for an execution that exists already; None if the start may be retried."""
        try:
            description = await self._client.get_workflow_handle(claim.execution_id).describe(rpc_timeout=RPC_TIMEOUT)
        except RPCError:
            return StartOutcome(Start.ALREADY_STARTED)
        if description.status is WorkflowExecutionStatus.COMPLETED:
            await self._report_completed(claim, await self._completion(description))
            return StartOutcome(Start.ALREADY_STARTED, "it had ended well")
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return StartOutcome(Start.FAILED, f"{claim.execution_id} keeps failing at once") if last_look else None
        epoch = await _epoch(description)
        if epoch >= claim.epoch or not epoch:
            return StartOutcome(Start.ALREADY_STARTED)
        if description.history_length <= NOT_BEGUN:
            # Its claim is lost and it has not begun, so it is safe to end it.
            await self._end(description, "its claim is lost: it is started under a newer one")
            return None
        return StartOutcome(Start.ALREADY_STARTED, "under an older claim") if last_look else None

    async def _end(self, description: WorkflowExecutionDescription, why: str) -> None:
        handle = self._client.get_workflow_handle(description.id, run_id=description.run_id)
        try:
            await handle.terminate(why, rpc_timeout=RPC_TIMEOUT)
        except RPCError as error:
            if not is_no_workflow(error):
                raise

    async def _report_completed(self, claim: Claim, completion: Completion | None) -> None:
        if self._sink is not None:
            try:
                await self._sink.completed(claim, completion)
            except StoreError:
                return  # the reconciler will find it

    # -- describing ----------------------------------------------------------------------------------------------

    async def _describe(self, claim: Claim) -> ExecutionState:
        handle = self._client.get_workflow_handle(claim.execution_id)
        async with self._calls:
            try:
                async with asyncio.timeout(START_TIMEOUT):
                    description = await handle.describe(rpc_timeout=RPC_TIMEOUT)
                    return await self._state(description, claim)
            except RPCError as error:
                if is_no_workflow(error):
                    return ExecutionState(Execution.NOT_FOUND)
                return ExecutionState(Execution.UNKNOWN, f"{error.status.name}: {error.message}")
            except TimeoutError:
                return ExecutionState(Execution.UNKNOWN, UNANSWERED)
            except Exception as error:
                return ExecutionState(Execution.UNKNOWN, reason(error))

    async def _state(self, description: WorkflowExecutionDescription, claim: Claim) -> ExecutionState:
        if description.status is WorkflowExecutionStatus.RUNNING:
            return ExecutionState(Execution.RUNNING)
        if description.status is WorkflowExecutionStatus.COMPLETED:
            return ExecutionState(Execution.COMPLETED, completion=await self._completion(description))
        if await _epoch(description) < claim.epoch:
            # The failure is an earlier attempt's, already counted; under this claim nothing was started.
            return ExecutionState(Execution.NOT_FOUND)
        handle = self._client.get_workflow_handle(description.id, run_id=description.run_id)
        return await _failed_state(handle)

    async def _completion(self, description: WorkflowExecutionDescription) -> Completion | None:
        """The result of a completed execution; None if it can't be read."""
        handle = self._client.get_workflow_handle(description.id, run_id=description.run_id)
        try:
            return completion_from_json(await handle.result(follow_runs=False, rpc_timeout=RPC_TIMEOUT))
        except Exception as error:
            log.warning("the result of %s can't be read: %s", description.id, reason(error))
            return None


class _Batch:
    """What the starts of one batch share."""

    refusal: StartOutcome | None = None


def _priority(request: StartRequest) -> Priority:
    """The task's priority on Temporal, which has five with 3 as the default, as 5 is ours. On a server with fairness,
    lanes take turns, too."""
    if (request.lane, request.priority) == (DEFAULT_LANE, DEFAULT_PRIORITY):
        return Priority.default
    lane = request.lane.encode()
    key = request.lane if len(lane) <= LONGEST_FAIRNESS_KEY else hashlib.sha256(lane).hexdigest()
    return Priority(priority_key=request.priority // 2 + 1, fairness_key=key)


async def _epoch(description: WorkflowExecutionDescription) -> int:
    """The epoch it was started under; 0 if it was not started by a dispatcher."""
    memo = ClaimMemo.from_json(await description.memo_value(KEY, None))
    return memo.claim.epoch if memo is not None else 0


async def _failed_state(handle: WorkflowHandle[object, object]) -> ExecutionState:
    try:
        await handle.result(follow_runs=False, rpc_timeout=RPC_TIMEOUT)
    except WorkflowFailureError as error:
        end = ending(error.cause)
        if isinstance(error.cause, TerminatedError) or end.kind in (EndKind.LOST, EndKind.UNKNOWN):
            return ExecutionState(Execution.LOST, end.reason)
        return ExecutionState(Execution.FAILED, end.reason)
    return ExecutionState(Execution.FAILED)
