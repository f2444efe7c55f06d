"""Further slot configs of a payment, beside the global one: per payer, per payee, per currency, per scheme. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.config_names import ConfigNames
from paceline.slots.model import MOST_CONFIGS, checked_name
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.model import Payment

PLACEHOLDERS = ("payerIban", "payeeIban", "payerCountry", "payeeCountry", "currency", "scheme")


@dataclass(frozen=True, slots=True)
class SlotConfigs:
    """Names of configs, with placeholders that each payment fills.

    SlotConfigs(("payer-{payerIban}", "scheme-{scheme}"), {"EUR": "sepa"}).names("default", payment)
    """

    patterns: Sequence[str] = ()
    schemes: Mapping[str, str] = field(default_factory=dict)
    """Payment schemes by currency; of a currency that is not there, the currency itself."""

    def names(self, first: str, payment: Payment) -> ConfigNames:
        """The configs of a payment: `first`, then those of the rules, each once."""
        if not self.patterns:
            return first
        values = {
            "payerIban": payment.payer.number,
            "payeeIban": payment.payee.number,
            "payerCountry": payment.payer.iban[:2],
            "payeeCountry": payment.payee.iban[:2],
            "currency": payment.currency,
            "scheme": self.schemes.get(payment.currency, payment.currency),
        }
        names = dict.fromkeys([first, *(pattern.format_map(values) for pattern in self.patterns)])
        return first if len(names) == 1 else tuple(names)


def checked_slot_configs(patterns: object, schemes: Mapping[str, object]) -> SlotConfigs:
    """The rules `configs` and `schemes` of a rule book.

    Raises:
        ConfigurationError: a name has an unknown placeholder, is no config's name, or there are too many.
    """
    if not isinstance(patterns, list) or len(patterns) >= MOST_CONFIGS:
        raise ConfigurationError("configs", f"must be a list of at most {MOST_CONFIGS - 1} names of configs")
    for index, pattern in enumerate(patterns):
        _check_pattern(f"configs[{index}]", pattern)
    checked: dict[str, str] = {}
    for currency, scheme in schemes.items():
        if currency not in MINOR_UNITS:
            raise ConfigurationError(f"schemes.{currency}", "is no ISO 4217 code of a currency")
        checked[currency] = _checked(f"schemes.{currency}", scheme)
    return SlotConfigs(tuple(patterns), checked)


def _check_pattern(name: str, pattern: object) -> None:
    if not isinstance(pattern, str):
        raise ConfigurationError(name, "must be a text such as payer-{payerIban}")
    try:
        fields = [part for _, part, form, conversion in string.Formatter().parse(pattern) if part is not None]
        plain = all(not form and not conversion for _, _, form, conversion in string.Formatter().parse(pattern))
    except ValueError:
        raise ConfigurationError(name, "has a brace that does not close; write payer-{payerIban}") from None
    for part in fields:
        if part not in PLACEHOLDERS or not plain:
            known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
            raise ConfigurationError(name, f"{{{part}}} is unknown; known are {known}")
    _checked(name, pattern.format_map(dict.fromkeys(PLACEHOLDERS, "X" * 34)))


def _checked(name: str, text: object) -> str:
    try:
        checked = checked_name(text)
    except InvalidInput as error:
        raise ConfigurationError(name, error.problem) from None
    if "*" in checked:
        raise ConfigurationError(name, "has a *, which makes it a template; templates are configs of their own")
    return checked
