"""Every setting, in one frozen tree.

A value comes from the environment (`PACELINE_PORT`, `PACELINE_SLOTS_BATCH`), else from the settings file (`port`, or
`batch` in the table `[slots]`), else from the default here. The file is `paceline.toml` in the working directory, or
whatever `PACELINE_SETTINGS_FILE` names. An installed application has a section of its own.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import quote, unquote, unquote_plus, urlsplit

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from paceline.errors import ConfigurationError
from paceline.server.apps import installed_apps, part
from paceline.server.setting_sections import (
    SHORTEST_SECRET,
    DispatchSettings,
    EnvoySettings,
    GrpcSettings,
    HttpSettings,
    IngressSettings,
    KafkaConfig,
    LimitSettings,
    OidcSettings,
    Port,
    Section,
    SlotSettings,
    private_parts,
)

PREFIX = "PACELINE_"
FILE_VARIABLE = "PACELINE_SETTINGS_FILE"
DEFAULT_FILE = "paceline.toml"
PLACEHOLDER = "CHANGE-ME"
"""The placeholder of tokens in `deploy/kubernetes`."""
LONG_SECRET = 16
"""Characters of a token that can't be guessed."""
SIMILAR = 0.55
"""How similar names must be (`difflib`) for a suggestion: CONFIG_FILE and SETTINGS_FILE are."""
COLLECTOR_PATH = ("otlp", "traces")
"""Parts of a collector's address that are no secrets."""


SectionOf = TypeVar("SectionOf", bound=Section)


