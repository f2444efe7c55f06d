"""Payments as they arrive: a JSON object, or the fields of a CSV line. Every value is checked here, once.

Errors name the field as in the document: `payer.iban` in JSON, `payerIban` in CSV.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from paceline.durations import from_ms, parse_instant, to_ms
from paceline.errors import InvalidInput
from paceline.extras import needed
from paceline.slots.model import checked_id, checked_name
from paceline.slots.templates import refuse_template
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.instruction import (
    Instruction,
    checked_instruction,
    instruction_text,
    own_members,
    without_own_members,
)
from paceline_payments.instruction_columns import Columns, instruction_of_fields
from paceline_payments.model import ID_RULE, Party, Payment, is_sendable

COLUMNS: Columns = ("paymentId", "amount", "currency", "payerName", "payerIban", "payeeName", "payeeIban", "executeAt")
"""The columns that a CSV feed begins with, in this order."""
MEMBERS = ("paymentId", "amount", "currency", "payer", "payee", "executeAt", "configName", "instruction")
LONGEST_ID = 128
LONGEST_NAME = 140
"""As in ISO 20022."""
LONGEST_IBAN = 64
"""With spaces."""
LONGEST_ACCOUNT = 34
"""As in ISO 20022."""

_AMOUNT = re.compile(r"(0|[1-9][0-9]{0,12})(?:\.([0-9]{1,4}))?", re.ASCII)


def payment_of_json(value: object) -> Payment:
    """The payment a JSON object describes; `InvalidInput` names the first member that is wrong."""
    if not isinstance(value, Mapping):
        raise InvalidInput("payment", "must be a JSON object")
    for member in value:
        if member not in MEMBERS:
            raise InvalidInput(str(member)[:40], f"is unknown; known are {', '.join(MEMBERS)}")
    currency = checked_currency(_required(value, "currency"))
    config_name = value.get("configName")
    payment = Payment(
        checked_new_id(_required(value, "paymentId")),
        checked_amount(_required(value, "amount"), currency),
        currency,
        payer := _party(_required(value, "payer"), "payer"),
        other_party(payer, _party(_required(value, "payee"), "payee"), "payee.iban"),
        checked_time(_required(value, "executeAt")),
        None if config_name is None else refuse_template(checked_name(config_name, "configName"), "configName"),
    )
    instruction = value.get("instruction")
    return payment if instruction is None else with_instruction(payment, checked_instruction(instruction))


def payment_of_fields(fields: Sequence[str], columns: Columns = COLUMNS) -> Payment:
    """The payment the fields of a CSV line describe, in the order of `columns`."""
    if len(fields) != len(columns):
        raise InvalidInput("line", f"has {len(fields)} fields instead of {len(columns)}: {','.join(columns)}")
    payment_id, amount, currency, payer_name, payer_iban, payee_name, payee_iban, execute_at = fields[: len(COLUMNS)]
    further = dict(zip(columns[len(COLUMNS) :], fields[len(COLUMNS) :], strict=True))
    currency = checked_currency(currency)
    payee = _party_of_fields(payee_name, payee_iban, further.pop("payeeAccount", ""), "payee")
    payment = Payment(
        checked_new_id(payment_id),
        checked_amount(amount, currency),
        currency,
        payer := _party_of_fields(payer_name, payer_iban, further.pop("payerAccount", ""), "payer"),
        other_party(payer, payee, "payeeIban"),
        checked_time(execute_at),
    )
    return with_instruction(payment, instruction_of_fields(further)) if any(further.values()) else payment


def with_instruction(payment: Payment, instruction: Instruction) -> Payment:
    """The payment with its instruction, of which it keeps what it does not say itself.

    Raises:
        InvalidInput: The instruction contradicts the payment, or is too long.
    """
    own = own_members(payment.amount, payment.currency, payment.payer.to_json(), payment.payee.to_json())
    return payment._replace(instruction=instruction_text(without_own_members(instruction, own)))


def checked_new_id(value: object) -> str:
    """The id of a payment that is to be accepted."""
    payment_id = checked_payment_id(value)
    if not is_sendable(payment_id):
        raise InvalidInput("paymentId", f"{_shown(payment_id)} can't be used; it must be {ID_RULE}")
    return payment_id


def checked_payment_id(value: object) -> str:
    """An id to look for, or to report as rejected."""
    payment_id = checked_id(value, "paymentId")
    if len(payment_id) > LONGEST_ID:
        raise InvalidInput("paymentId", f"has {len(payment_id)} characters; at most {LONGEST_ID} are allowed")
    return payment_id


def checked_currency(value: object) -> str:
    """A currency's code."""
    if not isinstance(value, str) or value not in MINOR_UNITS:
        raise InvalidInput("currency", f"{_shown(value)} is no ISO 4217 code of a currency; write for example EUR")
    return value


