"""What Django's permissions and its log are about. It has no table: the queue has its own."""

from __future__ import annotations

from django.db import models


class QueueItem(models.Model):  # type: ignore[misc]  # Django publishes no types
    """An item of the dispatch queue, as `TYPE/ID`."""

    name = models.CharField(max_length=320, primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "queue item"

    def __str__(self) -> str:
        return str(self.name)
