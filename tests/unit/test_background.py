"""An event loop in the background, and the callers that wait for it."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from paceline.background import Background
from tests.interruptions import in_a_thread, interrupt_often


class Database:
    """One that never answers a question."""

    def __init__(self) -> None:
        self.called = threading.Event()

    async def ask(self) -> None:
        self.called.set()
        await asyncio.Event().wait()

    async def answer(self) -> int:
        return 42

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


# A signal handler that raises may do so in the callback of a weak reference, where Python can only report it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_handler_that_raises_does_not_stop_the_loop() -> None:
    """As Ctrl-C does, or a worker's time limit, while the caller waits for its result."""
    background = Background(Database)
    background.run(lambda database: database.answer())
    interrupt_often(lambda: background.run(lambda database: database.answer()), 2_000)
    assert in_a_thread(lambda: background.run(lambda database: database.answer())) == 42
    background.close()
