"""Tasks from an empty folder: one file, `paceline worker my_app:tasks`, and a look at the items from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.acceptance.service import Service, command, environment, run, until

APP = """
import asyncio, os, sys
from decimal import Decimal

from paceline import Tasks, current_task

tasks = Tasks(os.environ["WORK_URL"])
other = "no tasks"


@tasks.task(retries=5, timeout=30, rate="50/second")
async def send_invoice(invoice_id: str, total: Decimal) -> str:
    await current_task().progress(0.5, "half way")
    return f"{invoice_id}: {total * 2}"


@tasks.task(retries=0)
def fail(number: int) -> None:
    raise ValueError(f"no {number}")


async def main() -> None:
    async with tasks:
        await send_invoice.options(key="inv-1").enqueue("inv-1", total=Decimal("12.00"))
        await fail.options(key="seven").enqueue(7)


if __name__ == "__main__":
    asyncio.run(main())
"""


@contextmanager
def working(folder: Path, **variables: str) -> Iterator[None]:
    with (folder / "worker.log").open("ab") as log:
        arguments = command("worker", "my_app:tasks")
        process = subprocess.Popen(arguments, cwd=folder, env=environment(**variables), stdout=log, stderr=log)
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()


OLD_APP = """
import os
from paceline import Tasks

tasks = Tasks(os.environ["WORK_URL"])

@tasks.task
def gone() -> None: ...

gone.blocking.enqueue()
"""


def test_tasks_run_in_a_worker_of_their_own(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    variables = {"WORK_URL": database_url, "PACELINE_DATABASE_URL": database_url}
    queued = [sys.executable, "-W", "error", "my_app.py"]
    subprocess.run(queued, cwd=tmp_path, env=environment(**variables), check=True, timeout=60)

    def shown(item_type: str, item_id: str) -> dict[str, object]:
        ended = run(tmp_path, "queue", "show", item_type, item_id, "--json", **variables)
        item: dict[str, object] = json.loads(ended.stdout)
        return item

    def workers() -> dict[str, Any]:
        document: dict[str, Any] = json.loads(run(tmp_path, "workers", "--json", **variables).stdout)
        return document

    assert workers() == {"workers": [], "unattended": ["FAIL", "SEND_INVOICE"]}
    assert "(nobody works on it)" in run(tmp_path, "queue", "stats", "FAIL", **variables).stdout
    (tmp_path / "old.py").write_text(OLD_APP)
    subprocess.run([sys.executable, "old.py"], cwd=tmp_path, env=environment(**variables), check=True, timeout=60)
    with working(tmp_path, **variables):
        until(lambda: "is working on SEND_INVOICE, FAIL" in (tmp_path / "worker.log").read_text())
        until(lambda: "nobody serves GONE: 1 items are READY" in (tmp_path / "worker.log").read_text())
        until(lambda: shown("SEND_INVOICE", "inv-1")["status"] == "COMPLETED")
        until(lambda: shown("FAIL", "seven")["status"] == "DEAD_LETTER")
        until(lambda: workers()["workers"])
        (worker,) = workers()["workers"]
        assert (worker["itemTypes"], worker["concurrency"], worker["alive"]) == (["FAIL", "SEND_INVOICE"], 100, True)
    assert workers()["workers"] == []
    assert shown("FAIL", "seven")["lastError"] == "ValueError: no 7"
    with Service(tmp_path, **variables) as service, service.client() as client:
        item = client.get("/admin/dispatch/SEND_INVOICE/items/inv-1").json()
        assert client.get("/admin/workers").json()["unattended"] == ["FAIL", "GONE", "SEND_INVOICE"]
    assert item == shown("SEND_INVOICE", "inv-1")
    assert (item["progress"], item["result"], item["attempt"]) == (
        {"fraction": 0.5, "text": "half way"},
        "inv-1: 24.00",
        1,
    )


def test_a_wrong_name_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    (tmp_path / "empty_app.py").write_text('from paceline import Tasks\ntasks = Tasks("memory://")\n')
    for arguments, message in [
        (["worker", "my_ap:tasks"], "my_ap"),
        (["worker", "my_app:other"], "is no Tasks object"),
        (["worker", "my_app:nobody"], "nobody"),
        (["worker", "empty_app:tasks"], "there is no task"),
        (["worker", "my_app:tasks", "--domain", "a:b"], "--domain"),
        (["worker", "my_app:tasks", "--queues", "mail"], "queues: no task is in the queue 'mail'; there are default"),
        (["worker", "my_app:tasks", "--concurrency", "0"], "concurrency: must be a whole number"),
        (["worker", "dispatch", "--queues", "mail"], "--queues: is for tasks of your own"),
        (["worker", "everything"], "'everything' is unknown"),
    ]:
        ended = run(tmp_path, *arguments, WORK_URL="memory://")
        assert (ended.returncode, ended.stdout) == (2, ""), (arguments, ended.stderr)
        assert message in ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr


PAY_APP = """
import os

