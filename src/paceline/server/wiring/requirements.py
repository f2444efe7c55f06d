"""The extras that a settings tree needs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from paceline.extras import DATABASES, require
from paceline.server.settings import Settings
from paceline_payments.settings import PaymentSettings
from paceline_sms.service.wiring.sms_providers import HTTP_PROVIDERS, provider_places
from paceline_sms.settings import SmsSettings


def require_extras(settings: Settings, *others: str, serves: bool = False) -> None:
    """Raises `MissingExtra` unless these extras, and all that the settings need, are installed. Long-running processes
    call it at start, so that one error names everything that is missing. Only the service, which `serves`, needs what
    calls and logins need."""
    require("these settings", *others, *_extras(settings), *(_service_extras(settings) if serves else ()))


def require_message_extras(settings: Settings) -> None:
    """Raises `MissingExtra` unless what the SMS gateway needs is installed. Commands call it before they open the
    database."""
    require("messages", *_message_extras(settings))


def _extras(settings: Settings) -> Iterator[str]:
    family = settings.database_url.partition(":")[0].partition("+")[0]
    if family in DATABASES:
        yield DATABASES[family]
    yield from _message_extras(settings)
    if settings.temporal_address is not None:
        yield "temporal"
    if settings.traces != "off":
        yield "traces"
    if (
        settings.section(PaymentSettings).downstream_url is not None
        or settings.section(PaymentSettings).rules is not None
    ):
        yield "payments"
    if settings.dispatch.encryption_keys is not None:
        yield "encryption"
    if settings.log_format == "json" and find_spec("structlog") is None:
        yield "server"
    if settings.section(SmsSettings).opensearch_url is not None and not _calls_providers(settings):
        yield "httpx"  # which `sms` brings, too


def _service_extras(settings: Settings) -> Iterator[str]:
    if settings.grpc.port is not None:
        yield "grpc"
    if settings.oidc.issuer is not None:
        yield "oidc"


def _message_extras(settings: Settings) -> Iterator[str]:
    if settings.kafka_bootstrap is not None:
        yield "kafka"
    if _calls_providers(settings):
        yield "sms"


def _calls_providers(settings: Settings) -> bool:
    places = provider_places(settings)
    return any(provider in HTTP_PROVIDERS for provider, place in places.items() if place is None)
