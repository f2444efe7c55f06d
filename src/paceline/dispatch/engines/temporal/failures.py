"""Temporal's errors, translated for the queue."""

from __future__ import annotations

from typing import NamedTuple

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure, ResourceExhaustedFailure
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, FailureError
from temporalio.service import RPCError, RPCStatusCode

from paceline.dispatch.model import GiveUp
from paceline.dispatch.outcomes import Retry
from paceline.dispatch.ports import Start, StartOutcome
from paceline.errors import BrokerUnavailable, StoreFull, StoreLagging, StoreReadOnly, StoreUnavailable

OUTAGES = {error.__name__ for error in (StoreUnavailable, BrokerUnavailable, StoreReadOnly, StoreFull, StoreLagging)}
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


class Ending(NamedTuple):
    """How an execution that raised ended, for the queue."""

    reason: str
    gave_up: bool = False
    """A retry can't help."""
    verdict: str | None = None
    outage: bool = False
    """A store was unavailable, which is not the item's fault."""
    pause: float | None = None
    """Seconds until the retry; None for the config's backoff."""


def gave_up(error: GiveUp) -> ApplicationError:
    """What an activity raises for `GiveUp`: it is not retried, and `ending` reads it back."""
    return ApplicationError(str(error), error.verdict, type=GiveUp.__name__, non_retryable=True)


def retry(error: Retry) -> ApplicationError:
    """What an activity raises for `Retry`: the queue does the retrying, and `ending` reads its time back."""
    pause = error.pause()
    seconds = None if pause is None else pause.total_seconds()
    return ApplicationError(str(error), seconds, type=Retry.__name__, non_retryable=True)


def lost_claim() -> ApplicationError:
    """Raised by an activity whose claim is lost: no failure is counted, and its report is ignored."""
    message = "its item is no longer its own"
    return ApplicationError(message, type="ClaimLost", non_retryable=True, category=ApplicationErrorCategory.BENIGN)


def ending(error: BaseException) -> Ending:
    """What a failure means for the item."""
    failure = _reported_failure(error)
    if failure is not None:
        detail = failure.details[0] if failure.details else None
        if failure.type == GiveUp.__name__:
            return Ending(failure.message, gave_up=True, verdict=None if detail is None else str(detail))
        return Ending(failure.message, pause=None if detail is None else float(detail))
    root = _root(error)
    if isinstance(root, GiveUp):
        return Ending(str(root), gave_up=True, verdict=root.verdict)
    kind = root.type if isinstance(root, ApplicationError) else type(root).__name__
    return Ending(reason(root), outage=kind in OUTAGES)


def _reported_failure(error: BaseException | None) -> ApplicationError | None:
    """What `gave_up` or `retry` made; its cause is what the business code raised, which has no details."""
    while isinstance(error, FailureError):
        if isinstance(error, ApplicationError) and error.type in (GiveUp.__name__, Retry.__name__):
            return error
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
