"""Loopback ports that stay ours while a server is down."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

# Below every system's range for outgoing connections, which could otherwise take a port while its server restarts.
FIRST, LAST = 10_000, 31_999
# A Redis Cluster node also listens on its port plus this.
BUS_OFFSET = 10_000


class PortClaim:
    """A free port, and those at `offsets` from it, that no other claim on this machine holds until `release`."""

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        offsets = tuple(offsets)
        locks = Path(tempfile.gettempdir()) / f"paceline-ports-{os.getuid()}"
        locks.mkdir(exist_ok=True)
        for _ in range(1_000):
            port = random.randint(FIRST, LAST - max(offsets, default=0))
            claimed = [port, *(port + offset for offset in offsets)]
            locked = [descriptor for number in claimed if (descriptor := _lock(locks / str(number))) is not None]
            if len(locked) == len(claimed) and all(_is_free(number) for number in claimed):
                self.number = port
                self._locked = locked
                return
            _close(locked)
        raise OSError("no free loopback port found")

    def release(self) -> None:
        _close(self._locked)
        self._locked = []


def _lock(path: Path) -> int | None:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
