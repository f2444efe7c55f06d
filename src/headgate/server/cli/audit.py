"""Changes made by commands leave the same audit rows as those made under `/admin`."""

from __future__ import annotations

import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headgate.errors import Conflict, HeadgateError, InvalidInput, NotFound, SlotOwned, StaleVersion, StoreUnavailable
from headgate.server.settings import Settings
from headgate.server.wiring.access import open_access_store

METHOD = "CLI"
STATUSES: tuple[tuple[type[HeadgateError], int], ...] = (
    (InvalidInput, 400),
    (NotFound, 404),
    (StaleVersion, 412),
    (Conflict, 409),
    (SlotOwned, 409),
    (StoreUnavailable, 503),
)


@asynccontextmanager
async def audit_change(settings: Settings, *words: str) -> AsyncIterator[None]:
    """Records the change made inside, under this command and its user: before it is made, so that one that can't be
    recorded is not made, and after it with the status that HTTP would have answered."""
    async with open_access_store(settings) as audit:
        number = await audit.begin(f"cli:{user()}"[:64], METHOD, " ".join(words), os.urandom(12).hex())
        try:
            yield
        except HeadgateError as error:
            await audit.end(number, next((status for kind, status in STATUSES if isinstance(error, kind)), 500))
            raise
        except Exception:
            await audit.end(number, 500)
            raise
        await audit.end(number, 200)


def user() -> str:
    """The user of this process, by the operating system: an environment variable could hold anything."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
