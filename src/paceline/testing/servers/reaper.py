"""The reaper: a small process that kills this process's servers once it is gone, however it ended.

It is run as a script, so it imports the standard library only. It leads the process group every server is put in, and
reads its standard input, whose other end only the process it serves holds. Each line names a directory to remove.
At the end of input it kills its group and what that group started (PostgreSQL's backends lead groups of their own).
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
IPC_RMID = 0


def table() -> dict[int, tuple[str, int, int]]:
    """Every process as pid -> (state letter, parent, process group); empty where there is no /proc."""
    processes = {}
    for entry in PROC.glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except OSError:
            continue  # it ended meanwhile
        state, parent, group = text[text.rindex(")") + 2 :].split(maxsplit=3)[:3]
        processes[int(entry.parent.name)] = (state, int(parent), int(group))
    return processes


def family(roots: Iterable[int]) -> set[int]:
    """The living processes among `roots` and all their descendants."""
    processes = {pid: row for pid, row in table().items() if row[0] not in "ZX"}
    members = set(roots) & processes.keys()
    while True:
        children = {pid for pid, (_, parent, _) in processes.items() if parent in members} - members
        if not children:
            return members
        members |= children


def end_group(deadline: float) -> None:
    """Kills everything in this process's group, and its descendants, except this process."""
    me, group = os.getpid(), os.getpgrp()
    while time.monotonic() < deadline:
        victims = family(pid for pid, row in table().items() if row[2] == group) - {me}
        if not victims:
            return
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def free_shared_memory(directory: Path) -> None:
    """Removes the segment a killed PostgreSQL in `directory` leaves; the system has room for a few thousand only."""
    lock = directory / "data" / "postmaster.pid"
    if lock.is_file() and (segment := re.search(r"^ *\d+ +(\d+)$", lock.read_text(), re.MULTILINE)):
        ctypes.CDLL(None).shmctl(int(segment[1]), IPC_RMID, None)


def main() -> None:
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    directories = [line.rstrip("\n") for line in sys.stdin]
    end_group(time.monotonic() + 30)
    for directory in directories:
        free_shared_memory(Path(directory))
        shutil.rmtree(directory, ignore_errors=True)
    if not PROC.is_dir():
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
