"""A shutdown deadline: the process exits within its grace period after SIGTERM, whatever hangs."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
CLOSE_SECONDS = 15
"""How long a service may take to close its stores, after its requests were finished or cancelled."""
HUNG_SECONDS = 30.0
"""An event loop without an iteration for so long counts as hung."""


def closing_part(seconds: float, longest: float) -> float:
    """The time for one step of a shutdown of `seconds`: finishing work, giving back the rest, and the last transactions
    get a third each."""
    return min(longest, seconds / 3)


class ShutdownDeadline:
    """Ends the process with status 1 if it still runs `seconds` after the first signal; prints the stacks of all
    threads, and of all tasks of `loop`.

    The deadline is kept by a thread: an event loop that is blocked can't keep one.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self.loop: asyncio.AbstractEventLoop | None = None

    def arm(self) -> None:
        """Starts the timer, once."""
        if not self._armed:
            self._armed = True
            threading.Thread(target=self._end, name="shutdown-deadline", daemon=True).start()

    def _end(self) -> None:
        time.sleep(self._seconds)
        end_at_once(f"not ended {self._seconds:g} s after it was told to; every thread's stack follows", self.loop)


def stop_on_signals(stop: asyncio.Event, seconds: float) -> None:
    """From now on, SIGTERM and SIGINT set `stop` on the running event loop, and the process ends within `seconds`.

    Uses Python's signal handlers, not the loop's: those of a blocked loop are never called.
    """
    deadline = ShutdownDeadline(seconds)
    loop = deadline.loop = asyncio.get_running_loop()

    def handle(_signum: int, _frame: FrameType | None) -> None:
        deadline.arm()
        loop.call_soon_threadsafe(stop.set)

    for signum in SIGNALS:
        signal.signal(signum, handle)


def add_deadline(seconds: float, end: Callable[[], None] = lambda: None) -> None:
    """Adds the deadline, and a call of `end`, to the handlers that SIGTERM and SIGINT have now."""
    deadline = ShutdownDeadline(seconds)
    for signum in SIGNALS:
        earlier = signal.getsignal(signum)

        def handle(signum: int, frame: FrameType | None, earlier: object = earlier) -> None:
            deadline.arm()
            end()
            if callable(earlier):
                earlier(signum, frame)

        signal.signal(signum, handle)


def end_when_hung(loop: asyncio.AbstractEventLoop, seconds: float = HUNG_SECONDS) -> None:
    """Ends this process when its event loop hangs for `seconds`, so that its parent restarts it. For the workers of
    `paceline serve`: no probe from outside can reach a particular worker."""
    turned = threading.Event()

    def watch() -> None:
        while not loop.is_closed():
            turned.clear()
            try:
                loop.call_soon_threadsafe(turned.set)
            except RuntimeError:
                return  # closed meanwhile
            if not turned.wait(seconds):
                if loop.is_running():
                    end_at_once(f"the event loop made no turn for {seconds:g} s; every thread's stack follows")
                return
            time.sleep(seconds / 10)

    threading.Thread(target=watch, name="loop-watch", daemon=True).start()


def end_at_once(reason: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Ends the process with status 1, and prints the reason and the stacks of threads and tasks on standard error."""
    try:
        sys.stderr.write(f"paceline: {reason}\n")
        sys.stderr.flush()
        faulthandler.dump_traceback(all_threads=True)
        for task in asyncio.all_tasks(loop) if loop is not None else ():
            sys.stderr.write(f"{task.get_name()} waits in {' > '.join(_awaited(task))}\n")
        sys.stderr.flush()
    finally:
        os._exit(1)


def _awaited(task: asyncio.Task[Any]) -> Iterator[str]:
    """The coroutines of a task, the innermost last: `Task.print_stack` shows the outermost only."""
    waiting: Any = task.get_coro()
    while (frame := getattr(waiting, "cr_frame", None)) is not None:
        yield f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
        waiting = waiting.cr_await
