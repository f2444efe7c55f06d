"""Callers of limits: counts that no time changes, on keys that they share, and rates."""

from __future__ import annotations

import itertools
from typing import Any

from tests.torture.history import Outcome
from tests.torture.load import Site, by_status

PLANS: dict[str, dict[str, Any]] = {
    "wide": {"algorithm": "fixed_window", "limit": 40, "window": "P1D"},
    "narrow": {"algorithm": "fixed_window", "limit": 25, "window": "P1D"},
    "span": {"algorithm": "sliding_log", "limit": 8, "window": "PT2S"},
    "bucket": {"algorithm": "token_bucket", "capacity": 8, "perSecond": 4},
}
"""The windows of `wide` and `narrow` are longer than any run: their count is a number, whatever the time is."""
CHAINS = (["wide"], ["narrow"], ["wide", "narrow"])
CALLS_PER_KEY = 24


def _judge(status: int, answer: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    if status not in (200, 429):
        return ("refused" if status < 500 else "unknown"), {}
    noted: dict[str, Any] = {
        "allowed": answer["allowed"],
        "remaining": {plan["plan"]: plan["remaining"] for plan in answer["plans"]},
    }
    # A decision without the store: what was sent to it may count all the same.
    return ("unknown", {**noted, "degraded": True}) if answer["degraded"] else ("ok", noted)


class Counts:
    """Clients of one key after another."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._calls = itertools.count()

    async def run(self) -> None:
        site, random = self._site, self._site.random
        while not site.stop.is_set():
            key = f"count-{next(self._calls) // CALLS_PER_KEY}"
            (name,) = random.choices(["acquire", "peek", "refund", "reset"], [80, 10, 8, 2])
            request: dict[str, Any] = {"key": key, "plans": random.choice(CHAINS)}
            if name != "reset":
                request["cost"] = random.choice([1, 1, 2, 3])
            judge = _judge if name in ("acquire", "peek") else by_status(200)
            await site.call(f"limits.{name}", "POST", f"/api/v1/limits/{name}", request, judge=judge, **request)
            await site.pause(0.15)


async def call_at_rate(site: Site, plan: str) -> None:
    """Asks more often than the plan allows."""
    for number in itertools.count():
        if site.stop.is_set():
            return
        request: dict[str, Any] = {"key": f"{plan}-{number // 200}", "plans": [plan]}
        await site.call("limits.rate", "POST", "/api/v1/limits/acquire", request, judge=_judge, cost=1, **request)
        await site.pause(0.1)
