"""The five-step dispatch cycle: config, recovery, claim, starts, record.

Each step leaves the queue in a state from which the next cycle, in any process, can continue: a process may die between
any two of them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from typing import NamedTuple

from paceline import tracing
from paceline.clock import uptime
from paceline.dispatch import events
from paceline.dispatch.config import DispatchConfig, OnUnknown
from paceline.dispatch.decisions import (
    after_hold,
    after_silence,
    after_start,
    held,
    newer_context,
    start_delay,
    unrunnable,
)
from paceline.dispatch.encryption import InvalidCiphertext, shown_key
from paceline.dispatch.model import (
    CONTEXT_VERSION,
    Action,
    Batch,
    BatchSummary,
    Change,
    Claim,
    ClaimedItem,
    Outlook,
    SilentClaim,
    read_json,
)
from paceline.dispatch.ports import (
    DispatchObserver,
    Execution,
    ExecutionState,
    NullObserver,
    QueueStore,
    Start,
    StartOutcome,
    StartRequest,
    WorkflowEngine,
)
from paceline.dispatch.status import Status
from paceline.dispatch.worker.heartbeats import SILENT, SUSPECTED
from paceline.dispatch.worker.processes import has_ended
from paceline.errors import NotFound
from paceline.tracing import Attributes, Span

UNNOTICED = 0.05
"""How long a claim may be stale, unnoticed, as a part of the threshold."""


@dataclass(frozen=True, slots=True)
class CycleReport:
    """The result of one cycle."""

    item_type: str
    interval: float
    """Seconds until the next cycle, by the config just read."""
    batch_size: int
    enabled: bool = True
    recovered: int = 0
    """Stale claims that were released or dead-lettered."""
    claimed: int = 0
    started: int = 0
    failed: int = 0
    released: int = 0
    dead_lettered: int = 0
    more: bool = False
    """The batch was full, by its items or its bytes: there are probably more due items."""
    config: DispatchConfig | None = None
    """The item type's settings, if it is enabled."""
    crowded: bool = False
    """The engine has no room now."""
    sated: bool = False
    """The engine takes no more items before their time."""
    slow_down: bool = False
    """The engine refused starts: back off."""


class BegunCycle(NamedTuple):
    """A cycle whose items are started."""

    report: CycleReport
    record: Callable[[], Awaitable[None]]
    """Writes the outcomes of the starts. The next cycle may begin meanwhile."""


