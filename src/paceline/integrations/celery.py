"""Limits and slots for existing Celery tasks.

    @rate_limit(limiter, "mail", key=lambda user, text: user)
    @app.task
    def send(user, text): ...

    slotted(send, slots, "default").apply_async(args=["ada", "hello"], task_id="mail-1")

A denied call is sent back to the broker until there is room, and costs the task no retry. Celery's own `rate_limit` is
per worker; this one is shared by all processes that share the limiter's store.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.extras import needed
from paceline.integrations.limit import PlanNames
from paceline.limits._blocking import Limiter
from paceline.limits._blocking_handles import Reservation
from paceline.limits.model import Decision, Reason
from paceline.limits.stores.server_workers import warn_of_processes
from paceline.options import check_wait

if TYPE_CHECKING:
    from paceline.slots._blocking import BlockingSlotScheduler

with needed("paceline.integrations.celery", "celery"):
    from celery import Task, current_task
    from celery.exceptions import Retry
    from celery.signals import celeryd_after_setup

log = logging.getLogger("paceline.integrations")

T = TypeVar("T")
Target = TypeVar("Target")
SHORTEST_COUNTDOWN = 0.05
OUTCOME_TTL = 3600.0
"""Seconds within which the charge of a task can be settled. After that it stays as reserved."""


class Outcome(NamedTuple):
    """How a task ended, for `charge_when` and `cost_of_response`: with a result, or with an error."""

    result: Any = None
    error: BaseException | None = None


OfOutcome: TypeAlias = Callable[[Outcome], T]


def rate_limit(
    limiter: Limiter,
    plans: PlanNames | Callable[..., PlanNames | None],
    *,
    key: str | Callable[..., str | None],
    cost: int | Callable[..., int] = 1,
    wait: float = 0.0,
    exempt: Callable[..., bool] | None = None,
    charge_when: OfOutcome[bool] | None = None,
    cost_of_response: OfOutcome[int] | None = None,
) -> Callable[[Target], Target]:
    """Limits a Celery task, or the function of one.

    `plans`, `key` and `cost` are values, or functions of the call's arguments. `exempt` is a function of them. A call
    is not limited, and counted as exempt, if there are no plans or no key (`None`), or `exempt` returns true.

    A worker waits up to `wait` seconds for room. Then it sends the call back to the broker, with the same id and
    retries and a countdown. A call outside of a worker, or with `task_always_eager`, raises `RateLimitExceeded`
    instead.

    A place of a concurrency limit is held while the task runs, and freed when it ends.

    With `charge_when` or `cost_of_response`, functions of the `Outcome`, `cost` is reserved and settled when the task
    has ended: `charge_when` returns whether it is charged at all, `cost_of_response` the actual cost. If they fail, or
    the worker dies, the cost stays as reserved.

    Raises:
        ConfigurationError: there is no such plan, the limiter is of the wrong kind, or an option can't be used.
    """
    fixed = None if callable(plans) else _names(plans)
    label = fixed[0] if fixed else getattr(plans, "__name__", "function")
    by_outcome = charge_when is not None or cost_of_response is not None
    if fixed == []:
        raise ConfigurationError("plans", "name at least one plan")
    if not isinstance(limiter, Limiter):
        raise ConfigurationError("limiter", "must be a Limiter: Celery's workers are not async")
    check_wait("wait", wait)
    if wait and by_outcome:
        raise ConfigurationError(
            "wait", "can't be used with a charge by outcome; a call without room goes back at once"
        )
    if fixed is not None:
        limiter.require(fixed)
    if limiter.in_process:
        celeryd_after_setup.connect(_warn_of_prefork, dispatch_uid="paceline.prefork", weak=False)

    def actual_cost(outcome: Outcome, reserved: int) -> int:
        if charge_when is not None and not charge_when(outcome):
            return 0
        return reserved if cost_of_response is None else cost_of_response(outcome)

    def limited(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def admitted(*args: Any, **kwargs: Any) -> Any:
            is_exempt = exempt is not None and exempt(*args, **kwargs)
            names = [] if is_exempt else _names(_resolve(plans, *args, **kwargs)) if fixed is None else fixed
            key_value: str | None = _resolve(key, *args, **kwargs) if names else None
            if key_value is None:
                limiter.record_exempt(label)
                return function(*args, **kwargs)
            units: int = _resolve(cost, *args, **kwargs)
            with ExitStack() as ending:
                results: list[Any] = []
                if limiter.holds_places and (places := limiter.concurrency_limits(key_value, names)):
                    names = [name for name in names if name not in places]
                    _send_back_unless_allowed(ending.enter_context(limiter.hold(key_value, places, units)))
                if names and by_outcome:
                    reservation = limiter.reserve(key_value, names, units, ttl=OUTCOME_TTL)
                    _send_back_unless_allowed(reservation.decision)
                    ending.enter_context(_settling(reservation, results, lambda outcome: actual_cost(outcome, units)))
                elif names and wait:
                    _send_back_unless_allowed(limiter.wait(key_value, names, units, timeout=wait))
                elif names:
                    _send_back_unless_allowed(limiter.acquire(key_value, names, units))
                results.append(function(*args, **kwargs))
            return results[0]

        return admitted

    def decorate(target: Any) -> Any:
        if not isinstance(target, Task):
            return limited(target)
        target.run = limited(target.run)
        return target

    return decorate


def _warn_of_prefork(instance: Any, **_: Any) -> None:
    """Logs a warning when a worker starts several processes. `instance` is the worker."""
    pool = instance.pool_cls
    if getattr(pool, "__module__", str(pool)).rpartition(".")[2] == "prefork":
        warn_of_processes(instance.concurrency)


@contextmanager
def _settling(reservation: Reservation, results: list[Any], actual_cost: OfOutcome[int]) -> Iterator[None]:
    """Settles a reservation when the block has ended, which adds its result to `results`."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            reservation.settle(actual_cost(Outcome(results[0] if results else None, error)))
        except Exception:
            # The task has run: raising here would run it again.
            log.exception("the charge of a task could not be settled; it stays as reserved")


