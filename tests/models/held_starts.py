"""Start limits that a test decides: each start is held until its guard admits it."""

from __future__ import annotations

from typing import Any, Protocol

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.start_limits import StartLimits
from paceline.downstream.call import Call
from paceline.downstream.downstream import Downstream


class Guard(Protocol):
    """Decides when a start is admitted."""

    async def admit(self, plan: str, key: str) -> None: ...


class HeldStarts(StartLimits):
    """Holds the starts of item types with an admission plan."""

    def __init__(self, guard: Guard) -> None:
        super().__init__("memory://")
        self._guard = guard
        self._held: dict[tuple[str, str], HeldDownstream] = {}

    async def of(self, config: DispatchConfig) -> tuple[Downstream, ...]:
        plan, key = config.admission_plan, config.item_type
        if plan is None:
            return ()
        held = self._held.get((plan, key))
        if held is None:
            held = self._held[plan, key] = HeldDownstream(self._guard, plan, key)
        return (held,)


class HeldDownstream(Downstream):
    def __init__(self, guard: Guard, plan: str, key: str) -> None:
        super().__init__(key, rate="1/second")
        self.guard, self.plan = guard, plan

    def call(self, *_: Any, **__: Any) -> Call:
        return HeldCall(self)


class HeldCall(Call):
    def __init__(self, downstream: HeldDownstream) -> None:
        super().__init__(downstream, downstream.name, (), (), None)
        self._held = downstream

    async def enter(self) -> None:
        await self._held.guard.admit(self._held.plan, self._held.name)

    async def leave(self, error: BaseException | None = None) -> None:
        """Nothing was taken."""
