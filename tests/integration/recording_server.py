"""An HTTP server that records what is posted to it, and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Answers with `answers`, in turn; records the requests."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""


@contextmanager
def recording_server() -> Iterator[Server]:
    """A server on a free port."""
    known = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            known.requests.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
            status, headers, answer = known.answers.pop(0) if known.answers else (200, {}, b"")
            self.send_response(status)
            for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, args=(0.01,)).start()
    known.url = f"http://127.0.0.1:{http.server_address[1]}"
    yield known
    http.shutdown()
    http.server_close()
