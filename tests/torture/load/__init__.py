"""Clients that call the installation and log their requests and the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx2 as httpx

from tests.torture.history import Outcome, Recorder

CALL_SECONDS = 10.0
"""The client's timeout: after it the outcome of the call is unknown."""

Answer = tuple[int, dict[str, Any]]
"""Status and document. The status 0 means that there was no answer."""


@dataclass
class Site:
    """What a client needs: where the services are, where to log, what to draw from, and when to stop."""

    services: list[str]
    recorder: Recorder
    random: Random
    stop: asyncio.Event
    http: httpx.AsyncClient

    async def pause(self, mean: float) -> None:
        """Waits for a random time, or until it is time to stop."""
        try:
            async with asyncio.timeout(self.random.expovariate(1 / mean)):
                await self.stop.wait()
        except TimeoutError:
            return

    async def call(
        self,
        op: str,
        method: str,
        path: str,
        document: object = None,
        *,
        judge: Callable[[int, dict[str, Any]], tuple[Outcome, dict[str, Any]]],
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> tuple[Outcome, dict[str, Any]]:
        """Calls one of the services and logs it. `judge` returns the outcome of an answer, and what of it is logged."""
        call = self.recorder.invoke(op, **request)
        status, answer = await self._request(method, path, document, headers)
        outcome, noted = ("refused", {}) if status == -1 else ("unknown", {}) if status == 0 else judge(status, answer)
        self.recorder.complete(call, outcome, status=status, **noted)
        return outcome, answer

    async def _request(self, method: str, path: str, document: object, headers: Mapping[str, str] | None) -> Answer:
        url = self.random.choice(self.services) + path
        try:
            async with asyncio.timeout(CALL_SECONDS):
                response = await self.http.request(method, url, json=document, headers=headers)
                return response.status_code, response.json()
        except httpx.ConnectError:
            return -1, {}  # nothing was sent
        except (TimeoutError, httpx.TransportError, ValueError):
            return 0, {}


def by_status(good: int) -> Callable[[int, dict[str, Any]], tuple[Outcome, dict[str, Any]]]:
    """`good` is done, 4xx is refused, and after 5xx the outcome is unknown."""

    def judge(status: int, answer: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
        return ("ok" if status == good else "refused" if status < 500 else "unknown"), {}

    return judge
