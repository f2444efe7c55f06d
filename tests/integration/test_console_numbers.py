"""The console's numbers are those of the whole installation, whichever process did the work and whichever answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from paceline import DispatchQueue
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import GiveUp
from paceline.dispatch.registry import Domain
from paceline.errors import StoreUnavailable
from paceline.server.console.stream import MAX_STREAMS
from paceline.server.http.app import create_app
from paceline.server.settings import Settings
from paceline.server.wiring.dispatch import local_dispatch
from paceline.server.wiring.queue import open_dispatch_observer, open_queue
from paceline.testing import eventually

SOON = "2030-03-01T16:00:00Z"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database_url=f"sqlite:///{tmp_path / 'numbers.db'}")


@asynccontextmanager
async def service(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as opened,
    ):
        yield opened


async def elsewhere(work: Callable[[], Awaitable[None]]) -> None:
    """Does the work on an event loop of its own, which shares with this one what a process would: the database."""

    async def run() -> None:
        await work()

    await asyncio.to_thread(asyncio.run, run())


async def numbers(http: httpx.AsyncClient) -> dict[str, int]:
    answer = await http.get("/api/v1/console/overview")
    assert answer.status_code == 200, answer.text
    return {number["name"]: number["lastDay"] for number in answer.json()["numbers"]}


async def test_what_another_process_did_is_shown(settings: Settings) -> None:
    async def work() -> None:
        async with service(settings) as other:
            events = [{"eventId": f"e{n}", "requestedTime": SOON} for n in range(40)]
            assert (await other.post("/api/v1/slots/batch", json={"events": events})).status_code == 200
            plan = {"algorithm": "fixed_window", "limit": 2, "window": "P1D"}
            assert (await other.put("/admin/plans/two", json=plan)).status_code == 200
            for _ in range(5):
                await other.post("/api/v1/limits/acquire", json={"key": "k", "plans": ["two"]})

    async def execute() -> None:
        done = 0

        async def run(item_id: str, _context: Any) -> None:
            nonlocal done
            done += 1
            if int(item_id) % 6 == 0:
                raise GiveUp("refused")

        domain = Domain(DispatchConfig(item_type="INVOICE", dispatch_interval_secs=1), run)
        async with (
            open_queue(settings) as queue,
            open_dispatch_observer(settings, None) as observer,
            local_dispatch(queue, [domain], observer=observer),
        ):

            async def is_over() -> bool:
                return done == 240 and not (await queue.stats("INVOICE")).running

            await eventually(is_over, within=30)

    async with DispatchQueue.open(settings.database_url) as queue:
        await queue.define(DispatchConfig(item_type="INVOICE"))
        for n in range(240):
            await queue.enqueue("INVOICE", str(n))
    async with service(settings) as http:
        await asyncio.gather(elsewhere(work), elsewhere(execute))
        shown = await numbers(http)
        assert (shown["slotsBooked"], shown["limitDecisions"], shown["limitDenials"]) == (40, 5, 3)
        assert (shown["executions"], shown["failures"], shown["deadLetters"]) == (240, 40, 40)
        overview = (await http.get("/api/v1/console/overview")).json()
        [queue_shown] = [queue for queue in overview["queues"] if queue["itemType"] == "INVOICE"]
        assert queue_shown["depth"]["DEAD_LETTER"] == 40
        history = (await http.get("/api/v1/console/history", params={"range": "PT6H"})).json()
        [lines] = [queue for queue in history["queues"] if queue["itemType"] == "INVOICE"]
        assert (sum(lines["completed"]), sum(lines["deadLettered"])) == (200, 40)
        assert any(lines["p95"])
        [plan] = history["plans"]
        assert (plan["plan"], sum(plan["allowed"]), sum(plan["denied"])) == ("two", 2, 3)


async def test_a_range_that_does_not_exist_is_named(settings: Settings) -> None:
    async with service(settings) as http:
        for range_ in ("PT1M", "", "P8D"):
            refused = await http.get("/api/v1/console/history", params={"range": range_})
            assert refused.status_code == 400
            assert "range: must be one of PT15M, PT6H, P1D, P7D" in refused.json()["detail"]
        week = (await http.get("/api/v1/console/history", params={"range": "P7D"})).json()
        assert (week["stepSeconds"], len(week["times"])) == (600, 1008)


async def test_an_outage_of_the_database_leaves_parts_out_and_touches_nobody(settings: Settings) -> None:
    app = create_app(settings)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):

        async def fail(*_: object, **__: object) -> None:
            raise StoreUnavailable("down")

        app.state.services.rollups._store.read = fail
        app.state.services.queue.store.stats = fail
        shown = (await http.get("/api/v1/console/overview")).json()
        assert (shown["numbers"], shown["windows"]["configName"]) == (None, "default")
        assert (await http.get("/api/v1/console/history")).status_code == 503


async def test_there_is_room_for_so_many_streams(settings: Settings) -> None:
    app = create_app(settings)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http,
    ):
        streams = app.state.services.streams
        streams.open = MAX_STREAMS
        refused = await http.get("/api/v1/console/stream")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "30")
        streams.open = 0
        streams.ended.set()
        ended = await http.get("/api/v1/console/stream")
        assert ended.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert ended.headers["cache-control"] == "no-store"
        assert streams.open == 0
