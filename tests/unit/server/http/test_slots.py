"""Slots over HTTP: the listing, explanations, cancelled slots, and careful changes of a config."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import pytest

from paceline.server.http.parameters import CALLBACKS
from tests.unit.server.http.test_app import bearer, opened

AT = "2030-01-01T00:00:00.000Z"
CONFIG = "/admin/rate-limit/config"


async def configure(client: httpx.AsyncClient, **members: Any) -> dict[str, Any]:
    answer = await client.post(CONFIG, json={"configName": "c", "maxPerWindow": 2, "windowSize": "PT4S"} | members)
    assert answer.status_code == 200, answer.text
    config: dict[str, Any] = answer.json()
    return config


async def assign(client: httpx.AsyncClient, count: int, name: str = "c") -> None:
    events = [{"eventId": f"{name}/{n}", "requestedTime": AT} for n in range(count)]
    assert (await client.post("/api/v1/slots/batch", json={"configName": name, "events": events})).status_code == 200


async def test_the_listing_shows_booked_and_cancelled_slots_page_by_page() -> None:
    async with opened(api_token="caller", admin_token="root") as client:
        client.headers.update(bearer("root"))
        await configure(client)
        await configure(client, configName="d")
        await assign(client, 5)
        await assign(client, 2, "d")
        cancelled = await client.delete(
            "/api/v1/slots/c/1", params={"reason": "customer left"}, headers=bearer("caller")
        )
        assert cancelled.status_code == 200
        pages, cursor = [], None
        while True:
            query = {"configName": "c", "limit": "2"} | ({} if cursor is None else {"cursor": cursor})
            answer = (await client.get("/api/v1/slots", params=query)).json()
            pages.append(answer["slots"])
            if (cursor := answer["next"]) is None:
                break
        assert [len(page) for page in pages] == [2, 2, 1]
        slots = [slot for page in pages for slot in page]
        assert sorted(slot["eventId"] for slot in slots) == [f"c/{n}" for n in range(5)]
        assert [slot["scheduledTime"] for slot in slots] == sorted(slot["scheduledTime"] for slot in slots)
        (gone,) = [slot for slot in slots if slot["status"] == "CANCELLED"]
        assert (gone["eventId"], gone["reason"], gone["actor"]) == ("c/1", "customer left", "PACELINE_API_TOKEN")
        assert gone["cancelledAt"]
        for query, count in [
            ({}, 7),
            ({"status": "BOOKED"}, 6),
            ({"status": "CANCELLED"}, 1),
            ({"owner": "payments"}, 0),
            ({"owner": ""}, 7),
            ({"from": "2030-01-01T00:00:04Z", "configName": "c"}, 3),
            ({"to": AT}, 0),
        ]:
            assert len((await client.get("/api/v1/slots", params=query)).json()["slots"]) == count, query
        again = await client.post("/api/v1/slots", json={"eventId": "c/1", "configName": "c", "requestedTime": AT})
        assert (again.status_code, again.json()["existing"]) == (200, False)
        assert len((await client.get("/api/v1/slots", params={"configName": "c"})).json()["slots"]) == 6


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("status", "gone"),
        ("from", "noon"),
        ("to", "x"),
        ("limit", "0"),
        ("limit", "1001"),
        ("cursor", "x"),
        ("owner", "x" * 65),
    ],
)
async def test_a_bad_parameter_of_the_listing_is_named(name: str, value: str) -> None:
    async with opened() as client:
        answer = await client.get("/api/v1/slots", params={name: value})
        assert (answer.status_code, answer.json()["field"]) == (400, name)


async def test_an_explanation_names_the_windows_that_were_passed_over() -> None:
    async with opened() as client:
        await configure(client)
        await assign(client, 5)
        last = "c/4"
        answer = (await client.get(f"/api/v1/slots/{last}/explain")).json()
        steps = [(step["configName"], step["windowStart"], step["reason"]) for step in answer["steps"]]
        assert steps == [("c", AT, "full"), ("c", "2030-01-01T00:00:04.000Z", "full")]
        assert (answer["requestedTime"], answer["effectiveTime"]) == (AT, AT)
        assert (answer["configVersion"], answer["activeVersion"]) == (1, 1)
        assert answer["today"]["windowStart"] == "2030-01-01T00:00:08.000Z"
        await configure(client, maxPerWindow=9)
        today = (await client.get(f"/api/v1/slots/{last}/explain")).json()["today"]
        assert (today["windowStart"], today["configVersion"]) == (AT, 2)
        missing = await client.get("/api/v1/slots/nobody/explain")
        assert (missing.status_code, missing.json()["title"]) == (404, "Slot Not Found")


async def test_a_change_can_demand_the_version_that_was_seen() -> None:
    async with opened() as client:
        await configure(client)
        seen = (await client.get(CONFIG, params={"name": "c"})).headers["ETag"]
        assert seen == '"1"'
        change = {"configName": "c", "maxPerWindow": 3}
        made = await client.post(CONFIG, json=change, headers={"If-Match": seen})
        assert (made.status_code, made.json()["version"], made.headers["ETag"]) == (200, 2, '"2"')
        stale = await client.post(CONFIG, json=change | {"maxPerWindow": 4}, headers={"If-Match": seen})
        assert (stale.status_code, stale.headers["content-type"]) == (412, "application/problem+json")
        assert (await client.get(CONFIG, params={"name": "c"})).json()["maxPerWindow"] == 3
        assert (await client.post(CONFIG, json=change, headers={"If-Match": '"1", "2"'})).status_code == 200
        assert (await client.post(CONFIG, json=change, headers={"If-Match": "*"})).status_code == 200
        new = {"configName": "new", "maxPerWindow": 3, "windowSize": "PT4S"}
        for tag in ("*", '"1"', '"0"'):
            assert (await client.post(CONFIG, json=new, headers={"If-Match": tag})).status_code == 412, tag
        for tag in ("3", 'W/"3"', '"x"', '""', '"3', "-1"):
            refused = await client.post(CONFIG, json=change, headers={"If-Match": tag})
            assert (refused.status_code, refused.json()["field"]) == (400, "If-Match"), tag


async def test_a_change_can_demand_that_there_is_no_config_yet() -> None:
    config = {"configName": "c", "maxPerWindow": 3, "windowSize": "PT4S"}
    async with opened() as client:
        made = await client.post(CONFIG, json=config, headers={"If-None-Match": "*"})
        assert (made.status_code, made.json()["version"]) == (200, 1)
        for dry_run in ({}, {"dryRun": True}):
            again = config | {"maxPerWindow": 9} | dry_run
            refused = await client.post(CONFIG, json=again, headers={"If-None-Match": "*"})
            assert (refused.status_code, refused.headers["content-type"]) == (412, "application/problem+json")
        for fields, field in (
            ({"If-None-Match": '"1"'}, "If-None-Match"),
            ({"If-None-Match": "*", "If-Match": "*"}, "If-None-Match"),
        ):
            wrong = await client.post(CONFIG, json=config, headers=fields)
            assert (wrong.status_code, wrong.json()["field"]) == (400, field)
        shown = (await client.get(CONFIG, params={"name": "c"})).json()
        assert (shown["version"], shown["maxPerWindow"]) == (1, 3)


async def test_a_change_takes_no_parameters_in_its_query() -> None:
    async with opened() as client:
        await configure(client)
        change = {"configName": "c", "maxPerWindow": 9}
        refused = await client.post(CONFIG, params={"dryRun": "true"}, json=change)
        assert (refused.status_code, refused.json()["field"]) == (400, "dryRun")
        assert "is not a parameter here" in refused.json()["detail"]
        assert (await client.get(CONFIG, params={"name": "c"})).json()["maxPerWindow"] == 2


async def test_no_route_of_the_api_takes_a_parameter_that_it_does_not_document() -> None:
    async with opened() as client:
        await configure(client)
        await assign(client, 1)
        paths = (await client.get("/openapi.json")).json()["paths"]
        operations = [
            (method, path)
            for path, documented in paths.items()
            for method in documented
            if path.startswith(("/api/", "/admin/")) and not path.startswith(CALLBACKS)
        ]
        assert {("post", "/api/v1/slots/batch"), ("delete", "/api/v1/slots/{eventId}")} <= set(operations)
        assert len(operations) > 60
        for method, path in operations:
            address = path.replace("{eventId}", "c/0").replace("{userId}", "1").replace("{", "").replace("}", "")
            refused = await client.request(method, address, params={"nonsense": "1"})
            assert refused.status_code == 400, (method, path, refused.text)
            assert refused.json()["field"] == "nonsense", (method, path)
        assert (await client.get("/api/v1/slots/c/0")).status_code == 200, "the refused DELETE cancelled nothing"
        # Load balancers and browsers add their own.
        for path in ("/health/live", "/metrics", "/"):
            assert (await client.get(path, params={"nonsense": "1"})).status_code == 200
        receipt = await client.post("/api/receipts/nobody", params={"site": "7"}, content=b"x")
        assert receipt.status_code == 404, "a provider's address is the user's own: it may have a query"


async def test_a_template_shows_completes_and_is_re_planned_as_its_configs() -> None:
    async with opened() as client:
        await configure(client, configName="merchant-*", spread="even")
        shown = await client.get(CONFIG, params={"name": "merchant-new"})
        assert (shown.status_code, shown.json()["configName"], shown.headers["ETag"]) == (200, "merchant-new", '"1"')
        change = {"configName": "merchant-new", "maxPerWindow": 9}
        made = await client.post(CONFIG, json=change, headers={"If-Match": '"1"'})
        assert made.status_code == 200, made.text
        assert {key: made.json()[key] for key in ("maxPerWindow", "windowSize", "spread", "version")} == {
            "maxPerWindow": 9,
            "windowSize": "PT4S",
            "spread": "even",
            "version": 2,
        }
        await assign(client, 6, "merchant-1")
        await configure(client, configName="merchant-*", maxPerWindow=3)
        replanned = await client.post("/api/v1/slots/replan", json={"configName": "merchant-*"})
        assert replanned.status_code == 200, replanned.text
        assert (replanned.json()["examined"], replanned.json()["configName"]) == (6, "merchant-*")
        assert replanned.json()["moved"] > 0


async def test_a_dry_run_says_what_a_change_would_do_and_changes_nothing() -> None:
    blackout = {"zone": "UTC", "blackouts": [{"from": AT, "to": "2030-01-01T00:00:04Z"}]}
    async with opened() as client:
        await configure(client)
        await assign(client, 6)
        effects: list[tuple[dict[str, Any], str, int]] = [
            ({"maxDelay": "PT4S"}, "past-horizon", 4),
            ({"calendar": blackout}, "closed", 2),
            ({"maxPerWindow": 1}, "over-limit", 3),
        ]
        for members, code, slots in effects:
            config = await configure(client, **members, dryRun=True)
            (warning,) = config["warnings"]
            if code == "past-horizon":
                assert 3 <= warning["slots"] <= slots, "one of the second window's may lie at its very start"
            else:
                assert warning["slots"] == slots
            assert warning["code"] == code
            assert (config["dryRun"], config["active"], config["version"]) == (True, False, 2)
        assert (await client.get(CONFIG, params={"name": "c"})).json()["version"] == 1
        assert (await configure(client, maxPerWindow=9, dryRun=True))["warnings"] == []
        # The version that it shows does not exist yet, and may be another caller's later.
        assert "ETag" not in (await client.post(CONFIG, json={"configName": "c", "dryRun": True})).headers
        assert "warnings" not in await configure(client, maxPerWindow=9)
        assert (await configure(client, maxPerWindow=1))["warnings"][0]["code"] == "over-limit"
        never = {"zone": "UTC", "blackouts": [{"from": "1970-01-01T00:00:00Z", "to": "2199-12-31T00:00:00Z"}]}
        closing = {"configName": "c", "calendar": never, "dryRun": True}
        refused = await client.post(CONFIG, json=closing)
        assert (refused.status_code, refused.json()["field"]) == (400, "calendar")


async def test_a_change_of_a_template_warns_of_the_slots_of_its_configs() -> None:
    hours = {"zone": "UTC", "open": [{"from": "08:00", "to": "09:00"}]}
    effects: list[tuple[dict[str, Any], str, int]] = [
        ({"calendar": hours}, "closed", 12),
        ({"windowSize": "PT12S", "maxPerWindow": 5}, "over-limit", 2),
        ({"maxPerWindow": 1}, "over-limit", 6),
        ({"maxDelay": "PT3.999S"}, "past-horizon", 8),
    ]
    async with opened() as client:
        await configure(client, configName="merchant-*")
        await assign(client, 6, "merchant-7")
        await assign(client, 6, "merchant-8")
        for members, code, slots in effects:
            shown = await configure(client, configName="merchant-*", **members, dryRun=True)
            assert [(warning["code"], warning["slots"]) for warning in shown["warnings"]] == [(code, slots)]
        changed = await configure(client, configName="merchant-*", maxPerWindow=1)
        assert [(warning["code"], warning["slots"]) for warning in changed["warnings"]] == [("over-limit", 6)]


async def test_a_dry_run_of_another_window_size_counts_slots_by_their_times() -> None:
    blackout = {"zone": "UTC", "blackouts": [{"from": "2030-01-01T00:00:01Z", "to": "2030-01-01T00:00:04Z"}]}
    async with opened() as client:
        await configure(client, spread="even")
        await assign(client, 8)
        (warning,) = (await configure(client, windowSize="PT8S", dryRun=True))["warnings"]
        assert (warning["code"], warning["slots"]) == ("over-limit", 4)
        listed = (await client.get("/api/v1/slots", params={"configName": "c", "to": "2030-01-01T00:00:04Z"})).json()
        inside = sum(slot["scheduledTime"] >= "2030-01-01T00:00:01" for slot in listed["slots"])
        (warning,) = (await configure(client, windowSize="PT1S", calendar=blackout, dryRun=True))["warnings"]
        assert (warning["code"], warning["slots"]) == ("closed", inside)


async def test_a_policy_may_offer_its_first_window_whole() -> None:
    async with opened() as client:
        assert (await configure(client))["firstWindow"] == "proportional"
        assert (await configure(client, firstWindow="whole"))["firstWindow"] == "whole"
        assert (await configure(client, maxPerWindow=5))["firstWindow"] == "whole"
        assert (await configure(client, firstWindow=None))["firstWindow"] == "proportional"
        refused = await client.post(CONFIG, json={"configName": "c", "firstWindow": "half"})
        assert (refused.status_code, refused.json()["field"]) == (400, "firstWindow")


async def test_a_forecast_tries_changes_and_shows_delays() -> None:
    async with opened() as client:
        await configure(client, maxPerWindow=10)
        asked = {"configName": "c", "events": "100", "at": AT}
        now = (await client.get("/api/v1/forecast", params=asked)).json()
        assert now["delays"] == {"p50Ms": 20_000, "p90Ms": 36_000, "p99Ms": 39_600, "maxMs": 40_000}
        assert now["drain"][0] == {"at": AT, "events": 100}
        changes = {"maxPerWindow": "50", "windowSize": "PT1S", "spread": "even", "firstWindow": "whole"}
        tried = (await client.get("/api/v1/forecast", params=asked | changes)).json()
        assert (tried["windowCount"], tried["peaks"][0]["spread"]) == (2, "even")
        blackout = '{"zone": "UTC", "blackouts": [{"from": "2030-01-01T00:00:00Z", "to": "2030-01-02T00:00:00Z"}]}'
        closed = (await client.get("/api/v1/forecast", params=asked | {"calendar": blackout})).json()
        assert closed["firstWindow"] == "2030-01-02T00:00:00.000Z"
        refused = (await client.get("/api/v1/forecast", params=asked | {"maxDelay": "PT10S"})).json()
        assert refused["refused"] == 75
        for name, value in [
            ("windowSize", "soon"),
            ("spread", "clumped"),
            ("calendar", "{"),
            ("calendar", "[]"),
            ("calendar", '{"zone": "Mars"}'),
            ("maxDelay", "-PT1S"),
            ("firstWindow", "half"),
        ]:
            answer = await client.get("/api/v1/forecast", params=asked | {name: value})
            assert answer.status_code == 400, (name, value)
            assert answer.json()["field"].startswith(name), answer.json()
