"""The bases of `BlockingDownstream` and `BlockingCall`: a `Downstream` on an event loop in the background."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from paceline.background import Background
from paceline.downstream.call import Call
from paceline.downstream.client_calls import DEFAULT_KEY, DEFAULT_TIMEOUT
from paceline.downstream.downstream import Downstream
from paceline.downstream.httpx_transport import UnderClients
from paceline.errors import ConfigurationError

if TYPE_CHECKING:
    from paceline.downstream._blocking_call import BlockingCall

R = TypeVar("R")


class BackgroundDownstream(UnderClients):
    """Calls from any number of threads share one `Downstream`. A forked child opens its own."""

    blocks = True

    def __init__(self, make: Callable[[], Downstream]) -> None:
        self._background = Background(make)

    @property
    def name(self) -> str:
        """Its name."""
        return self._background.thing.name

    @property
    def call_timeout(self) -> float:
        """The longest that one call may take, in seconds."""
        return self._background.thing.call_timeout

    @property
    def waiting(self) -> int:
        """Calls of this process that wait."""
        return self._background.thing.waiting

    @property
    def running(self) -> int:
        """Calls of this process that have left and not ended."""
        return self._background.thing.running

    def call(
        self, costs: Mapping[str, int] | None = None, *, key: str = DEFAULT_KEY, timeout: float | None = DEFAULT_TIMEOUT
    ) -> BlockingCall:
        """One call, made inside a `with` block; otherwise as `Downstream.call`."""
        from paceline.downstream._blocking_call import BlockingCall  # made from what is here

        async def made(downstream: Downstream) -> Call:
            return downstream.call(costs, key=key, timeout=timeout)

        return BlockingCall(self._background, self._run(made))

    def close(self) -> None:
        """Frees the permits of calls that were answered, settles what they cost, and closes the connections."""
        self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Callable[[Downstream], Coroutine[Any, Any, R]]) -> R:
        return self._background.run(call)


def check_blocking(downstream: Any, who: str) -> None:
    """Checks the downstream of a client that blocks.

    Raises:
        ConfigurationError: it is no `BlockingDownstream`.
    """
    if not isinstance(downstream, BackgroundDownstream):
        raise ConfigurationError("downstream", f"{who} blocks; give a BlockingDownstream, not {downstream!r}")


class BackgroundCall:
    """A call that is made on the event loop of its downstream. It is entered once."""

    def __init__(self, background: Background[Downstream], call: Call) -> None:
        self._background = background
        self._call = call

    def __enter__(self) -> Self:
        self._run(lambda call: call.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(lambda call: call.leave(error))

    def _run(self, work: Callable[[Call], Coroutine[Any, Any, R]]) -> R:
        return self._background.run(lambda _: work(self._call))

    def _run_at_once(self, work: Callable[[Call], R]) -> R:
        async def run(_: Downstream) -> R:
            return work(self._call)

        return self._background.run(run)
