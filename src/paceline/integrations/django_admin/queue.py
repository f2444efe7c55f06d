"""The queue that the settings name, opened at first use."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from paceline.dispatch._blocking import BlockingDispatchQueue

BACKEND = "paceline.integrations.django_tasks.PacelineBackend"


@cache
def open_queue() -> BlockingDispatchQueue:
    """The queue; all requests of this process share it.

    Raises:
        ImproperlyConfigured: the settings name none.
        StoreUnavailable: its database does not answer.
    """
    place = getattr(settings, "PACELINE_QUEUE", None) or _of_tasks()
    if isinstance(place, str):
        place = {"url": place}
    return BlockingDispatchQueue(place["url"], encryption_keys=place.get("encryption_keys"))


def _of_tasks() -> dict[str, Any]:
    for backend in getattr(settings, "TASKS", {}).values():
        if backend.get("BACKEND") == BACKEND and "url" in backend.get("OPTIONS", {}):
            options: dict[str, Any] = backend["OPTIONS"]
            return options
    raise ImproperlyConfigured(
        "PACELINE_QUEUE is not set, and TASKS has no PacelineBackend: name the queue's database, such as "
        "postgresql://db/shop"
    )
