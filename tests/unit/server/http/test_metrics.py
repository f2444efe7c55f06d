"""`/metrics`: rendered beside the event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

from fastapi import Request
from prometheus_client import CollectorRegistry, Metric

from paceline.server.http.metrics import show
from paceline.server.http.services import SERVICES


class Rendered:
    """A collector that records the threads that read it."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def collect(self) -> Iterator[Metric]:
        self.threads.append(threading.get_ident())
        yield Metric("rendered", "read by a scrape", "gauge")


async def test_a_scrape_is_rendered_in_a_thread() -> None:
    registry, collector = CollectorRegistry(), Rendered()
    registry.register(collector)
    collector.threads.clear()
    response = await show(Request({"type": "http", SERVICES: SimpleNamespace(registry=registry)}))
    assert b"# HELP rendered read by a scrape" in response.body
    assert len(collector.threads) == 1
    assert threading.get_ident() not in collector.threads
