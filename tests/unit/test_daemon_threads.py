"""Threads that are started where a signal handler may raise."""

from __future__ import annotations

import threading

import pytest

from paceline.daemon_threads import DaemonThread
from tests.interruptions import in_a_thread, interrupt_often


def test_joining_waits_for_the_end_however_often() -> None:
    release, done = threading.Event(), []

    def work() -> None:
        release.wait(20)
        done.append(True)

    thread = DaemonThread(work)
    thread.join(0.01)
    assert thread.is_alive
    release.set()
    for _ in range(3):
        thread.join()
    assert done == [True]
    assert not thread.is_alive


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_handler_that_raises_keeps_no_other_thread_from_starting() -> None:
    interrupt_often(lambda: DaemonThread(int).join(), 300)
    assert in_a_thread(lambda: True)
    DaemonThread(int).join(20)
