"""Several worker processes behind one port: each of them shows what any of them changed."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.acceptance.service import Service


def test_after_a_flush_every_worker_shows_the_new_version(tmp_path: Path) -> None:
    with Service(tmp_path, "--workers", "2") as service, ExitStack() as stack:
        held: dict[int, http.client.HTTPConnection] = {}
        for _ in range(500):
            connection = stack.enter_context(closing(http.client.HTTPConnection(urlsplit(service.url).netloc)))
            assert _version(connection) == 1
            # On a busy machine uvicorn may have replaced one that was slow to start.
            workers = _children(service.pid)
            held.setdefault(_owner(connection.sock, workers), connection)
            held = {pid: connection for pid, connection in held.items() if pid in workers}
            if len(held) == 2:
                break
        assert set(held) == set(workers), "each worker has a connection, and has read the config"
        for expected in (2, 3):
            limit = {"configName": "default", "maxPerWindow": 100 + expected, "windowSize": "PT4S"}
            with service.client() as client:
                assert client.post("/admin/rate-limit/config", json=limit).status_code == 200
                assert client.post("/admin/rate-limit/cache/flush").status_code == 200
            assert {pid: _version(connection) for pid, connection in held.items()} == dict.fromkeys(workers, expected)


def _version(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/admin/rate-limit/config?name=default")
    return int(json.load(connection.getresponse())["version"])


def _children(pid: int) -> list[int]:
    """The worker processes: what uvicorn starts beside them has no socket to listen on."""
    started = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [child for child in started if "spawn_main" in _command(child)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""  # it has ended meanwhile


def _owner(connected: socket.socket, pids: Iterable[int]) -> int:
    """The process at the other end of a connection."""
    local, remote = (f"{name[1]:04X}" for name in (connected.getsockname(), connected.getpeername()))
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (inode,) = {row[9] for row in rows if row[1].endswith(f":{remote}") and row[2].endswith(f":{local}")}
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                if str(file.readlink()) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("none of them")
