"""The extras that a settings tree needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from paceline.extras import DATABASES, require
from paceline.server.apps import app_parts
from paceline.server.settings import Settings


def require_extras(settings: Settings, *others: str, serves: bool = False) -> None:
    """Raises `MissingExtra` unless these extras, and all that the settings need, are installed. Long-running processes
    call it at start, so that one error names everything that is missing. Only the service, which `serves`, needs what
    calls and logins need."""
    require("these settings", *others, *_extras(settings), *(_service_extras(settings) if serves else ()))


def _extras(settings: Settings) -> Iterator[str]:
    family = settings.database_url.partition(":")[0].partition("+")[0]
    if family in DATABASES:
        yield DATABASES[family]
    if settings.kafka_bootstrap is not None:
        yield "kafka"
    for extras in app_parts("extras"):
        yield from extras(settings)
    if settings.temporal_address is not None:
        yield "temporal"
    if settings.traces != "off":
        yield "traces"
    if settings.dispatch.encryption_keys is not None:
        yield "encryption"
    if settings.log_format == "json" and find_spec("structlog") is None:
        yield "server"


def _service_extras(settings: Settings) -> Iterator[str]:
    if settings.grpc.port is not None:
        yield "grpc"
    if settings.oidc.issuer is not None:
        yield "oidc"
