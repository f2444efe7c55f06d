"""What both limiters have: plans in force, a store with its failure policies, short ways to the commonest decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headgate.circuit_breaker import BreakerPolicy
from headgate.clock import Clock, SystemClock
from headgate.errors import ConfigurationError
from headgate.limits.fast_path import ShortWay, short_ways
from headgate.limits.local_lease import Purses
from headgate.limits.model import OnError, Plan, Rule
from headgate.limits.observing import QuietObserver
from headgate.limits.plan_book import PlanBook
from headgate.limits.ports import AdmissionObserver
from headgate.limits.store_health import Outage


class PlansInForce:
    """The plans a limiter decides by, and how it fares with its store."""

    def __init__(
        self,
        on_error: OnError | str,
        breaker: BreakerPolicy | None,
        purses: Purses | None,
        observer: AdmissionObserver | None,
        clock: Clock | None,
    ) -> None:
        self._clock = clock or SystemClock()
        observer = None if observer is None else QuietObserver(observer)
        self._outage = Outage(on_error, breaker, observer, self._clock)
        self._observer = observer
        self._purses = purses
        self._store: Any = None
        self._fallback: Any = None
        self._local = False
        """Whether the store is in this process, where no call can fail to be answered."""
        self._book = PlanBook()
        self.at_once: dict[str, ShortWay] = {}
        """By plan, decides one unit for a key in this process, without waiting for a store; `None` where the long way
        must be gone, and nothing is charged. Another mapping takes its place when plans change."""
        self._registry: Any = None
        self._loaded: Mapping[str, Plan] | None = None
        """What the registry said last."""
        self._refresh_at_us: int | None = None

    @property
    def plans(self) -> dict[str, Plan]:
        """The plans in force."""
        return dict(self._book.plans)

    def require(self, plans: Iterable[str]) -> None:
        """Refuses names no plan has, with a `ConfigurationError`, for whoever is set up to ask by them later.

        Plans that come from a registry, or were not given yet, may still come: then every name is good.
        """
        if self._registry is None and (known := self._book.plans):
            for name in plans:
                if name not in known:
                    raise ConfigurationError("plans", f"there is no plan {name!r}; the limiter has {', '.join(known)}")

    def rule(self, plan: str, key: str) -> Rule:
        """What holds for `key` under `plan` just now; `NotFound` if there is no such plan."""
        return self._book.rule(plan, key)

    @property
    def in_process(self) -> bool:
        """Whether the store is in this process's memory, so that deciding never waits for anything."""
        return self._local

    @property
    def shadow_denials(self) -> dict[str, int]:
        """How often each shadow plan would have denied."""
        return dict(self._outage.shadow_denials)

    @property
    def breaker_state(self) -> str:
        """`closed`, `open` or `half_open`."""
        return self._outage.breaker_state

    def replace_plans(self, plans: Iterable[Plan]) -> None:
        """Puts other plans in force, all at once, for this limiter."""
        gone = self._book.replace(plans)
        due_us = None if self._registry is None else lambda: self._refresh_at_us
        self.at_once = short_ways(self._book, self._store, self._purses, self._clock, self._observer, due_us)
        for store in (self._store, self._fallback) if gone else ():
            if getattr(store, "in_process", False):
                store.forget(gone)  # elsewhere states go when they expire: other processes may have the plan

    def _take(self, plans: Mapping[str, Plan] | None) -> None:
        """Puts what the registry says in force, if that is news."""
        if plans is not None and plans != self._loaded:
            self.replace_plans(plans.values())
            self._loaded = dict(plans)

    @staticmethod
    def _check_store(option: str, store: Any) -> None:
        """Refuses what is neither a URL nor a store before anybody asks it."""
        if not isinstance(store, str) and not callable(getattr(store, "decide", None)):
            raise ConfigurationError(
                option,
                f"{store!r} is no limit store; give a URL, such as redis://localhost, or a LimitStore",
            )

    def _decide_on(self, store: Any) -> None:
        self._store = store
        self._local = getattr(store, "in_process", False)

    def _plan_refresh(self) -> None:
        """Notes when the registry is to be asked again."""
        every = self._registry.refresh_every
        self._refresh_at_us = None if every is None else self._clock.monotonic_us() + round(every * 1_000_000)
