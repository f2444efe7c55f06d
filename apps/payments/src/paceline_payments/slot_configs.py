"""Further slot configs of a payment, beside the global one: per payer, per payee, per currency, per scheme. Pure."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.errors import ConfigurationError, InvalidInput
from paceline.slots.config_names import ConfigNames
from paceline.slots.model import MOST_CONFIGS, checked_name
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.model import Payment

ACCOUNTS = ("payerIban", "payeeIban")
PLACEHOLDERS = (*ACCOUNTS, "payerCountry", "payeeCountry", "currency", "scheme")

AccountTexts = Callable[[str], Sequence[str]]
"""The texts that stand for an account in the names of configs: the account itself, or with encryption a keyed hash
under each key. A payment counts under all of them, so that limits hold while keys are rotated."""


def plain_account(number: str) -> Sequence[str]:
    """The account itself: an `AccountTexts`."""
    return (number,)


@dataclass(frozen=True, slots=True)
class SlotConfigs:
    """Names of configs, with placeholders that each payment fills.

    SlotConfigs(("payer-{payerIban}", "scheme-{scheme}"), {"EUR": "sepa"}).names("default", payment)
    """

    patterns: Sequence[str] = ()
    schemes: Mapping[str, str] = field(default_factory=dict)
    """Payment schemes by currency; of a currency that is not there, the currency itself."""

    def names(self, first: str, payment: Payment, accounts: AccountTexts = plain_account) -> ConfigNames:
        """The configs of a payment: `first`, then those of the rules, each once."""
        if not self.patterns:
            return first
        values = {
            "payerCountry": payment.payer.iban[:2],
            "payeeCountry": payment.payee.iban[:2],
            "currency": payment.currency,
            "scheme": self.schemes.get(payment.currency, payment.currency),
        }
        filled = [
            values | {"payerIban": payer, "payeeIban": payee}
            for payer, payee in zip(accounts(payment.payer.number), accounts(payment.payee.number), strict=True)
        ]
        names = dict.fromkeys([first, *(pattern.format_map(each) for pattern in self.patterns for each in filled)])
        return first if len(names) == 1 else tuple(names)

    def names_of(self, account: str, accounts: AccountTexts = plain_account) -> list[str]:
        """The configs that the rules name after an account, with the placeholders of everything else."""
        unfilled = {placeholder: f"{{{placeholder}}}" for placeholder in PLACEHOLDERS}
        names = [
            pattern.format_map(unfilled | {role: text})
            for pattern in self.patterns
            for role in ACCOUNTS
            if role in _placeholders(pattern)
            for text in accounts(account)
        ]
        return list(dict.fromkeys(names))

    def check_room(self, texts: int) -> None:
        """Checks that a payment has few enough configs, with so many texts for each account.

        Raises:
            ConfigurationError: There are too many.
        """
        named = sum(not _placeholders(pattern).isdisjoint(ACCOUNTS) for pattern in self.patterns)
        count = 1 + len(self.patterns) + named * (texts - 1)
        if count > MOST_CONFIGS:
            problem = f"a payment has {count} with {texts} encryption keys, and at most {MOST_CONFIGS} are possible"
            raise ConfigurationError("configs", f"{problem}; name fewer after accounts, or drop old keys")


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


def _placeholders(pattern: str) -> set[str]:
    return {part for _, part, _, _ in string.Formatter().parse(pattern) if part is not None}


def _checked(name: str, text: object) -> str:
    try:
        checked = checked_name(text)
    except InvalidInput as error:
        raise ConfigurationError(name, error.problem) from None
    if "*" in checked:
        raise ConfigurationError(name, "has a *, which makes it a template; templates are configs of their own")
    return checked
