"""What payer and payee are told, and how it reaches them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from headgate.apps.payments.model import Payment, Terms
from headgate.apps.payments.ports import Notice
from headgate.errors import InvalidInput, NotFound

log = logging.getLogger(__name__)


def notices_of(payment: Payment, terms: Terms) -> list[Notice]:
    """What the parties are to be told once the payment is made. Pure."""
    money, day = f"{payment.amount} {payment.currency}", terms.value_date.isoformat()
    paid = f"You paid {money} to {payment.payee.name}, value date {day}, fee {terms.fee} {payment.currency}."
    got = f"{payment.payer.name} paid you {money}, value date {day}."
    return [
        Notice(payment.payment_id, "payer", payment.payer.iban, paid),
        Notice(payment.payment_id, "payee", payment.payee.iban, got),
    ]


class LoggedNotices:
    """A `Notifier` that writes to the log: for when no messages are sent."""

    async def tell(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            log.info("payment %s: the %s is told", notice.payment_id, notice.role, extra=_about(notice))


Send = Callable[..., Awaitable[Any]]
"""`send(user_id, message, key=…)` of the notification gateway."""


class GatewayNotices:
    """A `Notifier` on the notification gateway: parties who subscribed get a message, once, within their quota."""

    def __init__(self, send: Send, subscribers: Mapping[str, int]) -> None:
        self._send = send
        self._subscribers = subscribers

    async def tell(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            user = self._subscribers.get(notice.account)
            if user is None:
                continue
            key = f"{notice.payment_id}:{notice.role}"
            try:
                verdict = await self._send(user, notice.text, key=key)
            except (NotFound, InvalidInput) as error:
                # A payment is made whether or not its parties can be told.
                log.warning(
                    "payment %s: the %s can't be told: %s", notice.payment_id, notice.role, error, extra=_about(notice)
                )
            else:
                if not verdict.allowed:
                    log.warning(
                        "payment %s: the %s has no messages left", notice.payment_id, notice.role, extra=_about(notice)
                    )


def _about(notice: Notice) -> dict[str, str]:
    return {"item_id": notice.payment_id}
