"""`BlockingDownstream`: the same for threads."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from paceline.background import Background
from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream.adaptation import Aimd
from paceline.downstream.call import Call
from paceline.downstream.client_calls import DEFAULT_TIMEOUT, ClientCalls, CostsOf, KeyOf, Settle
from paceline.downstream.downstream import DEFAULT_KEY, Downstream, DownstreamStatus
from paceline.downstream.httpx_transport import DownstreamTransport
from paceline.downstream.rate_gate import LimitAt
from paceline.downstream.signals import Signals
from paceline.limits.model import Spec

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
        limits: Mapping[str, str | Spec] | None = None,
        signals: Signals | None = None,
        adapt: Aimd | None = None,
        breaker: BreakerPolicy | None = None,
        call_timeout: float = 10.0,
    ) -> None:
        self.name = name
        self.call_timeout = call_timeout
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
                adapt=adapt,
                breaker=breaker,
                call_timeout=call_timeout,
            )
        )

    def call(
        self, costs: Mapping[str, int] | None = None, *, key: str = DEFAULT_KEY, timeout: float | None = DEFAULT_TIMEOUT
    ) -> BlockingCall:
        """One call, made inside a `with` block; otherwise as `Downstream.call`."""
        return BlockingCall(self._run, partial(_made, costs=costs, key=key, timeout=timeout))

    def transport(
        self,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
        transport: Any = None,
    ) -> DownstreamTransport:
        """A transport for `Client` of httpx2 or httpx: each request is a call of this downstream.

        `costs` and `key` are those of `call`, or functions of the request; a key that is None lets a request through.
        `settle` reads what a call has really cost from its `Answer`, when the body was read, also one that is streamed,
        or was cut off. A request that could not leave within `timeout` seconds raises an error that is both
        `RateLimitExceeded` and the library's `RequestError`. `transport` sends the requests; the library's own one, if
        none is given, confirms each call right before its first byte.

        Raises:
            ConfigurationError: an option can't be used.
        """
        calls = ClientCalls(self, settle, costs, key, timeout)
        return DownstreamTransport(calls, is_blocking=True, call_timeout=self.call_timeout, transport=transport)

    def async_transport(
        self,
        settle: Settle | None = None,
        *,
        costs: CostsOf | None = None,
        key: KeyOf = DEFAULT_KEY,
        timeout: float | None = DEFAULT_TIMEOUT,
        transport: Any = None,
    ) -> DownstreamTransport:
        """The same for `AsyncClient`: what waits does so in threads."""
        return self.transport(settle, costs=costs, key=key, timeout=timeout, transport=transport)

    def pause(self, reason: str = "by an operator") -> None:
        """Lets no call leave, from any process, within a second. Calls that have left go on. Raises `StoreError`."""
        self._run(lambda downstream: downstream.pause(reason))

    def resume(self) -> None:
        """Ends a pause, and forgets the pauses that the other side asked for. Raises `StoreError`."""
        self._run(lambda downstream: downstream.resume())

    def state(self) -> DownstreamStatus:
        """What is known of it now, by the store. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.state())

    def set_rate(self, rate: str | None) -> None:
        """Lowers the hard rate of all processes, within a second; None ends that. Raises as `Downstream.set_rate`."""
        self._run(lambda downstream: downstream.set_rate(rate))

    def learn(self, key: str, status: int, header: Callable[[str], str | None]) -> float:
        """Reads the limits that a response reports (`signals`): all processes pause for as long as it asks for. Returns
        the seconds; 0 if it asks for none. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.learn(key, status, header))

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
    """A call to a downstream. Made by `BlockingDownstream.call`; it is entered once. See `Call`."""

    def __init__(self, run: Callable[..., Any], make: Callable[[Downstream], Coroutine[Any, Any, Call]]) -> None:
        self._run = run
        self._call: Call = run(make)

    def settle(self, **costs: int) -> None:
        """Corrects what the limits were charged, when the block ends. A limit that is not named keeps its cost."""
        self._call.settle(**costs)

    def refused(self) -> None:
        """The other side refused the call for its rate: nothing of the limits was spent."""
        self._call.refused()

    def answered(self) -> None:
        """The other side has answered: whatever happens in the block from now on, the call has arrived."""
        self._run(_now(self._call.answered))

    def responded(self, status: int, header: Callable[[str], str | None]) -> None:
        """The head of the response is there: all processes obey the pause that it asks for."""
        self._run(lambda _: self._call.responded(status, header))

    def confirm(self) -> None:
        """Returns when the call may leave; it must leave at once."""
        self._run(lambda _: self._call.confirm())

    def left(self) -> None:
        """The request was sent."""
        self._run(_now(self._call.left))

    def enter(self) -> None:
        """Waits for its turn, without `confirm`."""
        self._run(lambda _: self._call.enter())

    def leave(self, error: BaseException | None = None) -> None:
        """Settles it, by how it ended."""
        self._run(lambda _: self._call.leave(error))

    def __enter__(self) -> Self:
        self._run(lambda _: self._call.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave(error)


def _now(work: Callable[[], None]) -> Callable[[Downstream], Coroutine[Any, Any, None]]:
    """Work that has to run on the event loop."""

    async def run(_: Downstream) -> None:
        work()

    return run


async def _made(downstream: Downstream, **options: Any) -> Call:
    return downstream.call(**options)
