"""How long a request may stay on its way."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any


def limit_delivery(connection: Any, timeout: float) -> None:
    """Limits TCP retransmission to the timeout. The kernel would retransmit for minutes, even after the connection was
    closed, and a call would arrive long after its permit was freed."""
    if connection is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
        with suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(timeout * 1000))
