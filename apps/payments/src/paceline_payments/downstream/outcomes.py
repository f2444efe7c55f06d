"""The verdict of each response of the downstream, and what follows from it: one table. Pure.

`docs/explanation/payments.md` shows the same table, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from paceline.downstream.signals.standard import retry_after
from paceline_payments.history import Step
from paceline_payments.ports import InquiryResult, InquiryStatus

LONGEST_REASON = 300
LONGEST_REFERENCE = 255
MAX_UNPROVEN = 2
"""Payments in a row that may be answered without a verdict. With one more, the connection is wrong."""


class Verdict(StrEnum):
    """The meaning of a response."""

    EXECUTED = "EXECUTED"
    """Done."""
    PENDING = "PENDING"
    """The downstream has it, and has not decided yet."""
    REJECTED = "REJECTED"
    """The downstream rejected this payment for good."""
    UNPROVEN = "UNPROVEN"
    """Refused, and the body does not say by whom: the inquiry decides."""
    MISCONFIGURED = "MISCONFIGURED"
    """The connection is wrong: the payment is not charged an attempt, and the breaker opens at once."""
    AGAIN = "AGAIN"
    """Not executed: again, with the same idempotency key."""
    UNKNOWN = "UNKNOWN"
    """It may have been executed."""


class Unreachable(StrEnum):
    """Why a call had no answer, in a few words that metrics and alerts can count."""

    REFUSED = "refused"
    """Nothing listens there."""
    UNKNOWN_HOST = "unknown host"
    CERTIFICATE = "certificate"
    """Its certificate is not trusted."""
    TLS = "tls"
    """No TLS connection, for another reason."""
    TIMEOUT = "timeout"
    """No connection or no answer in time."""
    NO_CONNECTION = "no connection"
    """Another obstacle, such as no route to it."""
    BROKEN = "broken"
    """The connection broke before the answer."""


class Rule(NamedTuple):
    """One row of the table."""

    answers: str
    """As the documents show it."""
    verdict: Verdict
    consequence: str
    statuses: frozenset[int] = frozenset()


UNPROVEN_STATUSES = frozenset({400, 402, 422})
REASONED_STATUSES = UNPROVEN_STATUSES | {403}
"""Statuses with which a `reason` in the body is a verdict on the payment."""
AGAIN_STATUSES = frozenset({408, 425, 429})
UNAVAILABLE = 503
CONFLICT = 409
TROUBLED_STATUSES = frozenset({408})
"""Statuses below 500 that the breaker counts as failures."""

TABLE = (
    Rule(
        "2xx whose body has the status `EXECUTED` (with `DOWNSTREAM_VERDICT=status`: any other 2xx, too)",
        Verdict.EXECUTED,
        "`ACCEPTED`",
    ),
    Rule(
        "2xx whose body has the status `PENDING`",
        Verdict.PENDING,
        "`PENDING`: the inquiry is repeated until it decides",
    ),
    Rule(
        "any, if its body has the status `REJECTED`; 400, 402, 403, 422 with a `reason` in the body; "
        "`REJECTED_STATUSES`",
        Verdict.REJECTED,
        "`FAILED` with the reason; after an attempt with an unknown outcome the inquiry decides first",
    ),
    Rule(
        "400, 402, 422 without a verdict in the body",
        Verdict.UNPROVEN,
        "the inquiry decides: `ACCEPTED`, `PENDING`, `FAILED` (also if the bank never saw it), or `UNKNOWN` if it "
        "gives no answer; with a third payment in a row, as the last row",
        UNPROVEN_STATUSES,
    ),
    Rule(
        "408, 425, 429, 503 with `Retry-After`; no connection",
        Verdict.AGAIN,
        "not executed: again with the same key, after `Retry-After` or backoff",
        AGAIN_STATUSES,
    ),
    Rule(
        "409, other 5xx, time-out, reset, half an answer, 2xx without a verdict in the body",
        Verdict.UNKNOWN,
        "again with the same key for `DOWNSTREAM_KEY_LIFETIME`; after the last attempt, and after that time, the "
        "inquiry decides; `UNKNOWN` if it gives no answer",
        frozenset({CONFLICT, *range(500, 600)}),
    ),
    Rule(
        "401, 403, 404, 405, 3xx, and any other, without a verdict in the body; TLS errors, unknown host",
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
    is_whole: bool = True
    """False: it broke off."""


def verdict_of(answer: Answer, rejected: frozenset[int] = frozenset(), *, by_status: bool = False) -> Verdict:
    """The meaning of an answer. `rejected` are statuses that are a verdict on the payment without its body; only 2xx
    can't be one. `by_status`: a 2xx that says nothing means executed."""
    if not answer.is_whole:
        return Verdict.UNKNOWN
    status, said = answer.status, _status_of(answer.body)
    if said == Verdict.REJECTED or (status in REASONED_STATUSES and gives_reason(answer.body)):
        return Verdict.REJECTED
    if 200 <= status < 300:
        if said == Verdict.PENDING:
            return Verdict.PENDING
        return Verdict.EXECUTED if by_status or said == Verdict.EXECUTED else Verdict.UNKNOWN
    if status in rejected:
        return Verdict.REJECTED
    if status in AGAIN_STATUSES or (status == UNAVAILABLE and answer.retry_after is not None):
        return Verdict.AGAIN
    if status in UNPROVEN_STATUSES:
        return Verdict.UNPROVEN
    return Verdict.UNKNOWN if status == CONFLICT or status >= 500 else Verdict.MISCONFIGURED


