"""Every setting, in one frozen tree.

A value comes from the environment (`HEADGATE_PORT`, `HEADGATE_SLOTS_BATCH`), else from the settings file (`port`, or
`batch` in the table `[slots]`), else from the default here. The file is `headgate.toml` in the working directory, or
whatever `HEADGATE_SETTINGS_FILE` names.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qsl, quote, unquote, unquote_plus, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from headgate.apps.notifications.model import checked_expiry
from headgate.apps.notifications.quiet_hours import QuietHours
from headgate.errors import ConfigurationError, InvalidInput
from headgate.limits.addresses import networks
from headgate.slots.model import WindowPolicy

PREFIX = "HEADGATE_"
FILE_VARIABLE = "HEADGATE_SETTINGS_FILE"
DEFAULT_FILE = "headgate.toml"
PLACEHOLDER = "CHANGE-ME"
"""What `deploy/kubernetes` has in the place of tokens."""
SHORTEST_SECRET = 4
"""A shorter option of a provider's URL (`v=1`) is no secret."""
COLLECTOR_PATH = ("otlp", "traces")
"""Parts of a collector's address that are everybody's."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
"""Where payments or messages are posted."""


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


class SlotSettings(_Section):
    """Slots, for `HEADGATE_SLOTS_…`."""

    default_config: str = Field("default", min_length=1, max_length=128)
    """The config a request means when it names none; created at start, if there is none of that name."""
    default_max_per_window: int = Field(100, ge=1)
    default_window: str = "PT4S"
    cache_ttl_seconds: float = Field(5.0, ge=0)
    """How long a policy is still shown while the database does not answer; bookings always read it under its lock."""
    batch: int = Field(1000, ge=1, le=100_000)
    """The most single calls that share a transaction."""
    bulk_batch: int = Field(10_000, ge=1, le=100_000)
    """The most events of a batch or stream that share a transaction."""

    @field_validator("default_window")
    @classmethod
    def _is_a_window(cls, value: str) -> str:
        try:
            WindowPolicy(1, value)
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        return value


class HttpSettings(_Section):
    """The service, for `HEADGATE_HTTP_…`."""

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
    """Networks of proxies whose word about their clients is believed, as `10.0.0.0/8,192.0.2.7`."""

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, value: str) -> str:
        try:
            _, unix = networks([each.strip() for each in value.split(",") if each.strip()])
        except ConfigurationError as error:
            raise ValueError(error.problem) from None
        if unix:
            raise ValueError("sockets have no address; give networks")
        return value


class IngressSettings(_Section):
    """The service's own limits, for `HEADGATE_INGRESS_…`."""

    per_second: float | None = Field(None, gt=0, le=1_000_000)
    """How many requests a second a caller may make: a token or, where none is asked for, an address. Unset, as many as
    it likes: callers are few and known, and a feed is meant to come as fast as it can."""
    burst: int | None = Field(None, ge=1, le=10_000_000)
    """How many at once; unset, a second's worth."""
    failures_per_minute: int = Field(600, ge=0, le=1_000_000)
    """How many requests with a wrong token, or none, an address may make before it has to wait; 0: any number."""


class LimitSettings(_Section):
    """Rate limits, for `HEADGATE_LIMITS_…`."""

    store: Literal["auto", "memory", "database"] = "auto"
    """Where limits are counted: `auto` is Redis if there is one, else the database; `memory` is each process's own."""
    on_error: Literal["open", "closed", "fallback"] = "open"
    """What plans that don't say so themselves do while the store can't be asked."""
    deadline_seconds: float | None = Field(None, gt=0, le=60)
    """How long the store may take to decide; 0.5 with Redis, 5 with a database."""
    plans_ttl_seconds: float = Field(1.0, gt=0, le=3600)
    """After how long a plan changed by another process is in force here."""


class DispatchSettings(_Section):
    """Dispatch, for `HEADGATE_DISPATCH_…`."""

    domains: str = ""
    """Item types of your own, as `package.module:name` with commas between: a `Domain`, a `Registry`, or a function of
    the settings that returns one."""
    worker: Literal["auto", "inline", "worker"] = "auto"
    """Who dispatches without Temporal: the service itself (`inline`), or `headgate worker`. `auto`: the service."""
    concurrency: int = Field(100, ge=1, le=100_000)
    """The most executions of an item type at once, in one process, without Temporal."""
    backlog: int = Field(2000, ge=1, le=1_000_000)
    """The most items of a type a process holds, waiting ones included, without Temporal."""
    max_context_bytes: int = Field(2 * 1024 * 1024, ge=2)


