"""Nothing that was acknowledged is lost: not by a restart, not by SIGTERM in the middle of the load."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline.testing import eventually
from paceline.testing.servers.reaper import family
from tests.acceptance.service import Service

AT = "2027-07-01T00:00:00Z"


async def test_sigterm_under_load_loses_no_acknowledged_slot(database_url: str, tmp_path: Path) -> None:
    acknowledged: dict[str, str] = {}
    service = Service(tmp_path, PACELINE_DATABASE_URL=database_url, PACELINE_LOG_LEVEL="warning").start()
    limits = httpx.Limits(max_connections=16)
    with service.client(limits=limits) as client:

        def call(caller: int) -> None:
            for number in range(5000):
                event_id = f"load-{caller}-{number}"
                try:
                    answer = client.post("/api/v1/slots", json={"eventId": event_id, "requestedTime": AT})
                except httpx.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                acknowledged[event_id] = answer.json()["scheduledTime"]

        callers = [threading.Thread(target=call, args=(number,)) for number in range(16)]
        for caller in callers:
            caller.start()
        await eventually(lambda: len(acknowledged) > 200)
        service.signal(signal.SIGTERM)
        for caller in callers:
            caller.join(60)
    assert service.wait() == 0
    assert "rror" not in service.log, service.log

    with (
        Service(tmp_path, PACELINE_DATABASE_URL=database_url, PACELINE_LOG_LEVEL="warning") as again,
        again.client() as client,
    ):
        events = [{"eventId": event_id, "requestedTime": AT} for event_id in acknowledged]
        results = client.post("/api/v1/slots/batch", json={"events": events}).json()["results"]
        assert all(result["existing"] for result in results)
        assert {result["eventId"]: result["scheduledTime"] for result in results} == acknowledged
        # The config is the one from before, not a new version of it.
        assert client.get("/admin/rate-limit/config").json()["version"] == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_service_exits_with_0_after_a_signal(tmp_path: Path, signum: signal.Signals) -> None:
    service = Service(tmp_path).start()
    with service.client() as client:
        assert client.get("/health/live").status_code == 200
    service.signal(signum)
    assert service.wait() == 0
    assert "Traceback" not in service.log


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_open_stream_keeps_no_service_from_ending(tmp_path: Path, workers: str) -> None:
    """It ends by itself, not when its grace is over."""
    with Service(tmp_path, "--workers", workers, PACELINE_HTTP_SHUTDOWN_SECONDS="20") as service:
        with service.client() as client, client.stream("GET", "/api/v1/console/stream") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: overview"
            service.signal(signal.SIGTERM)
            assert "event: end" not in list(lines), "the reader may come back"
        assert service.wait() == 0
        assert "graceful shutdown exceeded" not in service.log


def test_workers_share_the_work_and_the_metrics(tmp_path: Path) -> None:
    with Service(tmp_path, "--workers", "2") as service:
        for number in range(20):
            # A connection each, so that both workers get some.
            with service.client() as client:
                body = {"eventId": f"worker-{number}", "requestedTime": AT}
                answer = client.post("/api/v1/slots", json=body)
                assert answer.status_code == 200
        with service.client() as client:
            assert 'rate_limiter_slots_assigned_total{config="default"} 20.0' in client.get("/metrics").text
            assert len(client.get("/admin/rate-limit/config/history").json()["versions"]) == 1
        assert service.stop() == 0


async def test_workers_end_when_their_parent_was_killed_and_give_the_port_back(tmp_path: Path) -> None:
    service = Service(tmp_path, "--workers", "2", TMPDIR=str(tmp_path)).start()
    workers: set[int] = set()
    try:
        with service.client() as client:
            # Each has counters of its own once it runs.
            await eventually(lambda: len({path.stem.rpartition("_")[2] for path in tmp_path.glob("*/*.db")}) == 2)
            assert client.post("/api/v1/slots", json={"eventId": "orphan", "requestedTime": AT}).status_code == 200
        workers = family({service.pid}) - {service.pid}
        assert len(workers) >= 2
        service.signal(signal.SIGKILL)
        await eventually(lambda: not family(workers), within=90)
    finally:
        for pid in family({service.pid, *workers}):
            os.kill(pid, signal.SIGKILL)
        assert service.wait() == -signal.SIGKILL
    port = int(service.url.rpartition(":")[2])
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
    assert service.log.count("the process that started this worker has ended") == 2
    await eventually(lambda: not list(tmp_path.glob("paceline-metrics-*")))


STARTING = """
import multiprocessing, os, signal, sys

from paceline.server.http.parent_watch import end_with_parent


def worker(has_parent):
    signal.signal(signal.SIGTERM, lambda *_: None)  # as uvicorn does while it starts
    if not has_parent:
        multiprocessing.parent_process().join()
    end_with_parent()
    print(os.getpid(), flush=True)
    signal.sigwait([signal.SIGUSR1])


if __name__ == "__main__":
    has_parent = sys.argv[1] == "True"
    multiprocessing.get_context("spawn").Process(target=worker, args=(has_parent,)).start()
    if not has_parent:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("has_parent", [True, False])
def test_a_worker_that_is_starting_ends_at_once_when_its_parent_was_killed(tmp_path: Path, has_parent: bool) -> None:
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    command = [sys.executable, str(script), str(has_parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as parent:
        assert parent.stdout is not None
        first = parent.stdout.readline()
        worker = int(first) if first.strip().isdigit() else None
        parent.kill()
        try:
            rest, _ = parent.communicate(timeout=60)  # until the worker has ended: it has the same pipe
        except subprocess.TimeoutExpired:
            assert worker is not None
            os.kill(worker, signal.SIGUSR1)
            raise
    assert (worker is not None) is has_parent
    assert "the process that started this worker has ended" in first + rest
    assert "Traceback" not in first + rest