class DispatchCycle:
    """Drains a queue into an engine, one batch per cycle. Any number may run at once, on any number of machines."""

    def __init__(
        self,
        store: QueueStore,
        engine: WorkflowEngine,
        *,
        observer: DispatchObserver | None = None,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._engine = engine
        self._observer = observer or NullObserver()
        self._uniform = uniform
        self._recover_at: dict[str, float] = {}

    async def run(self, item_type: str, *, now: datetime | None = None) -> CycleReport:
        """One cycle.

        Raises:
            NotFound: there is no such item type.
            StoreError: the store failed; whatever was claimed by then is found by stale recovery.
        """
        begun = await self.begin(item_type, now=now)
        await begun.record()
        return begun.report

    async def look(
        self, item_types: Sequence[str], *, finds_due: bool = True, now: datetime | None = None
    ) -> dict[str, Outlook]:
        """By item type, if it has settings: what there is to do. Without `finds_due`, the claim must find out."""
        requested_at = uptime()
        found = await self._store.outlooks(item_types, finds_due=finds_due, now=now)
        return {one.config.item_type: one._replace(requested_at=requested_at) for one in found}

    def has_work(self, outlook: Outlook) -> bool:
        """Whether a cycle would do anything: a claim is stale, or an item is due and may be claimed."""
        config = outlook.config
        return outlook.needs_recovery or (config.enabled and outlook.is_due(self._look_ahead(config)))

    async def begin(self, item_type: str, *, outlook: Outlook | None = None, now: datetime | None = None) -> BegunCycle:
        """One cycle up to the starts; the caller writes its record. With an `outlook` of the last look it reads no
        settings, and recovers only if there is something to recover.

        Raises:
            NotFound: there is no such item type.
            StoreError: the store failed; whatever was claimed by then is found by stale recovery.
        """
        began, config_requested_at = time.monotonic(), uptime() if outlook is None else outlook.requested_at
        config = await self._store.config(item_type) if outlook is None else outlook.config
        if config is None:
            raise NotFound("item type", item_type)
        # Also while the kill switch is off: items in flight in a process that died must be recovered too.
        recovered = await self.recover(config, now=now) if outlook is None or outlook.needs_recovery else 0
        if not config.enabled:
            interval = float(config.dispatch_interval_secs)
            report = CycleReport(item_type, interval, config.batch_size, enabled=False, recovered=recovered)
            return BegunCycle(report, _nothing)
        limit = self._limit(config)
        batch = await self.claim(config, limit, now=now) if limit else None
        changes = await self.start(config, batch, config_requested_at) if batch else []
        counts = Counter([change.action for change in changes])
        claimed = len(batch.items) if batch else 0
        # Without the items: the engine holds them, and may end them before they are recorded.
        recorded = batch and batch._replace(items=[])

        async def record() -> None:
            if recorded is not None:
                await self.record(config, recorded, changes, now=now)
            self._observer.cycled(item_type, time.monotonic() - began)

        report = CycleReport(
            item_type,
            float(config.dispatch_interval_secs),
            config.batch_size,
            recovered=recovered,
            claimed=claimed,
            started=counts[Action.DISPATCHED],
            failed=counts[Action.START_FAILED],
            released=counts[Action.RELEASED],
            dead_lettered=counts[Action.DEAD_LETTERED],
            more=batch is not None and batch.is_cut,
            config=config,
            crowded=self._limit(config) == 0,
            sated=not self._engine.looks_ahead(item_type),
            slow_down=counts[Action.RELEASED] > 0,
        )
        return BegunCycle(report, record)

    # -- step 2 --------------------------------------------------------------------------------------------------

    async def recover(self, config: DispatchConfig, *, now: datetime | None = None) -> int:
        """Recovers claims without a heartbeat: a running execution's is kept, an ended one's outcome is recorded, one
        that the engine does not know is released. Skipped in quick succession, and for `UNNOTICED` of the threshold if
        there were none. Returns the number of released claims.
        """
        if now is None and time.monotonic() < self._recover_at.get(config.item_type, -inf):
            return 0
        silent = await self._store.stale(
            config.item_type, config.stale_after, config.max_stale_recovery_per_cycle, now=now
        )
        interval, threshold = float(config.dispatch_interval_secs), config.stale_after.total_seconds()
        pause = min(interval if silent else max(interval, threshold * UNNOTICED), threshold / 2)
        self._recover_at[config.item_type] = time.monotonic() + pause
        if not silent:
            return 0
        over = [after_hold(one.claim) for one in silent if one.status is Status.UNKNOWN]
        recovered = await self._write_recovery(config, over, config.stale_after, now)
        silent = [one for one in silent if one.status is not Status.UNKNOWN]
        return recovered + await self._recover(config, silent, config.stale_after, now)

    async def recover_abandoned(self, item_types: Collection[str], *, now: datetime | None = None) -> set[str]:
        """Recovers the claims of workers that died a moment ago: all, if their processes have certainly ended; if they
        are only silent, those whose executions never began, for a worker that wakes up can't begin them any more.
        Returns the types in question."""
        found = await self._store.abandoned(item_types, SUSPECTED, now=now)
        dead = [one for one in found if has_ended(one.process, one.machine)]
        late = [one for one in found if one.silent_for >= SILENT and not one.silent.has_begun and one not in dead]
        for claims, silent_for in ((dead, SUSPECTED), (late, SILENT)):
            for item_type in {one.silent.claim.item_type for one in claims}:
                config = await self._store.config(item_type)
                mine = [one.silent for one in claims if one.silent.claim.item_type == item_type]
                if config is not None:
                    await self._recover(config, mine, silent_for, now)
        return {one.silent.claim.item_type for one in (*dead, *late)}

    async def _recover(
        self, config: DispatchConfig, silent: Sequence[SilentClaim], silent_for: timedelta, now: datetime | None
    ) -> int:
        changes: list[Change] = []
        living: list[Claim] = []
        for one, state in zip(silent, await self._describe([one.claim for one in silent]), strict=True):
            change = after_silence(one, state, config)
            if change is not None:
                changes.append(change)
            else:
                # Given a heartbeat, so that live claims don't use up the next cycle's share of recovery.
                living.append(one.claim)
        if living:
            await self._store.touch(living, now=now)
        return await self._write_recovery(config, changes, silent_for, now)

    async def _write_recovery(
        self, config: DispatchConfig, changes: Sequence[Change], silent_for: timedelta, now: datetime | None
    ) -> int:
        # Their owners may have sent a heartbeat since they were read.
        done = await self._store.settle(changes, silent_for=silent_for, now=now) if changes else []
        return self._report_recovery(config, [change for change, ok in zip(changes, done, strict=True) if ok])

    async def _describe(self, claims: Sequence[Claim]) -> list[ExecutionState]:
        if not claims:
            return []
        try:
            return await self._engine.describe(claims)
        except Exception as error:
            # An error of the engine in recovery must not stop the rest of the cycle.
            return [ExecutionState(Execution.UNKNOWN, str(error))] * len(claims)

    def _report_recovery(self, config: DispatchConfig, written: Sequence[Change]) -> int:
        dead = sum(change.status is Status.DEAD_LETTER for change in written)
        back = [change for change in written if change.action in (Action.STALE_RECOVERED, Action.DEAD_LETTERED)]
        completed = _count(written, Action.COMPLETED)
        failed = _count(written, Action.FAILED)
        events.log_trouble(written)
        if back:
            events.log_recovery(config.item_type, len(back))
            self._observer.recovered(config.item_type, len(back))
        if completed or failed:
            self._observer.finished(config.item_type, completed, failed)
        if dead:
            self._observer.dead_lettered(config.item_type, dead)
        return len(back)

    # -- steps 3 to 5 --------------------------------------------------------------------------------------------

    def _limit(self, config: DispatchConfig) -> int:
        room = self._engine.room(config)
        return config.batch_size if room is None else min(config.batch_size, room)

    def _look_ahead(self, config: DispatchConfig) -> timedelta:
        return config.look_ahead if self._engine.looks_ahead(config.item_type) else timedelta(0)

    async def claim(self, config: DispatchConfig, limit: int, *, now: datetime | None = None) -> Batch:
        """Claims due items, with their contexts."""
        claim_requested_at = uptime()
        look_ahead = self._look_ahead(config)
        with self._engine.reserved(config, limit) as at_once:
            limit = at_once or limit
            batch = await self._store.claim(
                config.item_type, limit, look_ahead, places=config.places, begins=at_once > 0, now=now
            )
        is_cut = batch.is_cut or len(batch.items) == limit
        if batch.items:
            self._observer.claimed(config.item_type, len(batch.items))
        return batch._replace(claim_requested_at=claim_requested_at, is_cut=is_cut)

    async def start(
        self, config: DispatchConfig, batch: Batch, config_requested_at: float | None = None
    ) -> list[Change]:
        """Starts the whole batch concurrently and returns the changes to record; an item with an unreadable context is
        handled alone."""
        requests: list[StartRequest] = []
        changes: list[Change] = []
        for item in await self._with_their_locks(batch.items):
            if item.context_version != CONTEXT_VERSION:
                change = newer_context(item, config, batch.batch_id)
                events.log_newer_context(change)
                changes.append(change)
                continue
            problem = _unreadable(item.context_json)
            if problem is not None or item.context_json is None:
                changes.append(unrunnable(item.claim, problem or "its context is missing", batch.batch_id))
                continue
            in_doubt = item.unknown_since is not None and config.on_unknown != OnUnknown.RETRY
            if in_doubt and not self._inquires(config):
                error = "an earlier attempt is in doubt, and nothing here can inquire"
                changes.append(held(item.claim, config, error, batch.batch_id))
                continue
            delay = start_delay(item, config, batch.claimed_at, self._uniform)
            requests.append(
                StartRequest(
                    item.claim,
                    config,
                    item.context_json,
                    delay,
                    item.traceparent,
                    batch.claim_requested_at,
                    item.lane,
                    item.priority,
                    item.has_begun,
                    in_doubt,
                    in_doubt and _is_hold_over(item, config, batch.claimed_at),
                    config_requested_at,
                )
            )
        if requests:
            if tracing.is_on():
                outcomes = await self._start_with_spans(batch, requests)
            else:
                outcomes = await self._start_all(requests)
            changes += [
                after_start(request.claim, outcome, config, batch.batch_id)
                for request, outcome in zip(requests, outcomes, strict=True)
            ]
        return changes

    async def _with_their_locks(self, items: list[ClaimedItem]) -> list[ClaimedItem]:
        """The items, but for those whose locks others hold: these wait in line now."""
        locked = [item.claim for item in items if item.claim.lock is not None]
        if not locked:
            return items
        taken = dict(zip(locked, await self._store.take_locks(locked), strict=True))
        return [item for item in items if taken.get(item.claim, True)]

    def _inquires(self, config: DispatchConfig) -> bool:
        return config.on_unknown == OnUnknown.INQUIRE and self._engine.inquires(config.item_type)

    async def _start_with_spans(self, batch: Batch, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        """`_start_all`, as a span for each item from its claim to its start. An item that was queued outside of any
        trace starts a new one."""
        spans = [_dispatch_span(batch, request) for request in requests]
        traced = [request._replace(traceparent=span.traceparent) for request, span in zip(requests, spans, strict=True)]
        outcomes = await self._start_all(traced)
        for span, outcome in zip(spans, outcomes, strict=True):
            good = outcome.start in (Start.STARTED, Start.ALREADY_STARTED)
            span.end({"paceline.outcome": outcome.start.value}, failed=None if good else outcome.start.value)
        return outcomes

    async def _start_all(self, requests: Sequence[StartRequest]) -> list[StartOutcome]:
        try:
            return await self._engine.start(requests)
        except Exception as error:
            # The engine as a whole failed, not an item. Some may have been started nevertheless; starts are idempotent.
            return [StartOutcome(Start.EXHAUSTED, f"{type(error).__name__}: {error}")] * len(requests)

    async def record(
        self, config: DispatchConfig, batch: Batch, changes: Sequence[Change], *, now: datetime | None = None
    ) -> None:
        """Writes the batch's changes, in bulk. A start whose outcome was written first has no effect, as intended."""
        if not changes:
            return
        counts = Counter([change.action for change in changes])
        detail = ", ".join(f"{count} {action}" for action, count in counts.items())
        done = await self._store.settle(
            changes, summary=BatchSummary(config.item_type, batch.batch_id, detail), now=now
        )
        events.log_batch(config.item_type, batch.batch_id, detail)
        started = counts[Action.DISPATCHED]
        if started:
            self._observer.started(config.item_type, started)
        if len(changes) > started:
            self._observer.start_failed(config.item_type, len(changes) - started)
            written = [change for change, ok in zip(changes, done, strict=True) if ok]
            events.log_trouble(written)
            dead = sum(change.status is Status.DEAD_LETTER for change in written)
            if dead:
                self._observer.dead_lettered(config.item_type, dead)


async def _nothing() -> None: ...


def _is_hold_over(item: ClaimedItem, config: DispatchConfig, now: datetime) -> bool:
    return item.unknown_since is not None and now - item.unknown_since >= timedelta(seconds=config.hold_for_secs)


def _dispatch_span(batch: Batch, request: StartRequest) -> Span:
    attributes: Attributes = {
        "paceline.item_type": request.claim.item_type,
        "paceline.item_id": request.claim.item_id,
        "paceline.attempt": request.claim.epoch,
        "paceline.batch_id": batch.batch_id,
        "paceline.batch_size": len(batch.items),
    }
    # The claim's time is the store's; it must not lie after its own end.
    claimed_ns = min(int(batch.claimed_at.timestamp() * 1_000_000) * 1000, time.time_ns())
    return tracing.begin("dispatch", attributes, parent=request.traceparent, kind="CONSUMER", at_ns=claimed_ns)


def _unreadable(context: str | None) -> str | None:
    """The error of a context; None if it can be read."""
    if context is None:
        return "its context is missing"
    if shown_key(context) is not None:
        return str(InvalidCiphertext())
    try:
        read_json(context)
    except (ValueError, RecursionError) as error:
        return f"its context is not JSON: {error}"
    return None


def _count(changes: Sequence[Change], action: Action) -> int:
    return sum(change.action is action for change in changes)
