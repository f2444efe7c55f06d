"""Applications behind middlewares of any kind. Their handlers see `RateLimitExceeded` before the outermost one's do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import isclass
from types import FunctionType, MethodType
from typing import Any

MOST = 64
"""How many objects are looked at. A middleware may refer to much else."""


def apps_within(app: Any) -> Iterator[Any]:
    """The applications with routes that an ASGI application is, or may call: what a middleware keeps in an attribute, a
    partial in its arguments, a function in its closure."""
    seen: set[int] = set()
    waiting = [app]
    while waiting and len(seen) < MOST:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        try:
            has_routes = isinstance(getattr(one, "routes", None), list | tuple)
            inner = [] if has_routes else [kept for kept in _kept_by(one) if callable(kept) and not isclass(kept)]
        except Exception:  # attributes are any code: a proxy without its context raises, and is no application
            continue
        if has_routes:
            yield one
        waiting += inner


def _kept_by(app: Any) -> list[Any]:
    if isinstance(app, MethodType):
        return [app.__self__]
    if isinstance(app, partial):
        return [app.func, *app.args, *app.keywords.values()]
    if isinstance(app, FunctionType):
        return [value for cell in app.__closure__ or () for value in _contents(cell)]
    return list(getattr(app, "__dict__", {}).values())


def _contents(cell: Any) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # it is empty
        return []
