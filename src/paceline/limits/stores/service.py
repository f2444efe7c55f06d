"""Limits kept by a paceline service: `Limiter("https://paceline.internal", token="…")`.

The service's store decides. Calls made while a request is in flight share the next one. Whoever gives no plans of his
own has those of the service, read again every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.background import Background
from paceline.batching import Batcher
from paceline.errors import Conflict, StoreUnavailable
from paceline.limits.model import Charge, Decision, Plan
from paceline.limits.plan_book import pieces
from paceline.limits.plan_documents import plan_from
from paceline.limits.ports import Hold, Settlement
from paceline.limits.store_health import DEFAULT_DEADLINE
from paceline.limits.stores.background import BackgroundLimitStore
from paceline.limits.wire import IDEMPOTENT, MAX_CALLS, MAX_CHARGES, Call, decision_of, dump_calls
from paceline.service_client import ServiceClient

PATH = "/api/v1/limits/store"
PLANS_EVERY = 5.0
"""Seconds after which the service's plans are read again."""


class AsyncServiceLimitStore:
    """A `LimitStore` of a service, for event loops. It connects at the first call."""

    def __init__(self, url: str, token: str | None = None, *, deadline: float | None = None) -> None:
        self._client = ServiceClient(url, token)
        self._deadline = DEFAULT_DEADLINE if deadline is None else deadline
        self._batcher: Batcher[Call, Any] = Batcher(self._flush, max_batch=MAX_CALLS, linger=True)

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        call = Call("decide" if spend else "peek", (tuple(chain),), hold, now_us=now_us)
        return decision_of(await self._submit(call))

    async def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        # In pieces that share requests with the calls of others; submitted, and so decided, in their order.
        calls = [Call("decide_many", tuple(map(tuple, piece)), now_us=now_us) for piece in pieces([*map(list, chains)])]
        results = await asyncio.gather(*map(self._submit, calls))
        return [decision_of(dumped) for result in results for dumped in result]

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        await self._submit(Call("refund", (tuple(chain),), now_us=now_us))

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        costs = actual if isinstance(actual, int) else tuple(actual)
        return Settlement(await self._submit(Call("settle", (tuple(chain),), id=hold_id, actual=costs, now_us=now_us)))

    async def renew(
        self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None
    ) -> Settlement:
        return Settlement(await self._submit(Call("renew", (tuple(chain),), id=hold_id, ttl_us=ttl_us, now_us=now_us)))

    async def reset(self, chain: Sequence[Charge]) -> None:
        await self._submit(Call("reset", (tuple(chain),)))

    async def close(self) -> None:
        await self._batcher.close()
        await self._client.close()

    async def _submit(self, call: Call) -> Any:
        try:
            async with asyncio.timeout(self._deadline):
                return await self._batcher.submit(call)
        except TimeoutError as error:
            raise StoreUnavailable(f"the service did not answer within {self._deadline:g} s") from error

    async def _flush(self, calls: Sequence[Call]) -> Sequence[Any]:
        outcomes: list[Any] = []
        for some in _requests(calls):
            outcomes += await self._request(some)
        return outcomes

    async def _request(self, calls: Sequence[Call]) -> list[Any]:
        # An id makes a decision idempotent; without one, a lost answer is not asked for again.
        again = all(call.op in IDEMPOTENT or call.hold is not None for call in calls)
        try:
            async with asyncio.timeout(self._deadline):
                results = (await self._client.post(PATH, dump_calls(calls), again=again))["results"]
        except TimeoutError as error:
            raise StoreUnavailable(f"the service did not answer within {self._deadline:g} s") from error
        return [_result(one) for one in results]


class AsyncServicePlans:
    """The plans of a service, for an `AsyncLimiter`."""

    refresh_every: float | None = PLANS_EVERY

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._token = url, token

    async def load(self) -> Mapping[str, Plan]:
        client = ServiceClient(self._url, self._token)
        try:
            (result,) = (await client.post(PATH, dump_calls([Call("plans")]), again=True))["results"]
        finally:
            await client.close()
        return {name: plan_from(name, document) for name, document in result["ok"].items()}

    async def close(self) -> None:
        """Nothing is kept between loads."""


class ServiceLimitStore(BackgroundLimitStore[AsyncServiceLimitStore]):
    """`AsyncServiceLimitStore` for threads: its calls run, batched, on one event loop in a thread of its own."""

    def __init__(self, url: str, token: str | None = None, *, deadline: float | None = None) -> None:
        super().__init__(lambda: AsyncServiceLimitStore(url, token, deadline=deadline))


class ServicePlans:
    """The plans of a service, for a `Limiter`."""

    refresh_every: float | None = PLANS_EVERY

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._token = url, token

    def load(self) -> Mapping[str, Plan]:
        # In a thread of its own: the caller's may have an event loop that runs.
        background = Background(lambda: AsyncServicePlans(self._url, self._token))
        try:
            return background.run(lambda plans: plans.load())
        finally:
            background.close()


def _requests(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Calls in their order, as many to a request as a service takes."""
    some: list[Call] = []
    size = 0
    for call in calls:
        charges = sum(map(len, call.chains))
        if some and size + charges > MAX_CHARGES:
            yield some
            some, size = [], 0
        some.append(call)
        size += charges
    yield some


def _result(result: Mapping[str, Any]) -> Any:
    """The result of one call of a batch, or its error."""
    if "ok" in result:
        return result["ok"]
    error = Conflict if result.get("error") == "conflict" else StoreUnavailable
    return error(f"the service: {result.get('detail')}")
