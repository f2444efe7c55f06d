"""Locks for short work under the GIL."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import ParamSpec, TypeVar

from paceline.forks import reset_in_children
from paceline.locks import Lock

P = ParamSpec("P")
R = TypeVar("R")

SPIN_SECONDS = 0.000_01
"""How long a thread waiting for a `SpinLock` releases the GIL, in seconds. The holder needs less to release it."""


def _arguments_of_held() -> tuple[object, ...]:
    token: list[None] = []
    try:
        token.pop()
    except IndexError as error:
        return error.args
    raise AssertionError


HELD = _arguments_of_held()
"""The arguments of the error that `SpinLock.try_acquire` raises while another thread holds the lock."""


class SpinLock:
    """A lock for critical sections that never wait. It is released by `release(None)`.

    A `threading.Lock` is handed to a waiter before that waiter has the GIL, so under contention every call would wait
    for a thread switch. Here a token is taken out of a list and put back, by the thread that runs first.
    `try_acquire()` raises `IndexError` while another thread holds the lock. A release notifies no waiter, so
    `acquire()` spins: only the first waiter does, and seldom, as the holder needs only the GIL to release.

    A signal handler may raise anywhere (Ctrl-C, a worker's time limit), and the token must not be lost. Python runs
    handlers when a C function has returned or a Python function begins. So a caller of `try_acquire` releases on any
    exception but `try_acquire`'s own, and `release`, a C function, is called in a `finally`, never by way of another
    function: for this reason it is no context manager. `try_acquire`'s own is an error with the arguments `HELD` that
    no other function raised (`tb_next`): a handler may raise an `IndexError`, too.

    In a forked child it is free: the thread that held it was not forked.
    """

    __slots__ = ("__weakref__", "_queue_lock", "_token", "release", "try_acquire")

    def __init__(self) -> None:
        self._token = [None]
        self._queue_lock = Lock()
        self.try_acquire = self._token.pop
        self.release = self._token.append
        reset_in_children(self)

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Returns `work(...)`, run while holding the lock."""
        self.acquire()
        try:
            return work(*args, **kwargs)
        finally:
            self.release(None)

    def acquire(self) -> None:
        """Waits until the lock is free, and takes it."""
        try:
            self.try_acquire()
        except BaseException as error:
            if error.__traceback__.tb_next is not None or error.args != HELD:  # type: ignore[union-attr]
                self.release(None)
                raise
            self._acquire_in_turn()

    def _acquire_in_turn(self) -> None:
        acquired = False
        try:
            with self._queue_lock:
                self._spin()
                acquired = True
        except BaseException:
            if acquired:
                self.release(None)
            raise

    def _spin(self) -> None:
        while True:
            try:
                self.try_acquire()
                return
            except BaseException as error:
                if error.__traceback__.tb_next is not None or error.args != HELD:  # type: ignore[union-attr]
                    self.release(None)
                    raise
            sleep(SPIN_SECONDS)

    def reset_after_fork(self) -> None:
        """Forgets the holder and the waiters."""
        self._token[:] = [None]
        self._queue_lock = Lock()


class NoLock(SpinLock):
    """A `SpinLock` for an event loop, where no other task runs between two awaits."""

    def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return work(*args, **kwargs)
