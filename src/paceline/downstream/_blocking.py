# Generated from downstream/downstream.py by scripts/generate_blocking.py. Do not edit.
"""`BlockingDownstream`: the same calls for threads, without an event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.circuit_breaker import BreakerPolicy
from paceline.downstream.adaptation import Aimd
from paceline.downstream.background_downstream import BackgroundDownstream
from paceline.downstream.downstream import Downstream, DownstreamStatus
from paceline.downstream.rate_gate import (
    LimitAt,
)
from paceline.downstream.signals import Signals
from paceline.limits.model import Spec


class BlockingDownstream(BackgroundDownstream):
    """A `Downstream` that any number of threads may call. A forked process opens its own connections.

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
        super().__init__(
            lambda: Downstream(
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

    def pause(self, reason: str = "by an operator") -> None:
        """Lets no call leave, from any process, within a second. Calls that have left go on. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.pause(reason))

    def resume(self) -> None:
        """Ends a pause, and forgets the pauses that the other side asked for. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.resume())

    def state(self) -> DownstreamStatus:
        """What is known of it now, by the store. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.state())

    def set_rate(self, rate: str | None) -> None:
        """Lowers the hard rate of all processes, within a second; None ends that.

        Raises:
            ConfigurationError: it is no rate, or above the one that the program has.
            StoreError: it can't be stored.
        """
        return self._run(lambda downstream: downstream.set_rate(rate))

    def learn(self, key: str, status: int, header: Callable[[str], str | None]) -> float:
        """Reads the limits that a response reports (`signals`): all processes pause for as long as it asks for. Returns
        the seconds; 0 if it asks for none. Raises `StoreError`.
        """
        return self._run(lambda downstream: downstream.learn(key, status, header))

    def hold_off(self, key: str, seconds: float) -> None:
        """Lets no call of `key` leave for so many seconds, from any process. Raises `StoreError`."""
        return self._run(lambda downstream: downstream.hold_off(key, seconds))
