"""Configs that follow a downstream: their limits are changed, and their slots re-planned, when what it takes changes.

All processes of the service look; for each downstream, the one that holds its lease decides. It changes a config only
in the version that it has read, so that a process whose lease has run out undoes nobody's change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from math import ceil

from paceline.downstream.directory import Downstreams, KnownDownstream
from paceline.errors import PacelineError, StaleVersion
from paceline.server.access.ports import AdminAudit
from paceline.slots import PolicyVersion, SlotScheduler
from paceline.slots.followed_rate import Sample, followed_limit, recent
from paceline.slots.replan.assignment import Direction

log = logging.getLogger(__name__)

METHOD = "FOLLOW"
MAX_PAUSE = 5.0
"""Seconds between two looks."""
LOOKS = 12
"""In the time after which a change counts as lasting."""
LEASED_LOOKS = 4
"""A process that misses so many loses its lease."""


class FollowedConfigs:
    """Lets configs follow their downstreams. `lasting` is how long a rate must have changed, in seconds."""

    def __init__(
        self,
        slots: SlotScheduler,
        downstreams: Downstreams,
        audit: AdminAudit,
        *,
        lasting: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._downstreams = downstreams
        self._audit = audit
        self._lasting_ms = round(lasting * 1000)
        self._monotonic = monotonic
        self._holder = os.urandom(8).hex()
        self._samples: dict[str, list[Sample]] = {}
        """Of the downstreams whose lease this process holds."""
        self.pause = min(lasting / LOOKS, MAX_PAUSE)
        """Seconds between two looks."""

    async def run(self) -> None:
        """Looks periodically, until it is cancelled."""
        while True:
            try:
                await self.look()
            except PacelineError as error:
                log.warning("configs that follow a downstream stay as they are: %s", error)
            await asyncio.sleep(self.pause)

    async def look(self) -> None:
        """Changes the configs whose downstream has taken another rate for long enough.

        Raises:
            PacelineError: something can't be read or changed; the next look tries again.
        """
        followers = await self._slots.configs(following=True)
        names = {version.policy.follow for version in followers}
        listed = (await self._downstreams.list()).known if names else []
        known = {each.name: each for each in listed if each.name in names}
        leased = [each for each in known.values() if await self._is_leased(each, followers)]
        self._samples = {each.name: self._samples_of(each) for each in leased}
        for version in followers:
            samples = self._samples.get(version.policy.follow or "", [])
            limit = followed_limit(version.policy, samples, self._now_ms(), self._lasting_ms)
            if limit is not None:
                await self._follow(version, limit, known)

    async def _is_leased(self, known: KnownDownstream, followers: Iterable[PolicyVersion]) -> bool:
        """Whether this process decides for a downstream. If another did before, its last re-plan may not have ended."""
        if not await self._downstreams.lease(known.name, self._holder, LEASED_LOOKS * self.pause):
            return False
        if known.name not in self._samples:
            for version in followers:
                if version.policy.follow == known.name and version.policy.full_max is not None:
                    await self._slots.replan(version.name, direction=Direction.SPREAD)
        return True

    def _samples_of(self, known: KnownDownstream) -> list[Sample]:
        now_ms, samples = self._now_ms(), self._samples.get(known.name, [])
        if known.proven is not None:
            samples = [*samples, Sample(now_ms, known.proven)]
        return recent(samples, now_ms, self._lasting_ms)

    async def _follow(self, version: PolicyVersion, limit: int, known: Mapping[str, KnownDownstream]) -> None:
        policy, name = version.policy, version.name
        downstream = known[policy.follow or ""]
        changes = {"max_per_window": limit, "full_max": policy.full_max or policy.max_per_window}
        number = await self._audit.begin(
            f"follow:{downstream.name}"[:64], METHOD, f"config {name}", os.urandom(12).hex()
        )
        try:
            await self._slots.change(name, changes, if_version=[version.version])
            direction = Direction.SPREAD if limit < policy.max_per_window else Direction.EARLIER
            plan = await self._slots.replan(name, direction=direction)
        except PacelineError as error:
            await self._audit.end(number, 412 if isinstance(error, StaleVersion) else 503, str(error))
            raise
        detail = {
            "maxPerWindow": limit,
            "before": policy.max_per_window,
            "effectiveRate": round(downstream.proven or 0.0, 3),
            "moved": plan.moved,
        }
        await self._audit.end(number, 200, json.dumps(detail))
        log.warning(
            "config %s follows downstream %s: at most %d per window instead of %d; %d slots were moved",
            name,
            downstream.name,
            limit,
            policy.max_per_window,
            plan.moved,
        )

    def _now_ms(self) -> int:
        return ceil(self._monotonic() * 1000)