def checked_amount(value: object, currency: str) -> str:
    """A positive amount, with exactly the currency's decimals."""
    if not isinstance(value, str):
        raise InvalidInput("amount", 'must be a text such as "12.34", so that no digit is lost')
    match = _AMOUNT.fullmatch(value)
    if match is None:
        raise InvalidInput("amount", f"{_shown(value)} is no amount; write digits and a point, for example 12.34")
    whole, fraction = match.group(1), match.group(2) or ""
    digits = MINOR_UNITS[currency]
    if len(fraction) > digits:
        allowed = f"at most {digits} decimals" if digits else "no decimals"
        raise InvalidInput("amount", f"{value!r} has {len(fraction)} decimals; {currency} has {allowed}")
    amount = f"{whole}.{fraction.ljust(digits, '0')}" if digits else whole
    if not amount.strip("0."):
        raise InvalidInput("amount", "must be more than zero")
    return amount


def checked_party_name(value: object, field: str) -> str:
    """A name of 1 to 140 printable characters, without space around it."""
    name = value.strip() if isinstance(value, str) and len(value) <= LONGEST_NAME else ""
    if not name or not name.isprintable():
        raise InvalidInput(field, f"must be a text of 1 to {LONGEST_NAME} printable characters")
    return name


def checked_iban(value: object, field: str) -> str:
    """An account whose check digits, country and length are right, in its compact form."""
    if not isinstance(value, str) or not value or len(value) > LONGEST_IBAN:
        raise InvalidInput(field, "must be an IBAN such as DE89370400440532013000")
    compact, problem = _iban(value)
    if problem is not None:
        raise InvalidInput(field, f"{_shown(value)} is no IBAN: {problem}")
    return compact


def checked_account(value: object, field: str) -> str:
    """The number of an account that has no IBAN, without space around it."""
    number = value.strip() if isinstance(value, str) and len(value) <= LONGEST_ACCOUNT else ""
    if not number or not number.isprintable():
        raise InvalidInput(field, f"must be a text of 1 to {LONGEST_ACCOUNT} printable characters")
    return number


def checked_time(value: object) -> datetime:
    """An instant, to the millisecond; fractions are rounded up, so that nothing runs early."""
    if not isinstance(value, str):
        raise InvalidInput("executeAt", "must be a text such as 2027-03-01T16:00:00Z")
    return _time(value)


# Feeds repeat accounts (one payer, many payees) and times (one instant for all), and both are expensive to parse. A
# problem is cached as text, not as an exception, which would keep its traceback alive.
@lru_cache(maxsize=20_000)
def _iban(value: str) -> tuple[str, str | None]:
    # Imported here: it is an extra, and large.
    with needed("checking an IBAN", "payments"):
        from schwifty import IBAN
        from schwifty.exceptions import SchwiftyException

    try:
        return IBAN(value).compact, None
    except SchwiftyException as error:
        return "", str(error).rstrip(".").lower()


@lru_cache(maxsize=1_000)
def _time(value: str) -> datetime:
    return from_ms(to_ms(parse_instant(value, "executeAt")))


def other_party(payer: Party, payee: Party, field: str) -> Party:
    """The payee, who has another account than the payer."""
    if payee.number == payer.number:
        raise InvalidInput(field, "is the payer's own account; a payment goes to another one")
    return payee


def _required(value: Mapping[str, Any], member: str) -> Any:
    content = value.get(member)
    if content is None:
        raise InvalidInput(member, "is required")
    return content


def _party(value: object, field: str) -> Party:
    if not isinstance(value, Mapping):
        raise InvalidInput(field, "must be an object with name and iban, or with name and account")
    for member in value:
        if member not in ("name", "iban", "account"):
            raise InvalidInput(f"{field}.{str(member)[:40]}", "is unknown; known are name, iban, account")
    name = checked_party_name(_required_of(value, field, "name"), f"{field}.name")
    if value.get("account") is None:
        return Party(name, checked_iban(_required_of(value, field, "iban"), f"{field}.iban"))
    if value.get("iban") is not None:
        raise InvalidInput(f"{field}.account", "is for accounts without an IBAN; leave one of the two out")
    return Party(name, "", checked_account(value["account"], f"{field}.account"))


def _party_of_fields(name: str, iban: str, account: str, role: str) -> Party:
    name = checked_party_name(name, f"{role}Name")
    if not account:
        return Party(name, checked_iban(iban, f"{role}Iban"))
    if iban:
        raise InvalidInput(f"{role}Account", "is for accounts without an IBAN; leave one of the two out")
    return Party(name, "", checked_account(account, f"{role}Account"))


def _required_of(value: Mapping[str, Any], field: str, member: str) -> Any:
    content = value.get(member)
    if content is None:
        raise InvalidInput(f"{field}.{member}", "is required")
    return content


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
