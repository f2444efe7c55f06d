"""Routes."""

from __future__ import annotations

from starlette.routing import BaseRoute


def routes() -> list[BaseRoute]:
    """All routes of payments."""
    from paceline_payments.service.http import feeds, payments, reconciliation

    found: list[BaseRoute] = []
    payments.install(found)
    feeds.install(found)
    reconciliation.install(found)
    return found