class PaymentSettings(_Section):
    """The payments application, for `HEADGATE_PAYMENTS_…`."""

    config: str = "default"
    mode: Literal["queue", "direct"] = "queue"
    downstream_url: ProviderUrl | None = Field(None, repr=False)
    """Unset: a simulator inside the process."""
    downstream_token: SecretStr | None = Field(None, min_length=1)
    """Sent as `Authorization: Bearer …`."""
    downstream_token_file: Path | None = None
    """The token, in a file that is read anew for each call."""
    downstream_headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """More headers, as a JSON object."""
    downstream_client_cert: Path | None = None
    downstream_client_key: Path | None = None
    downstream_hmac_key: SecretStr | None = Field(None, min_length=1)
    """Signs the body: `X-Signature: sha256=<hex>`."""
    downstream_timeout: float = Field(10.0, ge=0.05, le=300)
    """Seconds for a whole call."""
    downstream_attempts: int = Field(4, ge=1, le=20)
    """Calls of an execution, before the queue tries again later."""
    downstream_inquiry_path: str = "/payments/{key}"
    """Where the downstream says what it knows of a payment."""
    downstream_rejected_statuses: str = "400,402,422"
    """The statuses that are a verdict on the payment."""
    breaker: Literal["wait", "pause", "off"] = "wait"
    """What happens while the downstream is in trouble: calls wait for a probe, or the kill switch is thrown too."""
    tps: int = Field(50, ge=1, le=100_000)
    """The downstream's hard limit in any sliding second."""
    burst: int = Field(1, ge=1, le=1000)
    """How many calls may leave at once after a pause; otherwise they are evenly spaced."""
    limit_at: Literal["answer", "departure"] = "answer"
    """Where the limit is counted: at the downstream, whatever the network does, or when calls leave."""
    rules: str | None = None
    """A TOML file with limits, blocked parties, fees and clearing calendars; unset, nothing is refused."""
    worker: Literal["auto", "inline", "worker"] = "auto"
    """Who executes: the service itself (`inline`), or `headgate worker`. `auto`: the service, unless there is
    Temporal."""
    topic: str = Field("payments-inbound", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    """With Kafka, payments are also taken from this topic; what is refused goes to the topic of this name and
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
        for name, content in value.items():
            good = re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) and content.isascii() and content.isprintable()
            if not good:
                raise ValueError("holds a name or a value that no HTTP header can have")
            if name.lower() in ("idempotency-key", "content-type", "content-length", "host"):
                raise ValueError(f"{name} is headgate's own")
        return value

    @field_validator("downstream_token", "downstream_hmac_key")
    @classmethod
    def _is_one_line(cls, value: SecretStr | None) -> SecretStr | None:
        # A secret from a file ends with the file's last line.
        secret = "" if value is None else value.get_secret_value().rstrip("\r\n")
        if value is not None and not (secret and secret.isascii() and secret.isprintable()):
            raise ValueError("must be printable ASCII, on one line")
        return SecretStr(secret) if secret else None

    @field_validator("downstream_rejected_statuses")
    @classmethod
    def _are_statuses(cls, value: str) -> str:
        statuses(value)
        return value


def statuses(text: str) -> frozenset[int]:
    """HTTP statuses with commas between.

    Raises:
        ValueError: One of them is no status of a refusal.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch(r"[45]\d\d", word) for word in words):
        raise ValueError("must be statuses from 400 to 599, as 400,402,422")
    return frozenset(map(int, words))


