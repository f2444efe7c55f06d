"""Keeps what others log out of the tables: a row is read, and pasted, with nothing between it and the next."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import structlog


@contextlib.contextmanager
def kept_apart() -> Iterator[Path]:
    """Inside, log lines, warnings and whatever is written to standard error, by child processes too, go to a file.

    The file descriptor itself is redirected: libraries bring handlers of their own. An exception that leaves this
    context is shown as always.
    """
    number, name = tempfile.mkstemp(prefix="paceline-benchmarks-", suffix=".log")
    sys.stderr.flush()
    original = os.dup(2)
    os.dup2(number, 2)
    os.close(number)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    # By default it writes to standard output.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            yield Path(name)
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
