"""The bank's own rules: fees, value dates, limits and blocked parties. Pure.

A rule book is a TOML file (`PACELINE_PAYMENTS_RULES`):

    duplicates = "reject"            # another payment alike within duplicate_window: "allow" (default) or "reject"
    duplicate_window = "P1D"
    horizon = "P366D"                # how far ahead a payment may be requested
    configs = ["payer-{payerIban}", "scheme-{scheme}"]   # slot configs that count beside the global one

    [limits]                         # the most one payment may move, by currency
    EUR = "1000000.00"

    [blocked]
    ibans = ["GB33BUKB20201555555555"]
    names = ["Mallory Ltd"]

    [fees.EUR]                       # or [fees.default]
    percent = "0.1"
    least = "0.10"
    most = "25.00"

    [clearing.EUR]                   # or [clearing.default]: a calendar; its closing hour is the cut-off
    zone = "Europe/Brussels"
    holidays = "ECB"
    open = [{ days = ["MON", "TUE", "WED", "THU", "FRI"], from = "00:00", to = "16:00" }]

    [schemes]                        # {scheme} in the name of a config, by currency
    EUR = "sepa"

    [subscribers]                    # who gets an SMS: account -> user of the notification gateway
    DE89370400440532013000 = 12345
"""

from __future__ import annotations

import tomllib
import unicodedata
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from paceline.durations import from_ms, parse_duration, to_ms
from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.calendars import Calendar
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.model import Party, Payment, Terms
from paceline_payments.parsing import checked_amount, checked_iban
from paceline_payments.slot_configs import SlotConfigs, checked_slot_configs

MINUTE_MS = 60_000
KNOWN = {
    "duplicates",
    "duplicate_window",
    "horizon",
    "configs",
    "limits",
    "blocked",
    "fees",
    "clearing",
    "schemes",
    "subscribers",
}
WEEKDAYS_UNTIL_SIX = Calendar.from_json(
    {"zone": "UTC", "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "00:00", "to": "18:00"}]}
)


@dataclass(frozen=True, slots=True)
class Tariff:
    """A share of the amount, rounded half up to the currency's smallest unit, within bounds."""

    percent: Decimal = Decimal(0)
    least: Decimal = Decimal(0)
    most: Decimal | None = None

    def fee(self, amount: Decimal, currency: str) -> str:
        unit = Decimal(1).scaleb(-MINOR_UNITS[currency])
        fee = max(amount * self.percent / 100, self.least)
        if self.most is not None:
            fee = min(fee, self.most)
        return str(fee.quantize(unit, ROUND_HALF_UP))


@dataclass(frozen=True)
class RuleBook:
    """All rules, checked. The defaults cost nothing, clear on weekdays until 18:00 UTC, and reject nothing."""

    limits: Mapping[str, Decimal] = field(default_factory=dict)
    blocked_ibans: frozenset[str] = frozenset()
    blocked_names: frozenset[str] = frozenset()
    """Folded: case, accents and spacing don't matter."""
    tariffs: Mapping[str, Tariff] = field(default_factory=dict)
    tariff: Tariff = Tariff()
    calendars: Mapping[str, Calendar] = field(default_factory=dict)
    calendar: Calendar = WEEKDAYS_UNTIL_SIX
    reject_duplicates: bool = False
    duplicate_window: timedelta = timedelta(days=1)
    horizon: timedelta | None = None
    subscribers: Mapping[str, int] = field(default_factory=dict)
    slot_configs: SlotConfigs = field(default_factory=SlotConfigs)

    def __post_init__(self) -> None:
        # A feed has the same currency and time many times.
        object.__setattr__(self, "_value_date", lru_cache(maxsize=4096)(self._find_value_date))
        object.__setattr__(self, "_flat_terms", lru_cache(maxsize=4096)(self._terms_of_any_amount))

    def check(self, payment: Payment, now: datetime) -> None:
        """Raises `InvalidInput` for a payment these rules don't allow."""
        limit = self.limits.get(payment.currency)
        if limit is not None and payment.decimal > limit:
            raise InvalidInput("amount", f"{payment.amount} {payment.currency} is above the limit of {limit}")
        if self.blocked_ibans or self.blocked_names:
            self._check_party(payment.payer, "payer")
            self._check_party(payment.payee, "payee")
        if self.horizon is not None and payment.execute_at > now + self.horizon:
            raise InvalidInput("executeAt", f"is more than {self.horizon.days} days ahead")

    def terms(self, payment: Payment) -> Terms:
        """The payment's fee and value date."""
        tariff = self.tariffs.get(payment.currency, self.tariff)
        if not tariff.percent:
            terms: Terms = self._flat_terms(payment.currency, payment.execute_at)  # type: ignore[attr-defined]
            return terms
        return self._terms(tariff, payment.decimal, payment.currency, payment.execute_at)

    def _terms_of_any_amount(self, currency: str, execute_at: datetime) -> Terms:
        return self._terms(self.tariffs.get(currency, self.tariff), Decimal(0), currency, execute_at)

    def _terms(self, tariff: Tariff, amount: Decimal, currency: str, execute_at: datetime) -> Terms:
        value_date: date = self._value_date(currency, execute_at)  # type: ignore[attr-defined]
        return Terms(tariff.fee(amount, currency), value_date)

    def _check_party(self, party: Party, role: str) -> None:
        if party.number in self.blocked_ibans:
            raise InvalidInput(f"{role}.{'iban' if party.iban else 'account'}", "is blocked")
        if self.blocked_names and fold_name(party.name) in self.blocked_names:
            raise InvalidInput(f"{role}.name", "is blocked")

    def _find_value_date(self, currency: str, execute_at: datetime) -> date:
        """The local day of the first clearing minute at or after the payment's time: after the cut-off, on a weekend
        or on a holiday that is a later day."""
        calendar = self.calendars.get(currency, self.calendar)
        minute = calendar.next_open_window(to_ms(execute_at), MINUTE_MS)
        if minute is None:
            raise InvalidInput("executeAt", f"no clearing day of {currency} follows it")
        return from_ms(minute).astimezone(zoneinfo.ZoneInfo(calendar.zone)).date()


def fingerprint(payment: Payment) -> int:
    """A number that is equal for payments with the same accounts, amount and currency, to find duplicates."""
    identity = f"{payment.payer.number}|{payment.payee.number}|{payment.amount}|{payment.currency}"
    return int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "big", signed=True)


