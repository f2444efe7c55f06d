"""Whether a process has certainly ended: only then is its work somebody else's at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.dispatch.worker.processes import has_ended, machine_name, process_name
from paceline.testing import eventually

pytestmark = pytest.mark.skipif(machine_name() is None, reason="this system does not name its kernel and namespaces")


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process, and its name."""
    script = (
        "import sys; from paceline.dispatch.worker.processes import process_name;"
        "print(process_name(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_this_process_has_one_name_and_has_not_ended() -> None:
    assert process_name() == process_name()
    assert f":{os.getpid()}:" in process_name()
    assert not has_ended(process_name(), machine_name())


def test_a_child_of_a_fork_has_another_name() -> None:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, process_name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    name = os.read(reading, 1000).decode()
    assert name != process_name()
    assert has_ended(name, machine_name())


async def test_a_stopped_process_has_not_ended_and_a_killed_one_has_before_its_parent_knows(
    other: tuple[subprocess.Popen[str], str],
) -> None:
    process, name = other
    assert name != process_name()
    assert not has_ended(name, machine_name())
    process.send_signal(signal.SIGSTOP)
    await eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert not has_ended(name, machine_name())
    process.kill()
    await eventually(lambda: has_ended(name, machine_name()))
    process.wait()
    assert has_ended(name, machine_name())


def test_an_id_that_another_process_has_now_is_not_the_process(other: tuple[subprocess.Popen[str], str]) -> None:
    _, name = other
    host, pid, start = name.rsplit(":", 2)
    assert has_ended(f"{host}:{pid}:{int(start) - 1}", machine_name())


@pytest.mark.parametrize("machine", [None, "", "another-boot/pid:[4026531836]"])
def test_a_process_of_another_machine_can_not_be_seen(machine: str | None) -> None:
    assert not has_ended("elsewhere:999999999:1", machine)
    assert has_ended("elsewhere:999999999:1", machine_name())
