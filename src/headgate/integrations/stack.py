"""Several `rate_limit`s directly on one another: one decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import ref

from headgate.integrations.request_limiter import Limit

Limits: TypeAlias = tuple[Limit, ...]
View: TypeAlias = Callable[..., Any]

LIMITED = "__headgate_limited__"
"""Where a limited view keeps itself, its limits and what they limit. Other decorators copy it (`functools.wraps`), so
only a view that finds itself there is ours. It does so weakly: Django's `method_decorator` decorates anew with every
request, and a cycle would be left to the garbage collector."""


def remember(admitted: View, limits: Limits, bare: View) -> None:
    """Notes that `admitted` calls `bare` once `limits` let it, for a decorator put directly on it."""
    setattr(admitted, LIMITED, (ref(admitted), limits, bare))


def recall(view: View) -> tuple[Limits, View]:
    """What `view` was remembered with. Anything else, such as another decorator's work around it, has no limits that
    could be taken over and must be called as it is."""
    itself, limits, bare = getattr(view, LIMITED, (None, (), view))
    return (limits, bare) if itself is not None and itself() is view else ((), view)
