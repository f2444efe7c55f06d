"""Messages of templates, over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.notification_gateway import gateway, new_user

TEMPLATES = {"code": "Your code is {code}, {name}"}


async def test_a_message_of_a_template_is_rendered_counted_and_sent_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sms.db'}"
    async with gateway(database_url=url, sms={"templates": TEMPLATES}) as served:
        user = new_user()
        body = {"userId": user, "rateLimit": 10, "timeWindow": 60, "unit": "segment"}
        await served.client.post("/api/config", json=body)
        message: dict[str, Any] = {"userId": user, "template": "code", "variables": {"code": 4711, "name": "x" * 150}}
        answers = [
            await served.client.post("/api/send", json=message, headers={"Idempotency-Key": "k"}) for _ in range(2)
        ]
        assert [(answer.status_code, answer.json()["segments"]) for answer in answers] == [(200, 2)] * 2
        ((_, stored),) = await served.waiting()
        assert json.loads(stored)["message"] == "Your code is 4711, " + "x" * 150
        assert (await served.row(user)).current_count == 2
        other = message | {"variables": {"code": 4712, "name": "x"}}
        reused = await served.client.post("/api/send", json=other, headers={"Idempotency-Key": "k"})
        assert (reused.status_code, reused.json()["title"]) == (422, "Idempotency Key Reused")
        batch = {"messages": [other, message | {"variables": {}}]}
        done, refused = (await served.client.post("/api/send/batch", json=batch)).json()["results"]
        assert (done["segments"], refused["status"], refused["field"]) == (1, 422, "variables.code")


@pytest.mark.parametrize(
    ("members", "status", "field"),
    [
        ({"template": "code", "variables": {"code": 1}}, 422, "variables.name"),
        ({"template": "code", "variables": {"code": 1, "name": "x", "y": 1}}, 422, "variables.y"),
        ({"template": "code"}, 422, "variables.code"),
        ({"template": "nosuch", "variables": {}}, 400, "template"),
        ({"template": "code", "message": "x"}, 400, "template"),
        ({"message": "x", "variables": {}}, 400, "variables"),
        ({"template": "code", "variables": {"code": 1, "name": "x" * 10_000}}, 400, "message"),
        ({"template": "code", "variables": []}, 400, "variables"),
        ({"template": 1}, 400, "template"),
        ({}, 400, "message"),
    ],
)
async def test_what_is_refused_counts_and_sends_nothing(
    tmp_path: Path, members: dict[str, Any], status: int, field: str
) -> None:
    async with gateway(database_url=f"sqlite:///{tmp_path / 'sms.db'}", sms={"templates": TEMPLATES}) as served:
        user = new_user()
        await served.configure(user, 10, 60)
        answer = await served.client.post("/api/send", json={"userId": user, **members})
        assert (answer.status_code, answer.json()["field"]) == (status, field)
        assert ((await served.row(user)).current_count, await served.waiting()) == (0, [])
