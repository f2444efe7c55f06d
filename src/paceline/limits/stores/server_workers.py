"""How many workers the web server has that loads or calls this code: they share nothing in memory."""

from __future__ import annotations

import logging
import sys
from types import FrameType

log = logging.getLogger("paceline.limits")

_SERVERS = frozenset({"granian", "gunicorn", "hypercorn", "uvicorn"})


def warn_of_workers() -> None:
    """Logs a warning if this process is one of several workers of a web server. Only the first of them does."""
    workers, is_first = _workers()
    if is_first:
        warn_of_processes(workers)


def warn_of_processes(count: int) -> None:
    """Logs a warning if several processes each have a `memory://` of their own."""
    if count > 1:
        log.warning(
            "memory:// counts for each of the server's %d workers apart, so that up to %d times the limit passes; "
            "use host://NAME, which all processes of this host share, or redis://",
            count,
            count,
        )


def _workers() -> tuple[int, bool]:
    """The number of workers by the server's own objects on the call stack, and whether this is the first of them.

    The environment and the command line do not say: the number may come from a file or a program.
    """
    workers = 1
    # Not imported here: a process that has not imported it is none of its children.
    processes = sys.modules.get("multiprocessing.process")
    is_first = processes is None or processes.current_process()._identity[-1:] in ((), (1,))
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _SERVERS:
            values = frame.f_locals
            for holder in (values.get("config"), values.get("self"), getattr(values.get("self"), "cfg", None)):
                count = getattr(holder, "workers", None)
                workers = max(workers, count if isinstance(count, int) else 1)
            is_first &= getattr(values.get("worker"), "age", 1) == 1  # gunicorn's
        frame = frame.f_back
    return workers, is_first
