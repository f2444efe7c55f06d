"""`Downstream`: call another system at its pace. For event loops; `BlockingDownstream` is the same for threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from hashlib import sha256
from math import inf
from types import TracebackType
from typing import Any, NamedTuple, Self

from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream import state as shared
from paceline.downstream.breaker import DownstreamBreaker
from paceline.downstream.ports import BreakerStatus, Permit, StateStore
from paceline.downstream.rate_gate import LimitAt, PermitRateGate, longest_hold, permit_policy
from paceline.downstream.shared_breaker import SharedBreakerStore
from paceline.downstream.signals import Signals, StandardSignals
from paceline.downstream.state import Reading
from paceline.downstream.stores import open_permits, open_states
from paceline.errors import ConfigurationError, InvalidInput, NotFound, RateLimitExceeded, StoreError
from paceline.limits.handles import AsyncReservation
from paceline.limits.limiter import AsyncLimiter
from paceline.limits.model import Decision, OnError, Plan, Reason
from paceline.limits.rate_text import Rate, parse_rate
from paceline.options import check_seconds, check_wait, is_whole

MAX_NAME = 64
MAX_RATE_KEYS = 256
"""Keys that have permits of their own in one process."""
FRESH_SECONDS = 0.25
"""How old the shared state may be when a call leaves."""
LONGEST_PAUSE = 3600.0
"""Seconds. A mistake of the other side must not stop its callers for a year."""
TTL = 86_400.0
"""Seconds for which a reservation may be settled: longer than any call."""
SHORTEST_WAIT = 0.01
DEFAULT_KEY = "host"


class DownstreamStatus(NamedTuple):
    """What is known of a downstream."""

    rate: str | None
    """The hard rate."""
    waiting: int
    """Calls of this process that wait."""
    running: int
    """Calls of this process that have left and not ended."""
    paused: str | None
    """Why an operator paused it."""
    pauses: Mapping[str, float]
    """Key → seconds until it may be called again, as the other side said."""
    breaker: BreakerStatus | None
    """None if it is closed, or there is none."""


class Downstream:
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
        limits: Mapping[str, str] | None = None,
        signals: Signals | None = None,
        breaker: BreakerPolicy | None = None,
        call_timeout: float = 10.0,
    ) -> None:
        self.name = _check_name(name)
        self._url = url
        self._rate = None if rate is None else _check_rate(rate)
        if counted not in ("answer", "departure"):
            raise ConfigurationError("counted", f"{counted!r} is neither 'answer' nor 'departure'")
        if not is_whole(burst) or burst < 1:
            raise ConfigurationError("burst", "use a whole number of at least 1")
        check_seconds("call_timeout", call_timeout)
        self._counted: LimitAt = counted
        self._burst = burst
        self._call_timeout = call_timeout
        self._signals = signals or StandardSignals()
        self._limits = {limit: Plan(f"{name}:{limit}", each) for limit, each in (limits or {}).items()}
        if self._rate is None and not self._limits:
            raise ConfigurationError("rate", "give a rate, or limits, or both")
        self._limiter: AsyncLimiter | None = None
        if self._limits:
            # As its hard rate: while the store is away, nothing leaves.
            self._limiter = AsyncLimiter(url, plans=self._limits.values(), on_error=OnError.CLOSED)
        self._breaker_policy = breaker
        self._breaker: DownstreamBreaker | None = None
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._states: StateStore | None = None
        self._reading: Reading | None = None
        self._read_at = float("-inf")
        self._gates: dict[str, PermitRateGate] = {}
        self._turns: dict[str, asyncio.Lock] = {}
        self.waiting = 0
        """Calls of this process that wait."""
        self.running = 0
        """Calls of this process that have left and not ended."""

    def call(
        self, costs: Mapping[str, int] | None = None, *, key: str = DEFAULT_KEY, timeout: float | None = 30.0
    ) -> Call:
        """One call, made inside an `async with` block: it is entered when the call may leave.

        `costs` are those of the limits; one that is not named costs 1. `key` is whose budgets they are: a tenant, or a
        model. A block that raises an error of the connection, or a `TimeoutError`, leaves the outcome unknown: its call
        counts until it can no longer arrive.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
            CostExceedsCapacity: a limit can never admit its cost.
            RateLimitExceeded: the call could not leave within `timeout` seconds. All of them when it is entered.
        """
        if timeout is not None:
            check_wait("timeout", timeout)
        costs = costs or {}
        for limit in costs.keys() - self._limits.keys():
            known = ", ".join(self._limits) or "none"
            raise InvalidInput("costs", f"downstream {self.name!r} has no limit {limit!r}; it has {known}")
        links = [(key, plan.name, costs.get(limit, 1)) for limit, plan in self._limits.items()]
        return Call(self, key, links, timeout)

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
        return DownstreamStatus(rate, self.waiting, self.running, known.paused, pauses, breaker)

    async def learn(self, key: str, status: int, header: Callable[[str], str | None]) -> None:
        """Reads the limits that a response reports (`signals`): all processes pause for as long as it asks for."""
        if seconds := min(self._signals.pause_of(status, header), LONGEST_PAUSE):
            await self.hold_off(key, seconds)

    async def hold_off(self, key: str, seconds: float) -> None:
        """Lets no call of `key` leave for so many seconds, from any process. Raises `StoreError`."""
        us = round(seconds * 1e6)
        await self._change(lambda known, now_us: shared.with_pause(known, key, now_us + us, now_us))

    async def close(self) -> None:
        """Frees the permits of calls that were answered, and closes the connections."""
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
        async with self._opening:
            if self._states is None:
                self._states = await open_states(self._url, self.name)
                self._stack.push_async_callback(self._states.close)
                if self._breaker_policy is not None:
                    self._breaker = DownstreamBreaker(
                        SharedBreakerStore(self._states), self._breaker_policy, call_timeout=self._call_timeout
                    )
            return self._states

    async def _read(self, max_age: float = FRESH_SECONDS) -> Reading:
        """The shared state, at most so old."""
        states, now = await self._open(), time.monotonic()
        if self._reading is None or now - self._read_at > max_age:
            self._reading, self._read_at = await states.read(), now
        return self._reading

    async def _change(self, decide: Callable[[shared.State, int], shared.State]) -> None:
        self._reading = await (await self._open()).change(decide)
        self._read_at = time.monotonic()

    async def _gate(self, key: str) -> PermitRateGate | None:
        if self._rate is None:
            return None
        async with self._opening:
            if key not in self._gates:
                if len(self._gates) >= MAX_RATE_KEYS:
                    raise InvalidInput("key", f"downstream {self.name!r} has {MAX_RATE_KEYS} keys with a rate already")
                limit, window = self._rate.limit, self._rate.span.total_seconds()
                store = await open_permits(
                    self._url,
                    self._permit_name(key),
                    permit_policy(limit, self._burst, window),
                    longest_hold(self._call_timeout, window),
                )
                self._stack.push_async_callback(store.close)
                self._gates[key] = PermitRateGate(
                    store, call_timeout=self._call_timeout, limit_at=self._counted, window=window
                )
            return self._gates[key]

    def _permit_name(self, key: str) -> str:
        if key == DEFAULT_KEY:
            return self.name
        name = f"{self.name}:{key}"
        return name if len(name) <= MAX_NAME else sha256(name.encode()).hexdigest()

    async def _until_open(self, key: str) -> None:
        """Returns when neither an operator nor the other side has paused calls."""
        while True:
            try:
                known, now_us = await self._read()
            except StoreError:
                await asyncio.sleep(FRESH_SECONDS)  # what is not known may be a pause
                continue
            pause = self._pause_left(known, now_us, key)
            if not pause:
                return
            await asyncio.sleep(min(pause, FRESH_SECONDS))

    def _pause_left(self, known: shared.State, now_us: int, key: str) -> float:
        """Seconds until calls of a key may leave, by a state that was read just now; infinite if paused."""
        if known.paused is not None:
            return inf
        now_us += round((time.monotonic() - self._read_at) * 1e6)
        return max((known.pauses.get(key, 0) - now_us) / 1e6, 0.0)

    async def _admit(self, call: Call) -> None:
        """Takes the permit and the limits of a call, both or none, as soon as there is room."""
        gate = await self._gate(call.key)
        # With a rate and limits, one caller at a time: the limits are reserved when the permit is there, so that
        # neither ages while the other is waited for.
        turn = self._turns.setdefault(call.key, asyncio.Lock()) if gate and call.links else None
        async with turn or AsyncExitStack():
            while True:
                await self._until_open(call.key)
                if self._breaker is not None:
                    call.is_probe = await self._breaker.admit()
                if await self._take(call, gate):
                    return

    async def _take(self, call: Call, gate: PermitRateGate | None) -> bool:
        permit = None if gate is None else await gate.acquire()
        reservation = None
        try:
            if self._limiter is not None:
                wait = 0.0 if permit is not None else call.seconds_left()
                reservation = await self._limiter.reserve_chain(call.links, ttl=TTL, timeout=wait)
                if not reservation:
                    decision = reservation.decision
                    if permit is None and decision.reason is not Reason.FAIL_CLOSED:
                        raise RateLimitExceeded(decision)
                    _give_back(permit)
                    await asyncio.sleep(max(decision.retry_after, SHORTEST_WAIT))
                    return False
            known, now_us = await self._read()
            if self._pause_left(known, now_us, call.key):  # since this call began to wait
                await _cancel(reservation)
                _give_back(permit)
                return False
        except BaseException:
            await _cancel(reservation)
            _give_back(permit)
            raise
        call.permit, call.reservation = permit, reservation
        return True


class Call:
    """A call to a downstream. Made by `Downstream.call`; it is entered once."""

    def __init__(self, downstream: Downstream, key: str, links: list[tuple[str, str, int]], timeout: float | None):
        self.key = key
        self.links = links
        self.permit: Permit | None = None
        self.reservation: AsyncReservation | None = None
        self.is_probe = False
        self._downstream = downstream
        self._timeout = timeout
        self._deadline = inf
        self._actual: dict[str, int] = {}
        self._is_refused = False
        self._has_left = False
        self._is_answered = False

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the block ends. A limit that is not named keeps its cost.

        Raises:
            InvalidInput: there is no such limit, or a cost that can't be one.
        """
        limits = self._downstream._limits
        for limit, cost in costs.items():
            if limit not in limits:
                raise InvalidInput("costs", f"downstream {self._downstream.name!r} has no limit {limit!r}")
            if not is_whole(cost) or cost < 0:
                raise InvalidInput(limit, f"{cost!r} is not a whole number of at least 0")
            self._actual[limits[limit].name] = cost

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        self._is_refused = True

    def answered(self) -> None:
        """The other side has answered: whatever happens in the block from now on, the call has arrived."""
        if not self._is_answered:
            self._is_answered = True
            if self.permit is not None:
                self.permit.release()

    async def confirm(self) -> None:
        """Returns when the call may leave. A block is entered then; a client that has a connection to open first, as
        the transports do, awaits it right before the first byte."""
        if self.permit is not None:
            await self.permit.confirm()
            self.permit.left()
        self._has_left = True

    def seconds_left(self) -> float:
        """Seconds until it gives up waiting."""
        return max(self._deadline - time.monotonic(), 0.0)

    async def enter(self) -> None:
        """Waits for its turn, without `confirm`."""
        if self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        downstream = self._downstream
        downstream.waiting += 1
        try:
            async with asyncio.timeout(self._timeout):
                await downstream._admit(self)
        except TimeoutError:
            raise RateLimitExceeded(_no_room(downstream)) from None
        finally:
            downstream.waiting -= 1
        downstream.running += 1

    async def leave(self, error: BaseException | None = None) -> None:
        """Settles it, by how it ended."""
        downstream = self._downstream
        downstream.running -= 1
        unknown = isinstance(error, OSError | TimeoutError | asyncio.CancelledError) and not self._is_answered
        if not self._has_left:
            _give_back(self.permit)
            await _cancel(self.reservation)
        elif not unknown:
            self.answered()
        if self._has_left and self.reservation is not None:
            with suppress(StoreError, NotFound):  # it stays charged as reserved
                if self._is_refused:
                    await self.reservation.cancel()
                elif self._actual:
                    await self.reservation.settle(self._actual)
        if downstream._breaker is not None and not isinstance(error, asyncio.CancelledError):
            with suppress(StoreError):
                if unknown:
                    await downstream._breaker.record_failure(str(error) or type(error).__name__, self.is_probe)
                else:
                    await downstream._breaker.record_success(self.is_probe)

    async def __aenter__(self) -> Self:
        await self.enter()
        try:
            await self.confirm()
        except BaseException as error:
            await self.leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave(error)


def _give_back(permit: Permit | None) -> None:
    if permit is not None:
        permit.give_back()


async def _cancel(reservation: AsyncReservation | None) -> None:
    if reservation is not None:
        with suppress(StoreError, NotFound):  # it stays charged
            await reservation.cancel()


def _no_room(downstream: Downstream) -> Decision:
    limit = downstream._rate.limit if downstream._rate is not None else 0
    return Decision.of(False, 0, limit, 0, 0, downstream.name, Reason.DENIED)


def _check_name(name: Any) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or set(name) & set("{}"):
        raise ConfigurationError("name", f"use 1 to {MAX_NAME} printable characters, no braces")
    return name


def _check_rate(text: str) -> Rate:
    rate = parse_rate(text, "rate", "50/second")
    if rate.burst is not None:
        raise ConfigurationError("rate", f"give the burst of {text!r} as burst={rate.burst}")
    return rate
