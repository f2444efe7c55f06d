"""The application's name in Django."""

from __future__ import annotations

from django.apps import AppConfig


class PacelineConfig(AppConfig):  # type: ignore[misc]  # Django publishes no types
    """`paceline`, in the admin as *Queue*."""

    name = "paceline.integrations.django_admin"
    label = "paceline"
    verbose_name = "Queue"
