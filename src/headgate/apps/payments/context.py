"""What phase A hands to phase B: the payment and its terms, as JSON. Phase B needs nothing else to run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from headgate.apps.payments.domain import Party, Payment, Terms
from headgate.errors import InvalidInput
from headgate.iso8601 import format_instant, parse_instant


def context_json(payment: Payment, terms: Terms, scheduled_time: datetime) -> str:
    """The context as text."""
    value = {
        "payment": {**payment.to_json(), "executeAt": format_instant(payment.execute_at)},
        "fee": terms.fee,
        "valueDate": terms.value_date.isoformat(),
        "scheduledTime": format_instant(scheduled_time),
    }
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


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
