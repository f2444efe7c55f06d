"""Limits and slots in front of Celery tasks that exist already.

    @rate_limit(limiter, "sms", key=lambda user, text: user)
    @app.task
    def send(user, text): ...

    slotted(send, slots, "default").apply_async(args=["ada", "hello"], task_id="sms-1")

A call that the limit denies goes back to the broker until there is room, and costs the task no retry. Celery's own
`rate_limit` holds per worker; this one holds over all processes that share the limiter's store.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar

from headgate.errors import ConfigurationError, RateLimitExceeded
from headgate.extras import needed
from headgate.limits._blocking import Limiter
from headgate.limits.model import Decision
from headgate.slots.blocking import BlockingSlots

with needed("headgate.integrations.celery", "celery"):
    from celery import Task, current_task
    from celery.exceptions import Retry

Target = TypeVar("Target")
SHORTEST_COUNTDOWN = 0.05


def rate_limit(
    limiter: Limiter,
    plans: str | Iterable[str],
    *,
    key: str | Callable[..., str],
    cost: int | Callable[..., int] = 1,
    wait: float = 0.0,
) -> Callable[[Target], Target]:
    """Limits a Celery task, or the function of one. `key` and `cost` are values, or functions of the call's arguments.

    A worker waits up to `wait` seconds for room. Then it sends the call back to the broker, with its id and its retries
    as they are, to be run when there may be room. A call outside of a worker, or with `task_always_eager`, raises
    `RateLimitExceeded` instead.

    Raises:
        ConfigurationError: there is no such plan, or the limiter is of the wrong kind.
    """
    names = [plans] if isinstance(plans, str) else list(plans)
    if not isinstance(limiter, Limiter):
        raise ConfigurationError("limiter", "must be a Limiter: Celery's workers are not async")
    if wait < 0:
        raise ConfigurationError("wait", f"{wait} is below 0")
    limiter.require(names)

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def admitted(*args: Any, **kwargs: Any) -> Any:
            key_value = key(*args, **kwargs) if callable(key) else key
            units = cost(*args, **kwargs) if callable(cost) else cost
            if wait:
                decision = limiter.wait(key_value, names, units, timeout=wait)
            else:
                decision = limiter.acquire(key_value, names, units)
            if not decision.allowed:
                _send_back(decision)
            return function(*args, **kwargs)

        return admitted

    def decorate(target: Any) -> Any:
        if not isinstance(target, Task):
            return limited(target)
        target.run = limited(target.run)
        return target

    return decorate


def _send_back(decision: Decision) -> None:
    """Sends the call that is running to the broker again, to be run when there may be room."""
    request = current_task.request if current_task else None
    if request is None or request.called_directly or request.is_eager:
        raise RateLimitExceeded(decision)
    if math.isinf(decision.retry_after):
        raise RateLimitExceeded(decision)
    pause = max(decision.retry_after, SHORTEST_COUNTDOWN)
    # As `Task.retry` does it, but for the count of retries: a limit is not the task's failure.
    current_task.signature_from_request(request, countdown=pause, retries=request.retries).apply_async()
    error = RateLimitExceeded(decision)
    raise Retry(str(error), exc=error, when=pause)


class SlottedTask:
    """A Celery task whose calls run at booked slots. `slotted` makes one."""

    def __init__(self, task: Any, slots: BlockingSlots, config: str) -> None:
        self._task = task
        self._slots = slots
        self._config = config

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """`apply_async` with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        task_id: str | None = None,
        eta: datetime | None = None,
        **options: Any,
    ) -> Any:
        """Books a slot at or after `eta`, or now, and sends the call with the slot's time as its ETA. The slot belongs
        to the task's id: the same id gets the same slot again.

        Raises:
            InvalidInput: the id or the time is wrong.
            SlotsExhausted: there is no slot within the config's `max_delay`; nothing was sent.
            StoreUnavailable: the store does not answer; nothing was sent.
        """
        event_id = uuid.uuid4().hex if task_id is None else task_id
        slot = self._slots.assign(event_id, self._config, datetime.now(UTC) if eta is None else eta)
        return self._task.apply_async(
            tuple(args), dict(kwargs or {}), task_id=event_id, eta=slot.scheduled_time, **options
        )


def slotted(task: Any, slots: BlockingSlots, config: str = "default") -> SlottedTask:
    """The task, with calls that run at slots of `config`: no window gets more of them than its maximum."""
    return SlottedTask(task, slots, config)
