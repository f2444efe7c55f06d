"""Local activities by which an execution reports to the queue. They run in the exec worker's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from temporalio import activity
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from paceline.batching import Batcher
from paceline.dispatch.engines.temporal.claim_memo import ClaimMemo
from paceline.dispatch.engines.temporal.completions import completion_from_json
from paceline.dispatch.engines.temporal.failures import Ending, EndKind
from paceline.dispatch.model import Claim
from paceline.dispatch.ports import OutcomeSink
from paceline.errors import StoreError

MAY_BEGIN = "paceline.may_begin"
REPORT = "paceline.report"
RELEASE = "paceline.release"
END = "paceline.end"
OWN = frozenset({MAY_BEGIN, REPORT, RELEASE, END})
OFF = "the kill switch was off at its time"

CALL_TIMEOUT = timedelta(seconds=30)
RETRY = RetryPolicy(initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=30))
"""Without limit: the effect has happened, and only this report records it."""
OUTAGE_PAUSE = timedelta(seconds=10)
"""The pause of an item whose execution met a store outage."""
RETRY_IN_WORKER = timedelta(seconds=5)
"""Longer pauses become timers on the server, so that a store outage occupies no worker."""


class OutcomeActivities:
    """Each is idempotent: the claim's epoch and the item's status let an outcome count once."""

    def __init__(self, sink: OutcomeSink) -> None:
        self._sink = sink
        self._heartbeats: Batcher[Claim, bool] = Batcher(self._alive)

    @property
    def all(self) -> list[Callable[..., Any]]:
        return [self.may_begin, self.report, self.release, self.end]

    @activity.defn(name=MAY_BEGIN)
    async def may_begin(self, memo: dict[str, Any]) -> bool:
        """Whether this execution may begin. Not if the kill switch is off; then its item has been given back. Not if
        its claim is lost."""
        claim = _claim_memo(memo).claim
        with _retried_if_the_store_failed():
            if await self._sink.enabled(claim.item_type):
                return await self._heartbeats.submit(claim)
            await self._sink.released(claim, OFF)
            return False

    @activity.defn(name=REPORT)
    async def report(self, memo: dict[str, Any], completion: dict[str, Any] | None, seconds: float) -> bool:
        """Reports that the execution succeeded, with its result, and how long it took. False if its claim was lost
        meanwhile."""
        claim = _claim_memo(memo).claim
        with _retried_if_the_store_failed():
            done = await self._sink.completed(claim, completion_from_json(completion))
        self._sink.executed(claim.item_type, seconds)  # after it is stored, so that a retried report counts once
        return done

    @activity.defn(name=RELEASE)
    async def release(self, memo: dict[str, Any], reason: str = OFF, pause: float | None = None) -> bool:
        """Gives the item of an execution back, to pause for `pause` seconds; False if its claim was lost."""
        claim, rest = _claim_memo(memo).claim, None if pause is None else timedelta(seconds=pause)
        with _retried_if_the_store_failed():
            return await self._sink.released(claim, reason, rest)

    @activity.defn(name=END)
    async def end(self, memo: dict[str, Any], ending: dict[str, Any], seconds: float) -> bool:
        """Reports that the execution ended without success, and how long it took; False if its claim was lost
        meanwhile."""
        claim, end = _claim_memo(memo).claim, Ending(**ending)
        with _retried_if_the_store_failed():
            done = await self._ended(claim, end)
        if end.kind is not EndKind.OUTAGE:
            self._sink.executed(claim.item_type, seconds)
        return done

    async def _ended(self, claim: Claim, end: Ending) -> bool:
        pause = None if end.pause is None else timedelta(seconds=end.pause)
        match end.kind:
            case EndKind.OUTAGE:
                return await self._sink.released(claim, end.reason, OUTAGE_PAUSE)
            case EndKind.LOST:
                return await self._sink.lost(claim, end.reason)
            case EndKind.UNKNOWN:
                return await self._sink.unknown(claim, end.reason, pause, end.traceback, is_over=end.is_over)
            case EndKind.GAVE_UP:
                return await self._sink.gave_up(claim, end.reason, end.verdict, end.traceback)
            case EndKind.FAILED:
                return await self._sink.failed(claim, end.reason, pause, end.traceback)

    async def _alive(self, claims: Sequence[Claim]) -> list[bool]:
        once = list(dict.fromkeys(claims))
        alive = dict(zip(once, await self._sink.alive(once), strict=True))
        return [alive[claim] for claim in claims]


@contextmanager
def _retried_if_the_store_failed() -> Iterator[None]:
    """Only store errors are retried; the reconciler finds the rest."""
    try:
        yield
    except Exception as error:
        final = not isinstance(error, StoreError)
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=final) from error


def _claim_memo(value: dict[str, Any]) -> ClaimMemo:
    memo = ClaimMemo.from_json(value)
    if memo is None:
        raise ApplicationError(f"not a memo: {value!r}", non_retryable=True)
    return memo
