"""The ports of calls to another system: its permits, its breaker, and the observer of its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple, Protocol

from paceline.downstream.permits import Grant, PermitPolicy
from paceline.downstream.state import Reading, State
from paceline.errors import PacelineError


class Permit(Protocol):
    """The right to make one call to the downstream."""

    async def confirm(self) -> None:
        """To be awaited right before the request is sent: returns when the call may leave. If connecting has taken so
        long that the permit is too old, it is exchanged first."""
        ...

    def left(self) -> None:
        """The request was sent."""
        ...

    def release(self) -> None:
        """The call was answered. One that was sent and not answered keeps its permit until it can no longer arrive."""
        ...

    def give_back(self) -> None:
        """No call was made."""
        ...


class RateGate(Protocol):
    """Keeps the rate of calls to the downstream."""

    async def acquire(self) -> Permit:
        """Returns shortly before one more call may be made; `Permit.confirm` returns when it may."""
        ...


class PermitStore(Protocol):
    """The permits that all processes share; `downstream.permits` is what it decides by."""

    policy: PermitPolicy
    """By which later permits are taken. It may be replaced at any time."""

    async def take(self, holder: str, hold: float) -> Grant:
        """Grants a permit until `hold` seconds after the call leaves, or returns how long to wait. A holder that has
        one exchanges it. `StoreUnavailable` if the store does not answer."""
        ...

    async def free(self, holder: str, at_us: int) -> None:
        """The holder's permit is free at a time, in microseconds of the store's clock, if that is sooner than it would
        be; 0 is at once. The time applies however late the store receives it."""
        ...

    async def close(self) -> None:
        """Frees what it holds."""
        ...


class StateStore(Protocol):
    """The state of a downstream that all processes share."""

    async def read(self) -> Reading:
        """The state, and the store's clock.

        Raises:
            StoreError: It can't be read.
        """
        ...

    async def change(self, decide: Callable[[State, int], State]) -> Reading:
        """Replaces the state by what `decide` makes of it and of the store's clock, in one step. `decide` may be called
        again if another process was quicker. Nothing is written if it returns what it was given.

        Raises:
            StoreError: It can't be changed.
        """
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...


class DownstreamDirectory(Protocol):
    """All downstreams of a store."""

    async def read_all(self) -> Mapping[str, Reading]:
        """Their states by name. Raises `StoreError`."""
        ...

    def of(self, name: str) -> StateStore:
        """The state of one, on this directory's connections."""
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...


class BreakerStatus(NamedTuple):
    """An open breaker."""

    reason: str
    since: datetime
    pause: float
    """Seconds between the last two probes."""
    probe_in: float
    """Seconds until the next probe."""


class BreakerOpen(PacelineError):
    """The downstream's breaker is open."""


class BreakerStore(Protocol):
    """The breaker's state, shared by all processes. Time is the store's own clock."""

    async def read(self) -> BreakerStatus | None:
        """The state; None if closed."""
        ...

    async def open(self, reason: str, pause: float) -> None:
        """Opens it, or keeps it open, until a probe in `pause` seconds."""
        ...

    async def claim_probe(self, hold: float) -> bool:
        """True for one caller if a probe is due. If it reports no result, the next is due after the same pause, and not
        within `hold` seconds."""
        ...

    async def close(self) -> None:
        """Closes it."""
        ...


class DownstreamObserver(Protocol):
    """Observes calls to the downstream, for metrics. Called on the event loop: must be quick and must not raise."""

    def called(self, operation: str, outcome: str, seconds: float) -> None:
        """A call ended. `operation` is its purpose, such as `pay`; `outcome` is the status, or the kind of failure."""
        ...

    def waited(self, seconds: float) -> None:
        """A call was admitted after `seconds`."""
        ...

    def settled(self, verdict: str) -> None:
        """An execution ended: EXECUTED, PENDING, REJECTED, UNKNOWN or POSTPONED."""
        ...

    def breaker_moved(self, is_open: bool) -> None:
        """The state of the breaker, as this process last saw it."""
        ...


class NullDownstreamObserver:
    """Observes nothing."""

    def called(self, operation: str, outcome: str, seconds: float) -> None: ...

    def waited(self, seconds: float) -> None: ...

    def settled(self, verdict: str) -> None: ...

    def breaker_moved(self, is_open: bool) -> None: ...
