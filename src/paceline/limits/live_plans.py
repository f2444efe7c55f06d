"""Changing plans while limiters decide by them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from paceline.errors import InvalidInput, NotFound, PacelineError
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Plan
from paceline.limits.ports import PlanEditor

log = logging.getLogger("paceline.limits")


class LivePlans:
    """Changes plans. A change is in force in `limiter` when the call returns, and in others when they load again.

    The limiter's registry must read what `editor` writes. `reserved` are prefixes of names that can't be put, each with
    what is wrong with them.
    """

    def __init__(self, limiter: AsyncLimiter, editor: PlanEditor, reserved: Mapping[str, str] | None = None) -> None:
        self._limiter = limiter
        self._editor = editor
        self._reserved = dict(reserved or {})

    async def all(self) -> Mapping[str, Plan]:
        """All plans by name."""
        return await self._editor.all()

    async def find(self, name: str) -> Plan:
        """The plan of this name.

        Raises:
            NotFound: there is none.
        """
        plan = (await self._editor.all()).get(name)
        if plan is None:
            raise NotFound("plan", name)
        return plan

    async def put(self, plan: Plan) -> None:
        """Adds a plan, or replaces the one of the same name.

        Raises:
            InvalidInput: the name is reserved.
        """
        for prefix, problem in self._reserved.items():
            if plan.name.startswith(prefix):
                raise InvalidInput("name", f"{plan.name!r} {problem}")
        await self._editor.put(plan)
        await self.refresh()

    async def delete(self, name: str) -> Plan:
        """Removes a plan and returns it.

        Raises:
            NotFound: there is none of this name.
        """
        plan = await self.find(name)
        await self._editor.delete(name)
        await self.refresh()
        return plan

    async def refresh(self) -> None:
        """Loads the limiter's plans now."""
        await self._limiter.refresh()

    async def stay_fresh(self, every: float, changed: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Loads the limiter's plans every `every` seconds, or whenever `changed(every)` returns, until cancelled. A
        load that fails is retried."""
        while True:
            await changed(every)
            try:
                await self.refresh()
            except PacelineError as error:
                log.warning("plans could not be loaded, those in force stay: %s", error)
