from __future__ import annotations

from tests.unit.limits.conftest import world

__all__ = ["world"]
