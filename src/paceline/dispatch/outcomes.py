"""How a task decides what happens to its item: the exceptions `Snooze`, `Discard`, `Retry` and `OutcomeUnknown`, and
the results of an inquiry, `Done` and `NeverSeen`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from paceline.dispatch.model import GiveUp, Postponed
from paceline.durations import format_duration, parse_duration, parse_instant
from paceline.errors import InvalidInput, PacelineError

LONGEST_PAUSE = timedelta(days=3650)


class Snooze(Postponed):
    """Raised by a task to run again after `duration`. No retry is counted.

        raise Snooze("PT2S")

    `duration` is a text such as `4s` or `PT4S`, a `timedelta` or a number of seconds.

    Raises:
        InvalidInput: the duration is wrong.
    """

    def __init__(self, duration: str | timedelta | float) -> None:
        pause = checked_pause(duration, "duration")
        super().__init__(f"snoozed for {format_duration(pause)}", pause)


class Discard(GiveUp):
    """Raised by a task for which a retry can't help. Its item is a dead letter at once, with this reason.

    raise Discard("the customer is gone")
    """

    def __init__(self, reason: str) -> None:
        super().__init__(str(reason) or "discarded")


class Retry(PacelineError):
    """Raised by a task that failed and sets the time of its retry. A retry is counted; the last one makes a dead
    letter.

        raise Retry("the bank is closed", at="2030-03-01T08:00:00Z")

    Without `at` and `after`, the task's backoff policy gives the time. A time in the past means at once.

    Raises:
        InvalidInput: the time or the duration is wrong, or both are given.
    """

    def __init__(
        self,
        reason: str = "retry requested",
        *,
        at: datetime | str | None = None,
        after: str | timedelta | float | None = None,
    ) -> None:
        super().__init__(reason)
        if at is not None and after is not None:
            raise InvalidInput("at", "give a time (at) or a duration (after), not both")
        self.at = None if at is None else parse_instant(at, "at")
        self.after = None if after is None else checked_pause(after, "after")

    def pause(self, now: datetime | None = None) -> timedelta | None:
        """How long from now; None if it is left to the backoff policy."""
        if self.at is None:
            return self.after
        return min(max(self.at - (now or datetime.now(UTC)), timedelta(0)), LONGEST_PAUSE)


class OutcomeUnknown(PacelineError):
    """Raised by a task that began something whose effect it can't know: a timeout, a reset, half an answer. The task's
    `on_unknown` decides what follows: it is retried, inquired, or held.

        raise OutcomeUnknown("the bank did not answer")

    Another exception means that the attempt failed, and may be repeated.
    """

    pause: timedelta | None = None
    """How long until the retry, if one follows; None for the item type's backoff."""
    is_over = False
    """The item's hold is over, and its last inquiry decided nothing."""

    def __init__(self, reason: str) -> None:
        super().__init__(str(reason) or "unknown")


@dataclass(frozen=True, slots=True)
class Done:
    """Returned by a task's `inquire` function: the attempt in doubt was executed, and `result` is the task's.

    return Done("reference-7")
    """

    result: Any = None


@dataclass(frozen=True, slots=True)
class NeverSeen:
    """Returned by a task's `inquire` function: the other side has never seen the attempt in doubt. The task runs
    again.

    return NeverSeen()
    """


def checked_pause(value: str | timedelta | float, field: str) -> timedelta:
    """A duration in one of its three forms, from zero to ten years."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            span = timedelta(seconds=value)
        except (OverflowError, ValueError):
            raise InvalidInput(field, f"{value} is not a number of seconds that can pass") from None
    else:
        span = parse_duration(cast(str, value), field)
    if not timedelta(0) <= span <= LONGEST_PAUSE:
        raise InvalidInput(field, "must be from zero to ten years")
    return span
