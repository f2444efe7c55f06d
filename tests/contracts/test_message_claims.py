"""Claims on messages: what a sender that lost them can still do, which is nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from paceline.errors import StoreUnavailable
from paceline.messaging import Record
from paceline_sms.model import Message
from paceline_sms.ports import (
    Claim,
    DeadLetter,
    DeliveryOutcome,
    MessageClaim,
    Parking,
    Receipt,
    Status,
)
from paceline_sms.provider import Accepted
from paceline_sms.receipts import EarlyReceipt
from paceline_sms.recipients import Recipient
from paceline_sms.stores import message_statements, quota_statements, receipt_statements
from paceline_sms.stores.sql import SqlDeliveryStore
from paceline_sms.stores.tables import notification_message
from tests.every_schema import database

MESSAGES = [Message(1, "hello", "a"), Message(1, "hello", "b")]
AT_ONCE = timedelta(0)


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SqlDeliveryStore]:
    """Its leases end at once, as those of a frozen sender."""
    url = "memory://" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    opened = await database(url)
    yield SqlDeliveryStore(opened, topic="t", lease=AT_ONCE)
    await opened.close()


async def test_a_renewal_says_which_claims_are_still_there(store: SqlDeliveryStore) -> None:
    await store.claim(MESSAGES, "late")
    await store.claim(MESSAGES[:1], "other")
    assert list(await store.renew(["a", "b"], "late")) == ["b"]


async def test_a_batch_of_claims_gets_each_message_its_own_answer(store: SqlDeliveryStore) -> None:
    """Queued ones are claimed by a shorter way than those that are claimed, sent or not known."""
    db, number, other = store._database, "+491701234567", "+491701234568"
    ann = Recipient(number, "de", "UTC")
    await db.write(quota_statements.configure, 1, 9, 9, asdict(ann), None)
    ids = ("queued", "to", "aside", "busy", "mine", "done", "bob", "held")
    messages = [
        Message(2 if message_id == "bob" else 1, "hello", message_id, other if message_id == "to" else None)
        for message_id in ids
    ]
    await db.write(message_statements.insert_messages, messages)
    await store.opt_out(other, "STOP")
    lasting = SqlDeliveryStore(db, topic="t", lease=timedelta(minutes=1))
    await lasting.claim([messages[2], messages[4], messages[5]], "me")
    await lasting.claim([messages[3]], "another")
    await store.settle([DeliveryOutcome("done", Status.SENT, 1), DeliveryOutcome("held", Status.UNKNOWN, 1)])
    await store.park([(Record("t-later", "1", "{}"), 0)], {"aside": Parking(5, "first")}, "me")
    claimed = await lasting.claim([*messages, Message(1, "hello", "unknown")], "me")
    assert claimed == {
        "queued": MessageClaim(Claim.MINE, 0, ann),
        "to": MessageClaim(Claim.MINE, 0, ann, opted_out=True),
        "aside": MessageClaim(Claim.MINE, 5, ann, unknown_provider="first"),
        "held": MessageClaim(Claim.DONE, 0, ann),
        "busy": MessageClaim(Claim.BUSY, 0, ann),
        "mine": MessageClaim(Claim.MINE, 0, ann),
        "done": MessageClaim(Claim.DONE, 0, ann),
        "bob": MessageClaim(Claim.MINE, 0, Recipient()),
        "unknown": MessageClaim(Claim.MINE, 0, ann),
    }
    assert sorted(await store.renew(sorted(claimed), "me")) == ["aside", "bob", "mine", "queued", "to", "unknown"]
    await store.opt_out(number, "STOP")
    await store.release(["queued", "to"], "me")
    again = await store.claim(messages[:2], "another")
    assert [again[message_id].opted_out for message_id in ("queued", "to")] == [True, True]
    await store.opt_in(other)
    await store.release(["to"], "another")
    assert not (await store.claim([messages[1]], "me"))["to"].opted_out, "its own number counts, not the user's"


async def test_a_cancelled_message_is_never_claimed_however_late_its_record_comes(store: SqlDeliveryStore) -> None:
    """A finished message suppresses another of its id for some hours; a cancelled one for as long as it is known."""
    db, row = store._database, notification_message
    await db.write(message_statements.insert_messages, MESSAGES)
    cancelled = await store.cancel("a")
    assert cancelled is not None
    assert (cancelled.message.status, cancelled.refusal) == (Status.CANCELLED, None)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    await db.write(lambda connection: connection.execute(row.update().values(settled_at=long_ago)))
    kinds = {message_id: claim.kind for message_id, claim in (await store.claim(MESSAGES, "me")).items()}
    assert kinds == {"a": Claim.DONE, "b": Claim.MINE}
    assert await store.receive(Receipt("p", False, "a")) == -1.0, "nothing was sent that could fail"


async def test_what_a_provider_may_have_taken_is_not_cancelled(store: SqlDeliveryStore) -> None:
    await store._database.write(message_statements.insert_messages, MESSAGES)
    await store.claim(MESSAGES[:1], "me")
    sending = await store.cancel("a")
    assert sending is not None
    assert sending.refusal == "a sender has taken it"
    await store.park([(Record("t-later", "1", "{}"), 0)], {"a": Parking(1, "first")}, "me")
    parked = await store.cancel("a")
    assert parked is not None
    assert (parked.message.status, parked.refusal) == (Status.QUEUED, "first may have taken it")
    assert await store.cancel("nobody") is None


async def test_outcomes_of_every_kind_are_noted_together(store: SqlDeliveryStore) -> None:
    messages = [Message(1, "hello", message_id) for message_id in "abcd"]
    await store.claim(messages, "me")
    await store.settle(
        [
            DeliveryOutcome("a", Status.SENT, 1, "own", "p-1", 2),
            DeliveryOutcome("b", Status.SENT, 1, "own", "p-2"),
            DeliveryOutcome("c", Status.FAILED, 3, "other", reason="no"),
            DeliveryOutcome("d", Status.SENT, 1, "own", "p-3", 2),
            DeliveryOutcome("a", Status.SENT, 1, "own", "p-4", 2),
        ]
    )
    rows = [await store.status(message.message_id) for message in messages]
    assert [row and (row.status, row.attempts, row.provider, row.provider_id, row.segments) for row in rows] == [
        (Status.SENT, 1, "own", "p-4", 2),
        (Status.SENT, 1, "own", "p-2", 1),
        (Status.FAILED, 3, "other", None, 1),
        (Status.SENT, 1, "own", "p-3", 2),
    ]
    assert [row and row.reason for row in rows] == [None, None, "no", None]
    assert await store.renew(["a", "b", "c", "d"], "me") == []


async def test_who_lost_a_claim_does_not_put_aside_what_another_sent(store: SqlDeliveryStore) -> None:
    await store.claim(MESSAGES, "late")
    await store.claim(MESSAGES[:1], "other")
    await store.settle([DeliveryOutcome("a", Status.SENT, 1)])
    await store.park([(Record("t-later", "1", "{}"), 0)], {"a": Parking(5), "b": Parking(5)}, "late")
    claimed = await store.claim(MESSAGES, "next")
    assert [(claimed[message_id].kind, claimed[message_id].attempts) for message_id in "ab"] == [
        (Claim.DONE, 0),
        (Claim.MINE, 5),
    ]


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
async def test_whatever_a_provider_writes_is_stored(store: SqlDeliveryStore, text: str) -> None:
    """A text that the store refused would be settled again and again, and its message sent again and again."""
    await store.claim(MESSAGES, "sender")
    sent = Accepted(text)
    await store.settle([DeliveryOutcome("a", Status.SENT, 1, "own", sent.stored_id)])
    refused = DeliveryOutcome("b", Status.FAILED, 1, "own", reason=text)
    await store.bury([DeadLetter("l", "b", "1", "{}", text, 1)], [refused])
    statuses = [await store.status(message_id) for message_id in "ab"]
    assert [status and status.status for status in statuses] == [Status.SENT, Status.FAILED]
    assert statuses[0] is not None
    receipt = Receipt("own", True, provider_id=text)
    assert await store.receive(receipt) is not None, "its receipt names it in the same way"
    assert await store.receive(Receipt("own", False, message_id=text)) is None
    await store.receive(Receipt("own", False, message_id="b", reason=text))


async def test_what_is_delivered_stays_so_when_the_answer_comes_later(store: SqlDeliveryStore) -> None:
    await store.claim(MESSAGES, "sender")
    await store.receive(Receipt("own", True, message_id="a"))
    await store.settle([DeliveryOutcome("a", Status.SENT, 2, "own", "p-1"), DeliveryOutcome("b", Status.SENT, 1)])
    first, second = [await store.status(message_id) for message_id in "ab"]
    assert first is not None
    assert second is not None
    assert (first.status, first.attempts, first.provider_id) == (Status.DELIVERED, 2, "p-1")
    assert first.sent_at is not None
    assert first.sent_at == first.delivered_at, "it was sent when it was delivered, at the latest"
    assert (second.status, second.segments) == (Status.SENT, 1)


async def test_a_receipt_is_kept_only_while_a_message_is_being_sent(
    store: SqlDeliveryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipt_statements, "MAX_EARLY_RECEIPTS", 2)
    early = EarlyReceipt(Receipt("own", True, provider_id="p-1"))
    assert not await store.keep_receipt(early)
    await store.claim(MESSAGES[:1], "sender")
    assert not await store.keep_receipt(EarlyReceipt(Receipt("own", True, message_id="unknown")))
    assert await store.keep_receipt(early)
    assert await store.keep_receipt(early)
    with pytest.raises(StoreUnavailable, match="2 receipts wait"):
        await store.keep_receipt(early)
    await store.settle([DeliveryOutcome("a", Status.SENT, 1, "own", "p-2")])
    assert await store.keep_receipt(early._replace(tries=1)), "one that was kept before is kept on"
    assert not await store.keep_receipt(early)


async def test_a_receipt_resolves_an_unknown_message_and_takes_its_dead_letter_away(store: SqlDeliveryStore) -> None:
    db = store._database
    await db.write(message_statements.insert_messages, [Message(1, "hello", name) for name in "abcd"])
    for name in "abcd":
        unknown = DeliveryOutcome(name, Status.UNKNOWN, 1, "first", reason="no answer")
        await store.hold(Record("t-unknown", "1", "{}"), unknown, 0)
    letters = [DeadLetter(f"l{name}", name, "1", "{}", "", 1) for name in "abcd"]
    assert [letter.reason for letter in await store.bury_held(letters[:3])] == ["unknown: no answer"] * 3
    assert (await store.backlog()).unknown == 4
    for name, delivered in (("a", True), ("b", False), ("c", None), ("d", None)):
        assert await store.receive(Receipt("first", delivered, name, f"p-{name}", "gone")) is not None
    statuses = [await store.status(name) for name in "abcd"]
    assert [status and (status.status, status.provider_id) for status in statuses] == [
        (Status.DELIVERED, "p-a"),
        (Status.FAILED, "p-b"),
        (Status.SENT, "p-c"),
        (Status.SENT, "p-d"),
    ]
    assert await store.dead_letters(10) == []
    assert await store.bury_held(letters) == []
    # From now on its receipts name it by the provider's id.
    assert await store.receive(Receipt("first", True, None, "p-d")) is not None
    assert await store.receive(Receipt("first", None, None, "p-d")) == -1.0
