"""The inquiry of a task: what became of an attempt whose effect nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypedDict

from paceline.dispatch.config import OnUnknown
from paceline.dispatch.current_task import CurrentTask
from paceline.dispatch.model import GiveUp, Postponed
from paceline.dispatch.outcomes import Done, NeverSeen, OutcomeUnknown, Snooze, checked_pause
from paceline.dispatch.task_errors import describe, is_cancelling
from paceline.dispatch.tasks.arguments import LoadedCall
from paceline.errors import ConfigurationError, InvalidInput, StoreUnavailable

Inquiry = Callable[..., Any]
"""`async def inquire(item_id, …)`, or `def`: gets the item's id and the arguments of the task."""
Call = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function, or awaits its coroutine, within the task's timeout and at the pace of its downstream."""


class UnknownSettings(TypedDict, total=False):
    """The settings of an item type about attempts whose effect nobody knows."""

    on_unknown: str
    hold_for_secs: float


def checked_unknown(
    on_unknown: str, inquire: Inquiry | None, hold_for: str | timedelta | float | None
) -> UnknownSettings:
    """The settings of a task's `on_unknown`, `inquire` and `hold_for`.

    Raises:
        ConfigurationError: one of them is wrong, or they do not fit together.
    """
    if on_unknown not in tuple(OnUnknown):
        raise ConfigurationError("on_unknown", f"{on_unknown!r:.80} is unknown; use retry, inquire or hold")
    if on_unknown == OnUnknown.INQUIRE and inquire is None:
        raise ConfigurationError("inquire", "is required with on_unknown='inquire': the function that asks")
    if inquire is not None and not callable(inquire):
        raise ConfigurationError("inquire", "must be a function of the item's id and the task's arguments")
    if inquire is not None and on_unknown != OnUnknown.INQUIRE:
        raise ConfigurationError("inquire", "is only asked with on_unknown='inquire'")
    settings = UnknownSettings(on_unknown=on_unknown)
    if hold_for is not None:
        if on_unknown == OnUnknown.RETRY:
            raise ConfigurationError("hold_for", "is only for on_unknown='inquire' or 'hold'")
        try:
            settings["hold_for_secs"] = checked_pause(hold_for, "hold_for").total_seconds()
        except InvalidInput as error:
            raise ConfigurationError(error.field, error.problem) from None
    return settings


async def inquired(
    inquiry: Inquiry, current: CurrentTask, loaded: LoadedCall, call: Call, pause: Callable[[], timedelta | None]
) -> Done | None:
    """What an inquiry found: the attempt in doubt was executed; or None, if it was never seen.

    Raises:
        GiveUp: it was refused; or it was never seen, and all attempts are used up.
        Postponed: the inquiry decided nothing; there is another one later. After an error, `pause` says when.
        OutcomeUnknown: the inquiry decided nothing, and it was the last one.
    """
    try:
        found = await call(partial(inquiry, current.item_id, *loaded.args, **loaded.kwargs))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except GiveUp:
        await current.decided()
        raise
    except (Postponed, StoreUnavailable) as error:
        if current.is_last_inquiry and isinstance(error, Snooze):
            raise _still_unknown(str(error)) from error
        raise
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and is_cancelling():
            raise
        reason = f"the inquiry failed: {describe(error)}"
        if current.is_last_inquiry:
            raise _still_unknown(reason) from error
        raise Postponed(reason, pause()) from error
    if isinstance(found, Done | NeverSeen):
        await current.decided()
        if isinstance(found, NeverSeen) and current.is_used_up:
            raise GiveUp("no attempt was ever seen by the other side, and all are used up")
        return found if isinstance(found, Done) else None
    reason = f"the inquiry returned {found!r:.80}, not Done(result) or NeverSeen()"
    if current.is_last_inquiry:
        raise _still_unknown(reason)
    raise Postponed(reason, pause())


def _still_unknown(reason: str) -> OutcomeUnknown:
    error = OutcomeUnknown(f"its hold is over; {reason}")
    error.is_over = True
    return error
