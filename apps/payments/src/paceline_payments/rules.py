"""The bank's own rules: fees, value dates, limits and blocked parties. Pure.

A rule book is a TOML file (`PACELINE_PAYMENTS_RULES`):

    duplicates = "reject"            # another payment alike within duplicate_window: "allow" (default) or "reject"
    duplicate_window = "P1D"
    horizon = "P366D"                # how far ahead a payment may be requested
    past = "P7D"                     # how long ago its requested time may be; 30 days for the date of a document
    on_closed_day = "next"           # or "previous", or "reject": a payment for a day that the clearing calendar closes
    configs = ["payer-{payerIban}", "scheme-{scheme}"]   # slot configs that count beside the global one

    [limits]                         # the most one payment may move, by currency
    EUR = "1000000.00"

    [daily_limits]                   # the most that one payer's account may move on one value date, by currency
    EUR = "5000000.00"

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

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from paceline.durations import parse_duration
from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.calendars import Calendar
from paceline_payments.clearing import Clearing, ClosedDay
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.model import Party, Payment, Terms
from paceline_payments.names import name_key
from paceline_payments.parsing import checked_amount, checked_iban
from paceline_payments.slot_configs import SlotConfigs, checked_slot_configs

DOCUMENT_PAST = timedelta(days=30)
"""How old the date of a document may be, unless `past` says otherwise. A time that is given alone means: from then
on."""
KNOWN = {
    "duplicates",
    "duplicate_window",
    "horizon",
    "past",
    "on_closed_day",
    "configs",
    "limits",
    "daily_limits",
    "blocked",
    "fees",
    "clearing",
    "schemes",
    "subscribers",
}
WEEKDAYS_UNTIL_SIX = Calendar.from_json(
    {"zone": "UTC", "open": [{"days": ["MON", "TUE", "WED", "THU", "FRI"], "from": "00:00", "to": "18:00"}]}
)

NO_CALENDAR = Clearing(WEEKDAYS_UNTIL_SIX)
"""Without a calendar, payments are booked as they are requested."""


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
    daily_limits: Mapping[str, Decimal] = field(default_factory=dict)
    """The most that one payer's account may move on one value date."""
    blocked_ibans: frozenset[str] = frozenset()
    blocked_names: frozenset[str] = frozenset()
    """By `name_key`."""
    tariffs: Mapping[str, Tariff] = field(default_factory=dict)
    tariff: Tariff = Tariff()
    clearings: Mapping[str, Clearing] = field(default_factory=dict)
    clearing: Clearing = NO_CALENDAR
    reject_duplicates: bool = False
    duplicate_window: timedelta = timedelta(days=1)
    horizon: timedelta | None = None
    past: timedelta | None = None
    subscribers: Mapping[str, int] = field(default_factory=dict)
    slot_configs: SlotConfigs = field(default_factory=SlotConfigs)

    def __post_init__(self) -> None:
        # A feed has the same currency and time many times.
        object.__setattr__(self, "_value_date", lru_cache(maxsize=4096)(self._find_value_date))
        object.__setattr__(self, "_flat_terms", lru_cache(maxsize=4096)(self._terms_of_any_amount))

    def itself(self) -> RuleBook:
        """These rules, for those who ask which hold now."""
        return self

    def check(self, payment: Payment, now: datetime) -> None:
        """Raises `InvalidInput` for a payment that these rules don't accept."""
        self.check_execution(payment)
        if self.horizon is not None and payment.execute_at > now + self.horizon:
            raise InvalidInput("executeAt", f"is more than {self.horizon.days} days ahead")
        past = self.past
        if past is None and payment.execute_at < now - DOCUMENT_PAST and _has_date(payment):
            past = DOCUMENT_PAST
        if past is not None and payment.execute_at < now - past:
            raise InvalidInput("executeAt", f"is more than {past.days} days ago")

    def check_execution(self, payment: Payment) -> None:
        """Raises `InvalidInput` for a payment that these rules don't let through: they may have changed since it was
        accepted."""
        limit = self.limits.get(payment.currency)
        if limit is not None and payment.decimal > limit:
            raise InvalidInput("amount", f"{payment.amount} {payment.currency} is above the limit of {limit}")
        if self.blocked_ibans or self.blocked_names:
            self._check_party(payment.payer, "payer")
            self._check_party(payment.payee, "payee")

    def booking_time(self, payment: Payment, now: datetime) -> datetime:
        """From when its slot is booked: the requested time, or another one if that is on a closed day.

        Raises:
            InvalidInput: Its day is closed, and such payments are rejected.
        """
        return self.clearing_of(payment.currency).booking_time(payment.execute_at, now)

    def terms(self, payment: Payment, scheduled: datetime) -> Terms:
        """The payment's fee, and its value date by its slot."""
        tariff = self.tariffs.get(payment.currency, self.tariff)
        minute = scheduled.replace(second=0, microsecond=0)
        if not tariff.percent:
            terms: Terms = self._flat_terms(payment.currency, minute)  # type: ignore[attr-defined]
            return terms
        return self._terms(tariff, payment.decimal, payment.currency, minute)

    def clearing_of(self, currency: str) -> Clearing:
        """The clearing days of a currency."""
        return self.clearings.get(currency, self.clearing)

    def _terms_of_any_amount(self, currency: str, minute: datetime) -> Terms:
        return self._terms(self.tariffs.get(currency, self.tariff), Decimal(0), currency, minute)

    def _terms(self, tariff: Tariff, amount: Decimal, currency: str, minute: datetime) -> Terms:
        value_date: date = self._value_date(currency, minute)  # type: ignore[attr-defined]
        return Terms(tariff.fee(amount, currency), value_date)

    def _check_party(self, party: Party, role: str) -> None:
        if party.number in self.blocked_ibans:
            raise InvalidInput(f"{role}.{'iban' if party.iban else 'account'}", "is blocked")
        if self.blocked_names and name_key(party.name) in self.blocked_names:
            raise InvalidInput(f"{role}.name", "is blocked")

    def _find_value_date(self, currency: str, minute: datetime) -> date:
        return self.clearing_of(currency).value_date(minute)


