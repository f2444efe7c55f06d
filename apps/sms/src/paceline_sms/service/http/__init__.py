"""Routes."""

from __future__ import annotations

from starlette.routing import BaseRoute


def routes() -> list[BaseRoute]:
    """All routes of SMS."""
    from paceline_sms.service.http import callbacks, dead_letters, messages, notification_analytics, notifications

    found: list[BaseRoute] = []
    notifications.install(found)
    for module in (messages, callbacks, dead_letters, notification_analytics):
        found += module.router.routes
    return found
