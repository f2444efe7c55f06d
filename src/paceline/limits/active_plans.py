"""What both limiters have: the active plans, a store with its health, fast paths of the commonest decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from paceline.circuit_breaker import BreakerPolicy
from paceline.clock import Clock, SystemClock
from paceline.errors import ConfigurationError, InvalidInput, NotFound
from paceline.limits.fast_path import FastPath, decide_first, fast_paths, observed
from paceline.limits.keys import KeyStart
from paceline.limits.local_lease import LocalLeases
from paceline.limits.model import Decision, OnError, Plan, Reason, Rule
from paceline.limits.observing import QuietObserver
from paceline.limits.plan_book import PlanBook, Request
from paceline.limits.ports import AdmissionObserver
from paceline.limits.rates import is_rate
from paceline.limits.store_health import StoreHealth

NEVER_LOADED = -1
"""The time of the next refresh until a registry's plans are first loaded: long past."""


class ActivePlans:
    """The plans a limiter decides by, their fast paths, and the health of its store."""

    def __init__(
        self,
        on_error: OnError | str,
        breaker: BreakerPolicy | None,
        leases: LocalLeases | None,
        observer: AdmissionObserver | None,
        clock: Clock | None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._observer = None if observer is None else QuietObserver(observer)
        self._health = StoreHealth(on_error, breaker, self._observer, self._clock)
        self._leases = leases
        self._store: Any = None
        self._fallback: Any = None
        self._local = False
        """Whether the store is in this process, where no call can fail."""
        self._book = PlanBook(on_evict=self._forget)
        self.fast_paths: dict[str, FastPath] = {}
        """By plan: decides one unit for a key in this process, without waiting for a store. Returns `None`, and charges
        nothing, where the slow path must be taken. Replaced by another mapping when plans change."""
        self._bare_paths: dict[str, FastPath] = {}
        """The same, without the observer: a batch reports its decisions together."""
        self.holds_places = False
        """Whether some plan has a concurrency limit; also true until a registry's plans are first loaded."""
        self._registry: Any = None
        self._loaded: Mapping[str, Plan] | None = None
        """The plans the registry returned last."""
        self._refresh_at_us: int | None = None
        self._exempt_calls: Counter[str] = Counter()

    @classmethod
    def from_settings(cls, file: str | Path | None = None, **options: Any) -> Self:
        """A limiter as `paceline.toml` and `PACELINE_…` describe it: store, plans, failure policy, deadline, leases.

            limiter = Limiter.from_settings()

        `file` is read instead of the one that `PACELINE_SETTINGS_FILE` names, or of `paceline.toml` in the working
        directory, if there is one. Variables come before the file, and `options`, those of the class, before both.
        Plans are the file's table `plans`. A change of it is in force within `limits.plans_ttl_seconds`.

        Raises:
            ConfigurationError: the file can't be read, or a setting can't be used; names it as it was given.
        """
        # Imported here: most limiters are configured in code and need no file parser.
        from paceline.limits.settings_file import limiter_options

        return cls(**{**limiter_options(file), **options})

    @property
    def plans(self) -> dict[str, Plan]:
        """The plans in force."""
        return dict(self._book.plans)

    def require(self, plans: Iterable[str], keys: Sequence[Sequence[KeyStart]] = ()) -> None:
        """Checks limits when they are configured, before their first request.

        `plans` must exist, or be rate strings. If plans come from a registry, or none were given yet, every name is
        accepted. `keys` are decided together, each given by its possible prefixes: the store must support that.

        Raises:
            ConfigurationError: there is no plan of such a name, or the keys never share a slot of a Redis Cluster.
        """
        known = self._book.plans
        for name in plans:
            if isinstance(name, str) and name not in known and is_rate(name):
                self._require_rate(name)
            elif self._registry is None and known and name not in known:
                raise ConfigurationError("plans", f"there is no plan {name!r}; the limiter has {', '.join(known)}")
        check_chain = getattr(self._store, "check_chain", None)
        if check_chain is not None:
            check_chain(keys)

    def rule(self, plan: str, key: str) -> Rule:
        """The rule of `plan` for `key`, as of now; the first one, if the plan has several limits.

        Raises:
            NotFound: there is no such plan.
        """
        return self._book.rules_of(plan, key)[0]

    def rules(self, plan: str, key: str) -> tuple[Rule, ...]:
        """The rules of `plan` for `key`, as of now: one per limit of the plan.

        Raises:
            NotFound: there is no such plan.
        """
        return self._book.rules_of(plan, key)

    def _charged(self, key: str, plans: str | Sequence[str]) -> list[tuple[str, Rule]]:
        """The rules of a decision on `plans` for `key`; none if a plan was deleted after the decision."""
        names = (plans,) if isinstance(plans, str) else plans
        try:
            return [(key, rule) for name in names for rule in self.rules(name, key)]
        except NotFound:
            return []

    @property
    def store(self) -> Any:
        """Where it counts."""
        return self._store

    @property
    def in_process(self) -> bool:
        """Whether the store is in this process's memory, so that deciding never waits for anything."""
        return self._local

    @property
    def shadow_denials(self) -> dict[str, int]:
        """How often each shadow plan would have denied."""
        return dict(self._health.shadow_denials)

    @property
    def concurrency_plans(self) -> frozenset[str]:
        """The plans in force that have a concurrency limit, for all keys or by an override."""
        return self._book.concurrency_plans

    def concurrency_limits(self, key: str, plans: Iterable[str]) -> list[str]:
        """Those of `plans` that have a concurrency limit for `key`: calls need `hold`."""
        return self._book.concurrency_limits(key, plans)

    @property
    def exempt_calls(self) -> dict[str, int]:
        """How many calls were exempt from each plan."""
        return dict(self._exempt_calls)

    def record_exempt(self, plan: str) -> None:
        """Counts a call that is exempt from `plan`, and reports it to the observer."""
        self._exempt_calls[plan] += 1
        if self._observer is not None:
            self._observer.decided(Decision.of(True, 0, 0, 0, 0, plan, Reason.EXEMPT))

    @property
    def breaker_state(self) -> str:
        """`closed`, `open` or `half_open`."""
        return self._health.breaker_state

    def replace_plans(self, plans: Iterable[Plan]) -> None:
        """Replaces all plans of this limiter at once.

        Raises:
            ConfigurationError: one is not a `Plan`, or two have the same name.
        """
        removed = self._book.replace(plans)
        self.holds_places = bool(self._book.concurrency_plans)
        self._build_fast_paths()
        if removed:
            self._forget(removed)

    def _forget(self, rules: list[Rule]) -> None:
        """Drops the states of rules that were removed. In shared stores they expire: other processes may have them."""
        for store in (self._store, self._fallback):
            if getattr(store, "in_process", False):
                store.forget(rules)

    def _require_rate(self, rate: str) -> None:
        try:
            self._book.pin(rate)
        except InvalidInput as error:
            raise ConfigurationError("plans", error.problem) from None
        if rate not in self.fast_paths:
            self._build_fast_paths()

    def _build_fast_paths(self) -> None:
        due_us = None if self._registry is None else lambda: self._refresh_at_us
        self._bare_paths = fast_paths(self._book, self._store, self._leases, self._clock)
        self.fast_paths = observed(self._bare_paths, self._clock, self._observer, due_us)

    def _decide_first(self, requests: Sequence[Request]) -> list[Decision]:
        """The leading decisions of a batch that fast paths can make."""
        if not self._bare_paths:
            return []
        return self._health.observe_many(decide_first(self._bare_paths, requests))

    def _apply(self, plans: Mapping[str, Plan] | None) -> None:
        """Replaces the plans by those the registry returned, if they changed."""
        if plans is not None and plans != self._loaded:
            self.replace_plans(plans.values())
            self._loaded = dict(plans)
        if self._refresh_at_us == NEVER_LOADED:
            self._schedule_refresh()

    def _use_store(self, store: Any) -> None:
        self._store = store
        self._local = getattr(store, "in_process", False)

    def _schedule_refresh(self) -> None:
        """Sets the time of the next refresh."""
        every = self._registry.refresh_every
        self._refresh_at_us = None if every is None else self._clock.monotonic_us() + round(every * 1_000_000)
