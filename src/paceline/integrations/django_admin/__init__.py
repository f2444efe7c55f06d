"""The dispatch queue in Django's admin: what waits, what runs, dead letters to requeue or discard, attempts with their
tracebacks, and items whose effect nobody knows, to resolve.

    INSTALLED_APPS = [..., "django.contrib.admin", "paceline.integrations.django_admin"]
    PACELINE_QUEUE = "postgresql://db/shop"

Without `PACELINE_QUEUE`, it shows the queue of the first `PacelineBackend` in `TASKS`. If contexts are encrypted, it is
an object: `{"url": …, "encryption_keys": […]}`.

Whoever has Django's permission to view *queue items* sees them, and to change them, acts; Django's log has who did
what.
"""

from paceline.extras import require

require("paceline.integrations.django_admin", "django", "queue")
