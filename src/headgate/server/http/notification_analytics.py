"""`/admin/notifications/analytics`: what the attempts to send tell."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from headgate.apps.notifications.analytics import Anomaly, MinuteCount, Summary, anomalies, by_user, series, summary
from headgate.apps.notifications.model import LARGEST, MINUTE_MS, Outcome
from headgate.durations import format_instant, from_ms
from headgate.server.http import schemas
from headgate.server.http.notifications import name_outages
from headgate.server.http.problem import documented, invalid
from headgate.server.http.services import services_of

DEFAULT_MINUTES = 60
MAX_MINUTES = 24 * 60
DEFAULT_USERS = 20
MAX_USERS = 1000

router = APIRouter(prefix="/admin/notifications/analytics", tags=["notifications"])

MINUTES = schemas.query(
    "minutes",
    {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_MINUTES,
        "default": DEFAULT_MINUTES,
        "description": "How far to look back.",
    },
)
LIMIT = schemas.query(
    "limit",
    {
        "type": "integer",
        "minimum": 1,
        "maximum": MAX_USERS,
        "default": DEFAULT_USERS,
        "description": "The most users to show.",
    },
)
USER = {
    "name": "userId",
    "in": "path",
    "required": True,
    "schema": {"type": "integer", "minimum": 0, "maximum": LARGEST},
}


@router.get(
    "",
    summary="Attempts of all users",
    responses=documented(400, 503),
    openapi_extra={"parameters": [MINUTES]},
)
async def overview(request: Request) -> Response:
    """Totals, the share that was limited, the busiest minute, the minutes, and unusual users."""
    return await _of_all(request, users=False)


@router.get(
    "/users",
    summary="Attempts by user",
    responses=documented(400, 503),
    openapi_extra={"parameters": [MINUTES, LIMIT]},
)
async def users(request: Request) -> Response:
    """The users with the most attempts first."""
    return await _of_all(request, users=True)


@router.get(
    "/users/{userId}",
    summary="Attempts of one user",
    responses=documented(400, 503),
    openapi_extra={"parameters": [USER, MINUTES]},
)
async def user(request: Request) -> Response:
    """Totals, peak and minutes of one user, and whether the last minutes are unusual."""
    user_id = _integer(request.path_params["userId"], "userId", 0, LARGEST)
    minutes, since_ms, now_ms, counts = await _counts(request, user_id)
    unusual = anomalies(counts, since_ms, now_ms)
    body = {
        **_span(since_ms, now_ms),
        "userId": user_id,
        **_shown(summary(counts, minutes)),
        "minutes": _minutes(counts),
        "anomaly": _anomaly(unusual[0]) if unusual else None,
    }
    return Response(orjson.dumps(body), media_type="application/json")


async def _of_all(request: Request, *, users: bool) -> Response:
    limit = _integer(request.query_params.get("limit", str(DEFAULT_USERS)), "limit", 1, MAX_USERS)
    minutes, since_ms, now_ms, counts = await _counts(request, None)
    body: dict[str, Any] = _span(since_ms, now_ms)
    if users:
        found = [(user_id, summary(own, minutes)) for user_id, own in by_user(counts).items()]
        found.sort(key=lambda each: (-each[1].attempts, each[0]))
        body["users"] = [{"userId": user_id, **_shown(total)} for user_id, total in found[:limit]]
    else:
        body |= {
            **_shown(summary(counts, minutes)),
            "users": len(by_user(counts)),
            "minutes": _minutes(counts),
            "anomalies": [_anomaly(each) for each in anomalies(counts, since_ms, now_ms)],
        }
    return Response(orjson.dumps(body), media_type="application/json")


async def _counts(request: Request, user_id: int | None) -> tuple[int, int, int, list[MinuteCount]]:
    text = request.query_params.get("minutes", str(DEFAULT_MINUTES))
    minutes = _integer(text, "minutes", 1, MAX_MINUTES)
    store = services_of(request).notifications.analytics
    with name_outages():
        now_ms = await store.now_ms()
        # Whole minutes, the current one included.
        since_ms = (now_ms // MINUTE_MS - minutes + 1) * MINUTE_MS
        return minutes, since_ms, now_ms, await store.counts(since_ms, now_ms + 1, user_id)


def _integer(text: str, field: str, least: int, maximum: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= maximum):
        raise invalid(field, f"must be a whole number from {least} to {maximum}")
    return int(text)


def _span(since_ms: int, now_ms: int) -> dict[str, Any]:
    return {"from": format_instant(from_ms(since_ms)), "to": format_instant(from_ms(now_ms))}


def _shown(total: Summary) -> dict[str, Any]:
    return {
        "attempts": total.attempts,
        "sent": total.sent,
        "rateLimited": total.rate_limited,
        "failed": total.failed,
        "rateLimitedShare": round(total.rate_limited_share, 4),
        "perMinute": round(total.per_minute, 4),
        "peak": total.peak
        and {"minute": format_instant(from_ms(total.peak.minute_ms)), "attempts": total.peak.attempts},
    }


def _minutes(counts: list[MinuteCount]) -> list[dict[str, Any]]:
    return [
        {
            "minute": format_instant(from_ms(minute_ms)),
            "sent": by_outcome[Outcome.SENT],
            "rateLimited": by_outcome[Outcome.RATE_LIMITED],
            "failed": by_outcome[Outcome.FAILED],
        }
        for minute_ms, by_outcome in series(counts)
    ]


def _anomaly(unusual: Anomaly) -> dict[str, Any]:
    return {
        "userId": unusual.user_id,
        "recentPerMinute": round(unusual.recent_per_minute, 4),
        "baselinePerMinute": round(unusual.baseline_per_minute, 4),
        "deviations": round(unusual.deviations, 2),
        "newlyLimited": unusual.newly_limited,
    }
