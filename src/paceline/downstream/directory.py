"""All downstreams of some stores, for operators: what is known of each, and its switch and rate."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from paceline.downstream.downstream import check_rate_below
from paceline.downstream.ports import DownstreamDirectory, StateStore
from paceline.downstream.state import Reading, State, leased, sampled
from paceline.errors import NotFound, StoreError
from paceline.limits.rate_text import parse_rate

log = logging.getLogger(__name__)

BY_OPERATOR = "by an operator"


class KnownDownstream(NamedTuple):
    """A downstream that some process has called or changed."""

    name: str
    state: State
    now_us: int

    @property
    def rate(self) -> str | None:
        """The rate that holds: the operator's, or the program's own."""
        return self.state.rate or self.state.hard

    @property
    def rate_per_second(self) -> float | None:
        """The same per second."""
        return self.state.rate_per_second

    @property
    def effective(self) -> float | None:
        """Calls per second that may leave now; None if it has no rate."""
        return self.state.effective

    @property
    def proven(self) -> float | None:
        """Calls per second that it takes, as far as is known: an adaptive rate that has never fallen proves nothing."""
        estimate = self.state.estimate
        return self.rate_per_second if estimate is None or not estimate.fell_us else self.effective

    @property
    def waiting(self) -> int:
        """How many calls of all processes wait, as they have reported lately."""
        return self.state.waiting_at(self.now_us)

    @property
    def pauses(self) -> dict[str, float]:
        """Seconds until each key may be called again, as the other side said."""
        return {key: (end - self.now_us) / 1e6 for key, end in self.state.pauses.items() if end > self.now_us}


class Listed(NamedTuple):
    """All downstreams that can be seen."""

    known: list[KnownDownstream]
    """By name."""
    unreachable: list[str]
    """The stores that can't be reached, where others may be."""


class Downstreams:
    """The downstreams of several stores, by what these are called. Of one that two stores know, the first store's is
    shown and changed."""

    def __init__(self, directories: Mapping[str, DownstreamDirectory]) -> None:
        self._directories = directories

    async def list(self) -> Listed:
        """All that have been called or changed. A store that can't be reached hides only its own."""
        known: dict[str, KnownDownstream] = {}
        unreachable = []
        for store, directory in self._directories.items():
            try:
                readings = await directory.read_all()
            except StoreError as error:
                log.info("the downstreams of the %s can't be read: %s", store, error)
                unreachable.append(store)
                continue
            for name, reading in readings.items():
                known.setdefault(name, KnownDownstream(name, *reading))
        return Listed([known[name] for name in sorted(known)], unreachable)

    async def change(self, name: str, *, paused: bool | None = None, rate: str | None = "") -> KnownDownstream:
        """Pauses or resumes all processes, and lowers their rate; within a second. `rate` None ends that; the default
        leaves it.

        Raises:
            NotFound: no process has called it.
            ConfigurationError: it is no rate, or above the program's own.
            StoreError: it can't be read or changed.
        """
        store, reading = await self._find(name)
        if rate:
            hard = reading.state.hard
            check_rate_below(rate, None if hard is None else parse_rate(hard))

        def changed(state: State, now_us: int) -> State:
            if paused is not None:
                state = state._replace(paused=(state.paused or BY_OPERATOR) if paused else None)
                state = state if paused else state._replace(pauses={})
            return sampled(state if rate == "" else state._replace(rate=rate), now_us)

        return KnownDownstream(name, *await store.change(changed))

    async def lease(self, name: str, holder: str, seconds: float) -> bool:
        """Whether this holder decides for all processes what follows from its rate; for some seconds, unless it asks
        again. Raises `NotFound` and `StoreError`."""
        store, _ = await self._find(name)
        state, _ = await store.change(lambda state, now_us: leased(state, holder, round(seconds * 1e6), now_us))
        return state.follower is not None and state.follower.holder == holder

    async def close(self) -> None:
        """Closes the stores."""
        for directory in self._directories.values():
            await directory.close()

    async def _find(self, name: str) -> tuple[StateStore, Reading]:
        for directory in self._directories.values():
            reading = (await directory.read_all()).get(name)
            if reading is not None:
                return directory.of(name), reading
        raise NotFound("downstream", name)
