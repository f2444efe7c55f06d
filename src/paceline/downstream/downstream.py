"""`Downstream`: call another system at its pace. For event loops; `BlockingDownstream` is the same for threads."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from math import inf
from secrets import token_hex
from types import TracebackType
from typing import Any, NamedTuple, Self

from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream import state as shared
from paceline.downstream.adaptation import Aimd, Report, adapted, bounded, started
from paceline.downstream.breaker import DownstreamBreaker
from paceline.downstream.call import Call, Taken
from paceline.downstream.client_calls import DEFAULT_KEY, DEFAULT_TIMEOUT
from paceline.downstream.costs import Debts, budget_of
from paceline.downstream.httpx_transport import UnderClients
from paceline.downstream.observations import REPORT_SECONDS, Observations
from paceline.downstream.ports import BreakerStatus, StateStore
from paceline.downstream.rate_gate import (
    SECOND,
    LimitAt,
    PermitRateGate,
    longest_hold,
    paced_policy,
    permit_policy,
    spread,
)
from paceline.downstream.shared_breaker import SharedBreakerStore
from paceline.downstream.signals import Signals, StandardSignals
from paceline.downstream.state import Reading, Totals
from paceline.downstream.stores import open_permits, open_states
from paceline.errors import (
    ConfigurationError,
    CostExceedsCapacity,
    InvalidInput,
    NotFound,
    RateLimitExceeded,
    StoreError,
    StoreUnavailable,
)
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision, OnError, Reason, Spec
from paceline.limits.rate_text import Rate, parse_rate
from paceline.limits.reservations import LONGEST_TTL, Link
from paceline.options import check_seconds, check_wait, is_whole

MAX_NAME = 80
MAX_RATE_KEYS = 256
"""Keys that have permits of their own in one process."""
FRESH_SECONDS = 0.25
"""How old the shared state may be when a call leaves."""
LONGEST_PAUSE = 3600.0
"""Seconds. A mistake of the other side must not stop its callers for a year."""
SHORTEST_WAIT = 0.01
OTHER_SIDE = "server"
"""The plan's name in the refusal of a call by a pause that the other side asked for."""


class DownstreamStatus(NamedTuple):
    """What is known of a downstream."""

    rate: str | None
    """The hard rate."""
    effective: float | None
    """Calls per second that may leave now: less than the hard rate if an operator lowered it, or if it is adaptive."""
    waiting: int
    """Calls of all processes that wait: those of others as they reported within the last seconds."""
    running: int
    """Calls of this process that have left and not ended."""
    paused: str | None
    """Why an operator paused it."""
    pauses: Mapping[str, float]
    """Key → seconds until it may be called again, as the other side said."""
    breaker: BreakerStatus | None
    """None if it is closed, or there is none."""
    totals: Totals
    """What all processes have reported of their calls."""


