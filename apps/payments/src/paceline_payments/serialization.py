"""Payments as JSON between processes: the context that phase A passes to phase B, and the arguments and results of
`PaymentInitWorkflow`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from functools import lru_cache
from json.encoder import encode_basestring as _quote
from typing import Any

from paceline.durations import format_instant, format_ms, parse_instant
from paceline.errors import InvalidInput, NotFound, PacelineError, SlotsExhausted, StoreError
from paceline_payments.instruction import instruction_text
from paceline_payments.model import (
    AcceptedPayment,
    IntakeResult,
    Party,
    Payment,
    PaymentExists,
    PaymentStatus,
    Terms,
)


def context_json(payment: Payment, terms: Terms, scheduled_ms: int) -> str:
    """The context of a payment's item: all that phase B needs.

    Written out by hand: a feed makes a million of them, and only the id and the names need quoting."""
    payment_id, amount, currency, payer, payee, execute_at, _, instruction = payment
    said = "" if instruction is None else f'"instruction":{instruction},'
    return (
        f'{{"payment":{{"paymentId":{_quote(payment_id)},"amount":"{amount}","currency":"{currency}",'
        f'"payer":{_party_json(payer)},"payee":{_party_json(payee)},{said}'
        f'{_same_for_many(execute_at, terms)}"scheduledTime":"{format_ms(scheduled_ms)}"}}'
    )


def _party_json(party: Party) -> str:
    name, iban, account = party
    number = f'"iban":"{iban}"' if iban else f'"account":{_quote(account)}'
    return f'{{"name":{_quote(name)},{number}}}'


def _read_party(document: Mapping[str, str]) -> Party:
    return Party(str(document["name"]), str(document.get("iban", "")), str(document.get("account", "")))


@lru_cache(maxsize=1000)
def _same_for_many(execute_at: datetime, terms: Terms) -> str:
    return f'"executeAt":"{format_instant(execute_at)}"}},"fee":"{terms.fee}","valueDate":"{terms.value_date}",'


def read_context(context: Mapping[str, Any]) -> tuple[Payment, Terms]:
    """The payment and its terms.

    Raises:
        InvalidInput: This is no context of a payment.
    """
    try:
        document = context["payment"]
        payment = Payment(
            str(document["paymentId"]),
            str(document["amount"]),
            str(document["currency"]),
            _read_party(document["payer"]),
            _read_party(document["payee"]),
            parse_instant(document["executeAt"], "executeAt"),
            instruction=instruction_text(document.get("instruction", {})),
        )
        return payment, Terms(str(context["fee"]), date.fromisoformat(context["valueDate"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("context", f"is no payment's: {error!r}"[:200]) from None


def payment_to_json(payment: Payment) -> dict[str, Any]:
    """The payment as the HTTP API takes it; `parsing.payment_of_json` reads it back."""
    document = {**payment.to_json(), "executeAt": format_instant(payment.execute_at)}
    if payment.config_name is not None:
        document["configName"] = payment.config_name
    return document


def result_to_json(result: IntakeResult) -> dict[str, Any]:
    """A result of intake as JSON; `result_from_json` reads it back."""
    match result:
        case AcceptedPayment():
            return {
                "is": "accepted",
                "paymentId": result.payment_id,
                "status": result.status.value,
                "scheduledTime": format_instant(result.scheduled_time),
                "existing": result.existing,
            }
        case PaymentExists(payment_id=payment_id):
            return {"is": "exists", "paymentId": payment_id}
        case InvalidInput(field=field, problem=problem):
            return {"is": "invalid", "field": field, "problem": problem}
        case NotFound(kind=kind, name=name):
            return {"is": "not-found", "kind": kind, "name": name}
        case SlotsExhausted(config=config, earliest=earliest):
            time = None if earliest is None else format_instant(earliest)
            return {"is": "exhausted", "config": config, "earliest": time}
        case _:
            return {"is": "failed", "message": str(result)}


def result_from_json(document: dict[str, Any]) -> IntakeResult:
    """What `result_to_json` wrote. An unknown form is a `PacelineError`, as a value."""
    match document:
        case {"is": "accepted"}:
            status, at = PaymentStatus(document["status"]), parse_instant(document["scheduledTime"])
            return AcceptedPayment(document["paymentId"], status, at, document["existing"])
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
            return PacelineError(f"not an outcome: {document!r}")
