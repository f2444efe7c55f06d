"""Users that exceed their quota, and retry unknown outcomes with the same idempotency key."""

from __future__ import annotations

import itertools

from tests.torture.load import Site, by_status

QUOTA = 10
MESSAGES_PER_USER = 16
MINUTES = 60
"""Of a quota's window; longer than a user sends."""
MOST_TRIES = 4
LIMITED = 429


class Messages:
    """One user after the other."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._users = itertools.count(1)

    async def run(self) -> None:
        site = self._site
        while not site.stop.is_set():
            user = next(self._users)
            document = {"userId": user, "rateLimit": QUOTA, "timeWindow": MINUTES}
            # A repeated configuration begins a new window, so a user whose first one is doubtful is left alone.
            outcome, _ = await site.call(
                "messages.configure", "POST", "/api/config", document, judge=by_status(200), user=user
            )
            if outcome == "ok":
                for number in range(MESSAGES_PER_USER):
                    if not site.stop.is_set():
                        await self._send(user, f"{user}-{number}")
                        await site.pause(0.3)

    async def _send(self, user: int, text: str) -> None:
        for _ in range(MOST_TRIES):
            outcome, answer = await self._site.call(
                "messages.send",
                "POST",
                "/api/send",
                {"userId": user, "message": text},
                judge=lambda status, _: (
                    "ok" if status == 200 else "refused" if status in (429, 503) else "unknown",
                    {},
                ),
                headers={"Idempotency-Key": text},
                user=user,
                text=text,
            )
            if outcome == "ok" or answer.get("status") == LIMITED or self._site.stop.is_set():
                return
            await self._site.pause(0.5)
