"""The next change of an item after an event. Pure: facts in, the change out."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from paceline.dispatch.config import DispatchConfig, OnUnknown
from paceline.dispatch.encryption import shown_key
from paceline.dispatch.model import (
    CONTEXT_VERSION,
    ENCRYPTED_VERSION,
    Action,
    AttemptEnd,
    AttemptOutcome,
    Change,
    Claim,
    ClaimedItem,
    SilentClaim,
    shortened,
)
from paceline.dispatch.ports import Execution, ExecutionState, Start, StartOutcome
from paceline.dispatch.status import Status

STARTED, ENDED_WELL = (Status.DISPATCHED,), (Status.COMPLETED,)
"""Paths that nearly every item takes: made once."""


def start_delay(
    item: ClaimedItem, config: DispatchConfig, now: datetime, uniform: Callable[[], float] = random.random
) -> timedelta:
    """How long the engine delays the item: until its time, plus jitter unless its time is a booked slot."""
    delay = max(item.execute_at - now, timedelta(0))
    if not item.slotted:
        delay += timedelta(milliseconds=config.jitter_window_ms * uniform())
    return delay


def after_start(claim: Claim, outcome: StartOutcome, config: DispatchConfig, batch_id: str) -> Change:
    """The engine answered a start."""
    if outcome.start in (Start.STARTED, Start.ALREADY_STARTED):
        detail = "already started" if outcome.start is Start.ALREADY_STARTED else None
        return Change(claim, STARTED, Action.DISPATCHED, claim.retries, batch_id=batch_id, detail=detail)
    if outcome.start is Start.EXHAUSTED:
        return released(claim, f"engine exhausted: {outcome.detail}", batch_id)
    if outcome.start is Start.POISONED:
        return unrunnable(claim, outcome.detail, batch_id)
    return _counted(claim, config, Action.START_FAILED, outcome.detail, (), batch_id)


def after_success(claim: Claim, detail: str | None = None, result_json: str | None = None) -> Change:
    """The execution ended well."""
    return Change(claim, ENDED_WELL, Action.COMPLETED, claim.retries, detail=detail, result_json=result_json)


def after_failure(
    claim: Claim, config: DispatchConfig, error: str, pause: timedelta | None = None, traceback: str | None = None
) -> Change:
    """The execution failed. It is retried after `pause`, or else after the config's backoff."""
    change = _counted(claim, config, Action.FAILED, error, (Status.FAILED,), pause=pause)
    return change._replace(attempt=AttemptEnd(AttemptOutcome.FAILED, traceback))


def after_silence(silent: SilentClaim, state: ExecutionState, config: DispatchConfig) -> Change | None:
    """The claim had no heartbeat, and the engine reported `state`; None if the execution is alive. An execution whose
    body has not begun counts no retry."""
    claim, status, has_begun = silent
    if state.execution is Execution.COMPLETED:
        result = None if state.completion is None else state.completion.result_json
        return after_success(claim, "found completed", result)
    if state.execution is Execution.FAILED:
        return after_failure(claim, config, state.detail or "found failed")
    if state.execution is Execution.RUNNING and status is Status.CLAIMED:
        detail = "found running"
        return Change(claim, STARTED, Action.ADOPTED, claim.retries, detail=detail, seen=status)
    if state.execution not in (Execution.NOT_FOUND, Execution.LOST):
        return None
    if not has_begun:
        return released(claim, "claimed, never begun")._replace(action=Action.STALE_RECOVERED, seen=status)
    change = after_unknown(claim, config, state.detail or "execution lost")
    if change.action is not Action.DEAD_LETTERED:
        change = change._replace(action=Action.STALE_RECOVERED)
    return change._replace(seen=status)


def after_unknown(
    claim: Claim,
    config: DispatchConfig,
    error: str,
    pause: timedelta | None = None,
    traceback: str | None = None,
) -> Change:
    """An attempt began, and nobody knows its effect. By the config's `on_unknown`, the item is retried, inquired before
    it is retried, or held. When the attempts are used up, there is a last one to inquire; after that it is held."""
    end = AttemptEnd(AttemptOutcome.UNKNOWN, traceback)
    if config.on_unknown == OnUnknown.RETRY:
        return _counted(claim, config, Action.FAILED, error, (Status.FAILED,), pause=pause)._replace(attempt=end)
    retries = claim.retries + 1
    if config.on_unknown == OnUnknown.HOLD or retries > max(1, config.max_dispatch_retries):
        return held(claim, config, error)._replace(retries=retries, attempt=end)
    error, pause = _said_unknown(error), config.backoff(1) + config.look_ahead
    change = Change(claim, (Status.READY,), Action.UNKNOWN, retries, error, pause, detail=error)
    return change._replace(attempt=end, in_doubt=True)


