"""Every route that takes a body bounds it, however it is framed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2 as httpx
import pytest
from fastapi import FastAPI

from paceline.server.http.app import create_app
from paceline.server.settings import Settings

LIMIT = 2048


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[FastAPI]:
    created = create_app(
        Settings(database_url=f"sqlite:///{tmp_path / 'bodies.db'}", http={"max_body_bytes": LIMIT, "max_batch": 3})
    )
    async with created.router.lifespan_context(created):
        yield created


def client(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://paceline")


def bodies(app: FastAPI) -> Iterator[tuple[str, str, str]]:
    """Every documented method, path and type of body."""
    for path, operations in app.openapi()["paths"].items():
        for method, operation in operations.items():
            for kind in operation.get("requestBody", {}).get("content", {}):
                yield method.upper(), re.sub(r"{[^}]*}", "x", path.replace("{phone}", "+491701234567")), kind


async def pieces(size: int) -> AsyncIterator[bytes]:
    """A body of unknown length: httpx sends it without Content-Length."""
    for _ in range(0, size, 512):
        yield b" " * 512


async def test_no_route_takes_a_larger_body_than_allowed(app: FastAPI) -> None:
    tried = set()
    async with client(app) as http:
        for method, path, kind in bodies(app):
            if kind != "application/json":
                continue
            for content in (b" " * (LIMIT + 1), pieces(LIMIT + 512)):
                answer = await http.request(method, path, content=content, headers={"Content-Type": kind})
                assert answer.status_code == 413, (method, path, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["connection"] == "close"
            just_fits = await http.request(method, path, content=b" " * LIMIT, headers={"Content-Type": kind})
            assert just_fits.status_code == 400, (method, path)
            tried.add((method, path))
    assert len(tried) >= 12


async def test_a_streams_type_opens_no_way_round_the_limit(app: FastAPI) -> None:
    """Only routes that read piece by piece take such types at all; the others refuse before they read."""
    async with client(app) as http:
        every = list(bodies(app))
        streaming = {path for _, path, kind in every if kind != "application/json"}
        assert streaming == {
            "/api/v1/slots/batch",
            "/api/v1/payments/bulk",
            "/api/v1/feeds",
            "/admin/payments/reconcile",
            "/api/inbound/x",
            "/api/receipts/x",
        }
        for method, path, _ in every:
            if path not in streaming:
                for kind in ("application/x-ndjson", "text/csv"):
                    answer = await http.request(method, path, content=pieces(LIMIT * 4), headers={"Content-Type": kind})
                    assert answer.status_code == 415, (method, path, kind)


@pytest.mark.parametrize("path", ["/api/v1/slots/batch", "/api/v1/payments/bulk"])
async def test_a_streams_lines_are_bounded(app: FastAPI, path: str) -> None:
    async with client(app) as http:
        kind = {"Content-Type": "application/x-ndjson"}
        answer = await http.post(path, content=pieces(256 * 1024), headers=kind)
        assert answer.status_code == 200
        assert "longer than 65536 bytes" in answer.text


async def test_a_batch_is_bounded_in_events(app: FastAPI) -> None:
    async with client(app) as http:
        events = [{"eventId": f"e-{n}", "requestedTime": "2027-01-01T00:00:00Z"} for n in range(4)]
        assert (await http.post("/api/v1/slots/batch", json={"events": events[:3]})).status_code == 200
        refused = await http.post("/api/v1/slots/batch", json={"events": events})
        assert refused.status_code == 400
        assert refused.json()["field"] == "events"
        assert (await http.get("/api/v1/slots/e-3")).status_code == 404


async def test_a_number_without_a_fraction_is_whole_however_it_is_written(app: FastAPI) -> None:
    async with client(app) as http:
        config = {"configName": "whole", "maxPerWindow": 5.0, "windowSizeSecs": 4.0}
        made = await http.post("/admin/rate-limit/config", json=config)
        assert (made.status_code, made.json()["maxPerWindow"]) == (200, 5)
        override = {"vip": {"capacity": 7.0, "perSecond": 1}}
        plan = {"algorithm": "token_bucket", "capacity": 5.0, "perSecond": 1, "overrides": override}
        assert (await http.put("/admin/plans/whole", json=plan)).json()["overrides"]["vip"]["capacity"] == 7
        assert (await http.put("/admin/plans/whole", json=plan | {"capacity": 5.5})).status_code == 400


async def test_a_receipt_is_bounded_whatever_its_type(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'receipts.db'}"
    created = create_app(
        Settings.load(database_url=url, sms={"webhook_url": "http://127.0.0.1:9/", "providers": "webhook"})
    )
    async with created.router.lifespan_context(created), client(created) as http:
        answer = await http.post("/api/receipts/webhook", content=pieces(256 * 1024))
        assert answer.status_code == 413
