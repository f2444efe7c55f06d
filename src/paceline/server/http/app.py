"""The service: one app, one router per feature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from multiprocessing import parent_process

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from paceline import __version__, tracing
from paceline.dispatch.periodic.periodic_tasks import Periodic
from paceline.durations import parse_duration
from paceline.server import console
from paceline.server import logs as log_lines
from paceline.server.apps import app_routes
from paceline.server.console.overview import Overview
from paceline.server.followed_configs import FollowedConfigs
from paceline.server.http import (
    audit,
    batch,
    config,
    dependencies,
    dispatch,
    downstreams,
    flow,
    forecast,
    health,
    limit_store,
    limits,
    logs,
    metrics,
    openapi,
    periodic,
    plans,
    problem,
    remote,
    search,
    sessions,
    slots,
    workers,
)
from paceline.server.http.auth import AccessGuard
from paceline.server.http.body import Bodies
from paceline.server.http.ingress import Ingress
from paceline.server.http.parent_watch import end_with_parent, remove_worker_metrics, worker_started
from paceline.server.http.prefix import without_prefix
from paceline.server.http.raw_routes import RawRoutes
from paceline.server.http.services import FIELDS, SERVICES, Services
from paceline.server.http.traces import RequestTraces
from paceline.server.metrics.downstreams import watch as watch_downstreams
from paceline.server.opened_apps import AppContext, open_apps
from paceline.server.settings import Settings
from paceline.server.shared_reads import SharedReads
from paceline.server.shutdown import CLOSE_SECONDS, add_deadline, closing_part, end_when_hung
from paceline.server.wiring.access import console_sessions, oidc_provider, open_access_store, open_authenticator
from paceline.server.wiring.database import open_write_check
from paceline.server.wiring.dispatch import open_dispatch
from paceline.server.wiring.doctor import server_probes
from paceline.server.wiring.downstreams import open_downstreams
from paceline.server.wiring.envoy import open_envoy
from paceline.server.wiring.flow import open_flows
from paceline.server.wiring.ingress import open_ingress
from paceline.server.wiring.limits import open_limits
from paceline.server.wiring.queue import open_dispatch_observer
from paceline.server.wiring.rollups import open_rollups
from paceline.server.wiring.slots import open_slots
from paceline.server.wiring.telemetry import collect_traces, traces_sent
from paceline.sql.databases import CLOSING_SECONDS, hasten_databases
from paceline.sql.migration_policy import Migrations, permit_migrations


class Service(FastAPI):
    """A FastAPI application inside the service's own middleware: refused requests, and those of raw routes, never reach
    FastAPI's."""

    def build_middleware_stack(self) -> ASGIApp:
        services: Services = self.state.services
        self.endpoints: ASGIApp = RawRoutes(super().build_middleware_stack(), self.routes)
        """The routes and their errors, without access checks, logs and metrics, which are outside of it."""
        app: ASGIApp = Bodies(self.endpoints, limit=services.settings.http.max_body_bytes)
        app = AccessGuard(app, services)
        app = logs.RequestLog(app, services)
        return RequestTraces(app) if tracing.is_on() else app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await super().__call__(scope, receive, send)
            return
        if scope.get("root_path"):
            scope = without_prefix(scope)
        if self.middleware_stack is None:
            self.middleware_stack = self.build_middleware_stack()
        scope["app"], scope[SERVICES] = self, self.state.services
        scope[FIELDS] = dict(reversed(scope["headers"]))
        await self.middleware_stack(scope, receive, send)


@cache
def every_route() -> list[BaseRoute]:
    """All routes in the order of matching: the hot path comes first.

    Made once per process. FastAPI's `include_router` makes a router's routes again for each application, at its first
    request, and matches each request twice.
    """
    routes: list[BaseRoute] = []
    slots.install(routes)
    batch.install(routes)
    limits.install(routes)
    limit_store.install(routes)
    remote.install(routes)
    routes += app_routes()
    routes += forecast.router.routes
    routes += search.router.routes
    routes += config.router.routes
    routes += plans.router.routes
    routes += audit.router.routes
    routes += sessions.router.routes
    routes += dispatch.router.routes
    routes += workers.router.routes
    routes += dependencies.router.routes
    routes += downstreams.router.routes
    routes += flow.router.routes
    routes += periodic.router.routes
    routes += health.router.routes
    routes += metrics.router.routes
    routes += console.routes()
    return routes


