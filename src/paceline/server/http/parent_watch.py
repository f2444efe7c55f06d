"""Ends workers of `paceline serve` with their parent process, also if that was killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from typing import NoReturn

import structlog

_started = threading.Event()


def end_with_parent() -> None:
    """Shuts this process down, as SIGTERM does, once its parent has ended; does nothing in a process without a parent.
    Before `worker_started` the process ends at once: while uvicorn starts, it only takes note of SIGTERM.

    `multiprocessing` gives each process it starts a pipe whose other end only the parent holds: reading it ends when
    the parent does, on every system. `prctl(PR_SET_PDEATHSIG)` is Linux only, and signals the end of the *thread* that
    started the process.
    """
    parent = parent_process()
    if parent is None:
        return
    _started.clear()  # this process may be a copy of one in which a service ran
    if not parent.is_alive():
        _end_at_once()
    threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def worker_started() -> None:
    """From now on this process has work to finish before it ends."""
    _started.set()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    if not _started.is_set():
        _end_at_once()
    _log_end()
    os.kill(os.getpid(), signal.SIGTERM)


def _end_at_once() -> NoReturn:
    _log_end()
    remove_worker_metrics()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # closed, or nobody reads it any more
            stream.flush()
    os._exit(0)


def _log_end() -> None:
    structlog.get_logger().warning("the process that started this worker has ended; shutting down", pid=os.getpid())


def remove_worker_metrics() -> None:
    """Removes the workers' shared metrics files, at the end of a worker whose parent can't do it any more."""
    parent, directory = parent_process(), os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if parent is not None and directory is not None and not parent.is_alive():
        shutil.rmtree(directory, ignore_errors=True)
