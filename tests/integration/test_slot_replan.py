"""A re-plan moves what carries the slots: queue items and payments, in the same transaction."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import sqlalchemy as sa

from paceline import DispatchQueue
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.stores.tables import queue as queue_table
from paceline.durations import format_instant, parse_instant
from paceline.slots import SlotScheduler, WindowPolicy
from paceline.slots.replan.run import Sizes
from paceline.slots.stores import slot_stores
from paceline.slots.stores.replanning import TOPIC
from paceline.sql.databases import database
from paceline.sql.outbox import SqlOutbox
from paceline_payments.stores.tables import payment
from tests.unit.server.http.test_app import opened

AT = "2030-01-01T00:00:00.000Z"
CONFIG = "/admin/rate-limit/config"
PERSON = {"name": "A. Payer", "iban": "DE89370400440532013000"}
PAYEE = {"name": "B. Payee", "iban": "GB82WEST12345698765432"}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'replan.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with opened(database_url=url) as http:
        config = {"configName": "default", "maxPerWindow": 1, "windowSize": "PT4S"}
        assert (await http.post(CONFIG, json=config)).status_code == 200
        yield http


async def raised(http: httpx.AsyncClient, **members: Any) -> dict[str, Any]:
    assert (await http.post(CONFIG, json={"configName": "default", "maxPerWindow": 4})).status_code == 200
    answer = await http.post("/api/v1/slots/replan", json={"configName": "default"} | members)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def pay(http: httpx.AsyncClient, count: int) -> None:
    for n in range(count):
        body = {"paymentId": f"p{n}", "amount": f"1{n}.00", "currency": "EUR", "payer": PERSON, "payee": PAYEE}
        answer = await http.post("/api/v1/payments", json=body | {"executeAt": AT})
        assert answer.status_code == 202, answer.text


async def times(http: httpx.AsyncClient, number: int) -> tuple[str, str, str]:
    """When the slot, the payment and the item of a payment are due."""
    shown = (await http.get(f"/api/v1/payments/p{number}")).json()
    slot = (await http.get(f"/api/v1/slots/payment:p{number}")).json()
    item = (await http.get(f"/admin/dispatch/PAYMENT/items/p{number}")).json()
    return slot["scheduledTime"], shown["scheduledTime"], item["executeAt"]


async def test_payments_and_their_items_move_with_their_slots(client: httpx.AsyncClient) -> None:
    await pay(client, 8)
    before = [await times(client, n) for n in range(8)]
    tried = await raised(client, dryRun=True)
    assert (tried["dryRun"], tried["examined"]) == (True, 8)
    assert tried["moved"] >= 6
    assert [await times(client, n) for n in range(8)] == before
    done = await raised(client)
    after = [await times(client, n) for n in range(8)]
    assert done["moved"] >= 6
    for old, new in zip(before, after, strict=True):
        assert new[0] == new[1] == new[2] <= old[0]
    assert [new[0] for new in after] == sorted(new[0] for new in after)
    assert after[-1][0] < "2030-01-01T00:00:08.000Z"
    assert (done["lastBefore"], done["lastAfter"]) == (before[-1][0], after[-1][0])
    assert (await raised(client))["moved"] == 0
    entries = (await client.get("/admin/audit")).json()
    assert "/api/v1/slots/replan" in {entry["path"] for entry in entries}


async def test_a_payment_whose_execution_has_begun_stays(client: httpx.AsyncClient, url: str) -> None:
    await pay(client, 6)
    before = [await times(client, n) for n in range(6)]
    opened_database = await database(url)
    claimed = sa.update(queue_table).where(queue_table.c.item_id == "p1").values(queue_status="CLAIMED")
    begun = sa.update(payment).where(payment.c.payment_id == "p3").values(begun_at=parse_instant(AT))
    for statement in (claimed, begun):
        await opened_database.write(_execute, statement)
    await opened_database.close()
    await raised(client)
    after = [await times(client, n) for n in range(6)]
    assert (after[1], after[3]) == (before[1], before[3])
    assert after[2] != before[2]
    assert [new[0] for new in after] == sorted(new[0] for new in after), "nobody overtakes what has begun"


def _execute(connection: sa.Connection, statement: sa.Update) -> None:
    connection.execute(statement)


@pytest.mark.parametrize("direction", ["earlier", "spread"])
async def test_items_under_the_events_own_id_move_and_subscribers_are_notified(url: str, direction: str) -> None:
    store, replans = await slot_stores(url, carriers=DispatchQueue.slot_carriers())
    replans.sizes = Sizes(min_slots=2)
    async with SlotScheduler(store, replans=replans) as slots, DispatchQueue.open(url) as queue:
        await queue.define(DispatchConfig(item_type="INVOICE", exec_workflow_type="w", exec_task_queue="q"))
        await slots.configure("c", WindowPolicy(1 if direction == "earlier" else 9, "PT4S"))
        booked = await slots.assign_many([(f"e{n}", AT) for n in range(9)], "c")
        # The fifth stays and nobody overtakes it, so that others can move in either direction.
        *first, unclear, sixth, seventh, eighth, _ = sorted(booked, key=lambda slot: slot.scheduled_ms)
        carried = [*first, sixth, seventh, eighth]
        for slot in carried:
            await queue.enqueue("INVOICE", slot.event_id, context={}, execute_at=slot.scheduled_time)
        # An item of the same id at another time: it is unclear whether it carries the slot, so the slot stays.
        await queue.enqueue("INVOICE", unclear.event_id, context={}, execute_at=parse_instant(AT))
        await slots.configure("c", WindowPolicy(3, "PT4S"))
        result = await slots.replan("c", direction=direction)
        moved = {slot.event_id: slot for slot in [await slots.find(f"e{n}") for n in range(9)]}
        assert moved[unclear.event_id].scheduled_ms == unclear.scheduled_ms
        for slot in carried:
            item = (await queue.show("INVOICE", slot.event_id)).item
            assert format_instant(item.execute_at) == format_instant(moved[slot.event_id].scheduled_time)
        differing = [slot for slot in booked if moved[slot.event_id].scheduled_ms != slot.scheduled_ms]
        assert len(differing) == result.moved > 0
        log = SqlOutbox(await database(url), poll_seconds=0.01)
        source = await log.read(TOPIC, "test")
        moves = [json.loads(record.record.value) for record in await source.receive(100, 5)]
        assert {(record["eventId"], record["scheduledTime"]) for record in moves} == {
            (slot.event_id, format_instant(moved[slot.event_id].scheduled_time)) for slot in differing
        }
        assert {record["configName"] for record in moves} == {"c"}
        await source.close()
        await log.close()
        await log.database.close()


async def test_a_slot_of_an_application_that_nobody_here_knows_stays(url: str) -> None:
    async with SlotScheduler.open(url) as slots:
        await slots.configure("c", WindowPolicy(1, "PT4S"))
        await slots.assign_many([(f"e{n}", AT) for n in range(5)], "c", owner="somebody")
        await slots.configure("c", WindowPolicy(5, "PT4S"))
        result = await slots.replan("c")
        assert (result.examined, result.moved) == (5, 0)


async def test_two_who_press_the_button_at_once_move_each_slot_once(client: httpx.AsyncClient) -> None:
    await pay(client, 12)
    answers = await asyncio.gather(*(raised(client) for _ in range(3)))
    after = [await times(client, n) for n in range(12)]
    assert all(slot == shown == item for slot, shown, item in after)
    assert after[-1][0] < "2030-01-01T00:00:12.000Z"
    assert sum(answer["moved"] for answer in answers) >= 9
    assert (await raised(client))["moved"] == 0


@pytest.mark.parametrize(
    ("members", "status", "field"),
    [
        ({"configName": ""}, 400, "configName"),
        ({"configName": "nowhere"}, 404, None),
        ({"from": "noon"}, 400, "from"),
        ({"from": AT, "to": AT}, 400, "to"),
        ({"notice": "soon"}, 400, "notice"),
        ({"notice": "-PT1S"}, 400, "notice"),
        ({"direction": "later"}, 400, "direction"),
        ({"dryRun": "yes"}, 400, "dryRun"),
        ({"dry": True}, 400, "dry"),
    ],
)
async def test_a_wrong_replan_changes_nothing_and_names_its_member(
    members: dict[str, Any], status: int, field: str | None
) -> None:
    async with opened() as http:
        answer = await http.post("/api/v1/slots/replan", json=members)
        assert (answer.status_code, answer.json().get("field")) == (status, field)
