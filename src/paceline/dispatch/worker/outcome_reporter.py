"""`OutcomeReporter`: engines report to it how executions ended; many outcomes share one transaction."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

from paceline.batching import Batcher
from paceline.clock import uptime
from paceline.dispatch import events
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import (
    after_failure,
    after_last_inquiry,
    after_success,
    after_unknown,
    gave_up,
    released,
)
from paceline.dispatch.model import Change, Claim, Completion, Progress, WritingRefused
from paceline.dispatch.ports import DispatchObserver, NullObserver, QueueStore
from paceline.dispatch.status import Status
from paceline.errors import NotFound, PacelineError, StoreError, StoreUnavailable

CACHE_SECONDS = 0.4
"""How long settings are cached; shorter if their own interval is."""
TRUSTED_SECONDS = 0.8
"""How long the kill switch's state is valid, from the request for it: one second after it is turned off nothing may
begin, also in a process that can't read it, or reads it slowly."""

LOG_SECONDS = 30.0
"""The shortest time between two log entries about a kill switch that can't be read."""


class _CachedConfig(NamedTuple):
    """Settings, and when they were loaded."""

    config: DispatchConfig
    loaded_at: float
    fresh_until: float


class OutcomeReporter:
    """The `OutcomeSink` of a queue. All engines of a process share one."""

    def __init__(
        self,
        store: QueueStore,
        *,
        observer: DispatchObserver | None = None,
        max_batch: int = 1000,
        clock: Callable[[], float] = uptime,
    ) -> None:
        self._store = store
        self._observer = observer or NullObserver()
        self._clock = clock
        self._batcher: Batcher[Change, bool] = Batcher(self._flush, max_batch=max_batch)
        self._progress: Batcher[tuple[Claim, Progress], bool] = Batcher(store.record_progress, max_batch=max_batch)
        self._begins: Batcher[Claim, bool] = Batcher(self._begin, max_batch=max_batch)
        self._cached: dict[str, _CachedConfig] = {}
        self._loading: dict[str, asyncio.Task[DispatchConfig]] = {}
        self._unread_logged: dict[str, float] = {}
        self._failing = 0
        self._none_failing = asyncio.Event()

    async def completed(self, claim: Claim, completion: Completion | None = None) -> bool:
        if completion is None:
            return await self._batcher.submit(after_success(claim))
        result, detail, writings = completion
        return await self._batcher.submit(after_success(claim, detail, result)._replace(writings=writings))

    async def failed(
        self, claim: Claim, error: str, pause: timedelta | None = None, traceback: str | None = None
    ) -> bool:
        return await self._with_config(claim, lambda config: after_failure(claim, config, error, pause, traceback))

    async def unknown(
        self,
        claim: Claim,
        error: str,
        pause: timedelta | None = None,
        traceback: str | None = None,
        *,
        is_over: bool = False,
    ) -> bool:
        if is_over:
            return await self._batcher.submit(after_last_inquiry(claim, error))
        return await self._with_config(claim, lambda config: after_unknown(claim, config, error, pause, traceback))

    async def lost(self, claim: Claim, error: str) -> bool:
        found = await self._store.find(claim.item_type, claim.item_id)
        if found is None:
            return False
        if found[0].begun_at is None:
            return await self.released(claim, f"{error}; it had not begun")
        return await self.unknown(claim, error)

    async def decided(self, claim: Claim) -> bool:
        return await self._store.decided(claim)

    async def _with_config(self, claim: Claim, decide: Callable[[DispatchConfig], Change]) -> bool:
        self._failing += 1
        try:
            return await self._batcher.submit(decide(await self.config(claim.item_type)))
        finally:
            self._failing -= 1
            if not self._failing:
                self._none_failing.set()

    async def gave_up(self, claim: Claim, reason: str, verdict: str | None, traceback: str | None = None) -> bool:
        return await self._batcher.submit(gave_up(claim, reason, verdict, traceback))

    async def released(self, claim: Claim, reason: str, pause: timedelta | None = None) -> bool:
        if pause is not None:
            # Claims look ahead, so the pause is longer by that much.
            pause += (await self.config(claim.item_type)).look_ahead
        return await self._batcher.submit(released(claim, reason, pause=pause))

    async def progress(self, claim: Claim, progress: Progress) -> bool:
        return await self._progress.submit((claim, progress))

    def executed(self, item_type: str, seconds: float) -> None:
        self._observer.executed(item_type, seconds)

    async def alive(self, claims: Sequence[Claim]) -> list[bool]:
        return await self._store.touch(claims)

    async def begins(self, claim: Claim) -> bool:
        return await self._begins.submit(claim)

    async def _begin(self, claims: Sequence[Claim]) -> list[bool]:
        return await self._store.touch(claims, begins=True)

    async def holds(self, claims: Sequence[Claim]) -> list[bool]:
        return await self._store.holds(claims)

    async def enabled(self, item_type: str) -> bool:
        cached = self._cached.get(item_type)
        if cached is not None and self._clock() < cached.fresh_until:
            return cached.config.enabled
        failure: StoreError = StoreUnavailable(
            f"the store took more than {TRUSTED_SECONDS:g} s to read the kill switch, which may have been thrown since"
        )
        try:
            await self.config(item_type)
        except StoreError as error:
            failure = error
        # Also after a load: the store was slow, or this process was frozen before it read the response.
        if (config := self._trusted(item_type)) is None:
            self._report_unread(item_type, failure)
            raise failure
        return config.enabled

    def _report_unread(self, item_type: str, error: StoreError) -> None:
        self._observer.switch_unread(item_type)
        now, logged_at = self._clock(), self._unread_logged.get(item_type)
        if logged_at is None or now - logged_at >= LOG_SECONDS:
            self._unread_logged[item_type] = now
            events.log_switch_unread(item_type, error)

    def was_on(self, item_type: str) -> bool:
        config = self._trusted(item_type)
        return config is not None and config.enabled

    def _trusted(self, item_type: str) -> DispatchConfig | None:
        """The settings, if they were requested so recently that the kill switch is valid."""
        cached = self._cached.get(item_type)
        if cached is None or self._clock() - cached.loaded_at >= TRUSTED_SECONDS:
            return None
        return cached.config

    async def config(self, item_type: str) -> DispatchConfig:
        """The item type's settings, at most half an interval or a second old."""
        cached = self._cached.get(item_type)
        if cached is not None and self._clock() < cached.fresh_until:
            return cached.config
        # Coalesced: else every waiting execution would load them when they expire.
        loading = self._loading.get(item_type)
        if loading is None:
            loading = self._loading[item_type] = asyncio.create_task(self._load(item_type))
        return await asyncio.shield(loading)

    async def _load(self, item_type: str) -> DispatchConfig:
        loaded_at = self._clock()
        try:
            config = await self._store.config(item_type)
            if config is None:
                raise NotFound("item type", item_type)
            self._keep(config, loaded_at)
            return config
        finally:
            del self._loading[item_type]

    def learn(self, config: DispatchConfig, requested_at: float) -> None:
        self._keep(config, self._clock() - (uptime() - requested_at))

    def _keep(self, config: DispatchConfig, loaded_at: float) -> None:
        """Caches settings, unless newer ones are cached."""
        cached = self._cached.get(config.item_type)
        if cached is None or loaded_at >= cached.loaded_at:
            lifetime = min(CACHE_SECONDS, config.dispatch_interval_secs / 2)
            self._cached[config.item_type] = _CachedConfig(config, loaded_at, loaded_at + lifetime)

    async def close(self) -> None:
        """Returns when all outcomes reported so far are committed."""
        while self._failing:
            # A failure may still wait for the settings, and is not submitted yet.
            self._none_failing.clear()
            await self._none_failing.wait()
        await self._progress.close()
        await self._batcher.close()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)

    async def _flush(self, changes: Sequence[Change]) -> Sequence[bool | Exception]:
        try:
            return await self._settle(changes)
        except WritingRefused:
            if len(changes) == 1:
                raise
        return [await self._alone(change) for change in changes]

    async def _alone(self, change: Change) -> bool | Exception:
        try:
            (done,) = await self._settle([change])
        except PacelineError as error:  # raised to its own caller
            return error
        return done

    async def _settle(self, changes: Sequence[Change]) -> list[bool]:
        done = await self._store.settle(changes)
        written = [change for change, ok in zip(changes, done, strict=True) if ok]
        for item_type, items in Counter(change.claim.item_type for change in written).items():
            mine = [change for change in written if change.claim.item_type == item_type]
            completed = sum(change.status is Status.COMPLETED for change in mine)
            failed = sum(Status.FAILED in change.path for change in mine)
            dead = sum(change.status is Status.DEAD_LETTER for change in mine)
            if items:
                self._observer.finished(item_type, completed, failed)
            if failed or dead or any(change.in_doubt for change in mine):
                events.log_trouble(mine)
            if dead:
                self._observer.dead_lettered(item_type, dead)
        return done
