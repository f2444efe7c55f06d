"""Bugs that peers' web integrations have had, in every framework and with every limiter it takes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline import AsyncLimiter, Decision, FixedWindow, Limiter, Plan, TokenBucket
from paceline.limits.keys import client_address, everyone, header
from paceline.limits.model import Charge
from paceline.limits.ports import Hold
from paceline.limits.stores.memory import AsyncMemoryLimitStore, MemoryLimitStore
from paceline.testing import FakeClock
from tests.integration.sites import ON_A_LOOP, SITES, Site

PLANS = [Plan("gold", TokenBucket(capacity=2, per_second=0.5)), Plan("daily", FixedWindow(limit=3, window="P1D"))]
KEY = {"X-API-Key": "ada"}


def limiter_of(kind: Any, store: MemoryLimitStore) -> Any:
    return Limiter(store, plans=PLANS) if kind is Limiter else AsyncLimiter(AsyncMemoryLimitStore(store), plans=PLANS)


@pytest.mark.parametrize(("kind", "site"), SITES)
async def test_peer_bug_08_wrong_headers(kind: Any, site: Site) -> None:
    """`Retry-After` on denials only, one item per plan, and a caller that waits that long is admitted."""
    clock = FakeClock(datetime(2027, 1, 1, tzinfo=UTC))
    limiter = limiter_of(kind, MemoryLimitStore(clock=clock))
    with site(limiter, {"/": (["gold", "daily"], header("X-API-Key"))}) as get:
        for left in (1, 0):
            passed = await get("/", KEY)
            assert passed.status == 200
            assert "Retry-After" not in passed.headers
            assert passed.headers["RateLimit"] == f'"gold";r={left};t=2, "daily";r={left + 1};t=86400'
            assert passed.headers["RateLimit-Policy"] == '"gold";q=2;w=4, "daily";q=3;w=86400'
        denied = await get("/", KEY)
        assert (denied.status, denied.headers["Retry-After"]) == (429, "2")
        clock.advance(int(denied.headers["Retry-After"]))
        assert (await get("/", KEY)).status == 200
        clock.advance(10)
        spent = await get("/", KEY)
        assert (spent.status, spent.headers["Retry-After"]) == (429, str(86_400 - 12))
        clock.advance(int(spent.headers["Retry-After"]))
        assert (await get("/", KEY)).status == 200


@pytest.mark.parametrize(("kind", "site"), SITES)
async def test_peer_bug_09_one_global_bucket_by_mistake(kind: Any, site: Site) -> None:
    limiter = limiter_of(kind, MemoryLimitStore())
    with site(limiter, {"/": (["gold"], header("X-API-Key")), "/all": (["daily"], everyone("all"))}) as get:
        assert [(await get("/")).status for _ in range(4)] == [400] * 4
        assert [(await get("/", {"X-API-Key": name})).status for name in "abcd"] == [200] * 4
        assert [(await get("/", KEY)).status for _ in range(3)] == [200, 200, 429]
        # One bucket for all callers is opt-in.
        assert [(await get("/all", {"X-API-Key": name})).status for name in "abcd"] == [200, 200, 200, 429]


@pytest.mark.parametrize(("kind", "site"), SITES)
async def test_peer_bug_09_an_address_behind_a_proxy(kind: Any, site: Site) -> None:
    limiter = limiter_of(kind, MemoryLimitStore())
    with site(limiter, {"/": (["gold"], client_address(trusted_proxies=["10.0.0.0/8"]))}) as get:
        forged = [{"X-Forwarded-For": f"203.0.113.{number}"} for number in range(4)]
        assert [(await get("/", headers, peer="198.51.100.7")).status for headers in forged] == [200, 200, 429, 429]
        assert [(await get("/", headers, peer="10.0.0.1")).status for headers in forged] == [200] * 4


class HeldStore(MemoryLimitStore):
    """Answers only once the event loop has gone on meanwhile."""

    in_process = False

    def __init__(self) -> None:
        super().__init__()
        self.turned = threading.Event()

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        assert self.turned.wait(10), "the event loop stood still while the store was asked"
        return super().decide(chain, spend=spend, hold=hold, now_us=now_us)


@pytest.mark.parametrize("site", ON_A_LOOP.values(), ids=ON_A_LOOP)
async def test_peer_bug_10_a_sync_limiter_never_blocks_the_event_loop(site: Site) -> None:
    store = HeldStore()
    with site(Limiter(store, plans=PLANS), {"/": (["gold"], header("X-API-Key"))}) as get:
        request = asyncio.create_task(get("/", KEY))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, store.turned.set)
        assert (await request).status == 200
