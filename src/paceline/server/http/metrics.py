"""`/metrics`: metrics for Prometheus."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache

from fastapi import Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)
from prometheus_client.registry import Collector

from paceline.server.access.model import ANYONE
from paceline.server.access.names import Names
from paceline.server.apps import installed_apps
from paceline.server.http.parameters import api_router
from paceline.server.http.services import services_of
from paceline.server.wiring.ingress import INGRESS, INGRESS_FAILURES, INGRESS_LOGINS

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
"""Set by `paceline serve` with several workers: each writes its metrics there, and each can return the sum."""

# Prometheus needs no second series per metric with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]

NAMES = {"config", "plan", "item_type", "downstream", "rule"}
"""The labels whose values are names that users chose."""
OTHERS = "(other)"
"""The value that names share which are too many."""


@cache
def names_of_code() -> frozenset[str]:
    """Names that no user chose: alert rules have them."""
    return frozenset({OTHERS, "default", INGRESS, INGRESS_FAILURES, INGRESS_LOGINS}).union(
        *(app.item_types for app in installed_apps())
    )


class CodedNames(Collector):
    """The metrics of a registry, with codes for names that are not among these, or for all."""

    def __init__(self, registry: Collector | CollectorRegistry, key: bytes, names: Names | None) -> None:
        self._registry = registry
        self._key = key
        self._names = names

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            shown = copy(metric)
            shown.samples = [sample._replace(labels=self._labels(sample.labels)) for sample in metric.samples]
            yield shown

    def _labels(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {
            label: value if label not in NAMES or self._is_shown(label, value) else self._code(value)
            for label, value in labels.items()
        }

    def _is_shown(self, label: str, value: str) -> bool:
        if self._names is None or value in names_of_code():
            return value in names_of_code()
        return self._names.allow_type(value) if label == "item_type" else self._names.allow(value)

    def _code(self, name: str) -> str:
        """Nobody without the key finds names by trying."""
        return f"name-{hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:8]}"


router = api_router("", "health")


def registry() -> CollectorRegistry:
    """A registry of the app's own."""
    created = CollectorRegistry()
    if MULTIPROCESS not in os.environ:
        ProcessCollector(registry=created)
        PlatformCollector(registry=created)
    return created


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
)
@router.get("/q/metrics", include_in_schema=False)
async def show(request: Request) -> Response:
    """Every metric in Prometheus' text form; with several workers, their sum.

    Once tokens are required, names of configs, plans, item types and downstreams are shown to callers with a token, if
    it is not bound to others. For anybody else, each has a code in its place, which stays the same.
    """
    services = services_of(request)
    shown: Collector | CollectorRegistry = services.registry
    if MULTIPROCESS in os.environ:
        merged = shown = CollectorRegistry()
        multiprocess.MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
    is_anonymous = request.scope["state"]["caller"] == ANYONE.name
    if services.names or (is_anonymous and not services.authenticator.is_open):
        shown = CodedNames(shown, await services.sessions.key(), None if is_anonymous else services.names)
    # In a thread: thousands of series take longer than requests should wait for the event loop.
    text = await asyncio.to_thread(generate_latest, shown)
    return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})
