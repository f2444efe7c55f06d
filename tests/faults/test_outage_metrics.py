"""An outage moves counters: what a caller is refused for lack of a database is seen by Prometheus."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2 as httpx

from paceline.testing import PostgresServer, eventually
from tests.acceptance.service import Service
from tests.integration.test_metrics import Samples, read

AT = "2031-03-01T16:00:00Z"
PAYMENT = {
    "paymentId": "pay-1",
    "amount": "12.34",
    "currency": "EUR",
    "payer": {"name": "Anna", "iban": "DE89370400440532013000"},
    "payee": {"name": "Bert", "iban": "FR1420041010050500013M02606"},
    "executeAt": AT,
}


def value(samples: Samples, name: str, **labels: str) -> float:
    return sum(
        each for (sample, found), each in samples.items() if sample == name and set(labels.items()) <= set(found)
    )


async def test_a_database_that_is_gone_moves_the_metrics_of_slots_payments_and_requests(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with Service(tmp_path, PACELINE_DATABASE_URL=own_postgres.url) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:

            async def samples() -> Samples:
                return read((await http.get("/metrics")).text)

            slot = {"eventId": "a", "requestedTime": AT}
            assert (await http.post("/api/v1/slots", json=slot)).status_code == 200
            assert (await http.post("/api/v1/payments", json=PAYMENT)).status_code == 202
            before = await samples()
            assert value(before, "dependency_up", dependency="database") == 1
            assert value(before, "http_requests_total", route="/api/v1/slots", status="200", method="POST") == 1
            assert value(before, "payments_intake_total", outcome="ACCEPTED") == 1

            await asyncio.to_thread(own_postgres.kill)
            assert (await http.post("/api/v1/slots", json=slot | {"eventId": "b"})).status_code == 503
            assert (await http.post("/api/v1/payments", json=PAYMENT | {"paymentId": "p2"})).status_code == 503
            gone = await samples()
            failures = {"config": "default", "reason": "StoreUnavailable"}
            assert value(gone, "rate_limiter_slot_assignment_failures_total", **failures) >= 1
            assert value(gone, "payments_intake_total", outcome="FAILED") == 1
            assert value(gone, "http_requests_total", status="503") == 2
            assert value(gone, "http_requests_total", route="/api/v1/payments", status="503") == 1

            async def shown() -> bool:
                return value(await samples(), "dependency_up", dependency="database") == 0

            await eventually(shown, within=30)
            await asyncio.to_thread(own_postgres.start)

            async def back() -> bool:
                return value(await samples(), "dependency_up", dependency="database") == 1

            await eventually(back, within=60)


async def test_requests_are_counted_by_route_and_not_by_what_callers_make_up(tmp_path: Path) -> None:
    with Service(tmp_path) as service, service.client() as http:
        for number in range(3):
            assert http.get(f"/api/v1/slots/unknown-{number}").status_code == 404
            assert http.get(f"/nowhere/{number}").status_code == 404
            assert http.request("PROPFIND", "/api/v1/slots").status_code == 405
        typo = {"eventId": "a", "configName": "no-such-config", "requestedTime": AT}
        assert http.post("/api/v1/slots", json=typo).status_code == 404
        found = read(http.get("/metrics").text)
    assert value(found, "http_requests_total", route="/api/v1/slots/{eventId:path}", status="404") == 3
    routes = {dict(labels)["route"] for name, labels in found if name == "http_requests_total"}
    assert not any("unknown" in route or "nowhere" in route for route in routes)
    methods = {dict(labels)["method"] for name, labels in found if name == "http_requests_total"}
    assert methods <= {"GET", "POST", "(other)"}
    assert value(found, "http_request_duration_seconds_count", route="/api/v1/slots", method="POST") == 1


async def test_a_database_that_hangs_is_a_failure_after_its_timeout_and_keeps_nobody_from_ending(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    settings = {"PACELINE_DATABASE_TIMEOUT_SECONDS": "1", "PACELINE_HTTP_SHUTDOWN_SECONDS": "3"}
    with Service(tmp_path, PACELINE_DATABASE_URL=own_postgres.url, **settings) as service:
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
            slot = {"eventId": "a", "requestedTime": AT}
            assert (await http.post("/api/v1/slots", json=slot)).status_code == 200
            own_postgres.pause()
            try:
                answer = await http.post("/api/v1/slots", json=slot | {"eventId": "b"})
                assert answer.status_code == 503
                samples = read((await http.get("/metrics")).text)
                failures = {"config": "default", "reason": "StoreUnavailable"}
                assert value(samples, "rate_limiter_slot_assignment_failures_total", **failures) == 1
                assert await asyncio.to_thread(service.stop) == 0, "in good order, without waiting for the database"
            finally:
                own_postgres.resume()
