"""The breaker's state as a part of the downstream's shared state."""

from __future__ import annotations

from datetime import UTC, datetime

from paceline.downstream import state
from paceline.downstream.ports import BreakerStatus, StateStore
from paceline.downstream.state import State


class SharedBreakerStore:
    """A `BreakerStore` on a `StateStore`."""

    def __init__(self, states: StateStore) -> None:
        self._states = states

    async def read(self) -> BreakerStatus | None:
        known, now_us = await self._states.read()
        breaker = known.breaker
        if breaker is None:
            return None
        since = datetime.fromtimestamp(breaker.since_us / 1e6, UTC)
        return BreakerStatus(breaker.reason, since, breaker.pause_us / 1e6, (breaker.probe_us - now_us) / 1e6)

    async def open(self, reason: str, pause: float) -> None:
        await self._states.change(lambda known, now_us: state.opened(known, reason, round(pause * 1e6), now_us))

    async def claim_probe(self, hold: float) -> bool:
        claimed = False

        def claim(known: State, now_us: int) -> State:
            nonlocal claimed
            after = state.probed(known, round(hold * 1e6), now_us)
            claimed = after is not known
            return after

        await self._states.change(claim)
        return claimed

    async def close(self) -> None:
        await self._states.change(lambda known, _: known._replace(breaker=None))
