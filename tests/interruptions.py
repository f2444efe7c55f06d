"""Signal handlers that raise: Ctrl-C, or the time limit of a worker's task."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable


class Interrupted(Exception):
    """What the signal handler raises."""


def interrupt_often(call: Callable[[], object], times: int) -> None:
    """Runs a call again and again, until it was interrupted so many times, each at some moment within it."""
    armed = False

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.000_1, 0.000_1)
    try:
        for _ in range(times):
            with contextlib.suppress(Interrupted):
                armed = True
                for _ in range(1_000):  # not for ever: Python only reports what is raised in a callback
                    call()
                armed = False
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_a_thread(call: Callable[[], object]) -> object:
    """The result of a call, which must not hang."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return results[0]
