"""SMS providers in a process of their own, which record every call: `python -m tests.faults.recording_provider`.

Each path `/sms/{name}` is a provider. `PUT /sms/{name}` says how it behaves from now on, `GET /sms/{name}` lists the
calls it got. The first line of the output is the port.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline_sms.providers.webhook import WebhookProvider

ADDRESS = "RECORDING_PROVIDER"
"""The environment variable that `first` and `second` read."""


class Recorded:
    """The client of that process: one provider in it."""

    def __init__(self, address: str, name: str) -> None:
        self.url = f"{address}/sms/{name}"

    def behave(self, **behaviour: Any) -> None:
        """`delay` in seconds, `status`, `headers`, `body`, `cut`: the connection ends after the request."""
        urllib.request.urlopen(
            urllib.request.Request(self.url, json.dumps(behaviour).encode(), method="PUT"), timeout=10
        ).close()

    def calls(self) -> list[dict[str, Any]]:
        """Every call, in order, whatever became of its answer."""
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            calls: list[dict[str, Any]] = json.load(answer)
        return calls

    def ids(self) -> list[str]:
        return [call["messageId"] for call in self.calls()]


@contextmanager
def recording_providers() -> Iterator[str]:
    """The address of the process, which ends when left."""
    command = [sys.executable, "-m", "tests.faults.recording_provider"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def first() -> WebhookProvider:
    return WebhookProvider(f"{os.environ[ADDRESS]}/sms/first", timeout=0.5)


def second() -> WebhookProvider:
    return WebhookProvider(f"{os.environ[ADDRESS]}/sms/second", timeout=0.5)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    calls: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012  # shared by all connections
    behaviours: dict[str, dict[str, Any]] = {}  # noqa: RUF012
    lock = threading.Lock()

    def do_POST(self) -> None:
        call = json.loads(self._body())
        with self.lock:
            self.calls.setdefault(self.path, []).append({**call, "at": time.time()})
            behaviour = self.behaviours.get(self.path, {})
        time.sleep(behaviour.get("delay", 0.0))
        if behaviour.get("cut"):
            self.close_connection = True
            return
        self._answer(behaviour.get("status", 200), behaviour.get("body", ""), behaviour.get("headers", {}))

    def do_PUT(self) -> None:
        with self.lock:
            self.behaviours[self.path] = json.loads(self._body())
        self._answer(200, "", {})

    def do_GET(self) -> None:
        with self.lock:
            self._answer(200, json.dumps(self.calls.get(self.path, [])), {})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def _answer(self, status: int, body: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body.encode())), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    print(server.server_address[1], flush=True)  # noqa: T201
    server.serve_forever()
