"""A lock for state that threads share, also if a signal handler raises (Ctrl-C, a worker's time limit)."""

from __future__ import annotations

from _thread import RLock


class Lock(RLock):  # type: ignore[misc]  # typeshed says it is final; it is not
    """A lock for `with`. A signal handler that raises does not leave it held, on any Python.

        with self._lock:
            ...

    Python 3.14 may run a handler after the lock was taken and before the block is entered; if the handler raises, a
    `threading.Lock` stays held for ever. Python runs handlers when a C function has returned or a Python function
    begins, not when one returns. So this `__enter__` is a Python function, which sees what a handler raises after
    `acquire`, and gives back the lock if this thread has it: `release` of a lock that another thread has, or none,
    raises `RuntimeError`. `__exit__` stays a C function, which can't be interrupted before it has released the lock.

    It is reentrant, as a handler that does not raise may need the lock that the interrupted thread holds.
    """

    __slots__ = ()

    def __enter__(self) -> bool:  # type: ignore[override]  # typeshed gives it the parameters of `acquire`
        try:
            return self.acquire()
        except BaseException:
            try:  # noqa: SIM105  # a second handler must find nothing to interrupt before `release`
                self.release()
            except RuntimeError:
                pass
            raise
