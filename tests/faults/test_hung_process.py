"""A process that hangs fails its probes, and exits in time after SIGTERM, whatever hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from paceline.testing.servers.reaper import family
from tests.acceptance.service import Service, command, environment, run, until

APP = """
import asyncio, time
from pathlib import Path

from paceline import Tasks

tasks = Tasks("sqlite:///work.db")


@tasks.task
async def block_the_loop() -> None:
    Path("hangs").touch()
    time.sleep(3600)


@tasks.task
def block_a_thread() -> None:
    Path("hangs").touch()
    time.sleep(3600)


@tasks.task
async def refuse_to_be_cancelled() -> None:
    Path("hangs").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


if __name__ == "__main__":
    import sys

    async def main() -> None:
        async with tasks:
            await globals()[sys.argv[1]].enqueue()

    asyncio.run(main())
"""
DOMAIN = """
import time
from pathlib import Path

from paceline import Tasks

tasks = Tasks("sqlite:///paceline.db")


@tasks.task
async def hang():
    Path("hangs").touch()
    time.sleep(3600)
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def worker(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that may take two seconds to end."""
    (folder / "my_app.py").write_text(APP)
    variables = environment(PACELINE_DISPATCH_SHUTDOWN_SECONDS="2", PYTHONPATH=str(folder))
    with (folder / "worker.log").open("ab") as log:
        arguments = command("worker", "my_app:tasks", "--metrics-port", str(port))
        process = subprocess.Popen(arguments, cwd=folder, env=variables, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def enqueue(folder: Path, task: str) -> None:
    done = subprocess.run(
        [*command()[:1], "my_app.py", task],
        cwd=folder,
        env=environment(),
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("task", ["block_the_loop", "block_a_thread", "refuse_to_be_cancelled"])
def test_a_worker_ends_in_time_whatever_hangs_in_it(tmp_path: Path, task: str) -> None:
    port = free_port()
    with worker(tmp_path, port) as process:
        until(lambda: answers(f"http://127.0.0.1:{port}/health/live"))
        enqueue(tmp_path, task)
        until((tmp_path / "hangs").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
    log = (tmp_path / "worker.log").read_text()
    assert "not ended 2 s after it was told to" in log
    assert task in log, "the stack shows what hangs"


def test_a_worker_whose_loop_hangs_answers_no_probe(tmp_path: Path) -> None:
    port = free_port()
    with worker(tmp_path, port):
        until(lambda: answers(f"http://127.0.0.1:{port}/health/live"))
        assert answers(f"http://127.0.0.1:{port}/health/ready")
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        assert "dispatch_queue_depth" in text
        until(lambda: 'dependency_up{dependency="database"} 1.0' in httpx.get(f"http://127.0.0.1:{port}/metrics").text)
        enqueue(tmp_path, "block_the_loop")
        until((tmp_path / "hangs").exists)
        assert not answers(f"http://127.0.0.1:{port}/health/live")
        assert not answers(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_service_ends_in_time_when_its_loop_is_blocked(tmp_path: Path, workers: str) -> None:
    (tmp_path / "hanging.py").write_text(DOMAIN)
    variables = {
        "PACELINE_DISPATCH_DOMAINS": "hanging:tasks",
        "PACELINE_HTTP_SHUTDOWN_SECONDS": "1",
        "PYTHONPATH": str(tmp_path),
    }
    service = Service(tmp_path, "--workers", workers, **variables).start()
    processes = family({service.pid})
    try:
        # Workers define the item type when they are up.
        until(lambda: "HANG" in run(tmp_path, "queue", "stats", "HANG").stdout)
        processes = family({service.pid})
        enqueue_item(tmp_path)
        until((tmp_path / "hangs").exists)
        service.signal(signal.SIGTERM)
        service.wait()
        assert "s after it was told to" in service.log
        until(lambda: not family(processes))
    finally:
        for pid in family(processes):
            os.kill(pid, signal.SIGKILL)


def enqueue_item(folder: Path) -> None:
    program = (
        "import asyncio\nfrom paceline import DispatchQueue\n"
        "async def main():\n    async with DispatchQueue.open('sqlite:///paceline.db') as queue:\n"
        "        await queue.enqueue('HANG', 'one', context={})\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [*command()[:1], "-c", program],
        cwd=folder,
        env=environment(),
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_process_that_nobody_can_probe_ends_when_its_loop_hangs(tmp_path: Path) -> None:
    program = (
        "import asyncio, time\nfrom paceline.server.shutdown import end_when_hung\n"
        "async def main():\n    end_when_hung(asyncio.get_running_loop(), 0.5)\n"
        "    await asyncio.sleep(1.5)\n    print('turns', flush=True)\n    time.sleep(3600)\n"
        "asyncio.run(main())"
    )
    done = subprocess.run(
        [*command()[:1], "-c", program],
        cwd=tmp_path,
        env=environment(),
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "turns\n")
    assert "the event loop made no turn for 0.5 s" in done.stderr


def test_the_port_of_a_workers_metrics_may_be_taken(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(tmp_path, "worker", "my_app:tasks", "--metrics-port", port, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"can't listen on 127.0.0.1 port {port}" in done.stderr