def fold_name(name: str) -> str:
    """A name without case, accents and spacing."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name.casefold()) if not unicodedata.combining(c))
    return " ".join(plain.split())


def load_rules(path: Path | str) -> RuleBook:
    """The rule book in a TOML file; `ConfigurationError` names what is wrong in it."""
    try:
        document = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(str(path), f"can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(str(path), f"is not valid TOML: {error}") from None
    return rules_of(document)


def rules_of(document: Mapping[str, Any]) -> RuleBook:
    """The rule book of a parsed document."""
    _only(document, KNOWN, "rules")
    duplicates = document.get("duplicates", "allow")
    if duplicates not in ("allow", "reject"):
        raise ConfigurationError("duplicates", "must be allow or reject")
    blocked = _table(document, "blocked")
    _only(blocked, {"ibans", "names"}, "blocked")
    tariffs = {code: _tariff(code, table) for code, table in _by_currency(document, "fees", default=True)}
    calendars = {code: _calendar(code, table) for code, table in _by_currency(document, "clearing", default=True)}
    book = RuleBook()
    return RuleBook(
        limits={
            code: Decimal(_checked(f"limits.{code}", checked_amount, value, code))
            for code, value in _by_currency(document, "limits")
        },
        blocked_ibans=frozenset(
            _checked("blocked.ibans", checked_iban, iban, "iban") for iban in _texts(blocked, "ibans")
        ),
        blocked_names=frozenset(fold_name(name) for name in _texts(blocked, "names")),
        tariff=tariffs.pop("default", book.tariff),
        tariffs=tariffs,
        calendar=calendars.pop("default", book.calendar),
        calendars=calendars,
        reject_duplicates=duplicates == "reject",
        duplicate_window=_span(document, "duplicate_window") or book.duplicate_window,
        horizon=_span(document, "horizon"),
        subscribers={
            _checked(f"subscribers.{iban}", checked_iban, iban, "iban"): _user(iban, user)
            for iban, user in _table(document, "subscribers").items()
        },
        slot_configs=checked_slot_configs(document.get("configs", []), _table(document, "schemes")),
    )


def _user(iban: str, user: Any) -> int:
    if not isinstance(user, int) or isinstance(user, bool) or user < 1:
        raise ConfigurationError(f"subscribers.{iban}", "must be the number of a user of the notification gateway")
    return user


def _tariff(code: str, table: Any) -> Tariff:
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"fees.{code}", "must be a table")
    _only(table, {"percent", "least", "most"}, f"fees.{code}")
    numbers = {name: _number(f"fees.{code}.{name}", value) for name, value in table.items()}
    return Tariff(**numbers)


def _calendar(code: str, table: Any) -> Calendar:
    if not isinstance(table, dict):
        raise ConfigurationError(f"clearing.{code}", "must be a table")
    try:
        return Calendar.from_json(table)
    except ConfigurationError as error:
        raise ConfigurationError(f"clearing.{code}.{error.field}", error.problem) from None


def _number(name: str, value: Any) -> Decimal:
    try:
        if not isinstance(value, str):
            raise ValueError
        number = Decimal(value)
        if not number.is_finite() or number < 0:
            raise ValueError
    except (ValueError, ArithmeticError):
        raise ConfigurationError(name, 'must be a number in quotes, zero or more, such as "0.1"') from None
    return number


def _span(document: Mapping[str, Any], name: str) -> timedelta | None:
    if name not in document:
        return None
    span: timedelta = _checked(name, parse_duration, document[name], name)
    return span


def _checked(name: str, check: Any, *arguments: Any) -> Any:
    try:
        return check(*arguments)
    except InvalidInput as error:
        raise ConfigurationError(name, error.problem) from None


def _table(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, Mapping):
        raise ConfigurationError(name, "must be a table")
    return table


def _by_currency(document: Mapping[str, Any], name: str, *, default: bool = False) -> list[tuple[str, Any]]:
    table = _table(document, name)
    for code in table:
        if code not in MINOR_UNITS and not (default and code == "default"):
            raise ConfigurationError(f"{name}.{code}", "is no ISO 4217 code of a currency")
    return list(table.items())


def _texts(table: Mapping[str, Any], name: str) -> list[str]:
    values = table.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ConfigurationError(f"blocked.{name}", "must be a list of texts")
    return values


def _only(table: Mapping[str, Any], known: set[str], name: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigurationError(f"{name}.{key}", f"is unknown; known are {', '.join(sorted(known))}")
