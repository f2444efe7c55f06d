"""`/admin/notifications/analytics`: statistics of the attempts to send."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import Request, Response

from paceline.server.http.parameters import WholeNumber, api_router
from paceline.server.http.problem import documented
from paceline.server.http.raw_routes import json_response
from paceline_sms.analytics import (
    Anomaly,
    MinuteCount,
    anomalies,
    baseline_since,
    by_user,
    recent_since,
    series,
    summary,
)
from paceline_sms.model import LARGEST, MINUTE_MS, Outcome
from paceline_sms.ports import AnalyticsStore
from paceline_sms.service.http.notifications import name_outages
from paceline_sms.service.http.parts import gateway_of
from paceline_sms.service.shapes.notifications import (
    AttemptsByUser,
    AttemptsOfAll,
    AttemptsOfUser,
    Minute,
    UserAttempts,
)

router = api_router("/admin/notifications/analytics", "notifications")

MINUTES = WholeNumber("minutes", 1, 24 * 60, default=60, description="The length of the span until now.")
LIMIT = WholeNumber("limit", 1, 1000, default=20, description="The maximum of users to return.")
USER = WholeNumber("userId", 0, LARGEST)


class _Span(NamedTuple):
    """The counted attempts from `since` until `until`; times are epoch milliseconds."""

    since: int
    until: int
    length: int
    """In minutes."""
    counts: list[MinuteCount]

    @property
    def minutes(self) -> list[Minute]:
        """The outcomes of the attempts per minute, oldest first."""
        return [
            Minute.of(
                minute=minute_ms,
                sent=attempts[Outcome.SENT],
                rate_limited=attempts[Outcome.RATE_LIMITED],
                failed=attempts[Outcome.FAILED],
            )
            for minute_ms, attempts in series(self.counts)
        ]


@router.get(
    "",
    summary="Attempts of all users",
    response_model=AttemptsOfAll,
    responses=documented(400, 503),
    openapi_extra={"parameters": [MINUTES.document()]},
)
async def overview(request: Request) -> Response:
    """Totals, the share that was limited, the busiest minute, the minutes, and unusual users."""
    store = gateway_of(request).analytics
    with name_outages():
        since, until, length = await _times(request, store)
        counts, users = await store.totals(since, until + 1)
        unusual = await _anomalies(store, since, until, await store.suspects(recent_since(until), until + 1))
    span = _Span(since, until, length, counts)
    return json_response(AttemptsOfAll.of(summary(counts, length), span, users=users, anomalies=unusual))


@router.get(
    "/users",
    summary="Attempts by user",
    response_model=AttemptsByUser,
    responses=documented(400, 503),
    openapi_extra={"parameters": [MINUTES.document(), LIMIT.document()]},
)
async def users(request: Request) -> Response:
    """The users with the most attempts first."""
    limit, store = LIMIT.of(request), gateway_of(request).analytics
    with name_outages():
        since, until, length = await _times(request, store)
        counts = await store.counts(since, until + 1, await store.busiest(since, until + 1, limit))
    span = _Span(since, until, length, counts)
    totals = [UserAttempts.of(summary(own, length), user_id=user_id) for user_id, own in by_user(counts).items()]
    totals.sort(key=lambda total: (-total.attempts, total.user_id))
    return json_response(AttemptsByUser.of(span, users=totals))


@router.get(
    "/users/{userId}",
    summary="Attempts of one user",
    response_model=AttemptsOfUser,
    responses=documented(400, 503),
    openapi_extra={"parameters": [USER.document("path"), MINUTES.document()]},
)
async def user(request: Request) -> Response:
    """Totals, peak and minutes of one user, and whether the last minutes are unusual."""
    user_id = USER.of(request)
    store = gateway_of(request).analytics
    with name_outages():
        since, until, length = await _times(request, store)
        span = _Span(since, until, length, await store.counts(since, until + 1, [user_id]))
        unusual = await _anomalies(store, since, until, [user_id])
    return json_response(
        AttemptsOfUser.of(summary(span.counts, length), span, user_id=user_id, anomaly=unusual[0] if unusual else None)
    )


async def _times(request: Request, store: AnalyticsStore) -> tuple[int, int, int]:
    """The beginning and the end of the requested span, and its number of whole minutes, including the current one."""
    length = MINUTES.of(request)
    now_ms = await store.now_ms()
    return (now_ms // MINUTE_MS - length + 1) * MINUTE_MS, now_ms, length


async def _anomalies(store: AnalyticsStore, since_ms: int, now_ms: int, users: list[int]) -> list[Anomaly]:
    since_ms = baseline_since(since_ms, now_ms)
    return anomalies(await store.counts(since_ms, now_ms + 1, users), since_ms, now_ms)