def _names(plans: PlanNames | None) -> list[str]:
    return [] if plans is None else [plans] if isinstance(plans, str) else list(plans)


def _resolve(value: Any, *args: Any, **kwargs: Any) -> Any:
    return value(*args, **kwargs) if callable(value) else value


def _send_back_unless_allowed(decision: Decision) -> None:
    """Sends the current call back to the broker, with a countdown, if it was denied."""
    if decision.allowed:
        return
    request = current_task.request if current_task else None
    if request is None or request.called_directly or request.is_eager:
        raise RateLimitExceeded(decision)
    if decision.reason is Reason.EXCEEDS_CAPACITY or math.isinf(decision.retry_after):
        raise RateLimitExceeded(decision)
    pause = max(decision.retry_after, SHORTEST_COUNTDOWN)
    # As `Task.retry`, without counting a retry: a limit is not the task's failure.
    current_task.signature_from_request(request, countdown=pause, retries=request.retries).apply_async()
    error = RateLimitExceeded(decision)
    raise Retry(str(error), exc=error, when=pause)


class SlottedTask:
    """A Celery task whose calls run at booked slots. `slotted` makes one."""

    def __init__(self, task: Any, slots: BlockingSlotScheduler, config: str) -> None:
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
        """Books a slot at or after `eta`, or now, and sends the call with the slot's time as its ETA. Idempotent by the
        task's id: the same id gets the same slot again.

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


def slotted(task: Any, slots: BlockingSlotScheduler, config: str = "default") -> SlottedTask:
    """The task, with calls that run at slots of `config`: no window gets more of them than its maximum."""
    return SlottedTask(task, slots, config)
