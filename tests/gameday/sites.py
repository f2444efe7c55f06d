"""Where drills run: each site has its own services, servers and Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from tests.gameday.brokers import brokers
from tests.gameday.callers import callers
from tests.gameday.drill import GameDay
from tests.gameday.outages import outages
from tests.gameday.workers import workers

SITES: dict[str, Callable[[Path], AbstractAsyncContextManager[GameDay]]] = {
    "outages": outages,
    "workers": workers,
    "callers": callers,
    "brokers": brokers,
}
