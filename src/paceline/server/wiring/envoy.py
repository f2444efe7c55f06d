"""Envoy's rate limit service over gRPC, if the settings name a port for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from paceline.errors import ConfigurationError
from paceline.extras import require
from paceline.server.envoy.config_file import EnvoyConfig
from paceline.server.settings import Settings, spelled

if TYPE_CHECKING:
    from paceline.server.http.services import Services

CLOSING_SECONDS = 5.0
"""The grace period of calls in flight at shutdown, after that of HTTP."""


def check_grpc(settings: Settings, workers: int) -> None:
    """Checks the gRPC settings, before anything is started.

    Raises:
        ConfigurationError: a setting, the config file or a certificate can't be used.
        PacelineError: the port is taken.
    """
    check_grpc_files(settings)
    if settings.grpc.port is None:
        return
    if settings.grpc.port == 0 and workers > 1:
        raise ConfigurationError(spelled("grpc", "port"), "0 is another port in each worker; name one")
    # Imported here, as below: gRPC comes with an extra.
    from paceline.server.grpc.server import check_port

    check_port(settings.host, settings.grpc.port)


def check_grpc_files(settings: Settings) -> None:
    """Checks the files that the gRPC settings name: Envoy's config and the certificates.

    Raises:
        ConfigurationError: one of them can't be used.
        MissingExtra: gRPC is not installed.
    """
    if settings.grpc.port is None:
        if settings.envoy.config is not None:
            problem = "is read for Envoy alone; set PACELINE_GRPC_PORT, too"
            raise ConfigurationError(spelled("envoy", "config"), problem)
        return
    require("gRPC", "grpc")
    from paceline.server.grpc.server import server_credentials

    if settings.envoy.config is not None:
        EnvoyConfig(settings.envoy.config).load()
    server_credentials(settings.grpc)


@asynccontextmanager
async def open_envoy(services: Services) -> AsyncIterator[int | None]:
    """Serves Envoy. Yields the port; `None` if the settings name none."""
    settings, limits = services.settings, services.admission
    if limits.descriptors is None:
        yield None
        return
    from paceline.server.envoy.admission import DescriptorLimiter
    from paceline.server.envoy.servicer import SERVICE, RateLimitServicer
    from paceline.server.grpc.access import GrpcAccess
    from paceline.server.grpc.server import grpc_server
    from paceline.server.metrics.envoy import EnvoyMetrics

    shadow = settings.envoy.shadow
    metrics = EnvoyMetrics(services.registry, shadow=shadow, near_limit=settings.envoy.near_limit)
    if limits.descriptors.config is not None:
        limits.descriptors.config.on_rejection = metrics.rejected
    servicer = RateLimitServicer(
        DescriptorLimiter(limits.limiter, limits.descriptors),
        GrpcAccess(services.authenticator, services.ingress),
        metrics,
        settings.envoy.headers,
        shadow=shadow,
    )
    async with grpc_server(
        settings.grpc,
        settings.host,
        [(SERVICE, servicer.handler())],
        shared=settings.http.workers > 1,
        closing_seconds=min(settings.http.shutdown_seconds, CLOSING_SECONDS),
    ) as port:
        yield port
