"""Payments and feeds by the prefix of their ids, for the search over everything."""

from __future__ import annotations

from urllib.parse import quote

from paceline.server.shapes.search import Found
from paceline_payments.model import PaymentFilter
from paceline_payments.service.wiring.payments import Payments


async def find_payments(payments: Payments, text: str, limit: int) -> list[Found]:
    records, _ = await payments.operations.page(PaymentFilter(prefix=text), limit=limit)
    return [
        Found.of(
            kind="payment",
            id=record.payment.payment_id,
            status=record.status.value,
            at=record.scheduled_time,
            exact=record.payment.payment_id == text,
            href=f"/api/v1/payments/{quote(record.payment.payment_id, safe='')}",
        )
        for record in records
    ]


async def find_feeds(payments: Payments, text: str, limit: int) -> list[Found]:
    feeds = await payments.feeds.page(limit, None, prefix=text)
    return [
        Found.of(
            kind="feed",
            id=feed.feed_id,
            status=feed.state.value,
            at=feed.created_at,
            exact=text in (feed.feed_id, feed.name),
            href=f"/api/v1/feeds/{quote(feed.feed_id, safe='')}",
        )
        for feed in feeds
    ]
