"""Objects that begin anew in a forked child.

A child has no thread of its parent but the one that forked, so a lock that another one held stays held for ever.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Resettable(Protocol):
    def reset_after_fork(self) -> None: ...


_instances: WeakSet[Resettable] = WeakSet()


def reset_in_children(instance: Resettable) -> None:
    """Has `instance.reset_after_fork()` called in each forked child, in any order: it must not use other instances."""
    _instances.add(instance)


def _reset_all() -> None:
    for instance in list(_instances):
        instance.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
