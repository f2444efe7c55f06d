"""Temporal's errors, translated for the queue."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure, ResourceExhaustedFailure
from temporalio.exceptions import (
    ApplicationError,
    ApplicationErrorCategory,
    CancelledError,
    FailureError,
    TimeoutError,
)
from temporalio.service import RPCError, RPCStatusCode

from paceline.dispatch.model import GiveUp
from paceline.dispatch.outcomes import OutcomeUnknown, Retry
from paceline.dispatch.ports import Start, StartOutcome
from paceline.dispatch.task_errors import describe, traceback_of
from paceline.errors import BrokerUnavailable, StoreFull, StoreLagging, StoreReadOnly, StoreUnavailable

OUTAGES = {error.__name__ for error in (StoreUnavailable, BrokerUnavailable, StoreReadOnly, StoreFull, StoreLagging)}
MARK = "paceline:ending"
"""The member that marks an `Ending` among an error's details."""
NOT_THE_ITEMS_FAULT = {
    RPCStatusCode.RESOURCE_EXHAUSTED,
    RPCStatusCode.UNAVAILABLE,
    RPCStatusCode.DEADLINE_EXCEEDED,
    RPCStatusCode.CANCELLED,
    RPCStatusCode.ABORTED,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.UNAUTHENTICATED,
    RPCStatusCode.FAILED_PRECONDITION,
}
"""The server is busy, unavailable or misconfigured: any other item would be refused as well."""


def refusal(error: Exception) -> StartOutcome:
    """What a failed start means for its item."""
    if not isinstance(error, RPCError):
        return StartOutcome(Start.EXHAUSTED if is_no_connection(error) else Start.FAILED, reason(error))
    if _too_large(error):
        return StartOutcome(Start.POISONED, f"too large for Temporal: {error.message}")
    if error.status in NOT_THE_ITEMS_FAULT:
        return StartOutcome(Start.EXHAUSTED, f"{error.status.name}: {error.message}")
    return StartOutcome(Start.FAILED, f"{error.status.name}: {error.message}")


def _too_large(error: RPCError) -> bool:
    if error.status is RPCStatusCode.RESOURCE_EXHAUSTED:
        # gRPC's own error for a message above its limit; Temporal's refusals carry a detail.
        return not _carries(error, ResourceExhaustedFailure()) and "larger than max" in error.message
    if error.status is not RPCStatusCode.INVALID_ARGUMENT:
        return False
    return "size exceeds limit" in error.message or "WorkflowId exceeds" in error.message


def is_no_workflow(error: RPCError) -> bool:
    """Whether the workflow does not exist; NOT_FOUND alone may also mean a missing namespace."""
    return error.status is RPCStatusCode.NOT_FOUND and not _carries(error, NamespaceNotFoundFailure())


def is_no_connection(error: Exception) -> bool:
    """Whether a lazy client's first call could not connect: the SDK has no type for that."""
    return isinstance(error, RuntimeError) and str(error).startswith("Failed client connect")


def _carries(error: RPCError, detail: ResourceExhaustedFailure | NamespaceNotFoundFailure) -> bool:
    return any(packed.Is(detail.DESCRIPTOR) for packed in error.grpc_status.details)


class EndKind(StrEnum):
    """What an execution that raised means for its item."""

    FAILED = "FAILED"
    GAVE_UP = "GAVE_UP"
    """A retry can't help."""
    UNKNOWN = "UNKNOWN"
    """It began, and nobody knows its effect."""
    LOST = "LOST"
    """It said nothing: its worker died, or its activity timed out. It may not have begun."""
    OUTAGE = "OUTAGE"
    """A store was unavailable, which is not the item's fault."""


class Ending(NamedTuple):
    """How an execution that raised ended, for the queue."""

    reason: str
    kind: EndKind = EndKind.FAILED
    pause: float | None = None
    """Seconds until the retry; None for the config's backoff."""
    verdict: str | None = None
    is_over: bool = False
    """The last inquiry decided nothing."""
    traceback: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Ending:
        """What `execute` raised."""
        trace = traceback_of(error)
        if isinstance(error, GiveUp):
            return cls(str(error), EndKind.GAVE_UP, verdict=error.verdict, traceback=trace)
        if isinstance(error, OutcomeUnknown):
            return cls(str(error), EndKind.UNKNOWN, _seconds(error.pause), is_over=error.is_over, traceback=trace)
        if isinstance(error, Retry):
            return cls(str(error), pause=_seconds(error.pause()), traceback=trace)
        kind = EndKind.OUTAGE if type(error).__name__ in OUTAGES else EndKind.FAILED
        return cls(describe(error), kind, traceback=trace)

    def as_error(self, type: str) -> ApplicationError:
        """What an activity raises: it is not retried, because the queue does the retrying, and `ending` reads it
        back."""
        return ApplicationError(self.reason, {MARK: self._asdict()}, type=type, non_retryable=True)


def _seconds(pause: timedelta | None) -> float | None:
    return None if pause is None else pause.total_seconds()


def lost_claim() -> ApplicationError:
    """Raised by an activity whose claim is lost: no failure is counted, and its report is ignored."""
    message = "its item is no longer its own"
    return ApplicationError(message, type="ClaimLost", non_retryable=True, category=ApplicationErrorCategory.BENIGN)


def ending(error: BaseException) -> Ending:
    """What a failure means for the item."""
    reported = _reported(error)
    if reported is not None:
        return reported._replace(kind=EndKind(reported.kind))
    root = _root(error)
    if not isinstance(root, FailureError):
        return Ending.of(root) if isinstance(root, GiveUp) else Ending(reason(root), traceback=traceback_of(root))
    trace = root.failure.stack_trace if root.failure is not None else ""
    end = Ending(reason(root), traceback=f"{trace}\n{reason(root)}" if trace else None)
    if isinstance(root, TimeoutError):
        return end._replace(kind=EndKind.LOST)
    if isinstance(root, CancelledError):
        return end._replace(kind=EndKind.UNKNOWN)
    return end._replace(kind=EndKind.OUTAGE) if isinstance(root, ApplicationError) and root.type in OUTAGES else end


def _reported(error: BaseException | None) -> Ending | None:
    """What `as_error` wrote; its cause is what the business code raised."""
    while isinstance(error, FailureError):
        detail = error.details[0] if isinstance(error, ApplicationError) and error.details else None
        if isinstance(detail, dict) and isinstance(detail.get(MARK), dict):
            return Ending(**detail[MARK])
        error = error.cause
    return None


def _root(error: BaseException) -> BaseException:
    while isinstance(error, FailureError) and error.cause is not None:
        error = error.cause
    return error


def reason(error: BaseException) -> str:
    """The message of a failure's root cause: what the business code raised."""
    error = _root(error)
    if isinstance(error, ApplicationError):
        return f"{error.type}: {error.message}" if error.type else error.message
    return f"{type(error).__name__}: {error}"
