"""The sections of the settings: `PACELINE_SLOTS_…`, `PACELINE_HTTP_…`, …; `settings` reads them.

The section of an application is its own (`App.settings`), a `Section` like these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Set
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

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
from paceline.server.access.names import checked_names
from paceline.slots.model import WindowPolicy

SHORTEST_SECRET = 4
"""A shorter option of a provider's URL (`v=1`) is no secret."""


class Section(BaseModel):
    """Settings that share a prefix. A URL or an object that may hold a secret is declared with `repr=False`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def secrets(self) -> Set[str]:
        """Every secret here: `SecretStr`s, the private parts of URLs, and the values of objects."""
        secrets: set[str] = set()
        for name, declared in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                secrets.add(value.get_secret_value())
            elif isinstance(value, str) and not declared.repr:
                secrets |= private_parts(value)
            elif isinstance(value, dict) and not declared.repr:
                secrets |= {text for text in value.values() if len(text) >= SHORTEST_SECRET}
        return secrets


def private_parts(url: str) -> set[str]:
    """The parts of a provider's URL that may be secret: the credentials, and every option."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return {url}
    caller = parts.netloc.rpartition("@")[0]
    words = [caller, *caller.split(":"), *(value for _, value in parse_qsl(parts.query))]
    return {written for word in words for written in (word, unquote(word)) if len(written) >= SHORTEST_SECRET}


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
"""The URL of somebody else's service, which may hold a secret."""


def _parsed_object(value: object) -> object:
    """A variable has the object as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('is not valid JSON; write an object, as {"name": "value"}') from None


JsonObject = Annotated[dict[str, str], BeforeValidator(_parsed_object)]
JsonLists = Annotated[dict[str, list[str]], BeforeValidator(_parsed_object)]
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
    follow_after: str = "PT1M"
    """How long the rate of a downstream must have changed, until a config that follows it does."""

    @field_validator("follow_after")
    @classmethod
    def _is_a_duration(cls, value: str) -> str:
        try:
            seconds = parse_duration(value, "follow_after").total_seconds()
        except InvalidInput as error:
            raise ValueError(error.problem) from None
        if not 1 <= seconds <= 86_400:
            raise ValueError("must be from PT1S to P1D")
        return value

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


def _words_of_groups(value: object) -> object:
    """What a group has may be one word, or words with spaces between, or a list."""
    parsed = _parsed_object(value)
    if not isinstance(parsed, dict):
        return parsed
    return {group: words.split() if isinstance(words, str) else words for group, words in parsed.items()}


ScopeName = Literal["read", "assign", "send", "view", "operate", "admin"]
GroupScopes = Annotated[dict[str, list[ScopeName]], BeforeValidator(_words_of_groups)]
GroupNames = Annotated[dict[str, list[str]], BeforeValidator(_words_of_groups)]


class OidcSettings(Section):
    """Logins to the console by OpenID Connect, for `PACELINE_OIDC_…`."""

    issuer: ProviderUrl | None = None
    """The provider, as it names itself in its discovery document; https, unless it is on this machine."""
    client_id: str | None = Field(None, min_length=1)
    client_secret: SecretStr | None = Field(None, min_length=1)
    scopes: GroupScopes = Field(default_factory=dict)
    """Groups and the scopes of their members, as JSON: `{"ops": "admin", "billing": "read assign"}`."""
    names: GroupNames = Field(default_factory=dict)
    """Groups that see and change only what has these names, as JSON: `{"team-a": "team-a-* shared"}`."""
    groups_claim: str = Field("groups", min_length=1)
    """The claim of the ID token that has the groups."""
    request_scopes: str = "openid profile email"
    """The scopes that are requested from the provider. Some give a refresh token only for `offline_access`."""
    check_seconds: float = Field(60, ge=0, le=3600)
    """How long the groups that the provider reported are believed. Then it is asked again, with its refresh token; a
    login for which it gave none ends after an hour."""

    @field_validator("names")
    @classmethod
    def _are_patterns(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        for group, patterns in value.items():
            if not patterns:
                raise ValueError(f"{group} has none; leave it out, and it sees every name")
            try:
                checked_names(patterns)
            except InvalidInput as error:
                raise ValueError(f"{group}: {error.problem}") from None
        return value

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
    shadow: bool = False
    """All requests pass; each descriptor's status, the counts and the metrics are as without."""
    near_limit: float = Field(0.8, gt=0, lt=1)
    """The share of a limit from which on `envoy_near_limit_total` counts what is admitted."""


class DispatchSettings(Section):
    """Dispatch, for `PACELINE_DISPATCH_…`."""

    domains: str = ""
    """Tasks of your own, as `package.module:name` with commas between: a `Tasks` object on this database, or a function
    of the settings that returns one."""
    worker: Literal["auto", "inline", "worker"] = "auto"
    """Which process dispatches without Temporal: the service itself (`inline`), or `paceline worker`. `auto`: the
    service."""
    concurrency: int = Field(100, ge=1, le=100_000)
    """The most executions at once, in one process, without Temporal."""
    threads: int = Field(8, ge=1, le=10_000)
    """The most of them that run a plain function."""
    prefetch: int | None = Field(None, ge=0, le=2000)
    """The most items of a type that a process holds beyond those that it runs, without Temporal. By default as many as
    it will start within half a second."""
    max_context_bytes: int = Field(2 * 1024 * 1024, ge=2)
    claim_bytes: int = Field(32 * 1024 * 1024, ge=1024)
    """The most bytes of contexts that one claim takes, whatever the batch size. Without Temporal, a process takes no
    more items of a type while it has this much of it."""
    encryption_keys: SecretStr | None = Field(None, min_length=1)
    """Keys for contexts and results at rest, and for payloads of Temporal, each base64 of 32 bytes, with commas
    between: the first one encrypts, all of them decrypt."""
    shutdown_seconds: int = Field(90, ge=1)
    """How long `paceline worker` may take to finish or give back its work after SIGTERM; then it is ended."""


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
