"""`BlockingDownstream`: the same for threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from paceline.background import Background
from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream.downstream import DEFAULT_KEY, Call, Downstream, DownstreamStatus
from paceline.downstream.rate_gate import LimitAt
from paceline.downstream.signals import Signals

R = TypeVar("R")


class BlockingDownstream:
    """A `Downstream` for threads: any number of them may call it. A forked process opens its own connections.

    bank = BlockingDownstream("bank", "sqlite:///work.db", rate="50/second")
    with bank.call():
        requests.post(url, json=order)
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
        self.name = name
        self._background = Background(
            partial(
                Downstream,
                name,
                url,
                rate=rate,
                counted=counted,
                burst=burst,
                limits=limits,
                signals=signals,
                breaker=breaker,
                call_timeout=call_timeout,
            )
        )

    def call(
        self, costs: Mapping[str, int] | None = None, *, key: str = DEFAULT_KEY, timeout: float | None = 30.0
    ) -> BlockingCall:
        """One call, made inside a `with` block; otherwise as `Downstream.call`."""
        return BlockingCall(self._run, partial(_made, costs=costs, key=key, timeout=timeout))

    def pause(self, reason: str = "by an operator") -> None:
        """Lets no call leave, from any process, within a second. Calls that have left go on. Raises `StoreError`."""
        self._run(lambda downstream: downstream.pause(reason))

    def resume(self) -> None:
        """Ends a pause, and forgets the pauses that the other side asked for. Raises `StoreError`."""
        self._run(lambda downstream: downstream.resume())

    def state(self) -> DownstreamStatus:
        """What is known of it now, by the store. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.state())

    def learn(self, key: str, status: int, header: Callable[[str], str | None]) -> None:
        """Reads the limits that a response reports (`signals`): all processes pause for as long as it asks for."""
        self._run(lambda downstream: downstream.learn(key, status, header))

    def hold_off(self, key: str, seconds: float) -> None:
        """Lets no call of `key` leave for so many seconds, from any process. Raises `StoreError`."""
        self._run(lambda downstream: downstream.hold_off(key, seconds))

    def close(self) -> None:
        """Frees the permits of calls that were answered, and closes the connections."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Callable[[Downstream], Coroutine[Any, Any, R]]) -> R:
        return self._background.run(call)


class BlockingCall:
    """A call to a downstream. Made by `BlockingDownstream.call`; it is entered once."""

    def __init__(self, run: Callable[..., Any], make: Callable[[Downstream], Coroutine[Any, Any, Call]]) -> None:
        self._run = run
        self._make = make
        self._call: Call | None = None

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the block ends. A limit that is not named keeps its cost."""
        if self._call is not None:
            self._call.settle(**costs)

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        if self._call is not None:
            self._call.refused()

    def __enter__(self) -> Self:
        call: Call = self._run(self._make)
        self._run(lambda _: call.__aenter__())
        self._call = call
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call
        if call is not None:
            self._run(lambda _: call.leave(error))


async def _made(downstream: Downstream, **options: Any) -> Call:
    return downstream.call(**options)
