"""What rules about several payments together need to know, read in the transaction that stores the payments."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from paceline.dispatch.encryption import Encryption, lookups
from paceline.dispatch.stores.tables import config
from paceline.errors import InvalidInput
from paceline.sql.in_lists import where_in
from paceline_payments import intake_limits
from paceline_payments.intake_limits import UNPAID_STATUSES, Spending, duplicate_queries, spending_of
from paceline_payments.model import ITEM_TYPE
from paceline_payments.ports import IntakeLimits, NewPayment
from paceline_payments.rules import account_key
from paceline_payments.stores.statements import find_duplicates, from_minor
from paceline_payments.stores.tables import payment

_LOCK = 0x70616964
"""The advisory lock of intakes under such rules ("paid")."""


def refusals(
    connection: Connection, payments: Sequence[NewPayment], limits: IntakeLimits, encryption: Encryption | None = None
) -> dict[str, InvalidInput]:
    """By id: why a payment breaks the limits. Until the transaction ends no other one checks: of two concurrent chunks
    the second one sees the first."""
    _take_turns(connection)
    duplicates: dict[str, str] = {}
    if limits.duplicate_window is not None:
        duplicates = find_duplicates(connection, duplicate_queries(payments), limits.duplicate_window, encryption)
    limited = [spending_of(new) for new in payments if new.payment.currency in limits.daily]
    spent = _spent(connection, limited, encryption)
    return intake_limits.refusals(payments, limits, duplicates=duplicates, spent=spent)


def _take_turns(connection: Connection) -> None:
    """SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    elif connection.dialect.name == "oracle":
        connection.execute(sa.select(config.c.item_type).where(config.c.item_type == ITEM_TYPE).with_for_update())


def _spent(connection: Connection, asked: Sequence[Spending], encryption: Encryption | None) -> dict[Spending, Decimal]:
    spent: dict[Spending, Decimal] = {}
    accounts = {
        number: account
        for account in {key.account for key in asked}
        for number in lookups(encryption, account_key(account))
    }
    days = sorted({key.value_date for key in asked})
    unpaid = [status.value for status in UNPAID_STATUSES]
    columns = payment.c.payer_key, payment.c.currency, payment.c.value_date
    for some in where_in(connection, payment.c.payer_key, sorted(accounts)):
        rows = connection.execute(
            sa.select(*columns, sa.func.sum(payment.c.amount_minor))
            .where(some, payment.c.value_date.in_(days), payment.c.status.not_in(unpaid))
            .group_by(*columns)
        )
        for account, currency, day, minor in rows:
            key = Spending(accounts[account], currency, day)
            spent[key] = spent.get(key, Decimal(0)) + Decimal(from_minor(int(minor), currency))
    return spent