def create_app(settings: Settings) -> FastAPI:
    """The service with these settings. Everything it needs is opened when it starts and closed when it ends."""
    collect_traces(settings)
    services = Services(settings, metrics.registry())
    app = Service(
        title="paceline",
        version=__version__,
        summary="Rate limits, planned time slots and a durable job queue for Python.",
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        # Our own spans instead (`RequestTraces`): FastAPI's contain paths, and its logs exceptions' messages.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    app.state.services = services
    problem.install(app)
    app.router.routes += every_route()
    openapi.install(app, settings)
    return app


def from_environment() -> FastAPI:
    """The service with the settings of this process, for the workers of `paceline serve`."""
    settings = Settings.load()
    log_lines.configure(settings)
    end_with_parent()
    permit_migrations(Migrations.ALWAYS if settings.database_migrate else Migrations.EMBEDDED)
    app = create_app(settings)
    add_deadline(settings.http.shutdown_seconds + CLOSE_SECONDS, app.state.services.streams.end)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Opens each feature, one line or two each. On shutdown, accepted work finishes before its store is closed."""
    services: Services = app.state.services
    services.streams.loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        stack.callback(remove_worker_metrics)
        await stack.enter_async_context(traces_sent())
        access = await stack.enter_async_context(open_access_store(services.settings))
        services.authenticator, services.audit = open_authenticator(services.settings, access), access
        services.oidc = oidc_provider(services.settings)
        services.sessions = console_sessions(services.settings, access, services.authenticator, services.oidc)
        services.settings.refuse_exposure(other_tokens=bool(await services.authenticator.keyring()))
        services.ingress = Ingress(
            await stack.enter_async_context(open_ingress(services.settings, registry=services.registry))
        )
        services.rollups = await stack.enter_async_context(open_rollups(services.settings))
        services.overview, services.page_reads = Overview(services), SharedReads()
        services.slots = await stack.enter_async_context(open_slots(services.settings, registry=services.registry))
        services.probes["database"] = await stack.enter_async_context(open_write_check(services.settings))
        services.admission = await stack.enter_async_context(open_limits(services.settings, registry=services.registry))
        services.probes |= await server_probes(services.settings)
        observer = await stack.enter_async_context(open_dispatch_observer(services.settings, services.registry))
        services.queue = await stack.enter_async_context(open_dispatch(services.settings, observer=observer))
        services.periodic = Periodic(services.queue)
        services.downstreams = await stack.enter_async_context(open_downstreams(services.settings))
        context = AppContext(
            settings=services.settings,
            slots=services.slots,
            queue=services.queue,
            observer=observer,
            registry=services.registry,
        )
        services.apps = await stack.enter_async_context(open_apps(context))
        for opened in services.apps.values():
            services.probes |= opened.probes
        services.flows = await stack.enter_async_context(open_flows(services))
        services.probes["workers"] = lambda: health.count_workers(services.queue)
        watching = asyncio.create_task(health.watch(services.registry, services.probes, services.checks))
        stack.callback(watching.cancel)
        measuring = asyncio.create_task(watch_downstreams(services.registry, services.downstreams))
        stack.callback(measuring.cancel)
        configs = FollowedConfigs(
            services.slots,
            services.downstreams,
            services.audit,
            lasting=parse_duration(services.settings.slots.follow_after).total_seconds(),
        )
        following = asyncio.create_task(configs.run())
        stack.callback(following.cancel)
        if parent_process() is not None:
            end_when_hung(asyncio.get_running_loop())
        services.grpc_port = await stack.enter_async_context(open_envoy(services))
        worker_started()
        yield
        hasten_databases(closing_part(services.settings.http.shutdown_seconds, CLOSING_SECONDS))