class Settings(Section):
    """The whole tree. Read it with `Settings.load`, whose errors name what is wrong."""

    # URLs may hold passwords, so they are not in the repr.
    database_url: str = Field("sqlite:///paceline.db", repr=False)
    database_listen_url: str | None = Field(None, repr=False)
    """Where to listen for notifications, if `database_url` goes through a pooler."""
    database_pool_size: int = Field(10, ge=1, le=1000)
    database_timeout_seconds: float = Field(10, ge=0.5, le=600)
    """How long a transaction may take on a database server, with the wait for a connection; not on SQLite."""
    database_migrate: bool = False
    """Whether `paceline serve` and `paceline worker` migrate a database that other programs share."""
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
    port: Port = 8080
    api_token: SecretStr | None = Field(None, min_length=1)
    admin_token: SecretStr | None = Field(None, min_length=1)
    audit_key: SecretStr | None = Field(None, min_length=LONG_SECRET)
    """The key of the audit's hash chain, which can't be forged without it; the same for every process."""
    log_format: Literal["text", "json"] = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    traces: Literal["off", "otlp", "console"] = "off"
    """Whether spans are recorded, and where they go: to the collector that the OTEL_EXPORTER_OTLP_… variables name,
    or to standard error."""
    slots: SlotSettings = SlotSettings()
    http: HttpSettings = HttpSettings()
    ingress: IngressSettings = IngressSettings()
    oidc: OidcSettings = OidcSettings()
    limits: LimitSettings = LimitSettings()
    grpc: GrpcSettings = GrpcSettings()
    envoy: EnvoySettings = EnvoySettings()
    dispatch: DispatchSettings = DispatchSettings()

    @field_validator("log_format", "log_level", "traces", mode="before")
    @classmethod
    def _in_lower_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

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
        """The settings of this process; overrides given here (unless None) take precedence over everything."""
        try:
            return cls(**{name: value for name, value in overrides.items() if value is not None})
        except ValidationError as error:
            raise _explained(error) from None

    def section(self, kind: type[SectionOf]) -> SectionOf:
        """The section of an application, by its type."""
        return next(section for name in _sections() if isinstance(section := getattr(self, name), kind))

    def with_section(self, section: Section) -> Settings:
        """These settings with another section of its type."""
        name = next(name for name, kind in _sections().items() if isinstance(section, kind))
        return self.model_copy(update={name: section})

    if not TYPE_CHECKING:  # for type checkers it takes the fields, each with its type

        def __new__(cls, **_: Any) -> Settings:
            return super().__new__(_tree() if cls is Settings else cls)

        def __init__(self, **given: Any) -> None:
            super().__init__(**_joined(_joined(_file_values(), _environment_values()), given))

    @property
    def has_tokens(self) -> bool:
        """Whether a token is set here; the database may hold more (`paceline tokens`)."""
        return self.api_token is not None or self.admin_token is not None

    def secrets(self) -> frozenset[str]:
        """Every secret in these settings, also as a URL writes it."""
        keys = [self.api_token, self.admin_token, self.audit_key, self.temporal_api_key]
        plain = {key.get_secret_value() for key in keys if key}
        plain |= {str(self.kafka_config[name]) for name in self.kafka_config if re.search("password|secret|key", name)}
        for url in (self.database_url, self.database_listen_url, self.redis_url):
            plain |= _passwords(url or "")
        for name in _sections():
            plain |= getattr(self, name).secrets()
        plain |= _collector_secrets()
        return frozenset(written for secret in plain if secret for written in (secret, quote(secret, safe="")))

    def redacted(self, text: str) -> str:
        """A foreign `text`, without the secrets of these settings."""
        return self.redactor()(text)

    def redactor(self) -> Callable[[str], str]:
        """`redacted` for many texts: the secrets are collected once, which takes longer than redacting a log line."""
        secrets = sorted(self.secrets(), key=len, reverse=True)

        def redact(text: str) -> str:
            for secret in secrets:
                text = text.replace(secret, "***")
            return text

        return redact

    def refuse_exposure(self, *, other_tokens: bool = False) -> None:
        """Raises unless it is safe to listen on `host`: on the loopback, or with tokens, and no admin token that can be
        guessed."""
        admin = self.admin_token
        if not is_loopback(self.host) and admin is not None and len(admin.get_secret_value()) < LONG_SECRET:
            raise ConfigurationError(
                spelled("admin_token"),
                f"is shorter than {LONG_SECRET} characters, and {self.host} can be reached from other machines; make a "
                "token with: openssl rand -hex 32",
            )
        if not is_loopback(self.host) and not self.has_tokens and not other_tokens and self.oidc.issuer is None:
            raise ConfigurationError(
                spelled("host"),
                f"{self.host} can be reached from other machines, and there is no token; set PACELINE_API_TOKEN and "
                "PACELINE_ADMIN_TOKEN, create one with `paceline tokens create`, or listen on 127.0.0.1",
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
    """A URL for display and logs: its passwords are masked."""
    scheme, there, rest = url.partition("://")
    if not there:
        return "***"
    # Up to the last @: a password may contain unescaped special characters.
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
    return {form for password in written for form in (password, unquote(password), unquote_plus(password))}


def _collector_secrets() -> set[str]:
    """The secrets in the OTEL_EXPORTER_OTLP_… variables: headers, and all of the endpoint but its origin."""
    secrets: set[str] = set()
    for kind in ("", "TRACES_"):
        endpoint = os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}ENDPOINT", "")
        secrets |= private_parts(endpoint)
        path, _, query = re.sub(r"^[^/]*//[^/?#]*", "", endpoint).partition("?")
        secrets |= {
            query,
            *re.split(r"[=&#]", query),
            *(word for word in path.split("/") if word not in COLLECTOR_PATH),
        }
        headers = os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}HEADERS", "")
        for header in headers.split(","):
            name, there, value = header.partition("=")
            # Without its "=" it is no header, and the library logs all of it.
            secret = value if there else name
            secrets |= {secret, *unquote(secret).split()[-1:]}
    return {form for text in secrets for form in (text.strip(), unquote(text.strip())) if len(form) >= SHORTEST_SECRET}


def unknown_variables() -> list[str]:
    """Variables that look like settings and are none: likely typos."""
    known = {*_known_variables(), *map(_variable, _sections()), f"{PREFIX}REQUIRE"}
    return sorted(
        name
        for name in os.environ
        if name.startswith(PREFIX) and name not in known and not name.startswith(f"{PREFIX}TEST_")
    )


def unknown_variable_warnings() -> list[str]:
    """One warning per unknown variable, with the name that was likely meant."""
    return [f"{name} is not a setting paceline knows{meant_instead(name)}" for name in unknown_variables()]


def meant_instead(variable: str) -> str:
    """A suggestion of the variable that was likely meant; empty if none is similar."""
    # Without the prefix: what all names have in common would make all of them similar.
    known = [name.removeprefix(PREFIX) for name in _known_variables()]
    nearest = _nearest(variable.removeprefix(PREFIX), known)
    return "" if nearest is None else f"; did you mean {PREFIX}{nearest}?"


