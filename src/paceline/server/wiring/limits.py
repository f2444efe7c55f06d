"""Limits: the limiter of a settings tree, with its plans from the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from paceline.dispatch.start_limits import PREFIX
from paceline.errors import ConfigurationError
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.live_plans import LivePlans
from paceline.limits.local_lease import LeasePolicy
from paceline.limits.stores import SQL_SCHEMES
from paceline.limits.stores.sql_plans import AsyncSqlPlans, SqlPlans
from paceline.server.envoy.config_file import EnvoyConfig
from paceline.server.envoy.plans import EnvoyPlans
from paceline.server.rollups.observers import LimitRollups, with_rollups
from paceline.server.settings import Settings, spelled
from paceline.server.wiring.database import shared_database
from paceline.server.wiring.rollups import open_recorder
from paceline.sql.engine import Database

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from paceline.server.metrics.limits import AdmissionMetrics


OF_AN_ITEM_TYPE = (
    "is the name of an item type's rate, which is one of its settings: paceline queue set TYPE --rate 20/second"
)


class Limits(NamedTuple):
    """The limits of a settings tree."""

    limiter: AsyncLimiter
    plans: LivePlans
    descriptors: EnvoyPlans | None = None
    """The rules of Envoy's descriptors, if the settings name a port for Envoy."""


@asynccontextmanager
async def open_limits(settings: Settings, *, registry: CollectorRegistry | None = None) -> AsyncIterator[Limits]:
    """The limiter, with its plans from the database; counted in `registry`, if one is given."""
    metrics: AdmissionMetrics | None = None
    if registry is not None:
        # Imported here: metrics come with the server, and the library works without it.
        from paceline.server.metrics.limits import AdmissionMetrics

        metrics = AdmissionMetrics(registry)
    limit_settings = settings.limits
    url = _limits_url(settings)
    # `stay_fresh` reloads them: an idle limiter would otherwise decide its next call by old plans.
    documents = AsyncSqlPlans(await shared_database(settings), refresh_every=None)
    deadline = limit_settings.deadline_seconds or (5.0 if url == settings.database_url else None)
    descriptors = None
    if settings.grpc.port is not None and registry is not None:
        config = settings.envoy.config
        descriptors = EnvoyPlans(documents, None if config is None else EnvoyConfig(config))
    lease = None
    if limit_settings.lease_seconds is not None:
        lease = LeasePolicy(limit_settings.lease_seconds, limit_settings.lease_share, limit_settings.lease_most)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(documents.close)
        rollups = LimitRollups(await opened.enter_async_context(open_recorder(settings, lazily=True)))
        limiter = AsyncLimiter(
            url,
            plans=descriptors or documents,
            on_error=limit_settings.on_error,
            deadline=deadline,
            lease=lease,
            observer=rollups if metrics is None else with_rollups(metrics, rollups),
        )
        await opened.enter_async_context(limiter)
        plans = LivePlans(limiter, documents, {PREFIX: OF_AN_ITEM_TYPE})
        await plans.refresh()
        if metrics is not None:
            metrics.known(await plans.all())
        # Envoy's file has no hints: it is looked at every time.
        changed = documents.changed if descriptors is None else asyncio.sleep
        freshness = asyncio.create_task(plans.stay_fresh(limit_settings.plans_ttl_seconds, changed))
        try:
            yield Limits(limiter, plans, descriptors)
        finally:
            freshness.cancel()
            await asyncio.gather(freshness, return_exceptions=True)


def _limits_url(settings: Settings) -> str:
    """The store of a settings tree's limits. A shared database keeps one count for the service, its workers and the
    command line. If the database is private to this process, or can't count limits, memory is used."""
    if settings.limits.store == "auto" and settings.redis_url is not None:
        return settings.redis_url
    url = settings.database_url
    countable = url.partition(":")[0].partition("+")[0] in SQL_SCHEMES
    if settings.limits.store == "database" and not countable:
        raise ConfigurationError(
            spelled("limits", "store"), "this database can't count limits; use memory, or set PACELINE_REDIS_URL"
        )
    is_shared = countable and not url.startswith(("sqlite://:", "sqlite:///:")) and url != "sqlite://"
    return url if is_shared and settings.limits.store != "memory" else "memory://"


def plan_registry(url: str) -> SqlPlans:
    """The plans in a database, for a `Limiter` and for changing them."""
    return SqlPlans(url)


def async_plan_registry(url: str) -> AsyncSqlPlans:
    """The plans in a database, for an `AsyncLimiter` and for changing them."""
    return AsyncSqlPlans(Database(url, pool_size=2))
