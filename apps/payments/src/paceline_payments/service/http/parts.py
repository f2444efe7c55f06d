"""What the routes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.server.http.services import services_of
from paceline_payments.service.wiring.payments import Payments


def payments_of(scope: Mapping[str, Any]) -> Payments:
    """The application of a request; takes the ASGI scope or a `Request`."""
    payments: Payments = services_of(scope).app("payments")
    return payments
