"""The SMS providers of a settings tree, in the order of `PACELINE_SMS_PROVIDERS`."""

from __future__ import annotations

import importlib
from typing import Any

from paceline.errors import ConfigurationError
from paceline.extras import require
from paceline.server.settings import Settings, spelled
from paceline.server.wiring.database import embedded_url
from paceline_sms.provider import OnUnknown, Provider
from paceline_sms.provider_chain import NamedProvider, ProviderChain, provider_downstream
from paceline_sms.providers.console import ConsoleProvider
from paceline_sms.providers.smpp import SmppProvider
from paceline_sms.settings import SmsSettings

PROVIDERS = ("webhook", "twilio", "smpp")
"""paceline's own providers that need the extra `sms`."""
EVERY = ""
"""Stands for every provider, in `PACELINE_SMS_ON_UNKNOWN`."""


def open_providers(settings: Settings) -> ProviderChain:
    """The chain of providers. Their rates and breakers are shared by all processes, in the
    database of the messages: without that, there is nothing to send.

    Raises:
        ConfigurationError: A provider is unknown, can't be imported, or lacks a setting.
    """
    rates, choices = _rates(settings), _choices(settings)
    timeout, url = settings.section(SmsSettings).timeout_seconds, embedded_url(settings)
    providers = [
        NamedProvider(
            name,
            provider,
            provider_downstream(name, url, rate=rates.get(name), timeout=timeout),
            choices.get(name) or choices.get(EVERY) or _own_choice(name, provider),
        )
        for name, provider in _providers(settings).items()
    ]
    return ProviderChain(providers, timeout=timeout)


def check_providers(settings: Settings) -> None:
    """Checks the settings of `open_providers`. Nothing is closed: an object that the settings name is used later.

    Raises:
        ConfigurationError: A provider is unknown, can't be imported, or lacks a setting.
    """
    _providers(settings)


def provider_places(settings: Settings) -> dict[str, str | None]:
    """By name, in order: where a provider of one's own is, `package.module:attribute`; None for one of paceline's.

    Raises:
        ConfigurationError: An entry has no name, or the name of an earlier one.
    """
    sms = settings.section(SmsSettings)
    named = sms.providers or ("webhook" if sms.webhook_url is not None else "console")
    places: dict[str, str | None] = {}
    for entry in map(str.strip, named.split(",")):
        name, is_named, place = entry.partition("=")
        is_own = bool(is_named) or ":" in entry
        if is_own and not is_named:
            name, place = entry.partition(":")[0].rpartition(".")[2], entry
        if not name:
            raise _wrong(f"{entry!r} names no provider")
        if name in places:
            raise _wrong(f"{entry!r}: {name} is named before; write another one as name=package.module:attribute")
        places[name] = place if is_own else None
    return places


def _providers(settings: Settings) -> dict[str, Provider]:
    providers = {
        name: _built_in(name, settings) if place is None else _load(name, place)
        for name, place in provider_places(settings).items()
    }
    for field, named in (("provider_rates", _rates(settings)), ("on_unknown", _choices(settings))):
        if others := [name for name in named if name not in providers and name != EVERY]:
            raise ConfigurationError(spelled("sms", field), f"{', '.join(others)} is not among the providers")
    for name, provider in providers.items():
        _own_choice(name, provider)
    return providers


def _rates(settings: Settings) -> dict[str, int]:
    pairs = [
        pair.strip().split("=") for pair in settings.section(SmsSettings).provider_rates.split(",") if pair.strip()
    ]
    return {name: int(rate) for name, rate in pairs}


def _choices(settings: Settings) -> dict[str, OnUnknown]:
    """By provider, or `EVERY`."""
    entries = [entry.strip() for entry in settings.section(SmsSettings).on_unknown.split(",") if entry.strip()]
    pairs = [entry.split("=") if "=" in entry else [EVERY, entry] for entry in entries]
    return {name: OnUnknown(choice) for name, choice in pairs}


def _own_choice(name: str, provider: Provider) -> OnUnknown:
    """The provider's own attribute `on_unknown`."""
    choice = getattr(provider, "on_unknown", OnUnknown.HOLD)
    try:
        return OnUnknown(choice)
    except ValueError:
        raise _wrong(f"{name} has on_unknown = {choice!r:.40}; use one of {', '.join(OnUnknown)}") from None


def _wrong(problem: str) -> ConfigurationError:
    return ConfigurationError(spelled("sms", "providers"), problem)


def _built_in(name: str, settings: Settings) -> Provider:
    sms = settings.section(SmsSettings)
    if name == "console":
        return ConsoleProvider()
    if name not in PROVIDERS:
        raise _wrong(f"{name!r} is none of {', '.join(PROVIDERS)}, console; write your own as {name}=module:attribute")
    require(f"the SMS provider {name}", "sms")
    if name == "smpp":
        return open_smpp(sms)
    calls: dict[str, Any] = {
        "timeout": sms.timeout_seconds,
        "log_texts": sms.log_texts,
    }
    if name == "webhook":
        from paceline_sms.providers.webhook import WebhookProvider

        if sms.webhook_url is None:
            raise ConfigurationError(spelled("sms", "webhook_url"), "is needed for the provider webhook")
        token, key = sms.webhook_token, sms.webhook_hmac_key
        return WebhookProvider(
            sms.webhook_url,
            headers=sms.webhook_headers,
            token=None if token is None else token.get_secret_value(),
            hmac_key=None if key is None else key.get_secret_value(),
            **calls,
        )
    from paceline_sms.providers.twilio import TwilioProvider

    for field in ("account_sid", "auth_token", "from"):
        if getattr(sms, f"twilio_{field}") is None:
            raise ConfigurationError(spelled("sms", f"twilio_{field}"), "is needed for the provider twilio")
    assert sms.twilio_auth_token is not None
    return TwilioProvider(
        sms.twilio_account_sid or "",
        sms.twilio_auth_token.get_secret_value(),
        sms.twilio_from or "",
        url=sms.twilio_url,
        receipts_url=sms.twilio_receipts_url,
        inbound_url=sms.twilio_inbound_url,
        **calls,
    )


def open_smpp(sms: SmsSettings) -> SmppProvider:
    """The provider `smpp`."""
    for field in ("url", "system_id", "password"):
        if getattr(sms, f"smpp_{field}") is None:
            raise ConfigurationError(spelled("sms", f"smpp_{field}"), "is needed for the provider smpp")
    assert sms.smpp_password is not None
    return SmppProvider(
        sms.smpp_url or "",
        sms.smpp_system_id or "",
        sms.smpp_password.get_secret_value(),
        sms.smpp_from,
        system_type=sms.smpp_system_type,
        window=sms.smpp_window,
        enquire_seconds=sms.smpp_enquire_seconds,
        hexadecimal_ids=sms.smpp_hexadecimal_ids,
    )


def _load(name: str, place: str) -> Provider:
    """The object that `package.module:attribute` names, or that it makes when it is called."""
    module, colon, attribute = place.partition(":")
    if not module or not colon or not attribute:
        raise _wrong(f"{place!r} of {name} is not written as package.module:attribute")
    try:
        provider = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        # Also what the module itself raises.
        raise _wrong(f"{place!r} of {name} can't be imported: {error}") from error
    if isinstance(provider, type) or (not hasattr(provider, "send") and callable(provider)):
        try:
            provider = provider()
        except Exception as error:
            raise _wrong(f"{place!r} of {name} can't be made: {error}") from error
    if not callable(getattr(provider, "send", None)):
        raise _wrong(f"{place!r} of {name} has no method send")
    own: Provider = provider
    return own
