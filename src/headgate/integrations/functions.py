"""Limits for plain functions, async or not.

    @rate_limit(limiter, "sms", key=lambda user, text: user.id)
    def send(user, text): ...

    @rate_limit(limiter, "payments", key="downstream", wait=30)
    async def pay(payment): ...

A denial is raised as `RateLimitExceeded`, which carries the decision; with `wait`, only if there is no room within so
many seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import iscoroutinefunction
from typing import ParamSpec, TypeVar, cast

from headgate.admission.async_limiter import AsyncLimiter
from headgate.admission.limiter import Limiter
from headgate.errors import ConfigurationError, RateLimitExceeded

P = ParamSpec("P")
R = TypeVar("R")


def rate_limit(
    limiter: Limiter | AsyncLimiter,
    plans: str | Iterable[str],
    *,
    key: str | Callable[P, str],
    cost: int | Callable[P, int] = 1,
    wait: float | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Limits a function. `key` and `cost` are values, or functions of the call's arguments.

    A function that is not async needs a `Limiter`, an async one an `AsyncLimiter`.
    """
    names = [plans] if isinstance(plans, str) else list(plans)
    limiter.require(names)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if iscoroutinefunction(function):
            if not isinstance(limiter, AsyncLimiter):
                raise ConfigurationError("limiter", f"{function.__name__} is async; give it an AsyncLimiter")
            asynchronous = limiter

            @wraps(function)
            async def admitted_async(*args: P.args, **kwargs: P.kwargs) -> object:
                whom, price = _resolve(key, *args, **kwargs), _resolve(cost, *args, **kwargs)
                if wait is None:
                    decision = await asynchronous.acquire(whom, names, price)
                else:
                    decision = await asynchronous.wait(whom, names, price, timeout=wait)
                if not decision.allowed:
                    raise RateLimitExceeded(decision)
                return await function(*args, **kwargs)

            return cast(Callable[P, R], admitted_async)
        if not isinstance(limiter, Limiter):
            raise ConfigurationError("limiter", f"{function.__name__} is not async; give it a Limiter")
        blocking = limiter

        @wraps(function)
        def admitted(*args: P.args, **kwargs: P.kwargs) -> R:
            whom, price = _resolve(key, *args, **kwargs), _resolve(cost, *args, **kwargs)
            if wait is None:
                decision = blocking.acquire(whom, names, price)
            else:
                decision = blocking.wait(whom, names, price, timeout=wait)
            if not decision.allowed:
                raise RateLimitExceeded(decision)
            return function(*args, **kwargs)

        return admitted

    return decorate


V = TypeVar("V", str, int)


def _resolve(value: V | Callable[P, V], *args: P.args, **kwargs: P.kwargs) -> V:
    return value(*args, **kwargs) if callable(value) else value
