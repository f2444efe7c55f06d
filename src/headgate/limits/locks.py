"""Locks for short work under the GIL."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import sleep
from typing import ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
R = TypeVar("R")

PAUSE = 0.000_01
"""How long one who found a `Turnstile` taken lets go of the GIL, in seconds: the one inside needs less to get out."""


class Turnstile:
    """Lets one thread in at a time, for work that never waits for anything. `leave(None)` must follow.

    A `threading.Lock` is handed to a waiter before that waiter has the GIL, so under contention every call would wait
    for a switch of threads. Here a token is taken out of a list and put back, by whoever runs first. `try_enter()`
    raises `IndexError` while another is inside. Nobody is told when the token is back, so `enter()` looks again: only
    the first in line does, and seldom has to: who is inside lost the GIL there and needs only the GIL to get out.

    A signal handler may raise anywhere (Ctrl-C, a worker's time limit), and the token must not be lost. Python runs
    handlers when a C function has returned or a Python function begins. So whoever calls `try_enter` leaves again on
    any exception but `IndexError`, and `leave`, a C function, is called in a `finally`, never by way of another
    function: for this reason it is no context manager.

    A forked child finds it open: who was inside is not there any more.
    """

    __slots__ = ("__weakref__", "_line", "_token", "leave", "try_enter")

    def __init__(self) -> None:
        self._token = [None]
        self._line = threading.Lock()
        self.try_enter = self._token.pop
        self.leave = self._token.append
        _turnstiles.add(self)

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Does some work inside."""
        self.enter()
        try:
            return work(*args, **kwargs)
        finally:
            self.leave(None)

    def enter(self) -> None:
        """Waits until nobody is inside."""
        try:
            self.try_enter()
        except IndexError:
            self._stand_in_line()
        except BaseException:
            self.leave(None)
            raise

    def _stand_in_line(self) -> None:
        inside = False
        try:
            with self._line:
                self._enter_next()
                inside = True
        except BaseException:
            if inside:
                self.leave(None)
            raise

    def _enter_next(self) -> None:
        while True:
            try:
                self.try_enter()
                return
            except IndexError:
                pass
            except BaseException:
                self.leave(None)
                raise
            sleep(PAUSE)

    def open_again(self) -> None:
        """Forgets who is inside and who waits."""
        self._token[:] = [None]
        self._line = threading.Lock()


_turnstiles: WeakSet[Turnstile] = WeakSet()


def _open_all() -> None:
    for turnstile in list(_turnstiles):
        turnstile.open_again()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_all)
