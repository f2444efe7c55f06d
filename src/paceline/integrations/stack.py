"""Stacked `rate_limit` decorators as one decision; views that are exempt from an application's limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar
from weakref import ref

from paceline.integrations.limit import Limit

Limits: TypeAlias = tuple[Limit, ...]
View: TypeAlias = Callable[..., Any]

LIMITED = "__paceline_limited__"
"""The attribute of a limited view with a reference to itself, its limits and the view they limit. Other decorators copy
it (`functools.wraps`), so a view is ours only if the reference is to itself. It is weak: Django's `method_decorator`
decorates again per request, and a cycle would be left to the garbage collector."""


def attach_limits(admitted: View, limits: Limits, bare: View) -> None:
    """Records on `admitted` that it calls `bare` under `limits`, for a decorator put directly on it."""
    setattr(admitted, LIMITED, (ref(admitted), limits, bare))


def attached_limits(view: View) -> tuple[Limits, View]:
    """The limits of a limited view, and the view they limit. Any other view, also a limited view inside another
    decorator, has none."""
    itself, limits, bare = getattr(view, LIMITED, (None, (), view))
    return (limits, bare) if itself is not None and itself() is view else ((), view)


V = TypeVar("V")
EXEMPT = "__paceline_exempt__"


def exempt(view: V) -> V:
    """Exempts a view, an endpoint or a class of them from the application's default limits."""
    setattr(view, EXEMPT, True)
    return view


def is_exempt(view: Any) -> bool:
    """Whether a view is marked as exempt. A decorator that uses `functools.wraps` copies the mark."""
    return bool(getattr(view, EXEMPT, False))


def limits_of(view: Any) -> list[Limit]:
    """The limits of a view, also those below other decorators."""
    limits: list[Limit] = []
    while view is not None:
        for limit in getattr(view, LIMITED, (None, (), None))[1]:
            if limit not in limits:
                limits.append(limit)
        view = getattr(view, "__wrapped__", None)
    return limits


class Overriding(Protocol):
    """A limit of a route, as far as the application's defaults depend on it."""

    @property
    def override_defaults(self) -> bool: ...


def defaults_beside(own: Iterable[Overriding], defaults: Sequence[Limit], scope: str) -> Limits:
    """The application's defaults that hold for a route besides its own limits, with the counts of that route."""
    replaced = any(limit.override_defaults for limit in own)
    return tuple(limit.of_route(scope) for limit in defaults if not (replaced and limit.override_defaults))
