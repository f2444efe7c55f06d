"""URL scheme -> where the permits and the state of a downstream are shared. Drivers are imported when they are used."""

from __future__ import annotations

from paceline.downstream.permits import PermitPolicy
from paceline.downstream.ports import DownstreamDirectory, PermitStore, StateStore
from paceline.downstream.stores.memory import MemoryPermitStore, MemoryStateStore

TIMEOUT = 3.0
"""Seconds that a store may take. Not above `rate_gate.LATE`."""


async def open_permits(url: str, name: str, policy: PermitPolicy, longest_hold: float) -> PermitStore:
    """The permits of a downstream, at a URL."""
    if url.startswith("memory:"):
        return MemoryPermitStore(policy)
    if url.startswith("host:"):
        from paceline.downstream.stores.host import HostPermitStore

        return HostPermitStore(url, name, policy)
    if _is_redis(url):
        from paceline.downstream.stores.redis import RedisPermitStore

        return RedisPermitStore(url, name, policy, longest_hold=longest_hold, timeout=TIMEOUT)
    from paceline.downstream.stores.sql_permits import SqlPermitStore
    from paceline.sql.databases import database

    return SqlPermitStore(await database(url), name, policy, longest_hold=longest_hold, timeout=TIMEOUT)


async def open_states(url: str, name: str) -> StateStore:
    """The shared state of a downstream, at a URL."""
    if url.startswith("memory:"):
        return MemoryStateStore()
    if url.startswith("host:"):
        from paceline.downstream.stores.host import HostStateStore

        return HostStateStore(url, name)
    if _is_redis(url):
        from paceline.downstream.stores.redis import RedisStateStore

        return RedisStateStore(url, name, timeout=TIMEOUT)
    from paceline.downstream.stores.sql_states import SqlStateStore
    from paceline.sql.databases import database

    return SqlStateStore(await database(url), name)


async def open_directory(url: str) -> DownstreamDirectory:
    """All downstreams at a URL."""
    if _is_redis(url):
        from paceline.downstream.stores.redis import RedisDirectory

        return RedisDirectory(url, timeout=TIMEOUT)
    from paceline.downstream.stores.sql_states import SqlDirectory
    from paceline.sql.databases import database

    return SqlDirectory(await database(url))


def _is_redis(url: str) -> bool:
    return url.partition(":")[0].partition("+")[0] in ("redis", "rediss", "unix")
