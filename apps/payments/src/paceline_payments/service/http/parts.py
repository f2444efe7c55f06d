"""What the routes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.server.http.problem import Problem
from paceline.server.http.services import services_of
from paceline_payments.four_eyes import ReleaseRequired, SecondPersonRequired
from paceline_payments.service.wiring.payments import Payments


def payments_of(scope: Mapping[str, Any]) -> Payments:
    """The application of a request; takes the ASGI scope or a `Request`."""
    payments: Payments = services_of(scope).app("payments")
    return payments


def release_required(error: ReleaseRequired) -> Problem:
    """403: payments come as a feed, which a second person releases."""
    return Problem(403, "release-required", "Release Required", str(error))


def second_person_required(error: SecondPersonRequired) -> Problem:
    """403: the caller is the first person, and a second one is needed."""
    return Problem(403, "second-person-required", "Second Person Required", str(error))
