"""Processes by the names that their claims carry, and whether one of them has certainly ended."""

from __future__ import annotations

import os
import secrets
import socket
from functools import cache
from pathlib import Path

LONGEST_HOST = 255
ENDED = "ZX"
"""The states of processes that were killed, and whose parents have not asked for their status yet."""


def process_name() -> str:
    """Host, process id and start of this process: no other process ever has the same name."""
    return _process_name(os.getpid())


@cache
def _process_name(pid: int) -> str:
    started = _state_and_start(pid)
    unique = secrets.token_hex(4) if started is None else started[1]
    return f"{socket.gethostname()[:LONGEST_HOST]}:{pid}:{unique}"


@cache
def machine_name() -> str | None:
    """The kernel of this process since it was booted, with the namespace of its process ids: two processes with the
    same can see each other. None where the system has no such names."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def has_ended(process: str, machine: str | None) -> bool:
    """Whether the process of this name has certainly ended. False if it runs, is stopped or frozen, or can't be seen
    from here."""
    if machine is None or machine != machine_name():
        return False
    _, pid, start = process.rsplit(":", 2)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass  # it is somebody else's
    current = _state_and_start(int(pid))
    return current is not None and (current[0] in ENDED or current[1] != start)


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """The state of a process, and when it started, in ticks since the boot; None if that can't be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], fields[19]
