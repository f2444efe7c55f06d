"""How a feature's `open(url)` reaches the adapters without importing them.

`headgate.bootstrap` and its part `limit_stores` name concrete adapters, and they stand above the features. Looking
them up by name, when somebody opens something, keeps the features free of technology and `import headgate` free of
drivers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

LIGHT = {"limit_store": "headgate.limit_stores", "async_limit_store": "headgate.limit_stores"}
"""Factories that don't need all of bootstrap's imports."""


def factory(name: str) -> Any:
    """The factory called `name`, in `headgate.bootstrap` or one of its parts."""
    return getattr(import_module(LIGHT.get(name, "headgate.bootstrap")), name)
