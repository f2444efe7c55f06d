"""`StartLimits`: a `Downstream` of its own for each item type whose settings limit how many executions begin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

from paceline.clock import uptime
from paceline.dispatch.config import DispatchConfig
from paceline.downstream.downstream import Downstream
from paceline.durations import format_duration
from paceline.errors import ConfigurationError, NotFound
from paceline.limits.model import Concurrency, Plan
from paceline.limits.rate_text import Rate, parse_rate

PREFIX = "task:"
"""Of the names of these downstreams: `task:MAIL`."""
FRESH_SECONDS = 0.5
"""How old the plans may be by which starts are limited."""
CALL_TIMEOUT = 1.0
"""An execution counts when it begins. So long after it may begin, it can do so unnoticed, as after a freeze."""

Plans: TypeAlias = Callable[[], Awaitable[Mapping[str, Plan]]]


async def no_plans() -> Mapping[str, Plan]:
    """Plans, where there are none."""
    return {}


def starts_of(plan: Plan, item_type: str) -> list[Rate]:
    """The rates that an admission plan gives an item type. Each holds in every sliding window of its length: of a
    bucket, as many as it holds in the time in which it fills.

    Raises:
        ConfigurationError: it limits calls in flight: an execution would not give its place back.
    """
    specs = plan.overrides.get(item_type, plan.specs)
    if any(isinstance(spec, Concurrency) for spec in specs):
        problem = f"plan {plan.name!r} limits calls in flight, not their rate; set the item type's concurrency instead"
        raise ConfigurationError("admission_plan", problem)
    return [] if plan.shadow else [Rate(spec.size, spec.span) for spec in specs]


class StartLimits:
    """Holds the executions of item types to their `rate` or their admission plan, over all processes: no sliding window
    sees more begin.

    The limits are counted in the queue's own database, at `url`: it keeps what it has committed, and while it is away,
    nothing could begin anyway. `plans` are the admission plans.
    """

    def __init__(self, url: str, plans: Plans = no_plans) -> None:
        self._url = url
        self._read_plans = plans
        self._plans: Mapping[str, Plan] = {}
        self._plans_read_at = float("-inf")
        self._downstreams: dict[str, dict[str, Downstream]] = {}
        """By item type, and by rate."""
        self._replaced: list[Downstream] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[StartLimits]:
        """Limits with the plans of the same database; closed when the block ends."""
        # Imported here: stores import their drivers, and importing paceline must not.
        from paceline.limits.stores.sql_plans import open_plans

        plans = await open_plans(url)
        limits = cls(url, plans.load)
        try:
            yield limits
        finally:
            await limits.close()
            await plans.close()

    async def of(self, config: DispatchConfig) -> tuple[Downstream, ...]:
        """The downstreams that each execution of the item type calls before it begins. They stay the same while the
        rates do.

        Raises:
            NotFound: there is no such admission plan.
            ConfigurationError: it is no limit of a rate.
            StoreError: the plans can't be read.
        """
        item_type, rates = config.item_type, await self._rates(config)
        known = self._downstreams.get(item_type, {})
        texts = [str(rate) for rate in rates]
        if texts != [*known]:
            self._downstreams[item_type] = {
                text: known.get(text) or self._downstream(item_type, number, rate)
                for number, (text, rate) in enumerate(zip(texts, rates, strict=True))
            }
            self._replaced += [each for text, each in known.items() if text not in texts]
            await self._close_replaced()
        return tuple(self._downstreams.get(item_type, {}).values())

    async def close(self) -> None:
        """Closes the downstreams."""
        for downstreams in [*self._downstreams.values()]:
            self._replaced += downstreams.values()
        self._downstreams.clear()
        await self._close_replaced(at_once=True)

    async def _rates(self, config: DispatchConfig) -> list[Rate]:
        if config.rate is not None:
            return [parse_rate(config.rate)]
        if config.admission_plan is None:
            return []
        now = uptime()
        if now - self._plans_read_at >= FRESH_SECONDS:
            self._plans = await self._read_plans()
            self._plans_read_at = now
        plan = self._plans.get(config.admission_plan)
        if plan is None:
            raise NotFound("admission plan", config.admission_plan)
        return starts_of(plan, config.item_type)

    def _downstream(self, item_type: str, number: int, rate: Rate) -> Downstream:
        name = f"{PREFIX}{item_type}" + (f";{format_duration(rate.span)}" if number else "")
        return Downstream(
            name, self._url, rate=str(rate), counted="departure", burst=rate.limit, call_timeout=CALL_TIMEOUT
        )

    async def _close_replaced(self, *, at_once: bool = False) -> None:
        """Closes those that another rate has replaced, once no execution calls them."""
        over = [each for each in self._replaced if at_once or not (each.waiting or each.running)]
        self._replaced = [each for each in self._replaced if each not in over]
        for downstream in over:
            await downstream.close()
