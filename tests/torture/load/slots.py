"""Callers that book slots, retry and cancel; and an operator that changes the limit."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.torture.history import Outcome
from tests.torture.load import Site, by_status

CONFIG = "torture"
WINDOW = "PT2S"
LIMITS = (3, 4, 6, 8)


def _judge(status: int, answer: dict[str, Any]) -> tuple[Outcome, dict[str, Any]]:
    if status != 200:
        return ("refused" if status < 500 else "unknown"), {}
    names = ("scheduledTime", "windowStart", "configVersion", "existing")
    return "ok", {name: answer[name] for name in names}


class Bookings:
    """Events are booked, some again, some cancelled. A cancelled one is never booked again."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._numbers = itertools.count()
        self._events: dict[str, str] = {}
        """Those that are not cancelled, with their requested time."""

    async def run(self) -> None:
        site, random = self._site, self._site.random
        while not site.stop.is_set():
            draw = random.random()
            if draw < 0.06 and self._events:
                event = random.choice(list(self._events))
                del self._events[event]
                await site.call("slots.cancel", "DELETE", f"/api/v1/slots/{event}", judge=by_status(200), event=event)
            elif draw < 0.25 and self._events:
                await self._book(random.choice(list(self._events)))
            else:
                event = f"event-{next(self._numbers)}"
                # Many have the same requested time, and some of them one in the past.
                ahead = timedelta(seconds=random.choice([-1, 2, 5]))
                requested = (datetime.now(UTC) + ahead).replace(microsecond=0)
                self._events[event] = requested.isoformat(timespec="milliseconds").replace("+00:00", "Z")
                await self._book(event)
            await site.pause(0.25)

    async def _book(self, event: str) -> None:
        request = {"eventId": event, "configName": CONFIG, "requestedTime": self._events[event]}
        await self._site.call(
            "slots.book",
            "POST",
            "/api/v1/slots",
            request,
            judge=_judge,
            event=event,
            requested=request["requestedTime"],
        )


async def change_limits(site: Site) -> None:
    """Raises and lowers the limit."""
    while not site.stop.is_set():
        await site.pause(12)
        document = {"configName": CONFIG, "maxPerWindow": site.random.choice(LIMITS), "windowSize": WINDOW}
        await site.call(
            "slots.configure",
            "POST",
            "/admin/rate-limit/config",
            document,
            judge=by_status(200),
            most=document["maxPerWindow"],
        )
