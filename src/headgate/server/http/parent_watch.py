"""Ends workers of `headgate serve` with their parent process, also if that was killed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess

import structlog


def end_with_parent() -> None:
    """Shuts this process down, as SIGTERM does, once its parent has ended; does nothing in a process without a parent.

    `multiprocessing` gives each process it starts a pipe whose other end only the parent holds: reading it ends when
    the parent does, on every system. `prctl(PR_SET_PDEATHSIG)` is Linux only, and signals the end of the *thread* that
    started the process.
    """
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent,), name="parent-watch", daemon=True).start()


def _watch(parent: BaseProcess) -> None:
    parent.join()
    structlog.get_logger().warning("the process that started this worker has ended; shutting down", pid=os.getpid())
    os.kill(os.getpid(), signal.SIGTERM)


def remove_worker_metrics() -> None:
    """Removes the workers' shared metrics files, at the end of a worker whose parent can't do it any more."""
    parent, directory = parent_process(), os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    if parent is not None and directory is not None and not parent.is_alive():
        shutil.rmtree(directory, ignore_errors=True)
