"""The lock of every module: a signal handler that raises leaves it free."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path

import pytest

import paceline
from paceline.locks import Lock
from tests.interruptions import Interrupted, in_a_thread, interrupt_often


def is_free(lock: Lock) -> object:
    def look() -> bool:
        with lock:
            return True

    return in_a_thread(look)


def test_a_signal_handler_that_raises_leaves_the_lock_free() -> None:
    lock = Lock()

    def hold() -> None:
        with lock:
            len("a call, after which Python runs signal handlers")

    for _ in range(10):
        interrupt_often(hold, 300)
        assert is_free(lock)


def test_a_signal_handler_that_raises_leaves_the_lock_free_if_threads_compete_for_it() -> None:
    lock, ended = Lock(), threading.Event()

    def hold() -> None:
        with lock:
            len("a call, after which Python runs signal handlers")

    def compete() -> None:
        while not ended.is_set():
            hold()

    threads = [threading.Thread(target=compete, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        interrupt_often(hold, 300)
    finally:
        ended.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert is_free(lock)


def test_a_caller_that_is_interrupted_while_it_waits_takes_nothing() -> None:
    lock, held, release = Lock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(20)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert held.wait(20)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(Interrupted), lock:
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not lock.acquire(blocking=False)
    release.set()
    assert is_free(lock)


def test_no_module_guards_its_state_by_another_lock() -> None:
    """`limits/wait_queues.py` wakes a thread by one, which guards nothing."""
    root = Path(paceline.__file__).parent
    others = re.compile(
        r"threading\.(R?Lock|Condition)\b(?!`)|from threading import .*\b(R?Lock|Condition)\b|allocate_lock"
    )
    found = {str(path.relative_to(root)) for path in root.rglob("*.py") if others.search(path.read_text())}
    assert found == {"limits/wait_queues.py"}
