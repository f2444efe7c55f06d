"""The sections of the settings: `PACELINE_SLOTS_…`, `PACELINE_PAYMENTS_…`, …; `settings` reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
)

from paceline.durations import parse_duration
from paceline.errors import ConfigurationError, InvalidInput
from paceline.limits.addresses import networks
from paceline.slots.model import WindowPolicy
from paceline_sms.model import checked_expiry
from paceline_sms.quiet_hours import QuietHours


class Section(BaseModel):
    """Settings that share a prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _no_service_link(value: object) -> object:
    if isinstance(value, str) and value.startswith("tcp://"):
        raise ValueError("Kubernetes set this for a Service of that name; set enableServiceLinks: false in the pod")
    return value


Port = Annotated[int, Field(ge=0, le=65_535), BeforeValidator(_no_service_link)]


def _checked_url(value: str) -> str:
    """The error message leaves the URL out: it may be a secret."""
    try:
        parts = urlsplit(value)
        host = parts.hostname
    except ValueError:
        raise ValueError("is no URL: its host is not valid") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("must be a URL that begins with http:// or https:// and a host")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("is no URL: its port must be from 1 to 65535")
    if not value.isprintable() or " " in value:
        raise ValueError("is no URL: it holds a space or a control character")
    return value


ProviderUrl = Annotated[str, AfterValidator(_checked_url)]
"""The URL to which payments or messages are posted."""


def _parsed_object(value: object) -> object:
    """A variable has the object as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('is not valid JSON; write an object, as {"name": "value"}') from None


JsonObject = Annotated[dict[str, str], BeforeValidator(_parsed_object)]
KafkaConfig = Annotated[dict[str, str | int | float | bool], BeforeValidator(_parsed_object)]


class SlotSettings(Section):
    """Slots, for `PACELINE_SLOTS_…`."""

    default_config: str = Field("default", min_length=1, max_length=128)
    """The config of a request that names none; created at start, if it does not exist."""
    default_max_per_window: int = Field(100, ge=1)
    default_window: str = "PT4S"
    cache_ttl_seconds: float = Field(5.0, ge=0)
    """How long a cached policy is shown while the database does not answer; bookings always read it under its lock."""
    batch: int = Field(1000, ge=1, le=100_000)
    """The most single calls that share a transaction."""
    bulk_batch: int = Field(10_000, ge=1, le=100_000)
    """The most events of a batch or stream that share a transaction."""
    template_configs: int = Field(10_000, ge=1, le=1_000_000)
    """The most configs that are made from one template, such as `merchant-*`."""

    @field_validator("default_window")
    @classmethod
    def _is_a_window(cls, value: str) -> str:
        try:
            WindowPolicy(1, value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value


class HttpSettings(Section):
    """The service, for `PACELINE_HTTP_…`."""

    max_batch: int = Field(10_000, ge=1, le=10_000)
    """The most events in one JSON batch; an NDJSON stream has no limit."""
    max_body_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    """The largest request body, streams excepted."""
    shutdown_seconds: int = Field(30, ge=1)
    """How long requests in flight may take to finish after SIGTERM."""
    workers: int = Field(1, ge=1, le=256)
    session_seconds: int = Field(12 * 3600, ge=60, le=30 * 86_400)
    """How long a login to the console lasts."""
    trusted_proxies: str = ""
    """Networks of trusted proxies, whose forwarding headers are used, as `10.0.0.0/8,192.0.2.7`."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        try:
            _, unix = networks([network.strip() for network in value.split(",") if network.strip()])
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        if unix:
            raise ValueError("sockets have no address; give networks")
        return value


def _scopes_of_groups(value: object) -> object:
    """A group's scopes may be one name, or names with spaces between, or a list."""
    parsed = _parsed_object(value)
    if not isinstance(parsed, dict):
        return parsed
    return {group: scopes.split() if isinstance(scopes, str) else scopes for group, scopes in parsed.items()}


GroupScopes = Annotated[dict[str, list[Literal["read", "assign", "send", "admin"]]], BeforeValidator(_scopes_of_groups)]


