"""The SMS providers: loaded as the sender loads them, and reached as far as they have an address."""

from __future__ import annotations

import asyncio

from paceline.errors import PacelineError, StoreUnavailable
from paceline.server.cli.doctor.finding import Finding, not_loaded, within
from paceline.server.cli.doctor.servers import reachable
from paceline.server.settings import Settings, spelled
from paceline_sms.provider import Unavailable
from paceline_sms.service.wiring.sms_providers import check_providers, open_smpp, provider_places
from paceline_sms.settings import SmsSettings

NAME = "sms provider"


async def examine(settings: Settings) -> list[Finding]:
    """A finding per provider; only one if the sender would not start. Nothing is sent."""
    try:
        check_providers(settings)
    except PacelineError as error:
        return [not_loaded(NAME, error)]
    if not settings.section(SmsSettings).providers and settings.section(SmsSettings).webhook_url is None:
        return [Finding(NAME, True, "not configured: messages are written to the log")]
    places = provider_places(settings)
    groups = await asyncio.gather(*(_examine(settings, name, place) for name, place in places.items()))
    return [
        finding._replace(summary=f"{name}: {finding.summary}")
        for name, findings in zip(places, groups, strict=True)
        for finding in findings
    ]


async def _examine(settings: Settings, name: str, place: str | None) -> list[Finding]:
    sms = settings.section(SmsSettings)
    if place is not None:
        return [Finding(NAME, True, f"{place} is loaded")]
    if name == "console":
        return [Finding(NAME, True, "messages are written to the log")]
    if name == "smpp":
        return await within(NAME, sms.smpp_url or "", f"check {spelled('sms', 'smpp_url')}", _binds(settings))
    field, url = ("twilio_url", sms.twilio_url) if name == "twilio" else ("webhook_url", sms.webhook_url or "")
    return await reachable(NAME, spelled("sms", field), url, "sms")


async def _binds(settings: Settings) -> list[Finding]:
    """Binds and unbinds; nothing is sent."""
    provider = open_smpp(settings.section(SmsSettings))
    try:
        await provider.check()
    except Unavailable as error:
        raise StoreUnavailable(str(error)) from error
    finally:
        await provider.close()
    return [Finding(NAME, True, "it takes the bind")]
