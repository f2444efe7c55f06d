"""`paceline worker` on Temporal: a domain that is independent of the engine, one process per role, ended by SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from paceline import DispatchQueue
from paceline.dispatch.status import Status
from paceline.testing import TemporalServer, eventually

ROOT = Path(__file__).parents[2]


@contextmanager
def paceline_worker(role: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "paceline", "worker", role, "--domain", "examples.invoices.invoices:tasks"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment})
    try:
        yield process
        process.terminate()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


async def test_invoices_are_sent_by_workers_of_their_own(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'paceline.db'}"
    with TemporalServer(durable=False) as server, ExitStack() as stack:
        environment = {
            "PACELINE_DATABASE_URL": database,
            "PACELINE_TEMPORAL_ADDRESS": server.address,
            "INVOICES_FOLDER": str(tmp_path / "sent"),
        }
        async with DispatchQueue.open(database) as queue:
            await queue.configure("INVOICE", dispatch_interval_secs=1, jitter_window_ms=0)
            context = {"customer": "Zoë", "total": "12.34", "currency": "EUR"}
            await queue.enqueue_many("INVOICE", [(f"2027-{n}", context, None) for n in range(3)])
            workers = [stack.enter_context(paceline_worker(role, environment)) for role in ("dispatch", "exec")]

            async def all_sent() -> bool:
                assert all(worker.poll() is None for worker in workers), "a worker ended by itself"
                return (await queue.stats("INVOICE")).depth.get(Status.COMPLETED) == 3

            await eventually(all_sent, within=180, every=0.1)
        stack.close()
        assert [worker.returncode for worker in workers] == [0, 0]
    assert sorted(path.name for path in (tmp_path / "sent").iterdir()) == [f"2027-{n}.txt" for n in range(3)]
    assert (tmp_path / "sent" / "2027-0.txt").read_text() == "Zoë: 12.34 EUR\n"
