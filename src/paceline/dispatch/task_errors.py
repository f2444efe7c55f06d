"""What user code raised, as an error of its task: also `SystemExit`, and others that are no `Exception`."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable
from typing import TypeVar

from paceline.dispatch.model import LONGEST_TRACEBACK
from paceline.errors import PacelineError

R = TypeVar("R")


def describe(error: BaseException) -> str:
    """Its type and its message."""
    return f"{type(error).__name__}: {message_of(error)}"


def message_of(error: BaseException) -> str:
    """Its message, whatever its `__str__` does."""
    try:
        return str(error)
    except Exception:
        return "its message can't be shown"


def traceback_of(error: BaseException) -> str | None:
    """Its traceback, or that of its cause if it was raised only to say what follows; None if it has none."""
    cause = error.__cause__
    if isinstance(error, PacelineError) and cause is not None and cause.__traceback__ is not None:
        error = cause
    if error.__traceback__ is None:
        return None
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # its `__str__` raises
        text = "".join(traceback.format_tb(error.__traceback__))
    text = text.replace("\x00", "").encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST_TRACEBACK else f"…{text[1 - LONGEST_TRACEBACK :]}"


def as_exception(error: BaseException) -> Exception:
    """An `Exception` that names it, for an error that can't cross asyncio's tasks and futures: `SystemExit` in a task
    ends the event loop, and `StopIteration` can't be set on a future."""
    failure = RuntimeError(describe(error))
    failure.__cause__ = error
    return failure


async def contained(running: Awaitable[R]) -> R:
    """Its result. `SystemExit` and the like become a `RuntimeError`, as they do on a thread; Ctrl-C, a cancellation and
    the close of the coroutine stay what they are."""
    try:
        return await running
    except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise as_exception(error) from error


def is_cancelling() -> bool:
    """Whether the current asyncio task was cancelled. If not, a `CancelledError` is about something that it awaited: an
    error like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