def _nearest(typed: str, known: list[str]) -> str | None:
    """The known name that was likely meant: one that continues what was typed, or ends with it, before one that is
    spelt like it."""
    begun = [name for name in known if typed and name.startswith(f"{typed}_")]
    ended = [name for name in known if typed and name.endswith(f"_{typed}")]
    if not begun and len(ended) != 1:
        return next(iter(difflib.get_close_matches(typed, known, 1, cutoff=SIMILAR)), None)
    return difflib.get_close_matches(typed, begun or ended, 1, cutoff=0)[0]


def _meant_in_file(path: list[str]) -> str:
    """`meant_instead` for a name in the settings file, or in a section of it."""
    *section, typed = path
    sections = _sections()
    if len(section) > 1 or not sections.keys() >= set(section):
        return ""
    nearest = _nearest(typed, list((sections[section[0]] if section else _tree()).model_fields))
    return "" if nearest is None else f"; did you mean {'.'.join([*section, nearest])}?"


def settings_file() -> Path | None:
    """The settings file this process reads, if there is one. Something there that is no file is an error when read."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.exists() else None


def spelled(*path: str) -> str:
    """A setting's name as the user types it: as in the settings file, if it is there and in no variable, else the
    variable."""
    depth = 2 if path[0] in _sections() else 1
    own, inner = path[:depth], path[depth:]
    variable = _variable(*own)
    with suppress(ConfigurationError):
        value: Any = {} if variable in os.environ else _file_values()
        for name in own:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None and value != {}:
            variable = ".".join(own)
    return ".".join([variable, *inner])


def _variable(*path: str) -> str:
    return PREFIX + "_".join(path).upper()


def _known_variables() -> list[str]:
    """The variable of each setting, and the one of the settings file."""
    sections = _sections()
    known = [_variable(name) for name in _tree().model_fields if name not in sections] + [FILE_VARIABLE]
    return known + [_variable(name, inner) for name, section in sections.items() for inner in section.model_fields]


@cache
def _tree() -> type[Settings]:
    """The class of all trees: the service's own settings, and a section per installed application that has one."""
    sections = {app.name: part(app.settings) for app in installed_apps() if app.settings is not None}
    fields: dict[str, Any] = {name: (section, section()) for name, section in sections.items()}
    return create_model("Settings", __base__=Settings, **fields)


def _sections() -> dict[str, type[Section]]:
    annotations = {name: field.annotation for name, field in _tree().model_fields.items()}
    return {name: kind for name, kind in annotations.items() if isinstance(kind, type) and issubclass(kind, Section)}


def _environment_values() -> dict[str, Any]:
    """The environment's values, in the form of the settings file. Names are case-insensitive; empty means unset.
    Unknown ones are left out: `unknown_variable_warnings` reports them."""
    variables = {name.lower(): value for name, value in os.environ.items() if value}
    values: dict[str, Any] = {}
    sections = _sections()
    for name in _tree().model_fields:
        variable = _variable(name).lower()
        if variable in variables:
            values[name] = _object(name, variables[variable]) if name in sections else variables[variable]
        if name in sections:
            settable = {inner: f"{variable}_{inner}" for inner in sections[name].model_fields}
            inner = {inner: variables[key] for inner, key in settable.items() if key in variables}
            values = _joined(values, {name: inner} if inner else {})
    return values


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
        values = tomllib.loads(path.read_text("utf-8"))
        # Plans of `Limiter.from_settings`, in applications. The service has its plans in the database.
        values.pop("plans", None)
        return values
    except OSError as error:
        raise ConfigurationError(str(path), f"can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(path), f"is not valid TOML: {error}") from None


def _explained(error: ValidationError) -> ConfigurationError:
    """The first error, under the name the user typed; never with the value, which may be secret."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = [str(part) for part in first["loc"]]
    if first["type"] == "extra_forbidden":
        place = settings_file() or "the given settings"
        return ConfigurationError(".".join(path), f"is not a setting paceline knows in {place}{_meant_in_file(path)}")
    message = first["msg"].removeprefix("Value error, ")
    return ConfigurationError(spelled(*path), message[:1].lower() + message[1:])
