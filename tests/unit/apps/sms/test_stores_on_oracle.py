"""Oracle can't run here, so what would be sent to it is compiled and held against peer bug 24."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.dialects import oracle

from paceline.dispatch.model import ItemMove
from paceline.dispatch.status import Status as ItemStatus
from paceline.messaging import Record
from paceline.sql import outbox, outbox_looks
from paceline.sql.outbox_looks import Look
from paceline_sms.model import Attempt, AttemptEvent, Message, Outcome
from paceline_sms.ports import DeadLetter, DeliveryOutcome, FactsRequest, LeaseRequest, MessageFilter, Receipt, Status
from paceline_sms.receipts import EarlyReceipt
from paceline_sms.stores import (
    attempt_statements,
    item_statements,
    letter_statements,
    message_statements,
    quota_statements,
    receipt_statements,
    rows,
)
from paceline_sms.stores.following import MessageFollower
from paceline_sms.stores.quota_statements import Way
from paceline_sms.stores.status_statements import tell_nobody, tell_statuses
from paceline_sms.stores.tables import notification_attempt
from tests.models import oracle_grammars

NOW = datetime(2027, 3, 1, tzinfo=UTC)


class Recorder:
    """Stands where a connection would and compiles what it is given; every query comes back empty."""

    def __init__(self) -> None:
        self.dialect = oracle.dialect()
        self.dialect.supports_native_boolean = False  # as on a connection
        self.statements: list[str] = []
        self.info: dict[str, Any] = {}

    def execute(self, statement: Any, parameters: Any = None) -> Any:
        if isinstance(parameters, dict) and not statement.is_insert:
            # Lists are among the parameters, and not in the statement.
            text = statement.compile(dialect=self.dialect).construct_expanded_state(parameters).statement
        else:
            text = str(statement.compile(dialect=self.dialect, compile_kwargs={"render_postcompile": True}))
        self.statements.append(text)
        return Nothing()


class Nothing:
    rowcount = 0

    def scalar_one(self) -> datetime:
        return NOW  # the only query that needs an answer reads the time

    def first(self) -> None:
        return None

    def scalar(self) -> None:
        return None

    def all(self) -> list[Any]:
        return []

    def scalars(self) -> Nothing:
        return self

    def __iter__(self) -> Any:
        return iter(())


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def everything(connection: Any) -> None:
    ids = [f"m{n}" for n in range(2500)]
    messages = [Message(n, "m", message_id, "+491701234567", expires_ms=0) for n, message_id in enumerate(ids)]
    outcome = DeliveryOutcome("m", Status.SENT, 1)
    quota_statements.configure(connection, 1, 2, 3, {"phone": "+491701234567"}, None, None)
    quota_statements.delete(connection, 1)
    quota_statements.admit(connection, [Attempt.of(1, "m", "k")], Way("t"), 1000)
    for way in (Way(), Way("t")):
        quota_statements.publish(connection, way, [(Attempt.of(1, "m", "k"), messages[0])])
    quota_statements.find(connection, 1, None, None)
    quota_statements.renew(connection, 1, None, None)
    quota_statements.lease_budgets(connection, [LeaseRequest(n, 1) for n in range(2500)], None)
    message_statements.insert_messages(connection, messages, keep=True)
    message_statements.settle(connection, [outcome], tell_nobody)
    message_statements.note(connection, "m", 1, "own")
    message_statements.facts(connection, [FactsRequest(message, "SMS", is_first=False) for message in messages], None)
    letter_statements.forget_letters(connection, ids)
    followers = {name: MessageFollower(name, expiry=timedelta(days=1), copies="d") for name in ("SMS", "SMS_HIGH")}
    followers["SMS"].follow(connection, [ItemMove("m", ItemStatus.READY, ItemStatus.DEAD_LETTER, None)], NOW)
    item_statements.take_in(
        connection, [Record("t", "1", message.to_record_value()) for message in messages], None, "d"
    )
    item_statements.cancel(connection, "m", "t", followers, None, tell_nobody)
    item_statements.expire(connection, 500, followers)
    item_statements.redrive(connection, ids, 100, "t", followers, None)
    item_statements.drop(connection, None, 100, followers)
    item_statements.resolve_taken(connection, "m")
    item_statements.suspects(connection, "t", timedelta(seconds=1), 100, None)
    item_statements.requeue(connection, "t", ids, None)
    item_statements.sends_now(connection)
    message_statements.status_of(connection, "m")
    after = datetime(2027, 3, 1, tzinfo=UTC), "m"
    for oldest_first in (False, True):
        message_statements.page(connection, MessageFilter(Status.QUEUED, 1, "m"), 10, after, oldest_first)
    message_statements.count_matching(connection, MessageFilter(Status.QUEUED, 1, "m"), 10)
    letter_statements.count_dead_letters(connection, 10)
    message_statements.beginning(connection, "m", 10)
    receipt_statements.receive(connection, Receipt("p", True, provider_id="x"), tell_nobody)
    tell_statuses(connection, ids, encryption=None)
    early = EarlyReceipt(Receipt("own", True, provider_id="p"))
    receipt_statements.keep_receipt(connection, early, "t")
    receipt_statements.keep_receipt(connection, early._replace(tries=1), "t")
    outbox.holds_as_many(connection, "t", 10)
    letter_statements.bury(connection, [DeadLetter("l", None, "k", "v", "r", 1)], NOW, "d", None)
    for newest_first in (False, True):
        letter_statements.dead_letters(connection, 10, after, newest_first, None)
    message_statements.opt_out(connection, "+491701234567", "STOP", None)
    message_statements.opt_in(connection, "+491701234567", None)
    attempt_statements.add_attempts(connection, [AttemptEvent("e", 1, Outcome.SENT, 0)])
    attempt_statements.counts(connection, 0, 60_000, list(range(2500)))
    attempt_statements.totals(connection, 0, 60_000)
    attempt_statements.busiest(connection, 0, 60_000, 10)
    attempt_statements.suspects(connection, 0, 60_000)
    attempt = notification_attempt.c
    rows.prune(connection, attempt.minute, attempt.event_id, 0, 100, timedelta(0))
    looks = [Look("t", "me", 100, is_leased=True, renews=True), Look("u", "me", 100, is_leased=False, renews=False)]
    outbox.append(connection, [Record("t", "k", "v")])
    outbox_looks.first_ids(connection, "t", 100)
    outbox_looks.available(connection, looks)
    outbox.records_of(connection, "t", list(range(2500)))
    outbox.remove(connection, list(range(2500)))
    outbox_looks.free_after(connection, looks)
    outbox_looks.lease_and_read(connection, looks, timedelta(seconds=30))
    outbox.leave(connection, "t", "me")


def test_no_statement_limits_rows_it_locks(recorder: Recorder) -> None:
    """`FETCH FIRST` or ROWNUM with `FOR UPDATE` is ORA-02014."""
    everything(recorder)
    locking = [sql for sql in recorder.statements if "FOR UPDATE" in sql]
    assert len(locking) >= 4
    assert not any("FETCH FIRST" in sql or "ROWNUM" in sql for sql in locking)
    assert not any("LIMIT" in sql.replace("rate_limit", "").upper().split() for sql in recorder.statements)


def test_two_grammars_read_every_statement(recorder: Recorder) -> None:
    everything(recorder)
    assert len(recorder.statements) >= 60
    for statement in set(recorder.statements):
        oracle_grammars.check(statement)


def test_lists_stay_below_a_thousand(recorder: Recorder) -> None:
    everything(recorder)
    lists = [sql.partition(" IN (")[2].partition(")")[0] for sql in recorder.statements if " IN (:" in sql]
    assert len(lists) >= 9
    assert max(placeholders.count(",") + 1 for placeholders in lists) <= 900
