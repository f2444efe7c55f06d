"""`/metrics`: rendered beside the event loop."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from types import SimpleNamespace

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Metric, generate_latest

from paceline.server.access.model import ANYONE
from paceline.server.access.names import EVERY_NAME, Names
from paceline.server.http.metrics import CodedNames, show
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
    services = SimpleNamespace(registry=registry, names=EVERY_NAME, authenticator=SimpleNamespace(is_open=True))
    response = await show(Request({"type": "http", "state": {"caller": ANYONE.name}, SERVICES: services}))
    assert b"# HELP rendered read by a scrape" in response.body
    assert len(collector.threads) == 1
    assert threading.get_ident() not in collector.threads


def test_names_of_others_have_codes_that_stay() -> None:
    registry = CollectorRegistry()
    done = Counter("done", "Done.", ["item_type", "outcome"], registry=registry)
    for item_type in ("TEAM_A_X", "TEAM_B_X", "TEAM_B_Y", "(other)"):
        done.labels(item_type, "ok").inc()
    of_team = generate_latest(CodedNames(registry, b"key", Names(("team-a-*",)))).decode()
    of_nobody = generate_latest(CodedNames(registry, b"key", None)).decode()
    assert 'item_type="TEAM_A_X",outcome="ok"' in of_team
    assert "TEAM" not in of_nobody
    for text, codes in ((of_team, 2), (of_nobody, 3)):
        assert "TEAM_B" not in text
        assert 'item_type="(other)"' in text
        assert len(set(re.findall(r'done_total{item_type="(name-[0-9a-f]{8})"', text))) == codes
    assert generate_latest(CodedNames(registry, b"key", None)).decode() == of_nobody
    assert "TEAM_B_X" in generate_latest(registry).decode(), "the metrics themselves stay"
