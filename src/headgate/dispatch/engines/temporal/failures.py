"""What Temporal's errors mean to the queue."""

from __future__ import annotations

from temporalio.api.errordetails.v1 import NamespaceNotFoundFailure, ResourceExhaustedFailure
from temporalio.exceptions import ApplicationError, FailureError
from temporalio.service import RPCError, RPCStatusCode

from headgate.dispatch.ports import Start, StartOutcome

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
"""The server is busy, away or misconfigured: any other item would be refused as well."""


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
        # gRPC itself answers a message above its limit so; Temporal's own refusals carry a detail.
        return not _carries(error, ResourceExhaustedFailure()) and "larger than max" in error.message
    if error.status is not RPCStatusCode.INVALID_ARGUMENT:
        return False
    return "size exceeds limit" in error.message or "WorkflowId exceeds" in error.message


def is_no_workflow(error: RPCError) -> bool:
    """Whether the server knows no such workflow; it says NOT_FOUND of a missing namespace, too."""
    return error.status is RPCStatusCode.NOT_FOUND and not _carries(error, NamespaceNotFoundFailure())


def is_no_connection(error: Exception) -> bool:
    """Whether a client that connects with its first call could not: the SDK has no type for that."""
    return isinstance(error, RuntimeError) and str(error).startswith("Failed client connect")


def _carries(error: RPCError, detail: ResourceExhaustedFailure | NamespaceNotFoundFailure) -> bool:
    return any(packed.Is(detail.DESCRIPTOR) for packed in error.grpc_status.details)


def reason(error: BaseException) -> str:
    """The root of a failure, in words: what the business code raised, not through how many layers it came."""
    while isinstance(error, FailureError) and error.cause is not None:
        error = error.cause
    if isinstance(error, ApplicationError):
        return f"{error.type}: {error.message}" if error.type else error.message
    return f"{type(error).__name__}: {error}"