def account_key(number: str) -> int:
    """A number that is equal for equal accounts, to sum up what one of them moves."""
    return int.from_bytes(blake2b(number.encode(), digest_size=8).digest(), "big", signed=True)


def _has_date(payment: Payment) -> bool:
    return payment.instruction is not None and "ReqdExctnDt" in json.loads(payment.instruction)


def fingerprint(payment: Payment) -> int:
    """A number that is equal for payments with the same accounts, amount and currency, to find duplicates."""
    identity = f"{payment.payer.number}|{payment.payee.number}|{payment.amount}|{payment.currency}"
    return int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "big", signed=True)


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
    closed_day = _closed_day(document)
    clearings = {
        code: Clearing(_calendar(code, table), closed_day)
        for code, table in _by_currency(document, "clearing", default=True)
    }
    book = RuleBook()
    return RuleBook(
        limits=_amounts(document, "limits"),
        daily_limits=_amounts(document, "daily_limits"),
        blocked_ibans=frozenset(
            _checked("blocked.ibans", checked_iban, iban, "iban") for iban in _texts(blocked, "ibans")
        ),
        blocked_names=frozenset(name_key(name) for name in _texts(blocked, "names")),
        tariff=tariffs.pop("default", book.tariff),
        tariffs=tariffs,
        clearing=clearings.pop("default", book.clearing),
        clearings=clearings,
        reject_duplicates=duplicates == "reject",
        duplicate_window=_span(document, "duplicate_window") or book.duplicate_window,
        horizon=_span(document, "horizon"),
        past=_span(document, "past"),
        subscribers={
            _checked(f"subscribers.{iban}", checked_iban, iban, "iban"): _user(iban, user)
            for iban, user in _table(document, "subscribers").items()
        },
        slot_configs=checked_slot_configs(document.get("configs", []), _table(document, "schemes")),
    )


def _amounts(document: Mapping[str, Any], name: str) -> dict[str, Decimal]:
    return {
        code: Decimal(_checked(f"{name}.{code}", checked_amount, value, code))
        for code, value in _by_currency(document, name)
    }


def _closed_day(document: Mapping[str, Any]) -> ClosedDay:
    try:
        return ClosedDay(document.get("on_closed_day", ClosedDay.NEXT))
    except ValueError:
        raise ConfigurationError("on_closed_day", f"must be one of {', '.join(ClosedDay)}") from None


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