class SmsSettings(_Section):
    """The notification application, for `HEADGATE_SMS_…`."""

    providers: str = ""
    """Who sends, in order of preference, with commas: `webhook`, `twilio`, `console`, `name=package.module:attribute`.
    Empty: the webhook, if its URL is set, else the console."""
    provider_rates: str = Field("", pattern=r"^(\s*[\w.-]+=\d{1,6}\s*(,|$))*$")
    """Messages per second that a provider takes: `twilio=10,backup=1`. Shared through Redis, if there is one."""
    log_texts: bool = False
    """Whether texts of messages may stand in the log; the console provider, which exists to show them, always does."""
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
    """Where Twilio reports deliveries: the public address of `/api/receipts/twilio`."""
    sender: Literal["auto", "inline", "worker"] = "auto"
    """Who sends: the service itself (`inline`), or `headgate worker sender`. `auto`: the service, unless there is
    Kafka."""
    topic: str = Field("sms-outbound", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    """Dead letters go to the topic of this name and `-dlt`."""
    events_topic: str = Field("notification-events", pattern=r"^[A-Za-z0-9._-]{1,120}$")
    kafka_delivery_seconds: float = Field(3.0, ge=0.1, le=20)
    """How long Kafka may take to acknowledge a message before the caller gets 503."""
    redis_timeout_seconds: float = Field(0.5, gt=0, le=60)
    """How long Redis may take before the SQL path decides."""
    attempts: int = Field(5, ge=1, le=100)
    """How often a message is tried in a row, while others go out, before it is put aside for a while."""
    timeout_seconds: float = Field(10.0, gt=0, le=300)
    """How long a provider may take to answer."""
    concurrency: int = Field(64, ge=1, le=1000)
    """Calls of one sender in flight."""
    lease_seconds: float = Field(10.0, ge=1, le=600)
    """How long the messages of a sender that died wait for another one."""
    expires_in: str = "PT24H"
    """How long a message that names no expiry may wait."""
    quiet_hours: str | None = None
    """`21:00-08:00`: when messages wait, by the recipient's clock, unless their priority is high."""

    @field_validator("expires_in")
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


class Settings(_Section):
    """The whole tree. Read it with `Settings.load`, which explains what is wrong."""

    # URLs may hold passwords, so they stay out of every repr.
    database_url: str = Field("sqlite:///headgate.db", repr=False)
    database_pool_size: int = Field(10, ge=1, le=1000)
    redis_url: str | None = Field(None, repr=False)
    kafka_bootstrap: str | None = None
    kafka_config: KafkaConfig = Field(default_factory=dict, repr=False)
    """Settings of librdkafka (TLS, SASL, …) for every client of Kafka, as JSON."""
    temporal_address: str | None = None
    temporal_namespace: str = "default"
    temporal_build_id: str | None = Field(None, min_length=1, max_length=255)
    """Names the build of this process's workers, which makes them versioned; unset, they are not."""
    temporal_tls: bool = False
    temporal_api_key: SecretStr | None = Field(None, min_length=1)
    temporal_ca_file: Path | None = None
    temporal_cert_file: Path | None = None
    temporal_key_file: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65_535)
    api_token: SecretStr | None = Field(None, min_length=1)
    admin_token: SecretStr | None = Field(None, min_length=1)
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    traces: Literal["off", "otlp", "console"] = "off"
    """Whether spans are recorded, and where they go: to the collector that the OTEL_EXPORTER_OTLP_… variables name,
    or to standard error."""
    slots: SlotSettings = SlotSettings()
    http: HttpSettings = HttpSettings()
    ingress: IngressSettings = IngressSettings()
    limits: LimitSettings = LimitSettings()
    dispatch: DispatchSettings = DispatchSettings()
    payments: PaymentSettings = PaymentSettings()
    sms: SmsSettings = SmsSettings()

    @field_validator("log_format", "log_level", "traces", mode="before")
    @classmethod
    def _in_lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("port", mode="before")
    @classmethod
    def _is_no_service_link(cls, value: object) -> object:
        if isinstance(value, str) and value.startswith("tcp://"):
            raise ValueError("Kubernetes set this for a Service of that name; set enableServiceLinks: false in the pod")
        return value

    @field_validator("api_token", "admin_token")
    @classmethod
    def _can_be_presented(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if value is None:
            return None
        # A secret from a file ends with the file's last line.
        secret = value.get_secret_value().rstrip("\r\n")
        if secret == PLACEHOLDER:
            raise ValueError("is still the placeholder; make a token with: openssl rand -hex 32")
        if not (secret and secret.isascii() and secret.isprintable() and secret == secret.strip()):
            raise ValueError(
                "could never be presented: it is empty, starts or ends with a space, or holds characters other than "
                "printable ASCII; make a token with: openssl rand -hex 32"
            )
        other = info.data.get("api_token")
        if info.field_name == "admin_token" and other is not None and other.get_secret_value() == secret:
            raise ValueError("is the same as api_token, and would let every caller administer; make it another one")
        return SecretStr(secret)

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """The settings of this process; what is given by name here (unless None) wins over everything."""
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            raise _explained(error) from None

    if not TYPE_CHECKING:  # for type checkers it takes the fields, each with its type

        def __init__(self, **given: Any) -> None:
            super().__init__(**_joined(_joined(_file_values(), _environment_values()), given))

    @property
    def has_tokens(self) -> bool:
        """Whether a token is set here; the database may hold more (`headgate tokens`)."""
        return self.api_token is not None or self.admin_token is not None

    def secrets(self) -> frozenset[str]:
        """Every secret in these settings, also as a URL writes it."""
        sms, payments = self.sms, self.payments
        keys = [self.api_token, self.admin_token, self.temporal_api_key]
        keys += (sms.webhook_token, sms.webhook_hmac_key, sms.twilio_auth_token)
        keys += (payments.downstream_token, payments.downstream_hmac_key)
        plain = {key.get_secret_value() for key in keys if key}
        headers = [*sms.webhook_headers.values(), *payments.downstream_headers.values()]
        plain |= {value for value in headers if len(value) >= SHORTEST_SECRET}
        plain |= {str(self.kafka_config[name]) for name in self.kafka_config if re.search("password|secret|key", name)}
        for url in (self.database_url, self.redis_url):
            plain |= _passwords(url or "")
        for url in (self.payments.downstream_url, self.sms.webhook_url):
            plain |= _private_parts(url or "")
        plain |= _collector_secrets()
        return frozenset(written for secret in plain if secret for written in (secret, quote(secret, safe="")))

    def redacted(self, text: str) -> str:
        """`text`, which somebody else wrote, without the secrets of these settings."""
        for secret in sorted(self.secrets(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return text

    def refuse_exposure(self, *, other_tokens: bool = False) -> None:
        """Raises unless it is safe to listen on `host`: on the loopback, or with a token to ask for."""
        if not is_loopback(self.host) and not self.has_tokens and not other_tokens:
            raise ConfigurationError(
                "host",
                f"{self.host} can be reached from other machines, and there is no token; set HEADGATE_API_TOKEN and "
                "HEADGATE_ADMIN_TOKEN, create one with `headgate tokens create`, or listen on 127.0.0.1",
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def masked(url: str) -> str:
    """A URL fit for eyes and logs: its passwords are stars."""
    scheme, there, rest = url.partition("://")
    if not there:
        return "***"
    # Up to the last @, whatever is before it: a password may hold every sign that was forgotten to be escaped.
    caller, at, place = rest.rpartition("@") if not scheme.startswith("sqlite") else ("", "", rest)
    user, colon, _ = caller.partition(":")
    if re.search(r"[\s/?#@]", user) or (user and not colon and re.match("https?|rediss?", scheme)):
        user = "***"
    shown = f"{scheme}://{user}{colon and ':***'}{at}{place}"
    return re.sub(r"(?i)([?&][^=&]*(?:password|passwd|secret|token|key|sig|auth)[^=&]*)=[^&]*", r"\1=***", shown)


def origin(url: str) -> str:
    """Scheme and host of a URL whose path, too, may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _passwords(url: str) -> set[str]:
    """The passwords of a URL: before its host, and among its options."""
    scheme, there, rest = url.partition("://")
    if not there:
        scheme, rest = "", url
    user, colon, password = rest.rpartition("@")[0].partition(":")
    written = [password] if colon else [user] if scheme.startswith("redis") or not scheme else []
    written += re.findall(r"(?i)[^=&?\s]*(?:password|passwd|secret|token)[^=&?\s]*=([^&]*)", url)
    return {form for each in written for form in (each, unquote(each), unquote_plus(each))}


def _private_parts(url: str) -> set[str]:
    """What of a provider's URL may be a secret: who calls, and every option."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return {url}
    caller = parts.netloc.rpartition("@")[0]
    words = [caller, *caller.split(":"), *(value for _, value in parse_qsl(parts.query))]
    return {written for word in words for written in (word, unquote(word)) if len(written) >= SHORTEST_SECRET}


def _collector_secrets() -> set[str]:
    """The secrets in the OTEL_EXPORTER_OTLP_… variables: headers, and all of the endpoint but
    where it is."""
    found: set[str] = set()
    for kind in ("", "TRACES_"):
        endpoint = os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT", "")
        found |= _private_parts(endpoint)
        path, _, query = re.sub(r"^[^/]*//[^/?#]*", "", endpoint).partition("?")
        found |= {query, *re.split(r"[=&#]", query), *(word for word in path.split("/") if word not in COLLECTOR_PATH)}
        headers = os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}HEADERS", "")
        for header in headers.split(","):
            name, there, value = header.partition("=")
            # Without its "=" it is no header, and the library logs all of it.
            secret = value if there else name
            found |= {secret, *unquote(secret).split()[-1:]}
    return {form for each in found for form in (each.strip(), unquote(each.strip())) if len(form) >= SHORTEST_SECRET}


def unknown_variables() -> list[str]:
    """Variables that look like settings and are none: likely typing mistakes."""
    known = {*_known_variables(), *map(_variable, _sections()), f"{PREFIX}REQUIRE"}
    return sorted(
        name
        for name in os.environ
        if name.startswith(PREFIX) and name not in known and not name.startswith(f"{PREFIX}TEST_")
    )


def unknown_variable_warnings() -> list[str]:
    """One warning per unknown variable, with the name that was likely meant."""
    return [f"{name} is not a setting headgate knows{meant_instead(name)}" for name in unknown_variables()]


def meant_instead(variable: str) -> str:
    """A question about the variable that was likely meant; empty if none comes near."""
    nearest = difflib.get_close_matches(variable, _known_variables(), 1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def settings_file() -> Path | None:
    """The settings file this process reads, if there is one."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.is_file() else None


def spelled(*path: str) -> str:
    """A setting's name as the user gave it: the variable, if there is one, else as the settings file has it."""
    variable = _variable(*path)
    return variable if variable in os.environ else ".".join(path)


def _variable(*path: str) -> str:
    return PREFIX + "_".join(path).upper()


def _known_variables() -> list[str]:
    """The variable of each setting, and the one of the settings file."""
    sections = _sections()
    known = [_variable(name) for name in Settings.model_fields if name not in sections] + [FILE_VARIABLE]
    return known + [_variable(name, inner) for name, section in sections.items() for inner in section.model_fields]


def _sections() -> dict[str, type[_Section]]:
    found = {name: field.annotation for name, field in Settings.model_fields.items()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, _Section)}


def _environment_values() -> dict[str, Any]:
    """What the environment says, as the settings file would. Names count in any case; empty is unset. Unknown ones are
    left out: `unknown_variable_warnings` reports them."""
    variables = {name.lower(): value for name, value in os.environ.items() if value}
    found: dict[str, Any] = {}
    sections = _sections()
    for name in Settings.model_fields:
        variable = _variable(name).lower()
        if variable in variables:
            found[name] = _object(name, variables[variable]) if name in sections else variables[variable]
        if name in sections:
            settable = {inner: f"{variable}_{inner}" for inner in sections[name].model_fields}
            inner = {inner: variables[key] for inner, key in settable.items() if key in variables}
            found = _joined(found, {name: inner} if inner else {})
    return found


def _object(section: str, text: str) -> Any:
    """A whole section in one variable."""
    try:
        return json.loads(text)
    except ValueError:
        raise ConfigurationError(
            _variable(section), f"is not valid JSON; write an object, or set {_variable(section, '…')}"
        ) from None


def _joined(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Both; where they differ, `above`."""
    both = below | above
    for name in below.keys() & above.keys():
        if isinstance(below[name], dict) and isinstance(above[name], dict):
            both[name] = _joined(below[name], above[name])
    return both


def _file_values() -> dict[str, Any]:
    path = settings_file()
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(str(path), f"can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(path), f"is not valid TOML: {error}") from None


def _explained(error: ValidationError) -> ConfigurationError:
    """The first thing that is wrong, under the name the user gave it; never with the value, which may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        place = settings_file() or "the given settings"
        return ConfigurationError(".".join(path), f"is not a setting headgate knows in {place}")
    message = first["msg"].removeprefix("Value error, ")
    return ConfigurationError(spelled(*path), message[:1].lower() + message[1:])
