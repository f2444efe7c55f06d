"""What all processes know of a downstream: the switch, the pauses it asked for, its breaker, its rate. Pure.

Times are microseconds of the store's clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import add
from types import MappingProxyType
from typing import NamedTuple

from paceline.downstream.adaptation import Estimate

MAX_PAUSES = 1024
"""Keys whose pause is kept. Beyond it, those that end first are dropped."""
MAX_REASON = 2000
_NO_PAUSES: Mapping[str, int] = MappingProxyType({})


class OpenBreaker(NamedTuple):
    """An open breaker: why and since when, the pause before its next probe, and when that is due."""

    reason: str
    since_us: int
    pause_us: int
    probe_us: int


class Totals(NamedTuple):
    """What all processes have seen since the state was made."""

    calls: int = 0
    """Calls that have left and ended."""
    throttled: int = 0
    """Calls that were refused for their rate."""
    failed: int = 0
    unknown: int = 0
    """Calls that ended without an answer."""
    waited_us: int = 0
    """How long calls have waited for their turn, in sum."""

    def plus(self, others: Totals) -> Totals:
        """The sum."""
        return Totals(*map(add, self, others))


NO_CALLS = Totals()


class Follower(NamedTuple):
    """A lease: who decides for all processes, and until when."""

    holder: str
    until_us: int


class State(NamedTuple):
    """The shared state of a downstream."""

    paused: str | None = None
    """Why an operator paused it; None if it is not."""
    pauses: Mapping[str, int] = _NO_PAUSES
    """Key → when the downstream may be called again, as it said."""
    breaker: OpenBreaker | None = None
    """None if it is closed."""
    rate: str | None = None
    """The rate that an operator has set; None for the program's own."""
    hard: str | None = None
    """The hard rate of the program, as it was last reported."""
    estimate: Estimate | None = None
    """The adaptive rate; None if it is not adaptive."""
    totals: Totals = NO_CALLS
    follower: Follower | None = None
    """Which process lets configs follow its rate."""

    def to_text(self) -> str:
        """As it is stored."""
        return json.dumps(self._replace(pauses=dict(self.pauses))._asdict())

    @classmethod
    def of_text(cls, text: str | None) -> State:
        """As it was stored; a new one if nothing was."""
        if not text:
            return NEW
        stored = json.loads(text)
        breaker, estimate, follower = stored["breaker"], stored["estimate"], stored["follower"]
        return cls(**stored)._replace(
            breaker=None if breaker is None else OpenBreaker(*breaker),
            estimate=None if estimate is None else Estimate(*estimate),
            totals=Totals(*stored["totals"]),
            follower=None if follower is None else Follower(*follower),
        )


NEW = State()


class Reading(NamedTuple):
    """A state, and the store's clock when it was read."""

    state: State
    now_us: int


def with_pause(state: State, key: str, until_us: int, now_us: int) -> State:
    """The state after the downstream asked for no calls of `key` until a time. A shorter pause changes nothing."""
    pauses = {name: end_us for name, end_us in state.pauses.items() if end_us > now_us}
    pauses[key] = max(until_us, pauses.get(key, 0))
    if len(pauses) > MAX_PAUSES:
        del pauses[min(pauses, key=pauses.__getitem__)]
    return state._replace(pauses=pauses)


def leased(state: State, holder: str, us: int, now_us: int) -> State:
    """The state in which a holder has the lease for some time more. The same state if somebody else has it."""
    follower = state.follower
    if follower is not None and follower.holder != holder and follower.until_us > now_us:
        return state
    return state._replace(follower=Follower(holder, now_us + us))


def opened(state: State, reason: str, pause_us: int, now_us: int) -> State:
    """The state with an open breaker, whose next probe is due after a pause."""
    since_us = now_us if state.breaker is None else state.breaker.since_us
    return state._replace(breaker=OpenBreaker(reason[:MAX_REASON], since_us, pause_us, now_us + pause_us))


def probed(state: State, hold_us: int, now_us: int) -> State:
    """The state after a caller has taken the probe that is due: if it reports no result, the next one is due after the
    same pause, and not within `hold_us`. The same state if none is due."""
    breaker = state.breaker
    if breaker is None or breaker.probe_us > now_us:
        return state
    return state._replace(breaker=breaker._replace(probe_us=now_us + max(breaker.pause_us, hold_us)))
