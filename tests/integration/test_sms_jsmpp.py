"""The provider `smpp` against jsmpp's own SMSC."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.testing import eventually
from paceline.testing.availability import available
from tests.integration.jsmpp import simulator
from tests.integration.notification_gateway import gateway, new_user

pytestmark = pytest.mark.full


async def test_jsmpp_takes_messages_and_reports_them(tmp_path: Path) -> None:
    log = tmp_path / "jsmpp.log"
    with available("kafka"), simulator(log) as url:
        account = {"smpp_url": url, "smpp_system_id": "j", "smpp_password": "jpwd", "smpp_from": "Shop"}
        smsc = {"smpp_enquire_seconds": 1, "smpp_hexadecimal_ids": True, **account}
        sms = {"sender": "inline", "providers": "smpp", **smsc}
        async with gateway(database_url=f"sqlite:///{tmp_path / 'gateway.db'}", sms=sms) as served:
            user = new_user()
            await served.configure(user, 100, 60)
            sent = []
            for number in range(20):
                body = {"userId": user, "message": f"Your code is {number}", "to": f"+4917012345{number:02}"}
                sent.append((await served.client.post("/api/send", json=body)).json()["messageId"])

            async def are_delivered() -> bool:
                answers = [(await served.client.get(f"/api/messages/{message_id}")).json() for message_id in sent]
                return all(answer["status"] == "delivered" for answer in answers)

            await eventually(are_delivered, within=90)
    received = log.read_text()
    assert [received.count(f"'Your code is {number}'") for number in range(20)] == [1] * 20
    assert received.count("Accepting bind") == 1
    assert "Could not send deliver_sm" not in received
    assert "Failed sending" not in received
