"""What the routes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.server.http.services import services_of
from paceline_sms.service.wiring.notifications import Notifications


def gateway_of(scope: Mapping[str, Any]) -> Notifications:
    """The SMS gateway of a request; takes the ASGI scope or a `Request`."""
    gateway: Notifications = services_of(scope).app("sms")
    return gateway
