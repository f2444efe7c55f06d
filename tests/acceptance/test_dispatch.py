"""Work of one's own, from the outside: queued in Python, worked off by `paceline worker`, operated over HTTP and on the
command line. The tasks are the example's: paceline has no code for invoices."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline import DispatchQueue
from tests.acceptance.service import Service, command, environment, run, until

ROOT = Path(__file__).parents[2]
TASKS = "examples.invoices.invoices:tasks"
PREPARE = """
import asyncio
from datetime import UTC, datetime, timedelta
from examples.invoices.invoices import prepare, tasks

async def main():
    now = datetime.now(UTC)
    async with tasks:
        for number in range(20):
            await prepare(f"inv-{number:02}", "ACME", "12.34", now)
        await prepare("inv-later", "ACME", "12.34", now + timedelta(days=1))

asyncio.run(main())
"""


def settings(tmp_path: Path, database_url: str) -> dict[str, str]:
    return {
        "PACELINE_DATABASE_URL": database_url,
        "PACELINE_DISPATCH_DOMAINS": TASKS,
        "INVOICES_FOLDER": str(tmp_path / "sent"),
        "PYTHONPATH": str(ROOT),
    }


@contextmanager
def worker(tmp_path: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    log = (tmp_path / "worker.log").open("ab")
    process = subprocess.Popen(
        command("worker", "dispatch"), cwd=tmp_path, env=environment(**variables), stdout=log, stderr=log
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        log.close()


def paceline(tmp_path: Path, variables: dict[str, str], *arguments: str) -> Any:
    ended = run(tmp_path, *arguments, "--json", **variables)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def test_invoices_are_sent_at_their_time_by_a_worker_process(tmp_path: Path, database_url: str) -> None:
    variables = settings(tmp_path, database_url)
    async with DispatchQueue.open(database_url) as queue:
        await queue.configure("INVOICE", dispatch_interval_secs=0.2, jitter_window_ms=0)
        prepared = [sys.executable, "-c", PREPARE]
        program = await asyncio.create_subprocess_exec(*prepared, cwd=tmp_path, env=environment(**variables))
        assert await program.wait() == 0
        sent = tmp_path / "sent"
        with worker(tmp_path, **variables):
            until(lambda: sent.exists() and len(list(sent.iterdir())) == 20)
            until(lambda: paceline(tmp_path, variables, "queue", "stats", "INVOICE")["depth"]["COMPLETED"] == 20)
        assert (sent / "inv-07.txt").read_text() == "ACME: 12.34 EUR\n"
        shown = paceline(tmp_path, variables, "queue", "show", "INVOICE", "inv-07")
        assert shown["audit"][0]["action"] == "CLAIMED"
        assert shown["audit"][-1]["statusAfter"] == "COMPLETED"
        assert paceline(tmp_path, variables, "queue", "show", "INVOICE", "inv-later")["status"] == "READY"


async def test_the_service_works_them_off_itself_and_is_operated_over_http(tmp_path: Path) -> None:
    database_url = f"sqlite:///{tmp_path / 'paceline.db'}"
    variables = settings(tmp_path, database_url)
    with Service(tmp_path, **variables) as service, service.client() as http:
        assert http.get("/admin/dispatch/INVOICE").json()["batchSize"] == 500
        quick = {"dispatchIntervalSecs": 0.1, "maxDispatchRetries": 1, "enabled": False}
        assert http.patch("/admin/dispatch/INVOICE", json=quick).json()["enabled"] is False
        async with DispatchQueue.open(database_url) as queue:
            await queue.enqueue("INVOICE", "good/1", context={"customer": "ACME", "total": "1", "currency": "EUR"})
            await queue.enqueue("INVOICE", "bad", context={"total": "1"})
        assert http.get("/admin/dispatch/INVOICE/stats").json()["depth"]["READY"] == 2
        assert http.patch("/admin/dispatch/INVOICE", json={"enabled": True}).status_code == 200

        def settled() -> bool:
            depth = http.get("/admin/dispatch/INVOICE/stats").json()["depth"]
            return bool(depth["DEAD_LETTER"] == 2)

        # "good/1" can't be a file's name: it fails too, and both become dead letters.
        until(settled)
        items = http.get("/admin/dispatch/INVOICE/items", params={"status": "DEAD_LETTER"}).json()["items"]
        assert [(item["itemId"], item["retryCount"]) for item in items] == [("bad", 0), ("good/1", 1)]
        detail = http.get("/admin/dispatch/INVOICE/items/good/1").json()
        assert detail["context"]["customer"] == "ACME"
        assert [entry["action"] for entry in detail["audit"]][-1] == "DEAD_LETTERED"
        http.patch("/admin/dispatch/INVOICE", json={"enabled": False})
        groups = http.get("/admin/dispatch/INVOICE/errors").json()["errors"]
        assert sum(group["count"] for group in groups) == 2
        group = next(group for group in groups if group["example"] == "bad")
        chosen = {"status": "DEAD_LETTER", "errorGroup": group["error"], "prefix": "bad"}
        preview = http.get("/admin/dispatch/INVOICE/preview", params={"change": "requeue"} | chosen)
        assert preview.json() == {"matching": 1, "changing": 1, "whole": True}
        newest = http.get("/admin/dispatch/INVOICE/items", params={"sort": "-updatedAt", "total": "true", "limit": 1})
        assert newest.json()["total"] == 2
        further = {"sort": "-updatedAt", "cursor": newest.json()["next"]}
        rest = http.get("/admin/dispatch/INVOICE/items", params=further).json()["items"]
        assert {item["itemId"] for item in newest.json()["items"] + rest} == {"bad", "good/1"}
        assert http.post("/admin/dispatch/INVOICE/requeue", json={"filter": chosen}).json() == {"count": 1}
        later = {"ids": ["bad"], "executeAt": "2030-01-01T00:00:00Z", "priority": 2, "lane": "acme"}
        assert http.post("/admin/dispatch/INVOICE/reschedule", json=later).json() == {"count": 1}
        (shown,) = http.get("/admin/dispatch/INVOICE/items", params={"lane": "acme"}).json()["items"]
        assert (shown["executeAt"], shown["priority"], shown["lane"]) == ("2030-01-01T00:00:00.000Z", 2, "acme")
        refused = http.post("/admin/dispatch/INVOICE/requeue", json={"ids": ["good/1", "bad"]})
        assert (refused.status_code, refused.json()["detail"]) == (409, "item 'bad' is READY and can't be requeued")
        assert http.post("/admin/dispatch/INVOICE/discard", json={"status": "DEAD_LETTER"}).json() == {"count": 1}
        audit = http.get("/admin/dispatch/INVOICE/audit", params={"itemId": "good/1", "limit": 1}).json()["entries"]
        assert [entry["action"] for entry in audit] == ["DISCARDED"]
        metrics = http.get("/metrics").text
        for name in (
            'dispatch_batch_claimed_total{item_type="INVOICE"}',
            'dispatch_workflow_started_total{item_type="INVOICE"}',
            'dispatch_dead_letter_total{item_type="INVOICE"}',
            'dispatch_cycle_duration_seconds_count{item_type="INVOICE"}',
            'dispatch_queue_depth{item_type="INVOICE",status="READY"}',
        ):
            assert name in metrics


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/admin/dispatch/NOPE", None, 404, "NOPE"),
        ("PATCH", "/admin/dispatch/NOPE", {"enabled": False}, 404, "NOPE"),
        ("GET", "/admin/dispatch/NOPE/stats", None, 404, "NOPE"),
        ("GET", "/admin/dispatch/NOPE/items/x", None, 404, "x"),
        ("GET", "/admin/dispatch/a%20b", None, 400, "itemType"),
        ("PATCH", "/admin/dispatch/INVOICE", {"batchSize": 0}, 400, "batchSize"),
        ("PATCH", "/admin/dispatch/INVOICE", {"batchsize": 5}, 400, "batchsize"),
        ("PATCH", "/admin/dispatch/INVOICE", {"enabled": "no"}, 400, "enabled"),
        ("PATCH", "/admin/dispatch/INVOICE", {"batchSize": 5, "admissionPlan": "tsp50"}, 400, "'tsp50'"),
        ("PATCH", "/admin/dispatch/INVOICE", {"admissionPlan": ["gold"]}, 400, "admissionPlan"),
        ("PATCH", "/admin/dispatch/INVOICE", [], 400, "body"),
        ("GET", "/admin/dispatch/INVOICE/items?status=SLEEPING", None, 400, "status"),
        ("GET", "/admin/dispatch/INVOICE/items?limit=0", None, 400, "limit"),
        ("GET", "/admin/dispatch/INVOICE/items?sort=name", None, 400, "sort"),
        ("GET", "/admin/dispatch/INVOICE/items?sort=executeAt&cursor=a", None, 400, "cursor"),
        ("GET", "/admin/dispatch/INVOICE/items?total=maybe", None, 400, "total"),
        ("GET", "/admin/dispatch/INVOICE/preview?change=delete&status=READY", None, 400, "change"),
        ("GET", "/admin/dispatch/INVOICE/preview?change=cancel", None, 400, "filter"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {"filter": {}}, 400, "filter"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {"ids": ["a"], "filter": {"status": "READY"}}, 400, "ids"),
        ("GET", "/admin/dispatch/INVOICE/audit?before=x", None, 400, "before"),
        ("GET", "/admin/dispatch/INVOICE/items/nobody", None, 404, "nobody"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {"ids": ["nobody"]}, 404, "nobody"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {"ids": []}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {"ids": [7]}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/requeue", {"status": "READY"}, 400, "status"),
        ("POST", "/admin/dispatch/INVOICE/discard", {"ids": ["a"], "status": "DEAD_LETTER"}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"filter": {}}, 400, "filter"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"filter": {"colour": "red"}}, 400, "filter.colour"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"filter": {"from": "soon"}}, 400, "filter.from"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"filter": {"lane": None}}, 400, "filter"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"filter": "all"}, 400, "filter"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"ids": ["a"], "filter": {"lane": "b"}}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/cancel", {"ids": ["nobody"]}, 404, "nobody"),
        ("POST", "/admin/dispatch/NOBODY/cancel", {"ids": ["a"]}, 404, "NOBODY"),
        ("POST", "/admin/dispatch/INVOICE/resolve", {"ids": ["a"]}, 400, "outcome"),
        ("POST", "/admin/dispatch/INVOICE/resolve", {"outcome": "done"}, 400, "ids"),
        ("POST", "/admin/dispatch/INVOICE/resolve", {"ids": ["a"], "outcome": "paid"}, 400, "outcome"),
        ("POST", "/admin/dispatch/INVOICE/resolve", {"ids": ["a"], "outcome": "done", "reason": None}, 400, "reason"),
        ("POST", "/admin/dispatch/INVOICE/resolve", {"ids": ["nobody"], "outcome": "done"}, 404, "nobody"),
        ("POST", "/admin/dispatch/INVOICE/reschedule", {"ids": ["a"]}, 400, "executeAt"),
        ("POST", "/admin/dispatch/INVOICE/reschedule", {"ids": ["a"], "executeAt": "x"}, 400, "executeAt"),
        ("POST", "/admin/dispatch/INVOICE/reschedule", {"ids": ["a"], "executeAt": None}, 400, "executeAt"),
        ("POST", "/admin/dispatch/INVOICE/reschedule", {"ids": ["a"], "priority": 10}, 400, "priority"),
        ("POST", "/admin/dispatch/INVOICE/reschedule", {"ids": ["nobody"], "priority": 1}, 404, "nobody"),
    ],
)
def test_what_is_wrong_is_reported(
    invoices: Service, method: str, path: str, body: Any, status: int, message: str
) -> None:
    with invoices.client() as http:
        answer = http.request(method, path, json=body)
        assert answer.status_code == status, answer.text
        assert message in answer.json()["detail"]
        assert http.get("/admin/dispatch/INVOICE").json()["batchSize"] == 500


def test_a_plan_for_calls_in_flight_is_no_admission_plan(invoices: Service) -> None:
    with invoices.client() as http:
        assert http.put("/admin/plans/exports", json={"algorithm": "concurrency", "limit": 5}).is_success
        refused = http.patch("/admin/dispatch/INVOICE", json={"admissionPlan": "exports"})
        assert refused.status_code == 400, refused.text
        assert refused.json()["detail"] == (
            "admissionPlan: plan 'exports' limits calls in flight, not their rate; "
            "set the item type's concurrency instead"
        )
        assert http.get("/admin/dispatch/INVOICE").json()["admissionPlan"] is None
        assert http.delete("/admin/plans/exports").is_success


def test_a_plan_must_exist_to_be_named_and_may_then_go_without_jamming_the_kill_switch(invoices: Service) -> None:
    plan = {"algorithm": "sliding_log", "limit": 50, "window": "PT1S"}
    with invoices.client() as http:
        assert http.put("/admin/plans/tps50", json=plan).is_success
        changed = http.patch("/admin/dispatch/INVOICE", json={"admissionPlan": "tps50"})
        assert changed.json()["admissionPlan"] == "tps50"
        assert http.delete("/admin/plans/tps50").is_success
        for change in ({"enabled": False}, {"enabled": True, "admissionPlan": "tps50"}):
            assert http.patch("/admin/dispatch/INVOICE", json=change).json()["enabled"] is change["enabled"]
        assert http.patch("/admin/dispatch/INVOICE", json={"admissionPlan": None}).json()["admissionPlan"] is None


@pytest.fixture(scope="module")
def invoices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with Service(folder, **settings(folder, f"sqlite:///{folder / 'paceline.db'}")) as running:
        yield running


def test_the_command_line_reports_mistakes_in_one_line(tmp_path: Path) -> None:
    variables = settings(tmp_path, f"sqlite:///{tmp_path / 'paceline.db'}")
    for arguments, status, message in [
        (["queue", "stats", "NOPE"], 1, "NOPE"),
        (["queue", "stats", "a b"], 2, "TYPE"),
        (["queue", "list", "NOPE", "--status", "SLEEPING"], 1, "NOPE"),
        (["queue", "requeue", "INVOICE"], 2, "--all"),
        (["queue", "pause", "NOPE"], 1, "NOPE"),
        (["worker", "exec"], 2, "PACELINE_TEMPORAL_ADDRESS"),
        (["worker", "dispatch", "--domain", "no.such:thing"], 2, "no.such"),
        (["worker", "dispatch", "--domain", "json:dumps"], 2, "json:dumps"),
    ]:
        ended = run(tmp_path, *arguments, **variables)
        assert (ended.returncode, ended.stdout) == (status, ""), (arguments, ended.stderr)
        assert message in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr


async def test_operating_a_queue_on_the_command_line(tmp_path: Path) -> None:
    database_url = f"sqlite:///{tmp_path / 'paceline.db'}"
    variables = settings(tmp_path, database_url)
    async with DispatchQueue.open(database_url) as queue:
        await queue.configure("INVOICE")
        await queue.enqueue_many("INVOICE", [(f"i{n}", {"n": n}, None) for n in range(3)])
        await queue.enqueue_many("INVOICE", [(f"later{n}", {}, "2030-01-01T00:00:00Z") for n in range(3)], lane="acme")
    moved = ("queue", "reschedule", "INVOICE", "later0", "--at", "2031-01-01T00:00:00Z", "--priority", "0")
    assert paceline(tmp_path, variables, *moved) == {"count": 1}
    (first,) = paceline(tmp_path, variables, "queue", "list", "INVOICE", "--prefix", "later0")
    assert (first["executeAt"], first["priority"], first["lane"]) == ("2031-01-01T00:00:00.000Z", 0, "acme")
    assert paceline(tmp_path, variables, "queue", "cancel", "INVOICE", "--lane", "acme") == {"count": 3}
    assert run(tmp_path, "queue", "cancel", "INVOICE", **variables).returncode == 2
    assert run(tmp_path, "queue", "reschedule", "INVOICE", "i0", **variables).returncode == 2
    assert paceline(tmp_path, variables, "prune", "--before", "PT0S")["items"] == 3
    assert paceline(tmp_path, variables, "queue", "pause", "INVOICE")["enabled"] is False
    assert paceline(tmp_path, variables, "queue", "resume", "INVOICE")["enabled"] is True
    assert [item["itemId"] for item in paceline(tmp_path, variables, "queue", "list", "INVOICE")] == ["i0", "i1", "i2"]
    assert paceline(tmp_path, variables, "queue", "discard", "INVOICE", "i0", "i2") == {"count": 2}
    assert paceline(tmp_path, variables, "queue", "requeue", "INVOICE", "--all") == {"count": 0}
    plain = run(tmp_path, "queue", "show", "INVOICE", "i0", **variables)
    assert "status: CANCELLED" in plain.stdout
    assert "DISCARDED: READY -> CANCELLED" in plain.stdout
    assert "CANCELLED: 2" in run(tmp_path, "queue", "stats", **variables).stdout
    pruned = paceline(tmp_path, variables, "prune", "--before", "PT0S")
    assert pruned["items"] == 2


def test_a_worker_without_anything_to_do_ends_when_asked(tmp_path: Path) -> None:
    with worker(tmp_path, PACELINE_DATABASE_URL=f"sqlite:///{tmp_path / 'paceline.db'}"):
        until(lambda: "is working" in (tmp_path / "worker.log").read_text())
