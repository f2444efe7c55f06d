"""`/api/v1/search` queries every store, shows what the caller may see, and names the stores that did not answer."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx

from paceline import DispatchQueue
from paceline.server.access.authenticator import create_token
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.server.wiring.access import open_access_store
from paceline.testing import eventually

ADMIN = {"Authorization": "Bearer admin-token-of-the-test"}
AT = "2030-03-01T16:00:00Z"
PARTY = {"name": "Alice", "iban": "DE89370400440532013000"}
PAYEE = {"name": "Bob", "iban": "GB29NWBK60161331926819"}
PAYMENT = {"amount": "1.00", "currency": "EUR", "payer": PARTY, "payee": PAYEE, "executeAt": AT}


@asynccontextmanager
async def service(directory: Path, **others: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Settings]]:
    settings = Settings(
        database_url=f"sqlite:///{directory / 'search.db'}", admin_token="admin-token-of-the-test", **others
    )
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline", headers=ADMIN) as http,
    ):
        yield http, settings


async def find(http: httpx.AsyncClient, text: str, **options: Any) -> list[tuple[str, str, bool]]:
    answer = await http.get("/api/v1/search", params={"q": text}, **options)
    assert answer.status_code == 200, answer.text
    assert answer.json()["unavailable"] == []
    for result in answer.json()["results"]:
        if result["kind"] != "key":
            shown = await http.get(result["href"])
            assert shown.status_code == 200, (result, shown.text)
            assert result["id"] in shown.json().values()
    return [(result["kind"], result["id"], result["exact"]) for result in answer.json()["results"]]


async def admitted(http: httpx.AsyncClient, headers: dict[str, str]) -> bool:
    return (await http.get("/api/v1/search?q=x", headers=headers)).status_code == 200


async def test_one_text_finds_everything_whose_id_begins_with_it(tmp_path: Path) -> None:
    async with service(tmp_path) as (http, settings):
        async with DispatchQueue.open(settings.database_url) as queue:
            await queue.configure("JOB", enabled=False)
            await queue.enqueue_many("JOB", [(name, {}, AT) for name in ("x/1", "x/10", "y")])
        for name in ("x/1", "x/2", "%", "X/1"):
            booked = await http.post("/api/v1/slots", json={"eventId": name, "requestedTime": AT})
            assert booked.status_code == 200
        accepted = await http.post("/api/v1/payments", json=PAYMENT | {"paymentId": "p-1"})
        assert accepted.status_code == 202, accepted.text
        feed = await http.post(
            "/api/v1/feeds?name=x%2Ffeed",
            content="paymentId,amount,currency,payerName,payerIban,payeeName,payeeIban,executeAt\n",
            headers={"Content-Type": "text/csv"},
        )
        feed_id = feed.json()["feedId"]
        await http.post("/api/config", json={"userId": 7, "rateLimit": 5, "timeWindow": 5})
        message = (await http.post("/api/send", json={"userId": 7, "message": "hello"})).json()["messageId"]
        await http.put("/admin/plans/tiny", json={"algorithm": "fixed_window", "limit": 3, "window": "PT1H"})
        await http.put("/admin/plans/other", json={"algorithm": "fixed_window", "limit": 3, "window": "PT1H"})
        await http.post("/api/v1/limits/acquire", json={"key": "x/1", "plans": ["tiny"]})

        assert await find(http, "x/1") == [
            ("event", "x/1", True),
            ("item", "x/1", True),
            ("key", "x/1", True),
            ("item", "x/10", False),
        ]
        assert ("feed", feed_id, False) in await find(http, "x/")
        assert await find(http, "p-") == [("payment", "p-1", False), ("item", "p-1", False)]
        assert await find(http, feed_id) == [("feed", feed_id, True)]
        assert await find(http, message[:12]) == [
            ("message", message, False),
            ("item", message, False),
        ]
        assert await find(http, "%") == [("event", "%", True)]
        assert await find(http, "nothing") == []
        spent = (await http.get("/api/v1/search?q=x/1")).json()["results"][2]
        assert spent["plans"] == ["tiny"], "and looking spends nothing"

        async with open_access_store(settings) as store:
            secret, _ = await create_token(store, "reader", ["read"])
        reader = {"Authorization": f"Bearer {secret}"}
        await eventually(lambda: admitted(http, reader))  # a new token may take a quarter of a second
        assert {kind for kind, _, _ in await find(http, "x/1", headers=reader)} == {"event", "key"}
        searched = (await http.get("/api/v1/search?q=x", headers=reader)).json()["searched"]
        assert {"item", "queue", "config"}.isdisjoint(searched)
        for wrong in ("", "?q=", "?q=a%00b", f"?q={'x' * 256}"):
            refused = await http.get(f"/api/v1/search{wrong}")
            assert (refused.status_code, refused.json()["field"]) == (400, "q")


async def test_a_store_that_does_not_answer_is_named_and_the_others_are_searched(tmp_path: Path) -> None:
    async with service(tmp_path, redis_url="redis://127.0.0.1:1") as (http, _):
        plan = {"algorithm": "fixed_window", "limit": 3, "window": "PT1H", "onError": "open"}
        await http.put("/admin/plans/tiny", json=plan)
        await http.post("/api/v1/slots", json={"eventId": "e-1", "requestedTime": AT})
        found = (await http.get("/api/v1/search?q=e-1")).json()
        assert [result["kind"] for result in found["results"]] == ["event"]
        assert found["unavailable"] == ["key"]
        down = (await http.get("/admin/dependencies")).json()
        states = {
            dependency["name"]: (dependency["status"], dependency["latencyMs"] >= 0)
            for dependency in down["dependencies"]
        }
        assert states["redis"] == ("DOWN", True)
        assert states["database"] == ("UP", True)
        assert {breaker["name"]: breaker["state"] for breaker in down["breakers"]}["downstream"] == "closed"


async def test_lists_are_narrowed_down_and_paged(tmp_path: Path) -> None:
    async with service(tmp_path) as (http, _):
        for name in ("a-1", "a-2", "b-1"):
            await http.post("/api/v1/payments", json=PAYMENT | {"paymentId": name})
        payments = (await http.get("/api/v1/payments?prefix=a-")).json()["payments"]
        assert [payment["paymentId"] for payment in payments] == ["a-1", "a-2"]
        preview = "/admin/dispatch/PAYMENT/preview?prefix=a-&change="
        shown = [(await http.get(preview + change)).json() for change in ("reschedule", f"reschedule&executeAt={AT}")]
        assert [(count["matching"], count["changing"]) for count in shown] == [(2, 2), (2, 0)], (
            "their slots keep the time"
        )
        for wrong in (f"cancel&executeAt={AT}", "reschedule&executeAt=soon"):
            refused = await http.get(preview + wrong)
            assert (refused.status_code, refused.json()["field"]) == (400, "executeAt")
        for user in (7, 8):
            await http.post("/api/config", json={"userId": user, "rateLimit": 9, "timeWindow": 5})
        sent = []
        for user in (7, 8, 7):
            sent.append((await http.post("/api/send", json={"userId": user, "message": "hi"})).json()["messageId"])
        listed: list[str] = []
        cursor: dict[str, str] = {}
        while len(listed) < len(sent):
            page = (await http.get("/api/messages", params={"limit": 1, **cursor})).json()
            listed += [message["messageId"] for message in page["messages"]]
            cursor = {"cursor": page["next"]}
        assert listed == sent[::-1]
        assert page["next"] is None
        of_user = (await http.get("/api/messages?userId=8")).json()["messages"]
        assert [message["messageId"] for message in of_user] == [sent[1]]
        assert (await http.get("/api/messages?status=expired")).json() == {"messages": [], "next": None}
        for wrong, field in (("status=SENDING", "status"), ("userId=x", "userId"), ("cursor=1", "cursor")):
            refused = await http.get(f"/api/messages?{wrong}")
            assert (refused.status_code, refused.json()["field"]) == (400, field)
        states = [(await http.get(f"/api/v1/feeds?state={state}")).status_code for state in ("DONE", "GONE")]
        assert states == [200, 400]
        for number in range(3):
            line = json.dumps(PAYMENT | {"paymentId": f"fed-{number}"})
            fed = await http.post("/api/v1/feeds", content=line, headers={"Content-Type": "application/x-ndjson"})
            assert fed.status_code == 202, fed.text
        with sqlite3.connect(tmp_path / "search.db", timeout=30) as database:
            for number, at in enumerate((1, 1, 2, 2, 3)):  # two at a time, to the microsecond
                database.execute(
                    "INSERT INTO paceline_notification_dead_letter (letter_id, message_id, message_key, message_value,"
                    " sha256, whole, reason, attempts, dead_at) VALUES (?, 'm', '7',"
                    " '0', '', 1, 'refused', 1, ?)",
                    (f"l-{number}", f"2026-01-01 00:00:00.12345{at}"),
                )
        database.close()
        lists = {
            "/api/messages": ("messages", "messageId", "acceptedAt", sent),
            "/api/v1/feeds": ("feeds", "feedId", "createdAt", None),
            "/admin/sms/dead-letters": ("deadLetters", "id", "deadAt", [f"l-{number}" for number in range(5)]),
        }
        for path, (member, name, sort, ids) in lists.items():
            upwards = await all_pages(http, path, member, name, sort)
            assert ids is None or upwards == ids, path
            assert await all_pages(http, path, member, name, f"-{sort}") == upwards[::-1], path
            answer = (await http.get(path, params={"total": "true", "limit": 1})).json()
            assert (answer["total"], len(answer[member])) == (len(upwards), 1)
            for wrong in ("sort=id", "sort=", "total=1", "order=x"):
                refused = await http.get(f"{path}?{wrong}")
                assert (refused.status_code, refused.json()["field"]) == (400, wrong.split("=")[0]), path
        narrowed = {"messages": "/api/messages?userId=8", "feeds": "/api/v1/feeds?state=REFUSED"}
        totals = [(await http.get(f"{path}&total=true")).json()["total"] for path in narrowed.values()]
        assert totals == [1, 0]


async def all_pages(http: httpx.AsyncClient, path: str, member: str, name: str, sort: str) -> list[str]:
    """The ids of a list, read two by two, in this order."""
    ids: list[str] = []
    query: dict[str, str] = {"sort": sort, "limit": "2"}
    for _ in range(10):
        answer = await http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        ids += [row[name] for row in page[member]]
        if page["next"] is None:
            return ids
        query["cursor"] = page["next"]
    raise AssertionError(f"{path} does not end: {ids}")


async def test_configs_and_queues_are_found_by_a_part_of_their_names(tmp_path: Path) -> None:
    async with service(tmp_path) as (http, settings):
        async with DispatchQueue.open(settings.database_url) as queue:
            await queue.configure("SHIP_ORDER")
        for name in ("bank-orders", "orders", *(f"order-of-{n}" for n in range(9))):
            config = {"configName": name, "maxPerWindow": 5, "windowSize": "PT4S"}
            assert (await http.post("/admin/rate-limit/config", json=config)).status_code == 200
        found = await find(http, "order")
        assert ("queue", "SHIP_ORDER", False) in found
        assert len([name for kind, name, _ in found if kind == "config"]) == 5
        assert ("config", "orders", True) in await find(http, "orders")
