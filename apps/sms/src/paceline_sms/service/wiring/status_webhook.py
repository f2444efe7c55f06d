"""The caller's webhook of a settings tree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from paceline.dispatch.registry import Domain
from paceline.downstream.downstream import Downstream
from paceline.errors import ConfigurationError
from paceline.extras import require
from paceline.server.settings import Settings, spelled
from paceline.server.wiring.database import embedded_url
from paceline_sms.items import status_config
from paceline_sms.provider_chain import BREAKER, MARGIN_SECONDS
from paceline_sms.settings import SmsSettings


@asynccontextmanager
async def status_webhook(settings: Settings) -> AsyncIterator[list[Domain]]:
    """The execution of events; none without a webhook.

    Raises:
        ConfigurationError: It has no key to sign with.
    """
    sms = settings.section(SmsSettings)
    if sms.status_url is None:
        yield []
        return
    if sms.status_hmac_key is None:
        raise ConfigurationError(spelled("sms", "status_hmac_key"), "is needed with status_url: events are signed")
    require("the webhook of statuses", "sms")
    # Imported here: the HTTP client is an extra.
    from paceline_sms.providers.http_calls import HttpCalls
    from paceline_sms.statuses import StatusDelivery

    name = f"sms-status-{urlsplit(sms.status_url).hostname}"
    downstream = Downstream(
        name, embedded_url(settings), breaker=BREAKER, call_timeout=sms.timeout_seconds + MARGIN_SECONDS
    )
    calls = HttpCalls(name, sms.status_url, {}, timeout=sms.timeout_seconds)
    try:
        delivery = StatusDelivery(calls, sms.status_hmac_key.get_secret_value(), downstream)
        yield [Domain(status_config(), delivery)]
    finally:
        await calls.close()
        await downstream.close()
