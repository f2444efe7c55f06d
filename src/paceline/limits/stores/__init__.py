"""URL scheme -> limit store.

A driver is imported only when its store is opened: a web application that keeps its limits in memory must not load a
database library, whose objects would slow down every full garbage collection.
"""

from __future__ import annotations

from paceline.clock import Clock
from paceline.errors import ConfigurationError
from paceline.limits.ports import AsyncLimitStore, AsyncPlanRegistry, LimitStore, PlanRegistry
from paceline.limits.store_health import DEFAULT_DEADLINE
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.limits.stores.server_workers import warn_of_workers
from paceline.service_client import check_token, is_service

REDIS_SCHEMES = {
    base + shape for base in ("redis", "rediss", "valkey", "valkeys") for shape in ("", "+sentinel", "+cluster")
}
REDIS_SCHEMES |= {"unix", "redis+unix", "valkey+unix"}
SQL_SCHEMES = {"sqlite", "postgresql", "postgres"}


def limit_store(
    url: str,
    *,
    deadline: float | None = None,
    clock: Clock | None = None,
    option: str = "store",
    token: str | None = None,
) -> LimitStore:
    """The limit store at a URL, for threads. It connects when first used; a call may take `deadline` seconds,
    or else as many as the URL says, or 0.5, or 5 in an SQLite file. Only memory counts by `clock`: other stores have a
    clock of their own. An error about the URL names `option`. `token` is for a service."""
    check_token(token, url)
    scheme = url.partition(":")[0]
    if scheme == "memory":
        _check_memory(option, url)
        return MemoryLimitStore(clock=clock)
    if scheme == "host":
        from paceline.limits.stores.host import HostLimitStore, host_options

        name, megabytes = host_options(option, url)
        return HostLimitStore(name, megabytes=megabytes, deadline=deadline)
    if scheme in REDIS_SCHEMES:
        from paceline.limits.stores.redis_blocking import RedisLimitStore

        return RedisLimitStore(url, deadline=deadline)
    if is_service(url):
        from paceline.limits.stores.service import ServiceLimitStore

        return ServiceLimitStore(url, token, deadline=deadline)
    if _is_sql(scheme):
        from paceline.limits.stores.sql import SqlLimitStore

        return SqlLimitStore(url, deadline=_sql_deadline(scheme) if deadline is None else deadline)
    raise _unknown(option, scheme)


def async_limit_store(
    url: str,
    *,
    deadline: float | None = None,
    clock: Clock | None = None,
    option: str = "store",
    token: str | None = None,
) -> AsyncLimitStore:
    """The limit store at a URL, for event loops. It connects when first used; a call may take `deadline` seconds,
    or else as many as the URL says, or 0.5, or 5 in an SQLite file. Only memory counts by `clock`: other stores have a
    clock of their own. An error about the URL names `option`. `token` is for a service."""
    check_token(token, url)
    scheme = url.partition(":")[0]
    if scheme == "memory":
        _check_memory(option, url)
        return AsyncMemoryLimitStore(MemoryLimitStore(clock=clock))
    if scheme == "host":
        from paceline.limits.stores.host import AsyncHostLimitStore, host_options

        name, megabytes = host_options(option, url)
        return AsyncHostLimitStore(name, megabytes=megabytes, deadline=deadline)
    if scheme in REDIS_SCHEMES:
        from paceline.limits.stores.redis import AsyncRedisLimitStore

        return AsyncRedisLimitStore(url, deadline=deadline)
    if is_service(url):
        from paceline.limits.stores.service import AsyncServiceLimitStore

        return AsyncServiceLimitStore(url, token, deadline=deadline)
    if _is_sql(scheme):
        from paceline.limits.stores.sql import AsyncSqlLimitStore

        return AsyncSqlLimitStore(url, deadline=_sql_deadline(scheme) if deadline is None else deadline)
    raise _unknown(option, scheme)


def service_plans(url: str, token: str | None) -> PlanRegistry:
    """The plans of a service, for threads."""
    from paceline.limits.stores.service import ServicePlans

    return ServicePlans(url, token)


def async_service_plans(url: str, token: str | None) -> AsyncPlanRegistry:
    """The plans of a service, for event loops."""
    from paceline.limits.stores.service import AsyncServicePlans

    return AsyncServicePlans(url, token)


def _sql_deadline(scheme: str) -> float | None:
    """A file has one writer at a time, and a decision waits for its turn; a server that is silent is an outage."""
    return None if scheme.startswith("sqlite") else DEFAULT_DEADLINE


def _is_sql(scheme: str) -> bool:
    family = scheme.partition("+")[0]
    if family not in SQL_SCHEMES:
        return False
    from paceline.extras import DATABASES, require

    require(f"limits at {family}://", DATABASES.get(family, "queue"))
    return True


def _check_memory(option: str, url: str) -> None:
    if url.removeprefix("memory").strip(":") not in ("", "//"):
        raise ConfigurationError(
            option, "memory:// takes no host, path or options; for another bound give MemoryLimitStore(max_keys=...)"
        )
    if option == "store":
        warn_of_workers()


def _unknown(option: str, scheme: str) -> ConfigurationError:
    return ConfigurationError(
        option,
        f"{scheme!r} is no known limit store; use memory://, host://, redis://, rediss://, redis+sentinel://, "
        "redis+cluster:// (or valkey for redis), unix://, sqlite://, postgresql:// or https://",
    )
