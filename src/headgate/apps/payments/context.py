"""What phase A hands to phase B: the payment and its terms, as JSON. Phase B needs nothing else to run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from json.encoder import encode_basestring as _quoted
from typing import Any

from headgate.apps.payments.model import Party, Payment, Terms
from headgate.durations import format_instant, parse_instant
from headgate.errors import InvalidInput


def context_json(payment: Payment, terms: Terms, scheduled_time: datetime) -> str:
    """The context as text. Written out by hand: a feed makes a million of them, and only these texts need quoting."""
    payer, payee = payment.payer, payment.payee
    return (
        f'{{"payment":{{"paymentId":{_quoted(payment.payment_id)},"amount":"{payment.amount}",'
        f'"currency":"{payment.currency}","payer":{{"name":{_quoted(payer.name)},"iban":"{payer.iban}"}},'
        f'"payee":{{"name":{_quoted(payee.name)},"iban":"{payee.iban}"}},'
        f'"executeAt":"{format_instant(payment.execute_at)}"}},"fee":"{terms.fee}",'
        f'"valueDate":"{terms.value_date}","scheduledTime":"{format_instant(scheduled_time)}"}}'
    )


def read_context(context: Mapping[str, Any]) -> tuple[Payment, Terms]:
    """The payment and its terms; `InvalidInput` if this is no context of a payment."""
    try:
        told = context["payment"]
        payment = Payment(
            str(told["paymentId"]),
            str(told["amount"]),
            str(told["currency"]),
            Party(str(told["payer"]["name"]), str(told["payer"]["iban"])),
            Party(str(told["payee"]["name"]), str(told["payee"]["iban"])),
            parse_instant(told["executeAt"], "executeAt"),
        )
        return payment, Terms(str(context["fee"]), date.fromisoformat(context["valueDate"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("context", f"is no payment's: {error!r}"[:200]) from None
