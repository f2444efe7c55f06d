"""Stacked `rate_limit` decorators as one decision; views that are exempt from an application's limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar
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


def is_limited(view: Any) -> bool:
    """Whether a view has its own limits, also below other decorators that use `functools.wraps`."""
    return hasattr(view, LIMITED)
