"""Phone numbers: validated, normalised to E.164, masked for logs; and the time zone of quiet hours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from paceline.errors import InvalidInput, MissingExtra

OPT_OUTS = "/api/optouts/"


@dataclass(frozen=True, slots=True)
class Recipient:
    """A user's default recipient, unless a message names one."""

    phone: str | None = None
    """E.164."""
    locale: str | None = None
    zone: str | None = None
    """IANA; quiet hours of this number are by this zone's clock. None: of the zones that the number may be in."""


NOBODY = Recipient()
_WRITE = "write it in E.164, with + and the country, as +491701234567"


def checked_phone(value: Any, field: str = "phone") -> str:
    """`value` as E.164. Spaces, dashes and brackets may be in it.

    Raises:
        InvalidInput: It is no valid number.
        MissingExtra: The extra `sms` is not installed.
    """
    try:
        # Imported here: it is an extra, and large.
        import phonenumbers
    except ImportError:
        raise MissingExtra("a phone number", "sms") from None
    if not isinstance(value, str) or not value.isprintable() or len(value) > 40:
        raise InvalidInput(field, f"is not a phone number; {_WRITE}")
    try:
        number = phonenumbers.parse(value)
    except phonenumbers.NumberParseException:
        raise InvalidInput(field, f"is not a phone number; {_WRITE}") from None
    if not phonenumbers.is_possible_number(number):
        raise InvalidInput(field, f"is not a phone number that can exist; {_WRITE}")
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


@lru_cache(10_000)
def zones_of(phone: str) -> tuple[str, ...]:
    """The IANA time zones in which a number may be: one for most, all of its country's for some; none if the extra
    `sms` is not installed, or nothing is known."""
    try:
        # Imported here: it is an extra, and large.
        import phonenumbers
        from phonenumbers import timezone
    except ImportError:
        return ()
    try:
        zones = timezone.time_zones_for_number(phonenumbers.parse(phone))
    except phonenumbers.NumberParseException:
        return ()
    return tuple(zone for zone in zones if zone != timezone.UNKNOWN_TIMEZONE)


def masked(phone: str | None) -> str:
    """A number as a log may show it: its country's digits and its last two."""
    if not phone:
        return "no number"
    return f"{phone[:3]}…{phone[-2:]}" if len(phone) > 7 else "…"


def logged_path(path: str) -> str:
    """A request's path as a log may show it: a phone number in it is masked."""
    return f"{OPT_OUTS}{masked(path.removeprefix(OPT_OUTS))}" if path.startswith(OPT_OUTS) else path


def checked_zone(value: Any) -> str:
    """`value`, which must be the name of an IANA time zone."""
    if isinstance(value, str) and 0 < len(value) <= 64:
        try:
            ZoneInfo(value)
            return value
        except (ZoneInfoNotFoundError, OSError, ValueError):
            pass
    raise InvalidInput("zone", "is not an IANA time zone; write for example Europe/Berlin")


def checked_locale(value: Any) -> str:
    """`value`, which must look like a BCP 47 language tag."""
    if isinstance(value, str) and 2 <= len(value) <= 35 and all(p.isalnum() and p.isascii() for p in value.split("-")):
        return value
    raise InvalidInput("locale", "is not a language tag; write for example de-DE")
