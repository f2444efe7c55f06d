"""How a feature's `open(url)` reaches the adapters without importing them.

`headgate.bootstrap` names concrete adapters, and it stands above the features. Looking a factory up by name, when
somebody opens something, keeps the features free of technology and `import headgate` free of drivers.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def factory(name: str) -> Any:
    """The factory called `name`, in `headgate.bootstrap`."""
    return getattr(import_module("headgate.bootstrap"), name)
