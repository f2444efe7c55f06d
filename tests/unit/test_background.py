"""An event loop in the background, and the callers that wait for it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from headgate.background import Background


class Database:
    """One that never answers."""

    def __init__(self) -> None:
        self.called = threading.Event()

    async def ask(self) -> None:
        self.called.set()
        await asyncio.Event().wait()

    async def close(self) -> None:
        pass


def test_closing_ends_the_calls_under_way() -> None:
    databases: list[Database] = []

    def make() -> Database:
        databases.append(Database())
        return databases[-1]

    background = Background(make)
    with ThreadPoolExecutor() as threads:
        call = threads.submit(background.run, lambda database: database.ask())
        assert databases[0].called.wait(30)
        background.close()
        with pytest.raises(CancelledError):
            call.result(30)