class Downstream(UnderClients):
    """Another system, and what it can take: in all processes that use the same name and URL.

        bank = Downstream("bank", "postgresql://…", rate="50/second")
        async with bank.call():
            await client.post(url, json=order)

    `rate` is hard: no sliding window sees more calls, counted where they arrive (`counted="answer"`, the default) or
    where they leave (`"departure"`, full rate at any latency). Calls are evenly spaced, but for a `burst`. `limits` are
    further budgets, each with a cost of its own per call; a call waits for all of them at once:

        llm = Downstream("llm", "redis://…", limits={"requests": "500/minute", "tokens": "200000/minute"})
        async with llm.call({"tokens": estimate}) as call:
            response = await client.post(url, json=body)
            call.settle(tokens=response.json()["usage"]["total_tokens"])

    With `adapt` the rate follows what the other side really takes: `Aimd`. Without `rate`, its ceiling is the hard one.

    Limits hold in every sliding window. What a call cost more than it reserved, the next ones of its process pay. A
    limit may also be an algorithm, such as a `Concurrency`: its place is held until the call ends.

    While the store can't be reached, no call leaves. `call_timeout` is the longest that one call may take, in seconds:
    a call that was sent and not answered counts for so long, and a Redis that knows nothing of this downstream, which
    may have lost its data, lets the first call wait for so long.

    Raises:
        ConfigurationError: a value can't be used.
    """

    def __init__(
        self,
        name: str,
        url: str = "memory://",
        *,
        rate: str | None = None,
        counted: LimitAt = "answer",
        burst: int = 1,
        limits: Mapping[str, str | Spec] | None = None,
        signals: Signals | None = None,
        adapt: Aimd | None = None,
        breaker: BreakerPolicy | None = None,
        call_timeout: float = 10.0,
    ) -> None:
        self.name = _check_name(name)
        self._url = url
        self._adapt = adapt
        if rate is None and adapt is not None:
            rate = adapt.ceiling
        self._rate = None if rate is None else _check_rate(rate)
        self._permits, self._window = (0, SECOND) if self._rate is None else spread(*self._rate[:2])
        if adapt is not None and self._rate is not None and adapt.lowest > self._rate.per_second:
            raise ConfigurationError("adapt.floor", f"{adapt.floor} is above the rate {self._rate}")
        if counted not in ("answer", "departure"):
            raise ConfigurationError("counted", f"{counted!r} is neither 'answer' nor 'departure'")
        if not is_whole(burst) or burst < 1:
            raise ConfigurationError("burst", "use a whole number of at least 1")
        check_seconds("call_timeout", call_timeout)
        self._counted: LimitAt = counted
        self._burst = burst
        self.call_timeout = call_timeout
        self._signals = signals or StandardSignals()
        self._limits = {limit: budget_of(name, limit, each) for limit, each in (limits or {}).items()}
        if self._rate is None and not self._limits and breaker is None:
            raise ConfigurationError("rate", "give a rate, limits or a breaker")
        self._limiter: AsyncLimiter | None = None
        self._reserved_for = min(max((each.life for each in self._limits.values()), default=0.0), LONGEST_TTL)
        """Seconds. A cost that no longer counts can't be corrected, so nothing is remembered of it."""
        if self._limits:
            # As its hard rate: while the store is away, nothing leaves.
            self._limiter = AsyncLimiter(
                url, plans=[each.plan for each in self._limits.values()], on_error=OnError.CLOSED
            )
        self._token = token_hex(4)
        self._observations = Observations(self._report, lambda: self.waiting)
        self._breaker_policy = breaker
        self._breaker: DownstreamBreaker | None = None
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._refreshing = asyncio.Lock()
        self._settling: set[asyncio.Task[None]] = set()
        self._states: StateStore | None = None
        self._reading: Reading | None = None
        self._read_at = float("-inf")
        self._gates: dict[str, PermitRateGate] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self._debts = Debts({budget.plan.name: budget.capacity for budget in self._limits.values()})
        self.waiting = 0
        """Calls of this process that wait."""
        self.running = 0
        """Calls of this process that have left and not ended."""

    def call(
        self, costs: Mapping[str, int] | None = None, *, key: str = DEFAULT_KEY, timeout: float | None = DEFAULT_TIMEOUT
    ) -> Call:
        """One call, made inside an `async with` block: it is entered when the call may leave.

        `costs` are those of the limits; one that is not named costs 1. `key` is whose budgets they are: a tenant, or a
        model. A block that raises an error without a response leaves the outcome unknown: its call counts until it can
        no longer arrive, unless `answered` or `responded` said that it has.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
            CostExceedsCapacity: a limit can never admit its cost.
            RateLimitExceeded: the call could not leave within `timeout` seconds.
            StoreUnavailable: it could not, because the store could not be reached. All but the first when it is
                entered.
        """
        if timeout is not None:
            check_wait("timeout", timeout)
        costs = costs or {}
        for limit in costs.keys() - self._limits.keys():
            known = ", ".join(self._limits) or "none"
            raise InvalidInput("costs", f"downstream {self.name!r} has no limit {limit!r}; it has {known}")
        links: list[Link] = []
        places: list[Link] = []
        for budget in self._limits.values():
            cost = costs.get(budget.limit, 1)
            if not is_whole(cost) or cost < 1:
                raise InvalidInput(f"costs.{budget.limit}", f"{cost!r} is not a whole number of at least 1")
            if budget.units(cost) > budget.capacity:
                raise CostExceedsCapacity(budget.plan.name, cost, budget.capacity * budget.unit)
            of_kind = places if budget.is_places else links
            of_kind.append((key, budget.plan.name, budget.units(cost)))
        return Call(self, key, links, places, timeout)

    async def pause(self, reason: str = "by an operator") -> None:
        """Lets no call leave, from any process, within a second. Calls that have left go on. Raises `StoreError`."""
        await self._change(lambda known, _: known._replace(paused=reason))

    async def resume(self) -> None:
        """Ends a pause, and forgets the pauses that the other side asked for. Raises `StoreError`."""
        await self._change(lambda known, _: known._replace(paused=None, pauses={}))

    async def state(self) -> DownstreamStatus:
        """What is known of it now, by the store. Raises `StoreError`."""
        await self._open()
        known, now_us = await self._read(max_age=0.0)
        breaker = None if self._breaker is None else await self._breaker.status()
        pauses = {key: (end_us - now_us) / 1e6 for key, end_us in known.pauses.items() if end_us > now_us}
        rate = None if self._rate is None else str(self._rate)
        effective = None if self._rate is None else self._effective(known)
        waiting = self.waiting + known.waiting_at(now_us, besides=self._process)
        return DownstreamStatus(rate, effective, waiting, self.running, known.paused, pauses, breaker, known.totals)

    async def set_rate(self, rate: str | None) -> None:
        """Lowers the hard rate of all processes, within a second; None ends that.

        Raises:
            ConfigurationError: it is no rate, or above the one that the program has.
            StoreError: it can't be stored.
        """
        if rate is not None:
            check_rate_below(rate, self._rate)
        await self._change(lambda known, _: known._replace(rate=rate))

    async def learn(self, key: str, status: int, header: Callable[[str], str | None]) -> float:
        """Reads the limits that a response reports (`signals`): all processes pause for as long as it asks for. Returns
        the seconds; 0 if it asks for none. Raises `StoreError`."""
        if seconds := min(self._signals.pause_of(status, header), LONGEST_PAUSE):
            await self.hold_off(key, seconds)
        return seconds

    async def hold_off(self, key: str, seconds: float) -> None:
        """Lets no call of `key` leave for so many seconds, from any process. Raises `StoreError`."""
        us = round(seconds * 1e6)
        await self._change(lambda known, now_us: shared.with_pause(known, key, now_us + us, now_us))

    @property
    def is_open(self) -> bool:
        """Whether a call may leave at once, as far as this process knows: there is neither a rate nor a limit, and the
        last look found no pause and the breaker closed."""
        if self._rate is not None or self._limits or self._reading is None:
            return False
        is_closed = self._breaker is None or self._breaker.was_closed
        return is_closed and not self._pause_left(*self._reading, DEFAULT_KEY)

    async def close(self) -> None:
        """Frees the permits of calls that were answered, settles what they cost, and closes the connections."""
        await self._observations.close()
        if self._settling:
            await asyncio.wait(self._settling)
        for gate in self._gates.values():
            await gate.close()
        self._gates.clear()
        if self._limiter is not None:
            await self._limiter.close()
        await self._stack.aclose()
        self._states = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _open(self) -> StateStore:
        if self._states is not None:
            return self._states
        async with self._opening:
            if self._states is None:
                self._states = await open_states(self._url, self.name)
                self._stack.push_async_callback(self._states.close)
                if self._breaker_policy is not None:
                    self._breaker = DownstreamBreaker(
                        SharedBreakerStore(self._states), self._breaker_policy, call_timeout=self.call_timeout
                    )
            return self._states

    async def _read(self, max_age: float = FRESH_SECONDS) -> Reading:
        """The shared state, at most so old."""
        if self._reading is not None and time.monotonic() - self._read_at <= max_age:
            return self._reading
        states, requested_at = await self._open(), time.monotonic()
        async with self._refreshing:  # all callers share one call to the store
            if self._reading is None or self._read_at < requested_at - max_age:
                now = time.monotonic()
                self._reading, self._read_at = await states.read(), now
            return self._reading

    async def _change(self, decide: Callable[[shared.State, int], shared.State]) -> None:
        self._reading = await (await self._open()).change(decide)
        self._read_at = time.monotonic()

    async def _report(self, report: Report, totals: Totals, waiting: int) -> None:
        """Shares what this process has seen."""
        hard = None if self._rate is None else str(self._rate)

        def merge(known: shared.State, now_us: int) -> shared.State:
            estimate = known.estimate if self._adapt is not None else None
            if self._adapt is not None and totals.calls:  # what is not tried proves nothing
                estimate = estimate or started(self._adapt, now_us - round(REPORT_SECONDS * 1e6))
                estimate = adapted(self._adapt, estimate, report, now_us, self._hardest(known))
            known = shared.with_waiting(known, self._process, waiting, now_us)
            return shared.reported(known, totals, hard, estimate, now_us)

        await self._change(merge)

    @property
    def _process(self) -> str:
        """By which this process reports; a forked child does by its own."""
        return f"{self._token}-{os.getpid()}"

    def _hardest(self, known: shared.State) -> float:
        """The hard rate per second, or the lower one that an operator has set."""
        own = inf if self._rate is None else float(self._rate.per_second)
        return own if known.rate is None else min(own, float(parse_rate(known.rate).per_second))

    def _effective(self, known: shared.State) -> float:
        """Calls per second that may leave now."""
        hardest = self._hardest(known)
        if self._adapt is None:
            return hardest
        return bounded(self._adapt, (known.estimate or started(self._adapt, 0)).rate, hardest)

    def _pace(self, gate: PermitRateGate, known: shared.State) -> None:
        """Lets the next permits be taken at the rate of now."""
        if self._rate is None or (known.rate is None and self._adapt is None):
            return
        gate.pace(paced_policy(self._effective(known), self._burst, self._window))

    async def _gate(self, key: str) -> PermitRateGate | None:
        if self._rate is None:
            return None
        async with self._opening:
            if key not in self._gates:
                if len(self._gates) >= MAX_RATE_KEYS:
                    raise InvalidInput("key", f"downstream {self.name!r} has {MAX_RATE_KEYS} keys with a rate already")
                store = await open_permits(
                    self._url,
                    self._permit_name(key),
                    permit_policy(self._permits, self._burst, self._window),
                    longest_hold(self.call_timeout, self._window),
                )
                self._stack.push_async_callback(store.close)
                self._gates[key] = PermitRateGate(
                    store, call_timeout=self.call_timeout, limit_at=self._counted, window=self._window
                )
            return self._gates[key]

    def _permit_name(self, key: str) -> str:
        name = self.name if key == DEFAULT_KEY else f"{self.name}:{key}"
        if self._window != SECOND:
            # Permits of a day would hold back a program that has a rate per second since.
            name = f"{name} per {self._window:g} s"
        return name if len(name) <= MAX_NAME else sha256(name.encode()).hexdigest()

    async def _until_open(self, call: Call) -> None:
        """Returns when neither an operator nor the other side has paused calls.

        Raises:
            RateLimitExceeded: the other side has paused them for longer than the call waits.
        """
        while True:
            try:
                known, now_us = await self._read()
            except StoreError as error:
                call.obstacle = error  # what is not known may be a pause
                await asyncio.sleep(FRESH_SECONDS)
                continue
            pause = self._pause_left(known, now_us, call.key)
            if not pause:
                return
            if call.seconds_left() < pause < inf:
                wait_us = round(pause * 1e6)
                raise RateLimitExceeded(Decision.of(False, 0, 0, wait_us, wait_us, OTHER_SIDE, Reason.DENIED))
            await asyncio.sleep(min(pause, FRESH_SECONDS))

    def _pause_left(self, known: shared.State, now_us: int, key: str) -> float:
        """Seconds until calls of a key may leave, by a state that was read just now; infinite if paused."""
        if known.paused is not None:
            return inf
        if (end_us := known.pauses.get(key)) is None:
            return 0.0
        now_us += round((time.monotonic() - self._read_at) * 1e6)
        return max((end_us - now_us) / 1e6, 0.0)

    async def _admit(self, call: Call) -> None:
        """Takes the permit, the places and the limits of a call, all or none, as soon as there is room."""
        gate = await self._gate(call.key)
        if (gate is not None) + bool(call.places) + bool(call.links) == 1:
            await self._take_in_turn(call, gate, wait=True)
            return
        # With several kinds, one caller at a time: each is taken when the others are there, so that none ages while
        # another is waited for.
        async with self._turns.setdefault(call.key, asyncio.Lock()):
            await self._take_in_turn(call, gate, wait=False)

    async def _take_in_turn(self, call: Call, gate: PermitRateGate | None, wait: bool) -> None:
        while True:
            await self._until_open(call)
            if self._breaker is not None:
                call.is_probe = await self._breaker.admit()
            if await self._take(call, gate, wait):
                return

    async def _take(self, call: Call, gate: PermitRateGate | None, wait: bool) -> bool:
        """Takes what a call needs; False if it has to try again. With `wait`, it needs one kind only."""
        if gate is not None and self._reading is not None:
            self._pace(gate, self._reading.state)
        taken = Taken(None if gate is None else await gate.acquire(call.note))
        try:
            decision = await self._take_limits(call, taken, call.seconds_left() if wait else 0.0)
            if decision is None:
                known, now_us = await self._read()
                if gate is not None:
                    self._pace(gate, known)
                if not self._pause_left(known, now_us, call.key):  # since this call began to wait
                    call.taken = taken
                    return True
        except BaseException:
            await self._give_back(call, taken)
            raise
        await self._give_back(call, taken)
        if decision is None:
            return False
        if decision.reason is Reason.FAIL_CLOSED:
            call.obstacle = StoreUnavailable("the store of its limits does not answer")
        elif wait:
            raise RateLimitExceeded(decision)
        await asyncio.sleep(max(decision.retry_after, SHORTEST_WAIT))
        return False

    async def _settle(self, links: Sequence[Link], taken: Taken, actual: Mapping[str, int]) -> None:
        """Corrects the reserved costs of a call by the actual ones: gives back what it reserved too much, and charges
        what it reserved too little. Nobody waits for a store that is elsewhere."""
        assert self._limiter is not None
        less = {plan: actual[plan] + taken.debts[plan] for _, plan, cost in links if actual.get(plan, cost) < cost}
        more = [(key, plan, actual[plan] - cost) for key, plan, cost in links if actual.get(plan, cost) > cost]
        if not (less or more):
            return
        work = self._correct(self._limiter, taken, less, more)
        if self._limiter.in_process:
            await work
            return
        task = asyncio.get_running_loop().create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _correct(
        self, limiter: AsyncLimiter, taken: Taken, less: Mapping[str, int], more: Sequence[Link]
    ) -> None:
        if more and not await _is_charged(limiter, more):
            for link in more:  # there is no room: later calls pay it
                self._debts.add(*link)
        if less and taken.reservation is not None:
            with suppress(StoreError, NotFound):  # it stays charged as reserved
                await taken.reservation.settle(less)

    async def _give_back(self, call: Call, taken: Taken) -> None:
        """The call is not made: what it has taken is free again, and its debts are still to be paid."""
        for key, plan, _ in call.links:
            self._debts.add(key, plan, taken.debts.get(plan, 0))
        await taken.give_back()

    async def _take_limits(self, call: Call, taken: Taken, wait: float) -> Decision | None:
        """Takes the places and reserves the limits of a call; the refusal if there is no room."""
        if self._limiter is None:
            return None
        if call.places:
            places = self._limiter.hold_chain(call.places, timeout=wait)
            decision = await places.enter()
            if not decision:
                return decision
            taken.places = places
        if call.links:
            taken.debts = self._debts.claim(call.links)
            links = [(key, plan, cost + taken.debts[plan]) for key, plan, cost in call.links]
            reservation = await self._limiter.reserve_chain(links, ttl=self._reserved_for, timeout=wait)
            if not reservation:
                return reservation.decision
            taken.reservation = reservation
        return None


async def _is_charged(limiter: AsyncLimiter, links: Sequence[Link]) -> bool:
    """Charges costs if there is room for all of them."""
    try:
        return (await limiter.acquire_chain(links)).allowed
    except (CostExceedsCapacity, StoreError):
        return False


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or set(name) & set("{}"):
        raise ConfigurationError("name", f"use 1 to {MAX_NAME} printable characters, no braces")
    return name


def check_rate_below(text: str, most: Rate | None) -> None:
    """Checks the rate that an operator sets.

    Raises:
        ConfigurationError: it is no rate, or above `most`; or there is none.
    """
    rate = _check_rate(text)
    if most is None:
        raise ConfigurationError("rate", "this downstream has limits, and no rate")
    if rate.per_second > most.per_second:
        raise ConfigurationError("rate", f"{text} is above the program's own rate {most}; raise that one")


def _check_rate(text: str) -> Rate:
    rate = parse_rate(text, "rate", "50/second")
    if rate.burst is not None:
        raise ConfigurationError("rate", f"give the burst of {text!r} as burst={rate.burst}")
    return rate
