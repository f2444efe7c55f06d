"""The ports of admission: a store of states, a registry of plans, an observer.

Promises every `LimitStore` makes, checked by `tests/contracts/limit_store.py`:

- A chain is one atomic decision; a denial changes nothing anywhere. Decisions equal `chain.rule_on` exactly.
- Time is the store's own unless `now_us` is given (tests give it; then the store's own clock must not interfere).
- A state is kept at least for its life (`algorithms.life_us`) and expires by itself some time after.
- The state of (plan, key) is shared by all limiters with a plan of that name, whatever its spec.
- The only error that means "retry later" is `StoreUnavailable`. A call that raised it may or may not have counted;
  the store never retries by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from paceline.limits.model import Charge, Decision, Plan


class Hold(NamedTuple):
    """A reservation to record, beside a key of its chain, for `ttl_us` microseconds.

    With `places`, only the chain's concurrency limits are held; the others are charged.
    """

    id: str
    ttl_us: int
    places: bool = False


class Settlement(StrEnum):
    """The result of a call to `settle`."""

    APPLIED = "APPLIED"
    REPEATED = "REPEATED"
    """It had been settled before; nothing changed."""
    UNKNOWN = "UNKNOWN"
    """No such hold, or it has expired; nothing changed."""


class LimitStore(Protocol):
    """Keeps states and decides on them."""

    def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision:
        """Decides `chain`; without `spend` it charges nothing.

        With a `hold`, an allowed chain is recorded under its id and the chain's keys and plans (`holds.hold_name`),
        with the cost of each charge. While it is recorded, open or settled but not cancelled, deciding it again charges
        nothing: the decision is allowed and shows the present state. A cancelled one is decided as if it were new.
        """
        ...

    def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]:
        """`decide` for each chain, in one round trip. The chains are independent: a denial of one denies no other.
        Chains on the same key are decided in their order."""
        ...

    def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None:
        """Gives every charge's cost back to its plan as of now; never more than is spent there."""
        ...

    def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement:
        """Corrects a held chain from its held costs to `actual`, once: one cost for every charge, or one each in the
        order of `chain`, whose own costs are unused. All 0: cancelled.

        Less than held is given back as far as it still counts; more is taken in any case, up to the limit
        (`holds.settled`).
        """
        ...

    def renew(self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None) -> Settlement:
        """Renews held places as of now, and keeps the hold for `ttl_us`. `chain` has concurrency limits only.

        `UNKNOWN`, and nothing changes, if the hold is unknown, or settled. `UNKNOWN`, and the hold is cancelled, if a
        place has expired and there is no room for it (`holds.renew_hold`).
        """
        ...

    def reset(self, chain: Sequence[Charge]) -> None:
        """Makes every (plan, key) of `chain` as new."""
        ...

    def close(self) -> None:
        """Closes the store's connections. Closing twice is fine."""
        ...


class AsyncLimitStore(Protocol):
    """`LimitStore` for event loops: the same promises, awaited."""

    async def decide(
        self, chain: Sequence[Charge], *, spend: bool = True, hold: Hold | None = None, now_us: int | None = None
    ) -> Decision: ...

    async def decide_many(self, chains: Sequence[Sequence[Charge]], *, now_us: int | None = None) -> list[Decision]: ...

    async def refund(self, chain: Sequence[Charge], *, now_us: int | None = None) -> None: ...

    async def settle(
        self, hold_id: str, chain: Sequence[Charge], actual: int | Sequence[int], *, now_us: int | None = None
    ) -> Settlement: ...

    async def renew(
        self, hold_id: str, chain: Sequence[Charge], ttl_us: int, *, now_us: int | None = None
    ) -> Settlement: ...

    async def reset(self, chain: Sequence[Charge]) -> None: ...

    async def close(self) -> None: ...


class PlanRegistry(Protocol):
    """A source of plans: code, a file, a database."""

    @property
    def refresh_every(self) -> float | None:
        """Seconds after which a limiter loads again; `None`: never."""
        ...

    def load(self) -> Mapping[str, Plan] | None:
        """All plans by name. A registry that serves one limiter alone may return `None` if nothing changed since the
        last `load`; one that limiters share must return all plans to each."""
        ...


class AsyncPlanRegistry(Protocol):
    """`PlanRegistry` for event loops."""

    @property
    def refresh_every(self) -> float | None: ...

    async def load(self) -> Mapping[str, Plan] | None: ...


class PlanEditor(Protocol):
    """Changes plans at run time; limiters see a change when they next load."""

    async def all(self) -> Mapping[str, Plan]:
        """All plans by name."""
        ...

    async def put(self, plan: Plan) -> None:
        """Adds a plan, or replaces the one of the same name."""
        ...

    async def delete(self, name: str) -> None:
        """Removes a plan; `NotFound` if there is none of this name."""
        ...


class AdmissionObserver(Protocol):
    """Receives events of a limiter. Must be fast and must not raise."""

    def decided(self, decision: Decision) -> None:
        """A decision was made, by the store, by a lease or by a failure policy."""
        ...

    def store_called(self, operation: str, seconds: float, failed: bool) -> None:
        """A call to the store succeeded, or failed, after `seconds`."""
        ...

    def breaker_moved(self, state: str) -> None:
        """The circuit breaker is now `closed`, `open` or `half_open`."""
        ...

    def leased(self, plan: str, tokens: int) -> None:
        """A lease of `tokens` was taken from the store."""
        ...
