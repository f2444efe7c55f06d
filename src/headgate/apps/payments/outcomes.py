"""What came of payments, as it travels between processes."""

from __future__ import annotations

from typing import Any

from headgate.apps.payments.intake import Accepted, Outcome, PaymentExists
from headgate.apps.payments.model import Payment, PaymentStatus
from headgate.durations import format_instant, parse_instant
from headgate.errors import HeadgateError, InvalidInput, NotFound, SlotsExhausted, StoreError


def document_of(payment: Payment) -> dict[str, Any]:
    """The payment as the contract writes it: `documents.payment_of_json` reads it back."""
    document = {**payment.to_json(), "executeAt": format_instant(payment.execute_at)}
    return document if payment.config_name is None else {**document, "configName": payment.config_name}


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON; `outcome_of_json` reads it back."""
    match outcome:
        case Accepted():
            return {"is": "accepted", **outcome.to_json(), "existing": outcome.existing}
        case PaymentExists(payment_id=payment_id):
            return {"is": "exists", "paymentId": payment_id}
        case InvalidInput(field=field, problem=problem):
            return {"is": "invalid", "field": field, "problem": problem}
        case NotFound(kind=kind, name=name):
            return {"is": "not-found", "kind": kind, "name": name}
        case SlotsExhausted(config=config, earliest=earliest):
            told = None if earliest is None else format_instant(earliest)
            return {"is": "exhausted", "config": config, "earliest": told}
        case _:
            return {"is": "failed", "message": str(outcome)}


def outcome_of_json(told: dict[str, Any]) -> Outcome:
    match told:
        case {"is": "accepted"}:
            status, at = PaymentStatus(told["status"]), parse_instant(told["scheduledTime"])
            return Accepted(told["paymentId"], status, at, told["existing"])
        case {"is": "exists", "paymentId": payment_id}:
            return PaymentExists(payment_id)
        case {"is": "invalid", "field": field, "problem": problem}:
            return InvalidInput(field, problem)
        case {"is": "not-found", "kind": kind, "name": name}:
            return NotFound(kind, name)
        case {"is": "exhausted", "config": config, "earliest": earliest}:
            return SlotsExhausted(config, None if earliest is None else parse_instant(earliest))
        case {"message": message}:
            return StoreError(message)
        case _:
            return HeadgateError(f"not an outcome: {told!r}")
