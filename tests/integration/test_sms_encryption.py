"""Messages at rest under the queue's keys: what the database's file holds, and what still works."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from paceline.dispatch.encryption import Encryption
from paceline.messaging import Record
from paceline.sql.engine import Database
from paceline.sql.outbox import SqlOutbox
from paceline.testing import eventually
from paceline_sms.intake import Intake
from paceline_sms.model import Message
from paceline_sms.service.wiring.followers import followers
from paceline_sms.stores.quota_statements import Way
from paceline_sms.stores.rows import decrypted_record
from paceline_sms.stores.sql import SqlDeliveryStore, SqlQuotaStore
from tests.integration.notification_gateway import gateway, new_user

OLD, NEW, FOREIGN = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2, 3))
TEXT = "Your code is 4711-kangaroo"
OWN, OTHER, STOPPED = "+491701234567", "+491701234568", "+491701234569"
SECRETS = [part.encode() for part in (TEXT, "kangaroo", *(number[1:] for number in (OWN, OTHER, STOPPED)))]


def leaked(path: Path) -> set[bytes]:
    """What can be read in the database's file, its log, and a dump of it."""
    dump = sqlite3.connect(path)
    held = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    held += "\n".join(dump.iterdump()).encode()
    dump.close()
    return {secret for secret in SECRETS if secret in held}


async def use(path: Path, keys: str | None) -> None:
    """Everything that stores a text or a number, left undone."""
    dispatch = {} if keys is None else {"encryption_keys": keys}
    url, user = f"sqlite:///{path}", new_user()
    async with gateway(database_url=url, dispatch=dispatch, sms={"quiet_hours": "00:00-23:59"}) as served:
        body = {"userId": user, "rateLimit": 10, "timeWindow": 60, "phone": OWN}
        assert (await served.client.post("/api/config", json=body)).status_code == 200
        assert (await served.send(user, TEXT, key="k")).status_code == 200
        assert (await served.client.post("/api/send", json={"userId": user, "message": TEXT, "to": OTHER})).is_success
        assert (await served.client.put(f"/api/optouts/{STOPPED}", json={"reason": "STOP"})).is_success
        letters = served.app.state.services.app("sms").messages
        await letters.take_in([Record("sms", "1", json.dumps({"message": TEXT, "to": OTHER}))])


@pytest.mark.parametrize("keys", [NEW, None])
async def test_nobody_reads_texts_and_numbers_from_the_file(tmp_path: Path, keys: str | None) -> None:
    await use(tmp_path / "sms.db", keys)
    assert leaked(tmp_path / "sms.db") == (set(SECRETS) if keys is None else set())


async def test_everything_works_with_keys_and_while_they_change(tmp_path: Path) -> None:
    url, user, sent = f"sqlite:///{tmp_path / 'sms.db'}", new_user(), {"sender": "inline"}

    async def answer_of(keys: str | None, method: str, path: str, **arguments: Any) -> Any:
        dispatch = {} if keys is None else {"encryption_keys": keys}
        async with gateway(database_url=url, dispatch=dispatch, sms=sent) as served:
            return await served.client.request(method, path, **arguments)

    body = {"userId": user, "rateLimit": 10, "timeWindow": 60, "phone": OWN}
    message = {"userId": user, "message": TEXT}
    assert (await answer_of(OLD, "POST", "/api/config", json=body)).json()["phone"] == OWN
    for phone in (OTHER, STOPPED):
        assert (await answer_of(OLD, "PUT", f"/api/optouts/{phone}", json={"reason": "STOP"})).is_success
    first = await answer_of(OLD, "POST", "/api/send", json=message, headers={"Idempotency-Key": "k"})
    keys = f"{NEW},{OLD}"
    again = await answer_of(keys, "POST", "/api/send", json=message, headers={"Idempotency-Key": "k"})
    assert again.json()["messageId"] == first.json()["messageId"]
    refused = await answer_of(keys, "POST", "/api/send", json={**message, "to": STOPPED})
    assert refused.status_code == 403
    # The second page of opt-outs begins after the first, whatever their order is.
    pages = [await answer_of(keys, "GET", "/api/optouts?limit=1")]
    pages.append(await answer_of(keys, "GET", "/api/optouts", params={"after": pages[0].json()["next"]}))
    assert sorted(entry["phone"] for page in pages for entry in page.json()["optouts"]) == [OTHER, STOPPED]
    assert (await answer_of(keys, "GET", f"/api/optouts/{STOPPED}")).json()["phone"] == STOPPED
    assert (await answer_of(keys, "DELETE", f"/api/optouts/{STOPPED}")).status_code == 204
    async with gateway(database_url=url, dispatch={"encryption_keys": keys}, sms=sent) as served:
        delivered = await served.client.post("/api/send", json={**message, "to": STOPPED})
        path = f"/api/messages/{delivered.json()['messageId']}"

        async def is_sent() -> bool:
            return bool((await served.client.get(path)).json()["status"] == "sent")

        await eventually(is_sent, within=20)
    # Without the key nothing is guessed.
    lost = await answer_of(FOREIGN, "POST", "/api/send", json=message)
    assert lost.status_code == 503
    shown = await answer_of(FOREIGN, "GET", "/api/optouts")
    assert [entry["phone"].startswith("it is encrypted with the key") for entry in shown.json()["optouts"]] == [True]


async def test_what_waits_for_kafka_is_encrypted_and_leaves_as_it_was(tmp_path: Path) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'sms.db'}", dispatch={"encryption_keys": NEW}) as served:
        ring, user = Encryption([NEW]), new_user()
        shared = Database(served.settings.database_url)
        store = SqlQuotaStore(shared, way=Way("sms-out", ring))
        messages = SqlDeliveryStore(
            shared, topic="sms-out", followers=followers(served.settings), copies="letters", encryption=ring
        )
        outbox = SqlOutbox(shared)
        intake = Intake(store, outbox)
        await intake.configure(user, 10, 60, phone=OWN)
        sent = await intake.send(user, TEXT)
        cancelled = await intake.send(user, TEXT, to=OTHER)
        await messages.take_in([Record("sms-out", "1", json.dumps({"message": TEXT, "to": OTHER}))])
        assert await messages.cancel(cancelled.message_id)
        assert leaked(tmp_path / "sms.db") == set()
        (entry,) = await (await outbox.read("sms-out", "relay")).receive(10, 5)
        record = decrypted_record(ring, entry.record)
        message = Message.from_record_value(record.value)
        assert (message.message_id, message.text, message.to) == (sent.message_id, TEXT, OWN)
        (copy,) = await (await outbox.read("letters", "relay")).receive(10, 5)
        assert TEXT in decrypted_record(ring, copy.record).value
        (letter,) = await messages.dead_letters(10)
        assert TEXT in letter.value
        assert (await messages.redrive(None)) == (1, 0)
        # Taken in as it is stored, as by a service without Kafka.
        assert (await messages.take_in([entry.record])).letters == []
        assert leaked(tmp_path / "sms.db") == set()
        await intake.close()
        await shared.close()
