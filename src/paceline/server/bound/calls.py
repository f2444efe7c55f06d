"""Methods that check what they are called with, and then call the same method of another object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from paceline.server.access.names import OutsideNames

Check = Callable[[Any, Any], None]
"""Takes the bound object and an argument; raises `OutsideNames`."""


def offer(bound: type, original: type, parameter: str, check: Check, methods: Iterable[str]) -> None:
    """Gives a class these methods of the `original`, which it has as `_original`: each checks its argument for
    `parameter` first."""
    for name in methods:
        setattr(bound, name, _checked(name, inspect.signature(getattr(original, name)), parameter, check))


def refuse_others(bound: type, original: type) -> None:
    """Gives a class every other public method of the `original`: they refuse every call."""
    for name, method in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_") and name not in vars(bound):
            setattr(bound, name, _refused(name, is_async=inspect.iscoroutinefunction(method)))


def _checked(name: str, signature: inspect.Signature, parameter: str, check: Check) -> Any:
    async def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self, signature.bind(self, *args, **kwargs).arguments.get(parameter))
        return await getattr(self._original, name)(*args, **kwargs)

    call.__name__ = name
    return call


def _refused(name: str, *, is_async: bool) -> Any:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise OutsideNames(f"{name} concerns all names, and this token is for some")

    async def refuse_later(*args: Any, **kwargs: Any) -> Any:
        refuse(*args, **kwargs)

    return refuse_later if is_async else refuse
