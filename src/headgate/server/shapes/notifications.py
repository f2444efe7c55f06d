"""The SMS gateway on the wire: quotas, messages, and what the attempts to send tell."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, WithJsonSchema

from headgate.apps.notifications.model import LARGEST, LONGEST_MESSAGE, Quota
from headgate.server.shapes.shape import Expects, Instant, Shape

SENT = "Message Sent Successfully"
_MESSAGE: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_MESSAGE,
    "pattern": r"\S",
    "example": "Hello World",
}
_Positive = Annotated[int, Field(strict=True, ge=1, le=LARGEST), Expects(f"a whole number from 1 to {LARGEST}")]
UserId = Annotated[
    int,
    Field(strict=True, ge=0, le=LARGEST, json_schema_extra={"example": 101}),
    Expects(f"a whole number from 0 to {LARGEST}"),
]
Rounded = Annotated[float, BeforeValidator(lambda number: round(number, 4))]


class NotificationConfigRequest(Shape):
    """What a user may send."""

    user_id: UserId
    rate_limit: Annotated[_Positive, Field(json_schema_extra={"example": 10})]
    time_window: Annotated[_Positive, Field(description="Minutes.", json_schema_extra={"example": 5})]


class NotificationRequest(Shape):
    """A message to a user."""

    user_id: UserId
    message: Annotated[str, WithJsonSchema(_MESSAGE), Expects("a text that is not blank")]


class NotificationConfig(Shape):
    """A user's quota, as it is now."""

    user_id: int
    rate_limit: int
    time_window: int
    current_count: int
    last_refresh_time: Instant

    @classmethod
    def of_quota(cls, quota: Quota) -> Self:
        return cls.of(
            quota,
            time_window=quota.window_minutes,
            current_count=quota.count,
            last_refresh_time=quota.refreshed_ms,
        )


class NotificationSent(Shape):
    """The message is on its way."""

    status: str
    message_id: str


class PeakMinute(Shape):
    """The minute with the most attempts."""

    minute: Annotated[Instant, Field(validation_alias="minute_ms")]
    attempts: int


class Minute(Shape):
    """What came of one minute's attempts."""

    minute: Instant
    sent: int
    rate_limited: int
    failed: int


class Anomaly(Shape):
    """A user who lately sends far more than before."""

    user_id: int
    recent_per_minute: Rounded
    baseline_per_minute: Rounded
    deviations: Annotated[float, BeforeValidator(lambda number: round(number, 2))]
    newly_limited: bool


class Attempts(Shape):
    """Totals of a span of time."""

    attempts: int
    sent: int
    rate_limited: int
    failed: int
    rate_limited_share: Rounded
    per_minute: Rounded
    peak: PeakMinute | None


class UserAttempts(Attempts):
    """Totals of one user."""

    user_id: int


class _Span(Shape):
    since: Annotated[Instant, Field(alias="from")]
    until: Annotated[Instant, Field(alias="to")]


class AttemptsOfAll(Attempts, _Span):
    """Attempts of all users."""

    users: int
    minutes: list[Minute]
    anomalies: list[Anomaly]


class AttemptsByUser(_Span):
    """Attempts by user, the most first."""

    users: list[UserAttempts]


class AttemptsOfUser(UserAttempts, _Span):
    """Attempts of one user."""

    minutes: list[Minute]
    anomaly: Anomaly | None
