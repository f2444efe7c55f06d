"""A task's policies, pure: the pause before a retry, and a rate as a limit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from paceline.dispatch.outcomes import checked_pause
from paceline.downstream.downstream import Downstream
from paceline.downstream.first_of import FirstOf
from paceline.errors import ConfigurationError, InvalidInput
from paceline.options import is_number

Duration: TypeAlias = str | timedelta | float


@dataclass(frozen=True, slots=True)
class Exponential:
    """The pause before retry n is `first × factor^(n-1)`, at most `longest`, spread by ± `jitter` of itself so that
    tasks which failed together are not retried together.

        @tasks.task(backoff=Exponential(first="PT1S", longest="PT10M"))

    Raises:
        ConfigurationError: a value is out of range.
    """

    first: Duration = 5
    factor: float = 2.0
    longest: Duration = "PT1H"
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for field in ("first", "longest"):
            _checked(getattr(self, field), field)
        if not is_number(self.factor) or not 1 <= self.factor <= 100:
            raise ConfigurationError("factor", "must be a number from 1 to 100")
        if not is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise ConfigurationError("jitter", "must be a number from 0 to 1")

    def pause(self, retry: int, uniform: Callable[[], float] = random.random) -> timedelta:
        """The pause before retry number `retry`, counted from 1."""
        longest = checked_pause(self.longest, "longest")
        first = checked_pause(self.first, "first")
        try:
            pause = min(first * self.factor ** (retry - 1), longest)
        except OverflowError:
            pause = longest
        return pause * (1 + self.jitter * (2 * uniform() - 1))


Backoff: TypeAlias = Exponential | Sequence[Duration] | Callable[[int], Duration]
"""A policy, a list of pauses (the last one repeats), or a function of the retry's number, counted from 1."""


def checked_backoff(backoff: Backoff) -> Backoff:
    """The policy, or `ConfigurationError`."""
    if isinstance(backoff, Exponential) or callable(backoff):
        return backoff
    if isinstance(backoff, str) or not isinstance(backoff, Sequence) or not backoff:
        raise ConfigurationError("backoff", "must be an Exponential, a list of pauses, or a function of the retry")
    return [_checked(pause, "backoff") for pause in backoff]


def pause_before(backoff: Backoff, retry: int, uniform: Callable[[], float] = random.random) -> timedelta:
    """The pause before retry number `retry`, counted from 1."""
    if isinstance(backoff, Exponential):
        return backoff.pause(retry, uniform)
    if callable(backoff):
        return checked_pause(backoff(retry), "backoff")
    return checked_pause(backoff[min(retry, len(backoff)) - 1], "backoff")


def checked_timeout(timeout: Duration | None) -> float | None:
    """Seconds, or `ConfigurationError`."""
    if timeout is None:
        return None
    seconds = _checked(timeout, "timeout").total_seconds()
    if seconds <= 0:
        raise ConfigurationError("timeout", "must be longer than nothing")
    return seconds


def checked_call_timeout(timeout: float | None, downstream: Any) -> float | None:
    """The time-out of a task that calls a downstream: its calls count no longer than `call_timeout`.

    Raises:
        ConfigurationError: it is no `Downstream`, or the task's time-out is longer than its calls count.
    """
    if downstream is None:
        return timeout
    if not isinstance(downstream, Downstream | FirstOf):
        raise ConfigurationError("downstream", "must be a Downstream; the worker waits for it on its event loop")
    if timeout is None:
        return downstream.call_timeout
    if timeout > downstream.call_timeout:
        longest = f"the call_timeout of {downstream.name!r}, {downstream.call_timeout:g} s"
        raise ConfigurationError("timeout", f"{timeout:g} s is longer than {longest}; raise that one, or lower this")
    return timeout


def checked_grace(grace: Duration) -> float:
    """Seconds, or `ConfigurationError`."""
    return _checked(grace, "grace").total_seconds()


def _checked(value: Duration, field: str) -> timedelta:
    try:
        return checked_pause(value, field)
    except InvalidInput as error:
        raise ConfigurationError(error.field, error.problem) from None
