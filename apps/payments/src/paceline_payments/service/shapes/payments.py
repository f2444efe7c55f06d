"""A payment on the wire: its request, its response, and the result of a feed."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Self

from pydantic import ConfigDict, WithJsonSchema

from paceline.server.shapes import members
from paceline.server.shapes.shape import Instant, Shape
from paceline_payments import model
from paceline_payments.currencies import MINOR_UNITS
from paceline_payments.four_eyes import retry_requested_by
from paceline_payments.model import ID_RULE, PaymentAudit, PaymentRecord
from paceline_payments.parsing import LONGEST_ACCOUNT, LONGEST_IBAN, LONGEST_ID, LONGEST_NAME
from paceline_payments.service.shapes.reconciliation import ReconciliationShown

PAYMENT_ID: dict[str, Any] = members.EVENT_ID | {
    "maxLength": LONGEST_ID,
    "description": "Your name for the payment: the same id with the same content is the same payment.",
}
NEW_PAYMENT_ID: dict[str, Any] = PAYMENT_ID | {
    "pattern": r"^(?!\.\.?$)[!-~]([ -~]*[!-~])?$",
    "description": f"{PAYMENT_ID['description']} It must be {ID_RULE}.",
}
"""The id of a payment that is to be accepted."""
_AMOUNT: dict[str, Any] = {
    "type": "string",
    "pattern": r"^(0|[1-9][0-9]{0,12})(\.[0-9]{1,4})?$",
    "description": "More than zero, with no more decimals than the currency has.",
    "example": "12.34",
}
_CURRENCY: dict[str, Any] = {"type": "string", "enum": sorted(MINOR_UNITS), "example": "EUR"}


_NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": LONGEST_NAME, "example": "Alice"}
_IBAN: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_IBAN,
    "example": "DE89370400440532013000",
}


_ACCOUNT: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_ACCOUNT,
    "description": "The number of an account that has no IBAN.",
    "example": "0532013000",
}
_INSTRUCTION: dict[str, Any] = {
    "type": "object",
    "description": "What else the bank is told, with the names of ISO 20022.",
    "example": {"PmtId": {"EndToEndId": "invoice-17"}, "RmtInf": {"Ustrd": ["Invoice 17"]}},
}


class Party(Shape):
    """The payer, or the payee."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["iban"]}, {"required": ["account"]}]})

    name: Annotated[str, WithJsonSchema(_NAME)]
    iban: Annotated[str | None, WithJsonSchema(_IBAN)] = None
    account: Annotated[str | None, WithJsonSchema(_ACCOUNT)] = None


class PartyShown(Shape):
    """The payer, or the payee, of an accepted payment."""

    name: str
    iban: str | None
    """Null for an account that has none."""
    account: str | None
    """The number of an account that has no IBAN."""

    @classmethod
    def of_party(cls, party: model.Party) -> Self:
        return cls(name=party.name, iban=party.iban or None, account=party.account or None)


class PaymentRequest(Shape):
    """A requested payment."""

    # `apps.payments.parsing` checks it: lines of a feed and messages of a topic are such documents, too.
    payment_id: Annotated[str, WithJsonSchema(NEW_PAYMENT_ID)]
    amount: Annotated[str, WithJsonSchema(_AMOUNT)]
    currency: Annotated[str, WithJsonSchema(_CURRENCY)]
    payer: Party
    payee: Party
    execute_at: Annotated[str, WithJsonSchema(members.INSTANT)]
    config_name: Annotated[str | None, WithJsonSchema(members.BOOKED_NAME | {"type": ["string", "null"]})] = None
    instruction: Annotated[dict[str, Any] | None, WithJsonSchema(_INSTRUCTION)] = None


class AcceptedPayment(Shape):
    """A payment that will be executed at its time."""

    payment_id: str
    status: str
    scheduled_time: Instant


class RejectedLine(Shape):
    """A line that is no payment, or one that can't be accepted."""

    line: int
    reason: str


class BulkResult(Shape):
    """The result of a feed."""

    accepted: int
    duplicates: int
    rejected: list[RejectedLine]


class FeedReport(BulkResult):
    """The result of a feed on the command line, with the first rejected records."""

    feed_id: str
    state: str
    """DONE; HELD if it waits for release; or CANCELLED if the feed was cancelled before or meanwhile."""
    rejected_count: int
    rejected_file: str | None
    lines: int
    seconds: float


class DemoReport(Shape):
    """The result of a run of `paceline demo`."""

    payments: int
    tps: int
    at: Instant
    accepted: int
    rejected: list[RejectedLine]
    executed_once: int
    executed_more_than_once: int
    never_executed: int
    calls: int
    peak_per_second: int
    turned_away: int
    drift_seconds: dict[str, float]
    statuses: dict[str, int]
    dead_letters: int
    kept: bool
    reconciled: ReconciliationShown | None = None
    """With `--chaos`."""
    calls_while_off: int | None = None


class PaymentEvent(Shape):
    """One line of a payment's history."""

    status_before: str | None
    status_after: str
    detail: str | None
    created_at: Instant


class HistoryEvent(PaymentEvent):
    """One line of a payment's history, and who caused it."""

    actor: str | None
    """The token or person, `execution`, or `queue`."""
    feed_id: str | None
    line: int | None
    """Its line in the feed."""


class PaymentHistory(Shape):
    """The history of a payment, oldest first."""

    payment_id: str
    events: list[HistoryEvent]


class ConfigsOfAccount(Shape):
    """The slot configs that the rules name after an account."""

    names: list[str]


class PaymentView(Shape):
    """A payment and its status."""

    payment_id: str
    amount: str
    currency: str
    payer: PartyShown
    payee: PartyShown
    execute_at: Instant
    status: str
    scheduled_time: Instant
    fee: str
    value_date: date
    config_name: str | None
    feed_id: str | None
    reference: str | None
    reason: str | None
    created_at: Instant
    updated_at: Instant

    @classmethod
    def of_payment(cls, record: PaymentRecord, **members: Any) -> Self:
        payment = record.payment
        parties = {"payer": PartyShown.of_party(payment.payer), "payee": PartyShown.of_party(payment.payee)}
        return cls.of(payment, record.terms, record, **parties, **members)


class PaymentPage(Shape):
    """A page of payments in order of their ids."""

    payments: list[PaymentView]
    next: str | None
    """The cursor of the next page; null if this is the last."""
    total: int | None = None
    """How many match, if requested; 100,001 if there are more."""


class PaymentShown(PaymentView):
    """A payment, its instruction and its history."""

    instruction: dict[str, Any]
    """Everything that the bank is told, with the names of ISO 20022."""
    retry_requested_by: str | None
    """Who asked for a retry that a second person has to confirm."""
    audit: list[PaymentEvent]

    @classmethod
    def of_record(cls, record: PaymentRecord, history: list[PaymentAudit], **members: Any) -> Self:
        members |= {"audit": history, "retry_requested_by": retry_requested_by(history)}
        return cls.of_payment(record, instruction=record.payment.whole_instruction, **members)


class PaymentAndSlot(PaymentShown):
    """A payment as the command line shows it."""

    slot_id: str
