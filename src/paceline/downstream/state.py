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
from paceline.limits.rate_text import parse_rate

MAX_PAUSES = 1024
"""Keys whose pause is kept. Beyond it, those that end first are dropped."""
MAX_REASON = 2000
MAX_PROCESSES = 256
"""Of which is known how many calls wait there. Beyond it, those that reported least lately are dropped."""
WAITING_SECONDS = 5
"""For how long that is believed: a process may have died."""
SAMPLE_SECONDS = 10
MAX_SAMPLES = 60
_NO_PAUSES: Mapping[str, int] = MappingProxyType({})
_NONE_WAIT: Mapping[str, Waiting] = MappingProxyType({})


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


class Sample(NamedTuple):
    """What was known at a time, for a picture of the last minutes."""

    at_s: int
    calls: int
    throttled: int
    effective: float | None
    """Calls per second that might leave; None if it has no rate."""
    standing: str
    """`open`, `paused` by an operator, or `breaker` if that is open."""


class Waiting(NamedTuple):
    """How many calls of a process wait, and until when that is believed."""

    calls: int
    until_us: int


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
    samples: tuple[Sample, ...] = ()
    """The oldest first."""
    waiting: Mapping[str, Waiting] = _NONE_WAIT
    """By process, those of which calls wait."""

    @property
    def rate_per_second(self) -> float | None:
        """The rate that holds, the operator's or the program's own; None if it has none."""
        rate = self.rate or self.hard
        return None if rate is None else float(parse_rate(rate).per_second)

    @property
    def effective(self) -> float | None:
        """Calls per second that may leave now; None if it has no rate."""
        rates = (self.rate_per_second, None if self.estimate is None else self.estimate.rate)
        return min((rate for rate in rates if rate is not None), default=None)

    def waiting_at(self, now_us: int, besides: str = "") -> int:
        """How many calls of all processes wait, as they have reported lately; those of one left out."""
        return sum(
            each.calls for process, each in self.waiting.items() if each.until_us > now_us and process != besides
        )

    def to_text(self) -> str:
        """As it is stored."""
        return json.dumps(self._replace(pauses=dict(self.pauses), waiting=dict(self.waiting))._asdict())

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
            samples=tuple(Sample(*sample) for sample in stored["samples"]),
            waiting={process: Waiting(*each) for process, each in stored["waiting"].items()},
        )


NEW = State()


class Reading(NamedTuple):
    """A state, and the store's clock when it was read."""

    state: State
    now_us: int


def reported(state: State, totals: Totals, hard: str | None, estimate: Estimate | None, now_us: int) -> State:
    """The state after a process has reported its calls."""
    state = state._replace(totals=state.totals.plus(totals), hard=hard, estimate=estimate)
    last = state.samples[-1].at_s if state.samples else 0
    return state if 0 <= now_us // 1_000_000 - last < SAMPLE_SECONDS else sampled(state, now_us)


def sampled(state: State, now_us: int) -> State:
    """The state with what is known now as a sample."""
    standing = "paused" if state.paused is not None else "breaker" if state.breaker is not None else "open"
    effective = None if state.effective is None else round(state.effective, 3)
    sample = Sample(now_us // 1_000_000, state.totals.calls, state.totals.throttled, effective, standing)
    return state._replace(samples=(*state.samples[1 - MAX_SAMPLES :], sample))


def with_waiting(state: State, process: str, calls: int, now_us: int) -> State:
    """The state after a process has reported how many of its calls wait."""
    waiting = {name: each for name, each in state.waiting.items() if each.until_us > now_us and name != process}
    if calls:
        waiting[process] = Waiting(calls, now_us + WAITING_SECONDS * 1_000_000)
    if len(waiting) > MAX_PROCESSES:
        del waiting[min(waiting, key=lambda name: waiting[name].until_us)]
    return state._replace(waiting=waiting)


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