from paceline import OutcomeUnknown, Tasks

tasks = Tasks(os.environ["WORK_URL"])


@tasks.task(on_unknown="hold", hold_for="PT1H")
def pay(number: int) -> None:
    raise OutcomeUnknown("connection reset")


if __name__ == "__main__":
    for number in range(4):
        pay.options(key=f"inv-{number}").blocking.enqueue(number)
"""


def test_payments_that_are_unknown_are_held_and_resolved_over_http_and_the_command_line(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "my_app.py").write_text(PAY_APP)
    variables = {"WORK_URL": database_url, "PACELINE_DATABASE_URL": database_url}
    subprocess.run([sys.executable, "my_app.py"], cwd=tmp_path, env=environment(**variables), check=True, timeout=60)
    with Service(tmp_path, **variables) as service, service.client() as http:
        with working(tmp_path, **variables):
            until(lambda: bool(http.get("/admin/dispatch/PAY/stats").json()["depth"]["UNKNOWN"] == 4), within=60)
        item = http.get("/admin/dispatch/PAY/items/inv-0").json()
        assert (item["status"], item["lastError"]) == ("UNKNOWN", "unknown: connection reset")
        assert item["unknownSince"] == item["begunAt"]
        assert [attempt["outcome"] for attempt in item["attempts"]] == ["unknown"]
        assert http.get("/admin/dispatch/PAY").json()["holdForSecs"] == 3600
        refused = http.post("/admin/dispatch/PAY/requeue", json={"ids": ["inv-0"]})
        assert (refused.status_code, "resolve it" in refused.json()["detail"]) == (409, True)
        body = {"ids": ["inv-0", "inv-1"], "outcome": "done", "reason": "on the statement"}
        assert http.post("/admin/dispatch/PAY/resolve", json=body).json() == {"count": 2}
        again = http.post("/admin/dispatch/PAY/resolve", json=body)
        assert (again.status_code, again.json()["detail"]) == (
            409,
            "item 'inv-0' is COMPLETED, and none of its attempts is in doubt",
        )
        done = http.get("/admin/dispatch/PAY/items/inv-0").json()
        last = done["audit"][-1]
        assert (done["status"], last["action"], last["detail"]) == ("COMPLETED", "RESOLVED", "done: on the statement")
    held = run(tmp_path, "queue", "set", "PAY", "--on-unknown", "retry", "--hold-for", "2h", **variables)
    assert held.stdout.splitlines() == ["PAY on unknown: retry", "PAY hold for secs: 7200"]
    wrong = run(tmp_path, "queue", "set", "PAY", "--hold-for", "soon", **variables)
    assert (wrong.returncode, "--hold-for" in wrong.stderr) == (2, True)
    words = ("queue", "resolve", "PAY", "inv-2", "--outcome", "refused", "--reason", "no money")
    assert run(tmp_path, *words, **variables).stdout == "resolved 1 items\n"
    shown = json.loads(run(tmp_path, "queue", "show", "PAY", "inv-2", "--json", **variables).stdout)
    assert (shown["status"], shown["lastError"], shown["unknownSince"]) == ("DEAD_LETTER", "no money", None)
    assert json.loads(
        run(tmp_path, "queue", "resolve", "PAY", "inv-3", "--outcome", "again", "--json", **variables).stdout
    ) == {"count": 1}
    wrong = run(tmp_path, "queue", "resolve", "PAY", "inv-3", "--outcome", "paid", **variables)
    assert wrong.returncode == 2
    assert "--outcome" in wrong.stderr