def held(claim: Claim, config: DispatchConfig, error: str, batch_id: str | None = None) -> Change:
    """Nothing is sent until somebody resolves the item, or its hold is over."""
    error, hold = _said_unknown(error), timedelta(seconds=config.hold_for_secs)
    path = (Status.UNKNOWN,)
    change = Change(claim, path, Action.UNKNOWN, claim.retries, error, hold, batch_id, error)
    return change._replace(in_doubt=True)


def after_hold(claim: Claim) -> Change:
    """Nobody resolved the item while it was held. Its last error says that it is unknown, and why."""
    detail = "its hold is over, and nobody knows its effect"
    path = (Status.DEAD_LETTER,)
    return Change(claim, path, Action.DEAD_LETTERED, claim.retries, detail=detail, seen=Status.UNKNOWN)


def after_last_inquiry(claim: Claim, error: str) -> Change:
    """No inquiry decided anything while the item's hold lasted."""
    error = _said_unknown(error)
    path = (Status.FAILED, Status.DEAD_LETTER)
    return Change(claim, path, Action.DEAD_LETTERED, claim.retries, error, detail=error)


def _said_unknown(error: str) -> str:
    return shortened(f"unknown: {error}")


def released(claim: Claim, detail: str, batch_id: str | None = None, pause: timedelta | None = None) -> Change:
    """The item goes back; no retry is counted. With `pause` it is not due again before that."""
    detail = shortened(detail)
    path = (Status.READY,)
    return Change(claim, path, Action.RELEASED, claim.retries, pause=pause, batch_id=batch_id, detail=detail)


def gave_up(claim: Claim, reason: str, verdict: str | None = None, traceback: str | None = None) -> Change:
    """The execution reported that a retry can't help."""
    error = shortened(reason)
    path = (Status.FAILED, Status.DEAD_LETTER)
    change = Change(claim, path, Action.DEAD_LETTERED, claim.retries, error, detail=error, verdict=verdict)
    return change._replace(last_attempt=claim.retries + 1, attempt=AttemptEnd(AttemptOutcome.REFUSED, traceback))


def unrunnable(claim: Claim, error: str, batch_id: str | None = None) -> Change:
    """It can never run: retrying would only hide that."""
    error = shortened(error)
    path = (Status.DEAD_LETTER,)
    return Change(claim, path, Action.DEAD_LETTERED, claim.retries, error, batch_id=batch_id, detail=error)


def newer_context(item: ClaimedItem, config: DispatchConfig, batch_id: str) -> Change:
    """A newer version of paceline wrote its context, or it is encrypted under a key that is missing here. It goes back,
    without counting a retry, for a process that can read it; after a pause, because there may be none."""
    if item.context_version == ENCRYPTED_VERSION:
        key = shown_key(item.context_json)
        word = f"its context is encrypted with the key {key}, which this process does not have: give it the key"
    else:
        word = (
            f"its context has version {item.context_version}, and this version of paceline reads {CONTEXT_VERSION}: "
            "upgrade this process"
        )
    return released(item.claim, word, batch_id, config.backoff(1) + config.look_ahead)


def within_bytes(sizes: Sequence[int], max_bytes: int) -> int:
    """How many of the contexts in a row, of these sizes, a claim takes. The one that crosses the bound is the last:
    an item of any size gets its turn."""
    total = 0
    for count, size in enumerate(sizes):
        if total >= max_bytes:
            return count
        total += size
    return len(sizes)


def batch_name() -> str:
    """A name for a batch: unique, and short enough to read."""
    return f"BATCH-{secrets.token_hex(6)}"


def _counted(
    claim: Claim,
    config: DispatchConfig,
    action: Action,
    error: str,
    through: tuple[Status, ...],
    batch_id: str | None = None,
    pause: timedelta | None = None,
) -> Change:
    """A retry is counted; at the maximum the item is dead-lettered. Claims look ahead, so the look-ahead is added to
    the pause."""
    retries = claim.retries + 1
    error = shortened(error)
    if retries >= config.max_dispatch_retries:
        path = (*through, Status.DEAD_LETTER)
        return Change(claim, path, Action.DEAD_LETTERED, retries, error, batch_id=batch_id, detail=error)
    path = (*through, Status.READY)
    pause = (config.backoff(retries) if pause is None else pause) + config.look_ahead
    return Change(claim, path, action, retries, error, pause, batch_id, error)
