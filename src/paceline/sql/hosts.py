"""The order in which the hosts of a PostgreSQL URL are tried."""

from __future__ import annotations

from collections import deque
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine


class HostOrder:
    """Begins with another host after a failed attempt to connect.

    A host that hangs takes the whole connect timeout. Callers with a shorter deadline would never reach the next.
    """

    def __init__(self) -> None:
        self._rotation = 0
        self._is_unfinished = False

    def listen(self, engine: Engine) -> None:
        """Decides for every connection that `engine` opens."""
        sa.event.listen(engine, "do_connect", self._begin)
        sa.event.listen(engine, "connect", self._end)

    def _begin(self, _dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        if self._is_unfinished:
            self._rotation += 1
        self._is_unfinished = True
        for name in ("host", "port"):
            values = deque(str(parameters[name]).split(","))
            values.rotate(-self._rotation)
            parameters[name] = ",".join(values)

    def _end(self, _connection: Any, _record: Any) -> None:
        self._is_unfinished = False
