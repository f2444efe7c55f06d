"""The deadline of a transaction on SQLite, which another thread interrupts."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from paceline.sql.deadlines import Use
from tests.interruptions import in_a_thread, interrupt_often


# A generator that was interrupted is closed by the garbage collector, where Python can only report what is raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_after_interruptions_the_deadline_is_kept_by_another_thread() -> None:
    loop, driver = asyncio.new_event_loop(), sqlite3.connect(":memory:")
    use = Use(loop)

    def transaction() -> None:
        with use.interruptible(driver):
            driver.execute("SELECT 1")

    interrupt_often(transaction, 1_000)
    in_a_thread(use.interrupt)
    with pytest.raises(TimeoutError):
        transaction()
    driver.close()
    loop.close()
