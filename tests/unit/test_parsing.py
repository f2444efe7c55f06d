"""Threads that parse Python at once."""

from __future__ import annotations

import ast
import gc
import sys
import threading
from collections.abc import Iterator

import pytest

SOURCE = "f(a, b, [c, d, {e: (g, h)}])\n" * 20


class Cycle:
    """Garbage whose end gives other threads time to run."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        sum(range(200))


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads switch often, and garbage is collected while Python is parsed."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(10, 1, 1_000_000)
    sys.setswitchinterval(1e-5)
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hurried")
def test_all_of_them_succeed() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(100):
                Cycle()
                ast.parse(SOURCE)
        except SystemError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
