"""The SMS gateway on the wire: quotas, messages, and analytics of attempts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema

from paceline.server.shapes.shape import Expects, Instant, Shape
from paceline_sms.model import LARGEST, LONGEST_MESSAGE
from paceline_sms.ports import DeadLetter as Letter
from paceline_sms.quota import Quota
from paceline_sms.templates import LONGEST_NAME

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
    algorithm: Annotated[
        Literal["fixed_window", "sliding_window", "sliding_log", "token_bucket"] | None,
        Expects("one of fixed_window, sliding_window, sliding_log, token_bucket"),
    ] = None
    unit: Annotated[
        Literal["message", "segment"] | None,
        Field(description="What the quota counts."),
        Expects("one of message, segment"),
    ] = None
    phone: Annotated[
        str | None, Field(description="E.164.", json_schema_extra={"example": "+491701234567"}), Expects("a text")
    ] = None
    locale: Annotated[str | None, Expects("a text")] = None
    zone: Annotated[str | None, Field(description="IANA; quiet hours go by its clock."), Expects("a text")] = None


class NotificationRequest(Shape):
    """A message to a user."""

    user_id: UserId
    message: Annotated[str | None, WithJsonSchema(_MESSAGE), Expects("a text that is not blank")] = None
    template: Annotated[
        str | None,
        Field(max_length=LONGEST_NAME, description="Instead of `message`: the name of a text of the settings."),
        Expects(f"a text of at most {LONGEST_NAME} characters"),
    ] = None
    variables: Annotated[
        dict[str, Any] | None,
        Field(description="Of the template: texts and whole numbers.", json_schema_extra={"example": {"code": "4711"}}),
        Expects("an object"),
    ] = None
    to: Annotated[str | None, Field(description="E.164; left out, the user's own number."), Expects("a text")] = None
    priority: Annotated[Literal["high", "normal", "low"], Expects("one of high, normal, low")] = "normal"
    expires_in: Annotated[
        str | None,
        Field(description="ISO 8601, from PT1S to P30D.", json_schema_extra={"example": "PT5M"}),
        Expects("an ISO 8601 duration"),
    ] = None
    send_at: Annotated[
        str | None,
        Field(
            description="ISO 8601, at most 7 days ahead; left out or past, at once.",
            json_schema_extra={"example": "2027-03-01T16:00:00Z"},
        ),
        Expects("an ISO 8601 instant"),
    ] = None


class NotificationConfig(Shape):
    """A user's quota, as it is now."""

    user_id: int
    rate_limit: int
    time_window: int
    current_count: int
    last_refresh_time: Instant
    algorithm: str | None = None
    unit: str | None = None
    phone: str | None = None
    locale: str | None = None
    zone: str | None = None

    @classmethod
    def of_quota(cls, quota: Quota) -> Self:
        """The members beyond the first five are there if they differ from the defaults."""
        recipient = quota.recipient
        further = {"phone": recipient.phone, "locale": recipient.locale, "zone": recipient.zone}
        if not quota.is_plain:
            further |= {"algorithm": quota.algorithm, "unit": quota.unit.value}
        return cls(
            user_id=quota.user_id,
            rate_limit=quota.rate_limit,
            time_window=quota.window_minutes,
            current_count=quota.count,
            last_refresh_time=quota.refreshed_ms,
            **{name: value for name, value in further.items() if value is not None},
        )


class NotificationSent(Shape):
    """The message was accepted."""

    status: str
    message_id: str
    segments: int


class BatchedNotificationRequest(NotificationRequest):
    """A message of a batch."""

    idempotency_key: Annotated[
        str | None,
        Field(min_length=1, max_length=255, pattern=r"^[!-~]+$", description="By default made from the header."),
        Expects("1 to 255 printable ASCII characters"),
    ] = None


class NotificationBatchRequest(Shape):
    """Several messages, each decided on by itself."""

    # Each is parsed by itself, so that an error has its path: messages[3].userId.
    messages: Annotated[
        list[Any],
        Field(min_length=1, max_length=1000),
        WithJsonSchema(
            {"type": "array", "minItems": 1, "maxItems": 1000, "items": BatchedNotificationRequest.request_schema()}
        ),
        Expects("a list of 1 to 1000 messages"),
    ]


class NotificationRefused(Shape):
    """Why a message of a batch was not accepted."""

    status: int
    title: str
    detail: str
    field: str | None = None
    retry_after: int | None = None


class NotificationBatch(Shape):
    """The outcome of each message, in order."""

    results: list[NotificationSent | NotificationRefused]


class MessageStatus(Shape):
    """The status of a message."""

    message_id: str
    user_id: int
    status: Annotated[
        Literal["queued", "sent", "delivered", "failed", "expired", "cancelled", "unknown"],
        BeforeValidator(lambda status: str(status).lower()),
    ]
    segments: int
    attempts: int
    accepted_at: Instant
    expires_at: Instant | None
    send_at: Instant | None
    sent_at: Instant | None
    delivered_at: Instant | None
    failed_at: Instant | None
    cancelled_at: Instant | None
    provider: str | None
    provider_id: str | None
    reason: str | None
    price: str | None
    currency: str | None


class MessagePage(Shape):
    """Messages, newest first."""

    messages: list[MessageStatus]
    next: str | None
    total: int | None = None
    """How many match, if requested; 100,001 if there are more."""


class OptOutRequest(Shape):
    """The reason of an opt-out."""

    reason: Annotated[str, Field(min_length=1, max_length=255), Expects("a text of 1 to 255 characters")] = "STOP"


class OptOut(Shape):
    """A number that has opted out."""

    phone: str
    reason: str


class KnownOptOut(OptOut):
    """A number that has opted out, and since when."""

    created_at: Instant


class OptOutPage(Shape):
    """Numbers that have opted out."""

    optouts: list[KnownOptOut]
    next: str | None


class DeadLetter(Shape):
    """A message that will not be sent, unless an operator redrives it. Its text is not shown."""

    id: str
    message_id: str | None
    user_id: str
    reason: str
    attempts: int
    dead_at: Instant
    redrivable: bool

    @classmethod
    def of_letter(cls, letter: Letter) -> Self:
        return cls.of(letter, id=letter.letter_id, user_id=letter.key, dead_at=letter.dead_ms, redrivable=letter.whole)


class DeadLetters(Shape):
    """Dead letters, oldest first."""

    dead_letters: list[DeadLetter]
    next: str | None
    total: int | None = None
    """How many there are, if requested; 100,001 if there are more."""


class DeadLetterSelection(Shape):
    """Which dead letters: `ids`, or `all`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["ids"]}, {"required": ["all"]}]})

    ids: Annotated[
        list[str] | None,
        Field(min_length=1, max_length=10_000),
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": 10_000, "items": {"type": "string"}}),
        Expects("a list of ids"),
    ] = None
    all: Annotated[Literal[True] | None, WithJsonSchema({"const": True}), Expects("true, or left out")] = None


class Redriven(Shape):
    """How many dead letters were published again; `kept` could not be, because they were truncated."""

    redriven: int
    kept: int


class Dropped(Shape):
    """How many dead letters were deleted."""

    dropped: int


class PeakMinute(Shape):
    """The minute with the most attempts."""

    minute: Annotated[Instant, Field(validation_alias="minute_ms")]
    attempts: int


class Minute(Shape):
    """The outcomes of one minute's attempts."""

    minute: Instant
    sent: int
    rate_limited: int
    failed: int


class Anomaly(Shape):
    """A user that sends far more than before."""

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
