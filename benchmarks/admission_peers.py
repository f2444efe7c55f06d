"""The peers as they recommend themselves, each ready to say yes very often: a function that decides on one key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import limits
import limits.aio.storage
import limits.aio.strategies
import limits.storage
import limits.strategies
import pyrate_limiter
import redis
import redis.asyncio
import throttled
import throttled.asyncio

PLENTY = 10**9
Decide = Callable[[str], object]
AsyncDecide = Callable[[str], Awaitable[object]]


def in_memory() -> dict[str, Decide]:
    """Peers that keep their limits in this process."""
    item = limits.RateLimitItemPerMinute(PLENTY)
    fixed = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    peers: dict[str, Decide] = {"limits fixed window": lambda key: fixed.hit(item, key)}
    for kind in ("gcra", "token_bucket"):
        throttle = throttled.Throttled(
            using=kind, quota=throttled.per_min(PLENTY, burst=PLENTY), store=throttled.MemoryStore()
        )
        peers[f"throttled-py {kind}"] = throttle.limit
    bucket = pyrate_limiter.Limiter(pyrate_limiter.StateBucket([pyrate_limiter.Rate(PLENTY, 60_000)]))
    peers["pyrate-limiter"] = lambda key: bucket.try_acquire(key, blocking=False)
    return peers


def in_redis(url: str) -> dict[str, Decide]:
    """Peers that keep their limits in Redis, called from one thread."""
    item = limits.RateLimitItemPerMinute(PLENTY)
    fixed = limits.strategies.FixedWindowRateLimiter(limits.storage.RedisStorage(url))
    throttle = throttled.Throttled(
        using="gcra", quota=throttled.per_min(PLENTY, burst=PLENTY), store=throttled.RedisStore(server=url)
    )
    rates = [pyrate_limiter.Rate(PLENTY, 60_000)]
    store = pyrate_limiter.RedisStateStore(redis.Redis.from_url(url), "pyrate")
    bucket = pyrate_limiter.Limiter(pyrate_limiter.StateBucket(rates, store=store))
    return {
        "limits fixed window": lambda key: fixed.hit(item, key),
        "throttled-py gcra": throttle.limit,
        "pyrate-limiter": lambda key: bucket.try_acquire(key, blocking=False),
    }


def in_redis_awaited(url: str) -> dict[str, AsyncDecide]:
    """Peers that keep their limits in Redis, called from one event loop."""
    item = limits.RateLimitItemPerMinute(PLENTY)
    storage = limits.aio.storage.RedisStorage(f"async+{url}", implementation="redispy")
    fixed = limits.aio.strategies.FixedWindowRateLimiter(storage)
    throttle = throttled.asyncio.Throttled(
        using="gcra",
        quota=throttled.asyncio.per_min(PLENTY, burst=PLENTY),
        store=throttled.asyncio.RedisStore(server=url),
    )
    rates = [pyrate_limiter.Rate(PLENTY, 60_000)]
    store = pyrate_limiter.RedisStateStore(redis.asyncio.Redis.from_url(url), "pyrate-async")
    bucket = pyrate_limiter.Limiter(pyrate_limiter.StateBucket(rates, store=store))
    return {
        "limits fixed window": lambda key: fixed.hit(item, key),
        "throttled-py gcra": throttle.limit,
        "pyrate-limiter": lambda key: bucket.try_acquire_async(key, blocking=False),
    }
