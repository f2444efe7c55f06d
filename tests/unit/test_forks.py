"""Objects begin anew in a forked child, if somebody still has them."""

from __future__ import annotations

import gc
import os

import pytest

from paceline.forks import reset_in_children

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Counted:
    def __init__(self) -> None:
        self.resets = 0
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        self.resets += 1


def status_of_child(child: object) -> int:
    """Runs `child()` in a forked process, and returns what it returns."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(child())  # type: ignore[operator]
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_each_is_reset_once_in_the_child_and_never_in_the_parent() -> None:
    first, second = Counted(), Counted()
    reset_in_children(first)  # a second time
    assert status_of_child(lambda: 10 * first.resets + second.resets) == 11
    assert (first.resets, second.resets) == (0, 0)


def test_a_grandchild_resets_again() -> None:
    counted = Counted()
    assert status_of_child(lambda: status_of_child(lambda: counted.resets)) == 2


def test_who_is_forgotten_is_not_kept_for_it() -> None:
    told: list[str] = []

    class Noted(Counted):
        def __del__(self) -> None:
            told.append("gone")

    Noted()
    gc.collect()
    assert told == ["gone"]
