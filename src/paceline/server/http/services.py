"""The parts the routers use: opened at start, closed at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from paceline.dispatch.periodic.periodic_tasks import Periodic
from paceline.dispatch.queue import DispatchQueue
from paceline.downstream.directory import Downstreams
from paceline.server.access.authenticator import Authenticator
from paceline.server.access.names import EVERY_NAME, Names
from paceline.server.access.ports import AdminAudit
from paceline.server.access.sessions import Sessions
from paceline.server.flow import Flows
from paceline.server.http.ingress import Ingress
from paceline.server.http.streams import Streams
from paceline.server.metrics.http import HttpMetrics
from paceline.server.opened_apps import OpenedApp, Probe
from paceline.server.rollups.reader import RollupReader
from paceline.server.settings import Settings
from paceline.server.shapes.health import Check
from paceline.server.wiring.limits import Limits
from paceline.slots import SlotScheduler

if TYPE_CHECKING:
    from paceline.server.access.oidc import OidcProvider
    from paceline.server.console.overview import Overview
    from paceline.server.console.pages import Part
    from paceline.server.shared_reads import SharedReads

SERVICES = "paceline_services"
"""The key in a request's scope that holds the `Services` of its app."""
FIELDS = "paceline_fields"
"""The key that holds the header fields by their names in lower case; of several with one name, the first."""


@dataclass(slots=True)
class Services:
    """One per app. A feature adds a field here and fills it in the app's lifespan."""

    settings: Settings
    registry: CollectorRegistry
    probes: dict[str, Probe] = field(default_factory=dict)
    """Dependencies by name, checked by `/health/ready`."""
    checks: dict[str, asyncio.Task[Check]] = field(default_factory=dict)
    """Checks in flight."""
    requests: HttpMetrics = field(init=False)
    authenticator: Authenticator = field(init=False)
    sessions: Sessions = field(init=False)
    oidc: OidcProvider | None = None
    ingress: Ingress = field(default_factory=Ingress)
    audit: AdminAudit = field(init=False)
    slots: SlotScheduler = field(init=False)
    admission: Limits = field(init=False)
    queue: DispatchQueue = field(init=False)
    periodic: Periodic = field(init=False)
    flows: Flows = field(init=False)
    downstreams: Downstreams = field(init=False)
    apps: Mapping[str, OpenedApp] = field(default_factory=dict)
    """The applications by name; their routes use `app`."""
    rollups: RollupReader = field(init=False)
    """Numbers of all processes over time."""
    overview: Overview = field(init=False)
    page_reads: SharedReads[Part] = field(init=False)
    streams: Streams = field(default_factory=Streams)
    names: Names = EVERY_NAME
    """What they show and change: all, or what a caller's token is bound to (`paceline.server.bound`)."""
    bound: dict[Names, Services] = field(default_factory=dict)
    """The same for callers who are bound to names."""
    grpc_port: int | None = None
    """The port of Envoy's rate limit service."""

    def __post_init__(self) -> None:
        self.requests = HttpMetrics(self.registry)

    def app(self, name: str) -> Any:
        """What an application's routes use: the `parts` that it gave when it was opened."""
        return self.apps[name].parts


def services_of(scope: Mapping[str, Any]) -> Services:
    """The services of a request's app; takes the ASGI scope or a `Request`."""
    services: Services = scope[SERVICES]
    return services