class OidcSettings(Section):
    """Logins to the console by OpenID Connect, for `PACELINE_OIDC_…`."""

    issuer: ProviderUrl | None = None
    """The provider, as it names itself in its discovery document; https, unless it is on this machine."""
    client_id: str | None = Field(None, min_length=1)
    client_secret: SecretStr | None = Field(None, min_length=1)
    scopes: GroupScopes = Field(default_factory=dict)
    """Groups and the scopes of their members, as JSON: `{"ops": "admin", "billing": "read assign"}`."""
    groups_claim: str = Field("groups", min_length=1)
    """The claim of the ID token that has the groups."""
    request_scopes: str = "openid profile email"
    """The scopes that are requested from the provider. Some give a refresh token only for `offline_access`."""
    check_seconds: float = Field(60, ge=0, le=3600)
    """How long the groups that the provider reported are believed. Then it is asked again, with its refresh token; a
    login for which it gave none ends after an hour."""

    @field_validator("issuer")
    @classmethod
    def _is_private(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("http://"):
            host = urlsplit(value).hostname or ""
            if host not in ("127.0.0.1", "::1", "localhost"):
                raise ValueError("must begin with https://: what the provider says is believed")
        return value


class IngressSettings(Section):
    """The service's own limits, for `PACELINE_INGRESS_…`."""

    per_second: float | None = Field(None, gt=0, le=1_000_000)
    """Requests per second that a caller may make: a token or, where none is required, an address. Unset, no limit:
    callers are few and known, and a feed should arrive as fast as it can."""
    burst: int | None = Field(None, ge=1, le=10_000_000)
    """How many at once; unset, a second's worth."""
    failures_per_minute: int = Field(600, ge=0, le=1_000_000)
    """How many requests with a wrong token, or none, an address may make before it has to wait; 0: any number."""


class LimitSettings(Section):
    """Rate limits, for `PACELINE_LIMITS_…`."""

    store: Literal["auto", "memory", "database"] = "auto"
    """Where limits are counted: `auto` is Redis if there is one, else the database; `memory` is each process's own."""
    on_error: Literal["open", "closed", "fallback"] = "open"
    """The failure policy of plans without one of their own, while the store can't be reached."""
    deadline_seconds: float | None = Field(None, gt=0, le=60)
    """How long the store may take to decide; 0.5 with Redis, 5 with a database."""
    plans_ttl_seconds: float = Field(1.0, gt=0, le=3600)
    """After how long a plan changed by another process is in force here; up to a second more for one written to
    PostgreSQL by hand."""
    lease_seconds: float | None = Field(None, gt=0, le=60)
    """For how long tokens may be leased to this process; unset, the store makes every decision."""
    lease_share: float = Field(0.1, gt=0, le=1)
    """The largest share of a plan that one lease takes."""
    lease_most: int = Field(10_000, ge=1)
    """The most tokens of one lease."""


class GrpcSettings(Section):
    """gRPC, for `PACELINE_GRPC_…`. It listens on the service's host."""

    port: Port | None = None
    """The port of Envoy's rate limit service; unset, it is not served."""
    cert_file: Path | None = None
    key_file: Path | None = None
    ca_file: Path | None = None
    """The authority of callers' certificates; set, callers must present one."""


class EnvoySettings(Section):
    """Envoy's rate limit service, for `PACELINE_ENVOY_…`."""

    config: Path | None = None
    """A file in the form of envoyproxy/ratelimit, or a folder of such files; read again when it changes."""
    headers: Literal["ietf", "legacy", "off"] = "ietf"
    """Fields that Envoy adds to responses: `RateLimit` and `RateLimit-Policy`; `RateLimit-Limit`,
    `RateLimit-Remaining` and `RateLimit-Reset`; or none."""


class DispatchSettings(Section):
    """Dispatch, for `PACELINE_DISPATCH_…`."""

    domains: str = ""
    """Item types of your own, as `package.module:name` with commas between: a `Domain`, a `Registry`, or a function of
    the settings that returns one."""
    worker: Literal["auto", "inline", "worker"] = "auto"
    """Which process dispatches without Temporal: the service itself (`inline`), or `paceline worker`. `auto`: the
    service."""
    concurrency: int = Field(100, ge=1, le=100_000)
    """The most executions of an item type at once, in one process, without Temporal."""
    backlog: int = Field(2000, ge=1, le=1_000_000)
    """The most items of a type a process holds, waiting ones included, without Temporal."""
    max_context_bytes: int = Field(2 * 1024 * 1024, ge=2)
    claim_bytes: int = Field(32 * 1024 * 1024, ge=1024)
    """The most bytes of contexts that one claim takes, whatever the batch size. Without Temporal, a process takes no
    more items of a type while it has this much of it."""
    encryption_keys: SecretStr | None = Field(None, min_length=1)
    """Keys for contexts and results at rest, and for payloads of Temporal, each base64 of 32 bytes, with commas
    between: the first one encrypts, all of them decrypt."""
    shutdown_seconds: int = Field(90, ge=1)
    """How long `paceline worker` may take to finish or give back its work after SIGTERM; then it is ended."""


class PaymentSettings(Section):
    """The payments application, for `PACELINE_PAYMENTS_…`."""

    config: str = "default"
    mode: Literal["queue", "direct"] = "queue"
    downstream_url: ProviderUrl | None = Field(None, repr=False)
    """Unset: a simulator inside the process."""
    downstream_token: SecretStr | None = Field(None, min_length=1)
    """Sent as `Authorization: Bearer …`."""
    downstream_token_file: Path | None = None
    """The token, in a file that is read for every call."""
    downstream_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """More headers, as a JSON object."""
    downstream_client_cert: Path | None = None
    downstream_client_key: Path | None = None
    downstream_hmac_key: SecretStr | None = Field(None, min_length=1)
    """Signs the body: `X-Signature: sha256=<hex>`."""
    downstream_timeout: float = Field(10.0, ge=0.05, le=300)
    """Seconds for a whole call."""
    downstream_attempts: int = Field(4, ge=1, le=20)
    """Calls per execution, before the queue retries later."""
    downstream_inquiry_path: str = "/payments/{key}"
    """The path of the downstream's status inquiry."""
    downstream_rejected_statuses: str = ""
    """Statuses that are a verdict on the payment without one in the body, such as `400,422`."""
    downstream_verdict: Literal["body", "status"] = "body"
    """What says that a payment was executed: the body of the answer, `{"status": "EXECUTED"}`, or a 2xx alone."""
    downstream_key_lifetime: str = "PT24H"
    """How long the downstream keeps an `Idempotency-Key`. After that, an attempt with an unknown outcome is not
    repeated before an inquiry. `off`: it keeps none."""
    breaker: Literal["wait", "pause", "off"] = "wait"
    """What happens while the downstream fails: calls wait for a probe, or the kill switch is turned off as well."""
    tps: int = Field(50, ge=1, le=100_000)
    """The downstream's hard limit in any sliding second."""
    burst: int = Field(1, ge=1, le=1000)
    """How many calls may leave at once after a pause; otherwise they are evenly spaced."""
    limit_at: Literal["answer", "departure"] = "answer"
    """Where the limit is counted: at the downstream, whatever the network does, or when calls leave."""
    rules: str | None = None
    """A TOML file with limits, blocked parties, fees and clearing calendars; unset, nothing is refused."""
    worker: Literal["auto", "inline", "worker"] = "auto"
    """Which process executes: the service itself (`inline`), or `paceline worker`. `auto`: the service, unless there is
    Temporal."""
    topic: str = Field("payments-inbound", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    """With Kafka, payments are also read from this topic; rejections are published to the topic of this name and
    `-rejected`."""

    @field_validator("downstream_headers", mode="before")
    @classmethod
    def _is_an_object(cls, value: object) -> object:
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                raise ValueError('must be a JSON object of texts, as {"X-Tenant": "acme"}') from None
        return value

    @field_validator("downstream_headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        return checked_headers(value, own=("idempotency-key", "content-type", "content-length", "host"))

    @field_validator("downstream_token", "downstream_hmac_key")
    @classmethod
    def _is_one_line(cls, value: SecretStr | None) -> SecretStr | None:
        # A secret from a file ends with the file's last line.
        secret = "" if value is None else value.get_secret_value().rstrip("\r\n")
        if value is not None and not (secret and secret.isascii() and secret.isprintable()):
            raise ValueError("must be printable ASCII, on one line")
        return SecretStr(secret) if secret else None

    @field_validator("downstream_key_lifetime")
    @classmethod
    def _is_a_lifetime(cls, value: str) -> str:
        key_lifetime(value)
        return value

    @field_validator("downstream_rejected_statuses")
    @classmethod
    def _are_statuses(cls, value: str) -> str:
        statuses(value)
        return value


def checked_headers(value: dict[str, str], *, own: Collection[str]) -> dict[str, str]:
    """Headers that every call of paceline has, beside its `own`.

    Raises:
        ValueError: One of them is no header, or paceline's own.
    """
    for name, content in value.items():
        good = re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) and content.isascii() and content.isprintable()
        if not good:
            raise ValueError("holds a name or a value that no HTTP header can have")
        if name.lower() in own:
            raise ValueError(f"{name} is paceline's own")
    return value


def key_lifetime(text: str) -> float | None:
    """How long the downstream keeps idempotency keys, in seconds; None if it keeps none.

    Raises:
        ValueError: It is neither a duration nor `off`.
    """
    if text == "off":
        return None
    try:
        return parse_duration(text).total_seconds()
    except InvalidInput:
        raise ValueError("must be a duration such as PT24H, or off") from None


def statuses(text: str) -> frozenset[int]:
    """HTTP statuses with commas between.

    Raises:
        ValueError: One of them is no status of a refusal.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch(r"[45]\d\d", word) for word in words):
        raise ValueError("must be statuses from 400 to 599, as 400,402,422")
    return frozenset(map(int, words))


class SmsSettings(Section):
    """The notification application, for `PACELINE_SMS_…`."""

    providers: str = ""
    """The providers, in order of preference, with commas: `webhook`, `twilio`, `console`,
    `name=package.module:attribute`, or `package.module:attribute`, whose name is `module`.
    Empty: the webhook, if its URL is set, else the console."""
    provider_rates: str = Field("", pattern=r"^(\s*[\w.-]+=\d{1,6}\s*(,|$))*$")
    """Messages per second that a provider accepts: `twilio=10,backup=1`. Shared through Redis, if there is one."""
    on_unknown: str = Field("", pattern=r"^(\s*([\w.-]+=)?(hold|resend|fail)\s*(,|$))*$")
    """What follows when nobody knows whether a provider took a message: `hold` it for a receipt, `resend` it to the
    same provider, or `fail` it. For all, or by provider: `twilio=hold,backup=resend`. Empty: hold, unless a provider of
    your own says otherwise."""
    hold_for: str = "PT24H"
    """How long such a message waits for a receipt before it is a dead letter."""
    log_texts: bool = False
    """Whether texts of messages may be logged; the console provider, which exists to show them, always logs them."""
    webhook_url: ProviderUrl | None = Field(None, repr=False)
    """Unset: messages are written to the log."""
    webhook_headers: JsonObject = Field(default_factory=dict, repr=False)
    webhook_token: SecretStr | None = None
    webhook_hmac_key: SecretStr | None = None
    twilio_url: ProviderUrl = "https://api.twilio.com"
    twilio_account_sid: str | None = None
    twilio_auth_token: SecretStr | None = None
    twilio_from: str | None = None
    """A number, or the SID of a messaging service."""
    twilio_receipts_url: ProviderUrl | None = None
    """The URL for Twilio's delivery reports: the public address of `/api/receipts/twilio`."""
    sender: Literal["auto", "inline", "worker"] = "auto"
    """Which process sends: the service itself (`inline`), or `paceline worker sender`. `auto`: the service, unless
    there is Kafka."""
    topic: str = Field("sms-outbound", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    """Dead letters go to the topic of this name and `-dlt`."""
    events_topic: str = Field("notification-events", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    opensearch_url: ProviderUrl | None = Field(None, repr=False)
    """Attempt events are also indexed there, by OpenSearch's bulk requests. Unset: nowhere."""
    opensearch_index: str = Field("notification-events", pattern=r"^[a-z0-9][a-z0-9._-]{0,120}$")
    opensearch_headers: JsonObject = Field(default_factory=dict, repr=False)
    """Sent with each bulk request, for example `{"authorization": "Basic …"}`."""
    kafka_delivery_seconds: float = Field(3.0, ge=0.1, le=20)
    """How long Kafka may take to acknowledge a message before the caller gets 503."""
    redis_timeout_seconds: float = Field(0.5, gt=0, le=60)
    """How long Redis may take before the SQL path decides."""
    attempts: int = Field(5, ge=1, le=100)
    """Consecutive attempts for a message, while others are accepted, before it is parked for a while."""
    timeout_seconds: float = Field(10.0, gt=0, le=300)
    """How long a provider may take to answer."""
    concurrency: int = Field(64, ge=1, le=1000)
    """Calls of one sender in flight."""
    lease_seconds: float = Field(10.0, ge=1, le=600)
    """How long the messages of a dead sender wait for another one."""
    expires_in: str = "PT24H"
    """How long a message that names no expiry may wait."""
    quiet_hours: str | None = None
    """`21:00-08:00`: when messages wait, by the recipient's clock, unless their priority is high."""

    @field_validator("webhook_headers")
    @classmethod
    def _are_headers(cls, value: dict[str, str]) -> dict[str, str]:
        own = ("idempotency-key", "x-signature", "content-length", "transfer-encoding", "connection", "accept-encoding")
        return checked_headers(value, own=own)

    @field_validator("expires_in", "hold_for")
    @classmethod
    def _is_an_expiry(cls, value: str) -> str:
        try:
            checked_expiry(value)
        except InvalidInput as error:
            raise ValueError(error.problem) from None
        return value

    @field_validator("quiet_hours")
    @classmethod
    def _are_hours(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                QuietHours(value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value
