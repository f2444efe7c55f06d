"""Log lines of dispatch: one per batch, one per item that needs attention, and the traceback of each failed attempt."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from paceline.dispatch.model import Change, Claim
from paceline.dispatch.status import Status

log = logging.getLogger("paceline.dispatch")


def log_batch(item_type: str, batch_id: str, detail: str) -> None:
    log.info("Batch %s of %s: %s", batch_id, item_type, detail, extra={"item_type": item_type, "batch_id": batch_id})


def log_recovery(item_type: str, items: int) -> None:
    log.warning("%d stale claims of %s were given back", items, item_type, extra={"item_type": item_type})


def log_not_begun(item_type: str, item_id: str) -> None:
    fields = {"item_type": item_type, "item_id": item_id}
    log.warning("%s %s was not begun: its claim was lost meanwhile", item_type, item_id, extra=fields)


def log_no_plan(item_type: str, error: Exception) -> None:
    log.error(
        "No item of %s begins: %s. Put another plan in its place, or change the item type's admissionPlan",
        item_type,
        error,
        extra={"item_type": item_type},
    )


def log_switch_unread(item_type: str, error: Exception) -> None:
    log.error("No item of %s begins: %s", item_type, error, extra={"item_type": item_type})


def log_newer_context(change: Change) -> None:
    """An item that a newer version of paceline queued."""
    item_type, item_id = change.claim.item_type, change.claim.item_id
    fields = {"item_type": item_type, "item_id": item_id}
    log.warning("%s %s is given back: %s", item_type, item_id, change.detail, extra=fields)


def log_traceback(claim: Claim, traceback: str | None) -> None:
    """The traceback of an attempt that failed."""
    if traceback is not None:
        fields = {"item_type": claim.item_type, "item_id": claim.item_id}
        log.warning("%s %s raised\n%s", claim.item_type, claim.item_id, traceback.rstrip(), extra=fields)


def log_trouble(written: Iterable[Change]) -> None:
    """One line per item that failed, was dead-lettered, or whose outcome nobody knows."""
    for change in written:
        item_type, item_id = change.claim.item_type, change.claim.item_id
        fields = {"item_type": item_type, "item_id": item_id}
        if change.status is Status.DEAD_LETTER:
            log.error("%s %s is a dead letter, retryCount=%d", item_type, item_id, change.retries, extra=fields)
        elif change.in_doubt:
            follows = "it is held" if change.status is Status.UNKNOWN else "it is inquired before any retry"
            log.warning("%s %s is unknown: %s", item_type, item_id, follows, extra=fields)
        elif Status.FAILED in change.path:
            log.warning("%s %s failed and is tried again: retry %d", item_type, item_id, change.retries, extra=fields)
