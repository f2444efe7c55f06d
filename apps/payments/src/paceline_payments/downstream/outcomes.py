"""The verdict of each response of the downstream: one table. Pure.

`docs/explanation/payments.md` shows the same table, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from paceline_payments.ports import InquiryResult, InquiryStatus

LONGEST_REASON = 300
LONGEST_REFERENCE = 255


class Verdict(StrEnum):
    """The meaning of a response."""

    EXECUTED = "EXECUTED"
    """Done."""
    REJECTED = "REJECTED"
    """The downstream rejected this payment for good."""
    MISCONFIGURED = "MISCONFIGURED"
    """The connection is misconfigured: the payment is not charged an attempt, and the breaker opens at once."""
    RETRY = "RETRY"
    """Retry, with the same idempotency key."""


class Rule(NamedTuple):
    """One row of the table."""

    answers: str
    """As the documents show it."""
    verdict: Verdict
    consequence: str
    statuses: frozenset[int] = frozenset()


REJECTED_STATUSES = frozenset({400, 402, 422})
"""The default of `PACELINE_PAYMENTS_DOWNSTREAM_REJECTED_STATUSES`."""
FORBIDDEN = 403
RETRIED_STATUSES = frozenset({408, 409, 425, 429})
TROUBLED_STATUSES = frozenset({408})
"""Retried statuses that the breaker counts as failures, as it does every 5xx."""

TABLE = (
    Rule("2xx", Verdict.EXECUTED, "`ACCEPTED`", frozenset(range(200, 300))),
    Rule("400, 402, 422", Verdict.REJECTED, "`FAILED` with the reason; an operator may retry", REJECTED_STATUSES),
    Rule("403 with a verdict in the body", Verdict.REJECTED, "`FAILED` with the reason; an operator may retry"),
    Rule(
        "408, 409, 425, 429",
        Verdict.RETRY,
        "again with the same key, after `Retry-After` or backoff",
        RETRIED_STATUSES,
    ),
    Rule(
        "5xx",
        Verdict.RETRY,
        "again with the same key, after `Retry-After` or backoff; a run of them opens the breaker",
        frozenset(range(500, 600)),
    ),
    Rule(
        "time-out, reset, no connection",
        Verdict.RETRY,
        "again with the same key, after backoff; a run of them opens the breaker",
    ),
    Rule(
        "401, 403, 404, 405, 3xx, and any other",
        Verdict.MISCONFIGURED,
        "the item goes back unharmed; the breaker opens at once",
    ),
)


class Answer(NamedTuple):
    """The parts of a response that decide the verdict."""

    status: int
    body: Any = None
    """The body's JSON; None if it is none."""
    text: str = ""
    retry_after: float | None = None


def verdict_of(answer: Answer, rejected: frozenset[int] = REJECTED_STATUSES) -> Verdict:
    """The meaning of an answer. `rejected` are the statuses that are a verdict on the payment, whatever else they would
    mean; only 2xx can't be one."""
    status = answer.status
    if 200 <= status < 300:
        return Verdict.EXECUTED
    if status in rejected or (status == FORBIDDEN and says_no(answer.body)):
        return Verdict.REJECTED
    if status in RETRIED_STATUSES or status >= 500:
        return Verdict.RETRY
    return Verdict.MISCONFIGURED


def is_trouble(status: int) -> bool:
    """Whether a retried status counts as a failure of the downstream itself."""
    return status >= 500 or status in TROUBLED_STATUSES


def says_no(body: Any) -> bool:
    """Whether the body of a 403 is a verdict on the payment: an object with a `reason` or `verdict`, or with the status
    REJECTED. A proxy's or an identity provider's 403 has none of them."""
    if not isinstance(body, Mapping):
        return False
    if str(body.get("status", "")).upper() == "REJECTED":
        return True
    return any(isinstance(body.get(name), str) and body[name].strip() for name in ("reason", "verdict"))


def reason_of(answer: Answer) -> str:
    """The downstream's reason, on one line, with the status."""
    words = ""
    if isinstance(answer.body, Mapping):
        members = (answer.body.get(name) for name in ("reason", "detail", "verdict", "title"))
        words = next((member for member in members if isinstance(member, str) and member.strip()), "")
    words = " ".join((words or answer.text).split())
    words = "".join(char for char in words if char.isprintable())[:LONGEST_REASON]
    return f"the downstream answered {answer.status}: {words}".rstrip(": ")


def reference_of(answer: Answer) -> str | None:
    """The downstream's reference of the payment, if it returned one."""
    value = answer.body.get("reference") if isinstance(answer.body, Mapping) else None
    return value[:LONGEST_REFERENCE] if isinstance(value, str) and value and value.isprintable() else None


def inquiry_of(answer: Answer) -> InquiryResult | None:
    """The meaning of an answer to `GET {url}/payments/{key}`: 200 with a `status`, or 404 for a key never seen. None if
    it is undecided."""
    if answer.status == 404:
        return InquiryResult(InquiryStatus.NEVER_SEEN)
    if not (200 <= answer.status < 300 and isinstance(answer.body, Mapping)):
        return None
    status, words = str(answer.body.get("status", "")).upper(), answer.body.get("reason")
    if status not in (InquiryStatus.EXECUTED, InquiryStatus.REJECTED, InquiryStatus.PENDING):
        return None
    reason = " ".join(words.split())[:LONGEST_REASON] if isinstance(words, str) else None
    return InquiryResult(InquiryStatus(status), reason or None, reference_of(answer))


def retry_after_of(header: str | None) -> float | None:
    """`Retry-After` in seconds; dates are ignored, as they depend on another host's clock."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
