"""The notices of payer and payee, and how they are sent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from paceline.clock import uptime
from paceline.errors import InvalidInput, NotFound
from paceline_payments.model import Payment, Terms
from paceline_payments.ports import Notice

log = logging.getLogger(__name__)


def notices_for(payment: Payment, terms: Terms) -> list[Notice]:
    """The notices of an executed payment. Pure."""
    money, day = f"{payment.amount} {payment.currency}", terms.value_date.isoformat()
    paid = f"You paid {money} to {payment.payee.name}, value date {day}, fee {terms.fee} {payment.currency}."
    got = f"{payment.payer.name} paid you {money}, value date {day}."
    return [
        Notice(payment.payment_id, "payer", payment.payer.number, paid),
        Notice(payment.payment_id, "payee", payment.payee.number, got),
    ]


LINES_A_SECOND = 5
"""Payments that are logged one by one; the rest of a second is one line with their number."""


class LogNotifier:
    """A `Notifier` that writes to the log: for when no messages are sent. One line per payment, sampled under load."""

    def __init__(self, clock: Callable[[], float] = uptime) -> None:
        self._clock = clock
        self._second = -1
        self._lines = self._left_out = 0

    async def notify(self, notices: Sequence[Notice]) -> None:
        second = int(self._clock())
        if second != self._second:
            if self._left_out:
                log.info("%d more payments: payer and payee are notified", self._left_out)
            self._second, self._lines, self._left_out = second, 0, 0
        if self._lines < LINES_A_SECOND:
            self._lines += 1
            log.info("payment %s: payer and payee are notified", notices[0].payment_id, extra=_ids(notices[0]))
        else:
            self._left_out += 1
            log.debug("payment %s: payer and payee are notified", notices[0].payment_id, extra=_ids(notices[0]))


Send = Callable[..., Awaitable[Any]]
"""`send(user_id, message, key=…)` of the notification gateway."""


class GatewayNotifier:
    """A `Notifier` on the notification gateway: subscribed parties get a message, once, within their quota."""

    def __init__(self, send: Send, subscribers: Mapping[str, int]) -> None:
        self._send = send
        self._subscribers = subscribers

    async def notify(self, notices: Sequence[Notice]) -> None:
        for notice in notices:
            user = self._subscribers.get(notice.account)
            if user is None:
                continue
            key = f"{notice.payment_id}:{notice.role}"
            try:
                verdict = await self._send(user, notice.text, key=key)
            except (NotFound, InvalidInput) as error:
                # A failed notification does not fail the payment.
                log.warning(
                    "payment %s: the %s can't be notified: %s",
                    notice.payment_id,
                    notice.role,
                    error,
                    extra=_ids(notice),
                )
            else:
                if not verdict.allowed:
                    log.warning(
                        "payment %s: the %s has no messages left", notice.payment_id, notice.role, extra=_ids(notice)
                    )


def _ids(notice: Notice) -> dict[str, str]:
    return {"item_id": notice.payment_id}
