"""Limits for plain functions, async or not.

    @rate_limit(limiter, "mail", key=lambda user, text: user.id)
    def send(user, text): ...

    @rate_limit(limiter, "orders", key="downstream", wait=30)
    async def send(order): ...

A denial is raised as `RateLimitExceeded`, which has the decision; with `wait`, only if there is no room within that
many seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from inspect import isclass, iscoroutinefunction, isroutine
from typing import Any, ParamSpec, Protocol, TypeVar, cast

from paceline.errors import ConfigurationError, RateLimitExceeded
from paceline.integrations.limit import plan_names
from paceline.limits._blocking import Limiter
from paceline.limits.limiter import AsyncLimiter
from paceline.options import check_wait

P = ParamSpec("P")
R = TypeVar("R")


class Limits(Protocol):
    """A decorator that keeps a function's parameters and return type.

    Type checkers can't infer the parameters of a lambda that finds the key, so the types come from the function.
    """

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


def rate_limit(
    limiter: Limiter | AsyncLimiter,
    plans: str | Iterable[str],
    *,
    key: str | Callable[..., str],
    cost: int | Callable[..., int] = 1,
    wait: float | None = None,
) -> Limits:
    """Limits a function, a partial or a callable object. `key` and `cost` are values, or functions of the call's
    arguments.

    A place of a concurrency limit is held and renewed while the function runs. An async function needs an
    `AsyncLimiter`, any other a `Limiter`.

    Raises:
        ConfigurationError: there is no such plan, the limiter is of the wrong kind, or `wait` is no time.
    """
    names = plan_names(plans)
    limiter.require(names)
    if wait is not None:
        check_wait("wait", wait)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if iscoroutinefunction(function_of(function)):
            if not isinstance(limiter, AsyncLimiter):
                raise ConfigurationError("limiter", f"{name_of(function)} is async; give it an AsyncLimiter")
            asynchronous, awaited = limiter, cast(Any, function)

            @wraps(function)
            async def admitted_async(*args: P.args, **kwargs: P.kwargs) -> object:
                key_value, units = _resolve(key, *args, **kwargs), _resolve(cost, *args, **kwargs)
                if asynchronous.holds_places:
                    await asynchronous.load_plans()
                    if asynchronous.concurrency_limits(key_value, names):
                        async with asynchronous.hold(key_value, names, units, timeout=wait or 0.0) as held:
                            if not held.allowed:
                                raise RateLimitExceeded(held)
                            return await awaited(*args, **kwargs)
                if wait is None:
                    decision = await asynchronous.acquire(key_value, names, units)
                else:
                    decision = await asynchronous.wait(key_value, names, units, timeout=wait)
                if not decision.allowed:
                    raise RateLimitExceeded(decision)
                return await awaited(*args, **kwargs)

            return cast(Callable[P, R], admitted_async)
        if not isinstance(limiter, Limiter):
            raise ConfigurationError("limiter", f"{name_of(function)} is not async; give it a Limiter")
        blocking = limiter

        @wraps(function)
        def admitted(*args: P.args, **kwargs: P.kwargs) -> R:
            key_value, units = _resolve(key, *args, **kwargs), _resolve(cost, *args, **kwargs)
            if blocking.holds_places and blocking.concurrency_limits(key_value, names):
                with blocking.hold(key_value, names, units, timeout=wait or 0.0) as held:
                    if not held.allowed:
                        raise RateLimitExceeded(held)
                    return function(*args, **kwargs)
            if wait is None:
                decision = blocking.acquire(key_value, names, units)
            else:
                decision = blocking.wait(key_value, names, units, timeout=wait)
            if not decision.allowed:
                raise RateLimitExceeded(decision)
            return function(*args, **kwargs)

        return admitted

    return decorate


def function_of(called: Callable[..., Any]) -> Callable[..., Any]:
    """The function that is called: that of a partial, or the `__call__` of an object."""
    while isinstance(called, partial):
        called = called.func
    return called if isroutine(called) or isclass(called) else type(called).__call__


def name_of(called: Callable[..., Any]) -> str:
    """Its name; for partials and objects, that of their class."""
    return str(getattr(called, "__name__", type(called).__name__))


V = TypeVar("V", str, int)


def _resolve(value: V | Callable[..., V], *args: Any, **kwargs: Any) -> V:
    return value(*args, **kwargs) if callable(value) else value
