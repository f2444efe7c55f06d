"""Claims on messages: what a sender that lost them can still do, which is nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from headgate.apps.notifications.model import Message
from headgate.apps.notifications.ports import Claim, DeliveryOutcome, Status
from headgate.apps.notifications.stores.sql import SqlDeliveryStore
from headgate.messaging import Record
from headgate.sql.databases import database

MESSAGES = [Message(1, "hello", "a"), Message(1, "hello", "b")]
AT_ONCE = timedelta(0)


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[SqlDeliveryStore]:
    """Its leases end at once, as that of a sender that stood still."""
    url = "memory://" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    opened = await database(url)
    yield SqlDeliveryStore(opened, topic="t", lease=AT_ONCE)
    await opened.close()


async def test_a_renewal_says_which_claims_are_still_there(store: SqlDeliveryStore) -> None:
    await store.claim(MESSAGES, "late")
    await store.claim(MESSAGES[:1], "other")
    assert list(await store.renew(["a", "b"], "late")) == ["b"]


async def test_who_lost_a_claim_does_not_put_aside_what_another_sent(store: SqlDeliveryStore) -> None:
    await store.claim(MESSAGES, "late")
    await store.claim(MESSAGES[:1], "other")
    await store.settle([DeliveryOutcome("a", Status.SENT, 1)])
    await store.park([Record("t-later", "1", "{}")], {"a": 5, "b": 5}, 0, "late")
    claimed = await store.claim(MESSAGES, "next")
    assert [(claimed[each].kind, claimed[each].attempts) for each in "ab"] == [(Claim.DONE, 0), (Claim.MINE, 5)]