def next_step(verdicts: Sequence[Verdict], *, keeps_key: bool, attempts_left: bool) -> Step:
    """What follows from the last of these verdicts, given all before it."""
    *earlier, last = verdicts
    in_doubt = Verdict.UNKNOWN in earlier
    match last:
        case Verdict.EXECUTED:
            return Step.ACCEPT
        case Verdict.PENDING:
            return Step.AWAIT
        case Verdict.MISCONFIGURED:
            return Step.STOP
        case Verdict.REJECTED:
            # The downstream may have refused a repetition of what it executed.
            return Step.INQUIRE if in_doubt else Step.REFUSE
        case Verdict.UNPROVEN:
            return Step.INQUIRE
        case Verdict.AGAIN if not in_doubt:
            return Step.REPEAT if attempts_left else Step.POSTPONE
        case _:
            return Step.REPEAT if keeps_key and attempts_left else Step.INQUIRE


def step_after_inquiry(verdicts: Sequence[Verdict], found: InquiryStatus | None) -> Step:
    """What follows from an inquiry after these verdicts; `found` is None if it was not answered. Without verdicts it is
    an operator's retry of a payment that had been decided."""
    match found:
        case None:
            return Step.HOLD
        case InquiryStatus.EXECUTED:
            return Step.ACCEPT
        case InquiryStatus.PENDING:
            return Step.AWAIT
        case InquiryStatus.REJECTED:
            return Step.REFUSE if verdicts else Step.REPEAT
        case InquiryStatus.NEVER_SEEN:
            refused = bool(verdicts) and verdicts[-1] in (Verdict.REJECTED, Verdict.UNPROVEN)
            return Step.REFUSE if refused else Step.REPEAT


def is_trouble(answer: Answer, verdict: Verdict) -> bool:
    """Whether an answer counts as a failure of the downstream itself."""
    return verdict in (Verdict.AGAIN, Verdict.UNKNOWN) and (
        answer.status >= 500 or answer.status in TROUBLED_STATUSES or answer.status < 300
    )


def gives_reason(body: Any) -> bool:
    """Whether the body of a refusal is a verdict on the payment: an object with a `reason` or `verdict`. The page of a
    proxy or of an identity provider has neither."""
    return isinstance(body, Mapping) and any(
        isinstance(body.get(name), str) and body[name].strip() for name in ("reason", "verdict")
    )


def _status_of(body: Any) -> str:
    status = body.get("status") if isinstance(body, Mapping) else None
    return status.strip().upper() if isinstance(status, str) else ""


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
    """`Retry-After` in seconds, also if it is a date; None if it is neither."""
    try:
        seconds = float(header or "")
    except ValueError:
        return retry_after(header or "")
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
