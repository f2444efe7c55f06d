"""The plans of Envoy's rules beside those of the database, for one limiter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from paceline.limits.model import Plan
from paceline.server.envoy.config_file import EnvoyConfig
from paceline.server.envoy.descriptors import DescriptorRules, Match, RuleNode

MAX_OVERRIDES = 1000
"""How many limits of descriptors are kept; the oldest is evicted first."""


class StoredPlans(Protocol):
    """The plans that operators change at run time."""

    async def load(self) -> Mapping[str, Plan]: ...


class EnvoyPlans:
    """An `AsyncPlanRegistry`: the plans of a config file, of descriptors with a limit of their own, and stored ones.

    A stored plan wins over a rule's plan of the same name.
    """

    refresh_every = None

    def __init__(self, stored: StoredPlans, config: EnvoyConfig | None) -> None:
        self.rules = DescriptorRules()
        self.config = config
        self._stored = stored
        self._overrides: dict[str, Plan] = {}
        self._sources: tuple[Mapping[str, Plan], list[RuleNode], tuple[str, ...]] | None = None
        self._plans: Mapping[str, Plan] = {}

    async def load(self) -> Mapping[str, Plan]:
        """All plans by name. The rules and the plans change together.

        Raises:
            ConfigurationError: the config file can't be used, and no rules were ever read.
        """
        stored = await self._stored.load()
        domains = [] if self.config is None else await asyncio.to_thread(self.config.load)
        sources = stored, domains, tuple(self._overrides)
        before = self._sources
        if before is None or before[0] is not stored or before[1] is not domains or before[2] != sources[2]:
            self.rules = DescriptorRules(domains, stored)
            self._plans = {**self.rules.plans(), **self._overrides, **stored}
            self._sources = sources
        return self._plans

    def add_override(self, match: Match) -> bool:
        """Adds the plan of a descriptor's own limit; false if there is nothing to add. In force after the next load."""
        plan = match.limit.plan(match.plan)
        if plan is None or match.plan in self._overrides:
            return False
        if len(self._overrides) >= MAX_OVERRIDES:
            del self._overrides[next(iter(self._overrides))]
        self._overrides[match.plan] = plan
        return True
