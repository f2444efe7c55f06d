"""Operators see what arrives, waits, runs and leaves: over HTTP, on the command line, in metrics, from any process."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import datetime, timedelta
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline import DispatchQueue
from paceline.dispatch.decisions import after_success
from paceline.testing import eventually
from tests.acceptance.service import Service, command, environment


async def _command(folder: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command(*arguments), cwd=folder, env=environment(), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_a_flow_is_the_same_over_http_on_the_command_line_and_in_another_service(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    idle = {"PACELINE_DISPATCH_WORKER": "worker", "PACELINE_PAYMENTS_WORKER": "worker"}
    service, other = Service(tmp_path, **idle), Service(tmp_path, **idle)
    for each in (service, other):
        await asyncio.to_thread(each.start)
    try:
        async with DispatchQueue.open(url) as queue, httpx.AsyncClient(base_url=service.url, timeout=30) as http:
            await queue.configure("INVOICE", rate="50/second")
            began = time.time()
            await queue.enqueue_many("INVOICE", [(f"i{n}", {}, None) for n in range(2000)])
            batch = await queue.store.claim("INVOICE", 100, timedelta())
            claims = [item.claim for item in batch.items]
            await queue.store.touch(claims[:40], begins=True)
            await queue.store.settle([after_success(claim) for claim in claims[:10]])

            async def shown(client: httpx.AsyncClient) -> dict[str, object]:
                answer = await client.get("/admin/flow", params={"itemType": "INVOICE"})
                document: dict[str, object] = answer.raise_for_status().json()
                return document

            flow = await shown(http)
            stocks = ("waiting", "held", "late", "running", "unknown", "dead", "limit", "peak")
            assert [flow[name] for name in stocks] == [1960, 60, 1960, 30, 0, 0, 50, 40]
            assert sum(flow["seconds"]["arrived"]) == 2000  # type: ignore[index]
            done_by = datetime.fromisoformat(str(flow["doneBy"])).timestamp()
            assert began + 39 <= done_by <= time.time() + 41
            marks = await http.patch("/admin/dispatch/INVOICE", json={"rate": "40/second"})
            assert marks.status_code == 200

            async def lowered() -> bool:
                latest = await shown(http)
                mark = latest["marks"][-1]  # type: ignore[index]
                return (latest["limit"], latest["limitBy"], mark["what"]) == (40, "rate", "rate 40/second")

            assert await eventually(lowered)
            tried = await http.get("/admin/flow", params={"itemType": "INVOICE", "limit": 980})
            soon = datetime.fromisoformat(tried.json()["doneBy"]).timestamp()
            assert (tried.json()["limit"], (await shown(http))["limit"]) == (980, 40)
            assert time.time() - 1 <= soon <= time.time() + 4
            document = json.loads(await _command(tmp_path, "top", "--json"))
            (invoice,) = [each for each in document["flows"] if each["name"] == "INVOICE"]
            assert [invoice[name] for name in stocks] == [1960, 60, 1960, 30, 0, 0, 40, 40]
            table = await _command(tmp_path, "top", "--once")
            assert "INVOICE\t2000\t1960\t60\t1960 (" in table
            async with httpx.AsyncClient(base_url=other.url, timeout=30) as elsewhere:
                assert (await shown(elsewhere))["seconds"]["arrived"].count(2000) == 1  # type: ignore[index]

                async def measured() -> bool:
                    metrics = (await elsewhere.get("/metrics")).text
                    return 'dispatch_flow_items{item_type="INVOICE",what="begun"} 40.0' in metrics

                assert await eventually(measured, within=60)
                config = await elsewhere.get("/admin/flow", params={"configName": "default"})
                assert config.status_code == 200
                assert config.json()["minutes"] is None
    finally:
        for each in (service, other):
            await asyncio.to_thread(each.stop)


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({}, 400),
        ({"itemType": "A", "configName": "default"}, 400),
        ({"itemType": "A"}, 404),
        ({"configName": "a"}, 404),
        ({"configName": "default", "limit": "5"}, 400),
        ({"itemType": "SMS", "limit": "0"}, 400),
        ({"itemType": "SMS", "limit": "many"}, 400),
    ],
)
def test_a_flow_that_is_not_there_is_refused(tmp_path: Path, parameters: dict[str, str], status: int) -> None:
    service = Service(tmp_path)
    service.start()
    try:
        answer = httpx.get(f"{service.url}/admin/flow", params=parameters)
        assert answer.status_code == status
        assert answer.json()["status"] == status
    finally:
        service.stop()
