"""A limiter from `paceline.toml` and `PACELINE_…`: the same settings as the service's, without the service.

redis_url = "redis://cache"

[limits]
on_error = "closed"
lease_seconds = 0.5

[plans]
free = "100/hour;1000/day"
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from paceline.errors import ConfigurationError
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.model import policy
from paceline.limits.toml_plans import TomlPlans

PREFIX = "PACELINE_"
FILE_VARIABLE = "PACELINE_SETTINGS_FILE"
DEFAULT_FILE = "paceline.toml"
STORES = ("auto", "memory", "database")
TOP = frozenset(
    [
        "admin_token",
        "api_token",
        "audit_key",
        "database_listen_url",
        "database_migrate",
        "database_pool_size",
        "database_timeout_seconds",
        "database_url",
        "dispatch",
        "envoy",
        "grpc",
        "host",
        "http",
        "ingress",
        "kafka_bootstrap",
        "kafka_config",
        "limits",
        "log_format",
        "log_level",
        "oidc",
        "plans",
        "port",
        "redis_url",
        "slots",
        "temporal_address",
        "temporal_api_key",
        "temporal_build_id",
        "temporal_ca_file",
        "temporal_cert_file",
        "temporal_key_file",
        "temporal_namespace",
        "temporal_tls",
        "traces",
    ]
)
"""Every setting and table at the top of the file, the service's too; a test compares. Each application that is
installed has a table of its own."""
APPLICATIONS = "paceline.apps"
"""The group of entry points that name applications."""


def limiter_options(file: str | Path | None, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The constructor's options: store, plans, failure policy, deadline and leases.

    Raises:
        ConfigurationError: the file can't be read, or a setting can't be used; names it as it was given.
    """
    path = _settings_file(file, environment)
    document = {} if path is None else _read(path)
    settings = _Settings(document, environment)
    options: dict[str, Any] = {"store": _store(settings), "on_error": settings.limits("on_error", _policy) or "open"}
    deadline = settings.limits("deadline_seconds", _positive)
    if deadline is not None:
        options["deadline"] = deadline
    seconds = settings.limits("lease_seconds", _positive)
    lease = {
        name: value
        for name, value in (
            ("longest", seconds),
            ("share", settings.limits("lease_share", _positive)),
            ("most", settings.limits("lease_most", _whole)),
        )
        if value is not None
    }
    if seconds is not None:
        try:
            options["lease"] = LeasePolicy(**lease)
        except ConfigurationError as error:
            name = {"longest": "lease_seconds"}.get(error.field, f"lease_{error.field}")
            raise ConfigurationError(settings.spelled("limits", name), error.problem) from None
    if path is not None:
        plans = TomlPlans(path, refresh_every=settings.limits("plans_ttl_seconds", _positive) or 1.0)
        plans.load()  # an invalid plan fails at start-up, not at the first request
        options["plans"] = plans
    settings.refuse_unknown()
    return options


class _Settings:
    """Values by name: of the environment, else of the file."""

    def __init__(self, document: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._document = document
        self._environment = {name.upper(): value for name, value in environment.items() if value}
        limits = document.get("limits", {})
        if not isinstance(limits, Mapping):
            raise ConfigurationError("limits", "write a table: [limits]")
        self._limits = limits
        self._known: list[str] = []

    def top(self, name: str) -> str | None:
        value = self._environment.get(PREFIX + name.upper(), self._document.get(name))
        if value is not None and not isinstance(value, str):
            raise ConfigurationError(self.spelled(name), "is a text")
        return value

    def limits(self, name: str, convert: Callable[[object], Any]) -> Any:
        """A setting of the table `limits`, converted; `None` if it is not given."""
        self._known.append(name)
        value = self._environment.get(f"{PREFIX}LIMITS_{name.upper()}", self._limits.get(name))
        try:
            return None if value is None else convert(value)
        except ValueError as error:
            problem = error.problem if isinstance(error, ConfigurationError) else str(error)
            raise ConfigurationError(self.spelled("limits", name), problem) from None

    def spelled(self, *path: str) -> str:
        """A setting's name as the user gave it: the variable, if there is one, else as the file has it."""
        variable = PREFIX + "_".join(path).upper()
        return variable if variable in self._environment else ".".join(path)

    def refuse_unknown(self) -> None:
        for name in self._document:
            if name not in TOP and not metadata.entry_points(group=APPLICATIONS, name=name):
                near = difflib.get_close_matches(name, TOP, 1)
                raise ConfigurationError(name, "is no setting" + (f"; did you mean {near[0]}?" if near else ""))
        for name in self._limits:
            if name not in self._known:
                near = difflib.get_close_matches(name, self._known, 1)
                raise ConfigurationError(
                    f"limits.{name}", "is no setting of limits" + (f"; did you mean {near[0]}?" if near else "")
                )


def _settings_file(file: str | Path | None, environment: Mapping[str, str]) -> Path | None:
    if file is not None:
        return Path(file)
    named = environment.get(FILE_VARIABLE)
    if named:
        return Path(named)
    return Path(DEFAULT_FILE) if Path(DEFAULT_FILE).exists() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(str(path), f"can't be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(path), f"is not TOML: {error}") from None


def _store(settings: _Settings) -> str:
    """The store's URL. Without a Redis or database URL, limits are counted in this process."""
    choice = settings.limits("store", _choice) or "auto"
    redis, database = settings.top("redis_url"), settings.top("database_url")
    if choice == "memory":
        return "memory://"
    if choice == "database":
        if database is None:
            raise ConfigurationError("database_url", f"is needed; {settings.spelled('limits', 'store')} is database")
        return database
    return redis or database or "memory://"


def _choice(value: object) -> str:
    if value not in STORES:
        raise ValueError(f"is none of {', '.join(STORES)}")
    return str(value)


def _policy(value: object) -> object:
    return policy(value)  # type: ignore[arg-type]  # it refuses what is no policy


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("is a number above 0")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("is a number above 0") from None
    if not 0 < number < float("inf"):
        raise ValueError("is a number above 0")
    return number


def _whole(value: object) -> int:
    number = _positive(value)
    if number != int(number):
        raise ValueError("is a whole number of at least 1")
    return int(number)
