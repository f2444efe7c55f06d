"""The dispatch queue in this process's memory: a real store, and the model the SQL stores are tested against."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from paceline.clock import Clock, SystemClock
from paceline.dispatch.changes import ChangeResult, ItemChange, Preview, checked_redirection, redirected
from paceline.dispatch.config import DispatchConfig, declared
from paceline.dispatch.decisions import batch_name, within_bytes
from paceline.dispatch.model import (
    CLAIM_BYTES,
    IN_LINE_UNTIL,
    MOST_ABANDONED,
    AbandonedClaim,
    Action,
    Attempt,
    AuditEntry,
    Batch,
    BatchCounts,
    BatchSummary,
    Change,
    Claim,
    ClaimedItem,
    EnqueueRequest,
    EnqueueResult,
    Item,
    ItemMove,
    ItemReport,
    Outlook,
    Progress,
    PruneResult,
    QueueHistory,
    QueueStats,
    SilentClaim,
    waiting_id,
)
from paceline.dispatch.portions import callback_of, is_batch, is_group
from paceline.dispatch.ports import Follower
from paceline.dispatch.search import BY_ID, ErrorGroup, ItemFilter, ItemOrder, LaneDepth, grouped, lane_depths
from paceline.dispatch.status import FINISHED, IN_FLIGHT, Status
from paceline.dispatch.stores.writings import write_together
from paceline.dispatch.turns import UNLIMITED, Places, in_turns, rotated
from paceline.dispatch.worker.heartbeats import LOCAL, Worker, code_version, of_type
from paceline.dispatch.worker.processes import process_name
from paceline.durations import EPOCH
from paceline.errors import Conflict, InvalidInput, NotFound
from tests.models.lock_lines import LockLines
from tests.models.periodic_store import MemoryPeriodicStore
from tests.models.queue_items import new_item
from tests.models.queue_looks import history_of, stats_of
from tests.models.worker_store import MemoryWorkerStore

Key = tuple[str, str]
COUNTED = {Status.COMPLETED: "succeeded", Status.DEAD_LETTER: "failed", Status.CANCELLED: "cancelled"}


class MemoryQueueStore:
    """A `QueueStore` in the memory of the process. Single-threaded: everything happens between two awaits."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.followers: dict[str, Follower] = {}
        self.workers = MemoryWorkerStore(self._now)
        self.periodic = MemoryPeriodicStore(self)
        self._clock = clock or SystemClock()
        self._configs: dict[str, DispatchConfig] = {}
        self._batches: dict[Key, BatchCounts] = {}
        self._said: dict[str, dict[str, Any]] = {}
        self._items: dict[Key, Item] = {}
        self._contexts: dict[Key, str] = {}
        self._progress: dict[Key, tuple[int, Progress]] = {}
        self._results: dict[Key, str] = {}
        self._attempts: dict[Key, list[Attempt]] = defaultdict(list)
        self._ready: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
        self._audit: list[AuditEntry] = []
        self._audit_ids = itertools.count(1)
        self._served: dict[str, str] = {}
        self._bells: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._locks = LockLines(self._items, self._configs)

    # -- dispatching ---------------------------------------------------------------------------------------------

    async def config(self, item_type: str) -> DispatchConfig | None:
        return self._configs.get(item_type)

    async def outlooks(
        self, item_types: Sequence[str], *, finds_due: bool = True, now: datetime | None = None
    ) -> list[Outlook]:
        configs = [await self.config(item_type) for item_type in item_types]
        found = [self._outlook(config, self._now(now)) for config in configs if config is not None]
        return found if finds_due else [outlook._replace(next_due=outlook.moment) for outlook in found]

    def _outlook(self, config: DispatchConfig, now: datetime) -> Outlook:
        items = [item for item in self._items.values() if item.item_type == config.item_type]
        next_due = min((item.due_at for item in items if item.status is Status.READY), default=None)
        silent = min((item.seen_at or EPOCH for item in items if item.status in IN_FLIGHT), default=None)
        held = min((item.due_at for item in items if item.status is Status.UNKNOWN), default=None)
        return Outlook(config, now, next_due, silent, held)

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, within: Any = None, now: datetime | None = None
    ) -> list[EnqueueResult]:
        if within is not None:
            raise InvalidInput("connection", "a queue in memory can't join a database transaction")
        now = self._now(now)
        results = []
        for request in requests:
            if request.while_waiting:
                request = self._chosen(request)
            key = request.item_type, request.item_id
            existing = key in self._items
            if not existing:
                execute_at = request.execute_at or now
                self._contexts[key] = request.context_json
                self._put(new_item(request, execute_at, max(execute_at, now), now))
            results.append(EnqueueResult(*key, existing))
        for item_type in {request.item_type for request in requests}:
            self._bells[item_type].set()
        return results

    def _chosen(self, request: EnqueueRequest) -> EnqueueRequest:
        """Of the items of the request's key, the one that waits; else a new one."""
        mine = [
            item
            for item in self._items.values()
            if item.item_type == request.item_type and item.item_id.partition("#")[0] == request.item_id
        ]
        waiting = [item.item_id for item in mine if item.status is Status.READY]
        free = request.item_id if request[:2] not in self._items else waiting_id(request.item_id)
        return request._replace(item_id=waiting[0] if waiting else free)

    async def enqueue_group(
        self, head: EnqueueRequest, members: Sequence[EnqueueRequest], *, total: int = 0, within: Any = None
    ) -> list[EnqueueResult]:
        for (_, item_id), item in self._items.items():
            mark = item.init_workflow_id
            if item_id == head.item_id and is_group(mark) and mark != head.init_workflow_id:
                raise InvalidInput("key", "was used before, for other calls")
        results = await self.enqueue([*members, head], within=within)
        if is_batch(head.init_workflow_id):
            self._batches.setdefault(head[:2], BatchCounts(total, 0, 0, 0))
        return results

    async def batch(self, item_type: str, item_id: str) -> BatchCounts | None:
        return self._batches.get((item_type, item_id))

    async def claim(
        self,
        item_type: str,
        limit: int,
        look_ahead: timedelta,
        *,
        places: Places = UNLIMITED,
        begins: bool = False,
        now: datetime | None = None,
    ) -> Batch:
        now = self._now(now)
        due = self._due(item_type, limit, now + look_ahead, places)
        taken = within_bytes([len(self._contexts.get((item_type, name), "").encode()) for name in due], CLAIM_BYTES)
        picked = due[:taken]
        if picked:
            self._served[item_type] = self._items[item_type, picked[-1]].lane
        batch_id = batch_name()
        items = []
        for item_id in picked:
            before = self._items[item_type, item_id]
            item = replace(
                before,
                status=Status.CLAIMED,
                claim_epoch=before.claim_epoch + 1,
                batch_id=batch_id,
                claimed_at=now,
                seen_at=now,
                updated_at=now,
                begun_at=now if begins and before.due_at <= now and before.lock is None else None,
                worker=process_name(),
                code_version=code_version(),
            )
            self._put(item)
            self._log(item_type, item_id, batch_id, Action.CLAIMED, before.status, item.status, None, now)
            claim = Claim(item_type, item_id, item.claim_epoch, item.retry_count, item.lock)
            context = self._contexts.get((item_type, item_id))
            shown = ClaimedItem(claim, item.execute_at, item.slotted, context, item.traceparent)
            items.append(
                shown._replace(
                    lane=item.lane,
                    priority=item.priority,
                    has_begun=item.begun_at is not None,
                    unknown_since=item.unknown_since,
                )
            )
        return Batch(batch_id, now, items, is_cut=taken < len(due))

    def _due(self, item_type: str, limit: int, until: datetime, places: Places) -> list[str]:
        ready = self._ready[item_type]
        lanes: dict[str, list[Item]] = defaultdict(list)
        for _, item_id in ready[: bisect_right(ready, until, key=lambda entry: entry[0])]:
            item = self._items[item_type, item_id]
            lanes[item.lane].append(item)
        in_flight = Counter(
            item.lane for item in self._items.values() if item.item_type == item_type and item.status in IN_FLIGHT
        )
        if places.in_all is not None:
            limit = min(limit, places.in_all - in_flight.total())
        queues = []
        for lane in rotated(lanes, self._served.get(item_type, "")):
            room = limit if places.per_lane is None else places.per_lane - in_flight[lane]
            items = sorted(lanes[lane], key=lambda item: (item.priority, item.due_at, item.item_id))
            queues.append(iter([item.item_id for item in items[: max(0, room)]]))
        return list(in_turns(queues, limit))

    async def stale(
        self, item_type: str, stale_after: timedelta, limit: int, *, now: datetime | None = None
    ) -> list[SilentClaim]:
        deadline = self._now(now) - stale_after
        silent = sorted(
            (item.seen_at or EPOCH, item.item_id)
            for item in self._items.values()
            if item.item_type == item_type and item.status in IN_FLIGHT and (item.seen_at or EPOCH) <= deadline
        )
        over = sorted(
            (item.due_at, item.item_id)
            for item in self._items.values()
            if item.item_type == item_type and item.status is Status.UNKNOWN and item.due_at <= self._now(now)
        )
        rows = [self._items[item_type, item_id] for _, item_id in [*silent[:limit], *over[:limit]]]
        return [
            SilentClaim(
                Claim(item_type, item.item_id, item.claim_epoch, item.retry_count, item.lock),
                item.status,
                item.begun_at is not None,
            )
            for item in rows
        ]

    async def abandoned(
        self, item_types: Collection[str], silent_for: timedelta, *, now: datetime | None = None
    ) -> list[AbandonedClaim]:
        deadline = self._now(now) - silent_for
        workers: dict[str | None, Worker] = {}
        for one in await self.workers.workers(now=now):
            before = workers.get(one.info.process)
            if one.info.engine == LOCAL and (before is None or one.seen_at > before.seen_at):
                workers[one.info.process] = one
        found = []
        for item in self._items.values():
            worker = workers.get(item.worker)
            if item.status not in IN_FLIGHT or item.item_type not in item_types or worker is None:
                continue
            seen_at = max(item.seen_at or EPOCH, worker.seen_at)
            if seen_at <= deadline and item.worker is not None and item.worker != process_name():
                claim = Claim(item.item_type, item.item_id, item.claim_epoch, item.retry_count, item.lock)
                silent = SilentClaim(claim, item.status, item.begun_at is not None)
                found.append(AbandonedClaim(silent, item.worker, worker.info.machine, self._now(now) - seen_at))
        return found[:MOST_ABANDONED]

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        summary: BatchSummary | None = None,
        silent_for: timedelta | None = None,
        now: datetime | None = None,
    ) -> list[bool]:
        now = self._now(now)
        allowed = [change.origins for change in changes]
        done = [
            (silent_for is None or change.seen is Status.UNKNOWN or self._is_silent(change.claim, now - silent_for))
            and self._settle(change, origins, now)
            for change, origins in zip(changes, allowed, strict=True)
        ]
        for change, written in zip(changes, done, strict=True):
            follower = self.followers.get(change.claim.item_type)
            if written and follower is not None and change.status is Status.DEAD_LETTER:
                item_id = change.claim.item_id
                move = ItemMove(item_id, Status.DISPATCHED, change.status, change.error, change.verdict)
                follower.follow(None, [move], now)
        write_together(None, changes, done)
        if summary is not None:
            item_type, batch_id, detail = summary
            self._log(item_type, None, batch_id, Action.BATCH_COMPLETE, None, None, detail, now)
        return done

    def _is_silent(self, claim: Claim, deadline: datetime) -> bool:
        return (item := self._held(claim)) is not None and (item.seen_at or EPOCH) <= deadline

    def _settle(self, change: Change, origins: tuple[Status, ...], now: datetime) -> bool:
        claim, status = change.claim, change.status
        before = self._held(claim, change.seen is Status.UNKNOWN)
        if before is None or before.status not in origins:
            return False
        batch_id = change.batch_id or before.batch_id
        if change.start is not None and before.status is Status.CLAIMED:
            start = change.start
            key = claim.item_type, claim.item_id
            self._log(*key, batch_id, start.action, before.status, start.status, start.detail, now)
            before = replace(before, status=start.status, dispatched_at=now, exec_workflow_id=claim.execution_id)
        item = replace(before, status=status, retry_count=change.retries, seen_at=now, updated_at=now)
        if change.error is not None:
            item = replace(item, last_error=change.error)
        if change.pause is not None:
            item = replace(item, due_at=now + change.pause)
        if change.last_attempt is not None:
            item = replace(item, last_attempt=change.last_attempt)
        if change.in_doubt:
            item = replace(item, unknown_since=before.unknown_since or before.begun_at or now)
        if status is Status.DISPATCHED:
            item = replace(item, dispatched_at=now, exec_workflow_id=claim.execution_id)
        if status is Status.COMPLETED:
            item = replace(item, completed_at=now)
            self._contexts.pop((claim.item_type, claim.item_id), None)
        if change.attempt is not None:
            self._attempts[claim.item_type, claim.item_id].append(
                Attempt(
                    claim.retries + 1,
                    before.begun_at,
                    now,
                    change.attempt.outcome,
                    change.error,
                    change.attempt.traceback,
                    before.worker,
                    before.code_version,
                )
            )
        if change.result_json is not None:
            self._results[claim.item_type, claim.item_id] = change.result_json
        self._put(item)
        self._log(claim.item_type, claim.item_id, batch_id, change.action, before.status, status, change.detail, now)
        if status is not Status.DISPATCHED:
            self._give_back(item, now)
        return True

    async def take_locks(self, claims: Sequence[Claim], *, now: datetime | None = None) -> list[bool]:
        now = self._now(now)
        taken = {}
        for claim in sorted(claims, key=lambda claim: str(claim.lock)):
            holder = self._locks.take(claim)
            taken[claim] = holder is None
            if holder is not None and (item := self._held(claim)) is not None:
                self._put(replace(item, status=Status.READY, due_at=IN_LINE_UNTIL, begun_at=None, updated_at=now))
                detail = f"waits for the lock {claim.lock!r}, which {holder[0]} {holder[1]} holds"
                key = claim.item_type, claim.item_id
                self._log(*key, item.batch_id, Action.RELEASED, item.status, Status.READY, detail, now)
        return [taken[claim] for claim in claims]

    def _give_back(self, item: Item, now: datetime) -> None:
        """If it holds its lock, the first in the line that is not paused holds it now."""
        due, holder = self._locks.give_back(item)
        for one in due:
            self._put(replace(one, due_at=now, updated_at=now))
        if holder is not None:
            self._bells[holder[0]].set()

    async def touch(self, claims: Sequence[Claim], *, begins: bool = False, now: datetime | None = None) -> list[bool]:
        now = self._now(now)
        alive = []
        for claim in claims:
            item = self._held(claim)
            alive.append(item is not None)
            if item is not None:
                self._put(replace(item, seen_at=now, begun_at=item.begun_at or (now if begins else None)))
        return alive

    async def holds(self, claims: Sequence[Claim]) -> list[bool]:
        return [self._held(claim) is not None for claim in claims]

    async def decided(self, claim: Claim) -> bool:
        item = self._held(claim)
        if item is not None:
            self._put(replace(item, unknown_since=None))
        return item is not None

    async def record_progress(
        self, progress: Sequence[tuple[Claim, Progress]], *, now: datetime | None = None
    ) -> list[bool]:
        done = []
        for claim, one in progress:
            done.append(self._held(claim) is not None)
            if done[-1]:
                self._progress[claim.item_type, claim.item_id] = claim.epoch, one
        return done

    async def wait(self, item_types: Collection[str], timeout: float) -> list[str]:
        bells = {item_type: self._bells[item_type] for item_type in item_types}
        if not any(bell.is_set() for bell in bells.values()):
            over = asyncio.ensure_future(asyncio.sleep(timeout))
            rings = [over, *(asyncio.ensure_future(bell.wait()) for bell in bells.values())]
            try:
                await asyncio.wait(rings, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for ring in rings:
                    ring.cancel()
        rung = [item_type for item_type, bell in bells.items() if bell.is_set()]
        for item_type in rung:
            bells[item_type].clear()
        return rung

    def beside(self) -> None:
        """It is in this process's memory."""

    async def close(self) -> None:
        """Nothing to free: the memory goes with the object."""

    # -- operating -----------------------------------------------------------------------------------------------

    async def declare(
        self, config: DispatchConfig, *, only_new: bool = False, now: datetime | None = None
    ) -> DispatchConfig:
        existing = self._configs.get(config.item_type)
        if existing is not None and only_new:
            return existing
        current, said = existing or DispatchConfig(item_type=config.item_type), self._said.get(config.item_type, {})
        settings = declared(current, said, config)
        in_force = settings.config if existing is not None else config
        self._said[config.item_type] = settings.said
        if in_force != existing:
            await self.configure(in_force, now=now)
        return in_force

    async def configure(self, config: DispatchConfig, *, now: datetime | None = None) -> None:
        self._configs[config.item_type] = config
        now = self._now(now)
        self._log(config.item_type, None, None, Action.CONFIGURED, None, None, config.summary(), now)
        if not config.enabled:
            for item in self._matching(config.item_type, ItemFilter(status=Status.READY)):
                self._give_back(item, now)
        self._bells[config.item_type].set()

    async def change(
        self, item_type: str, changes: Mapping[str, Any], *, create: bool = False, now: datetime | None = None
    ) -> DispatchConfig | None:
        config = self._configs.get(item_type) or (DispatchConfig(item_type=item_type) if create else None)
        if config is None:
            return None
        config = config.changed(changes)
        await self.configure(config, now=now)
        return config

    async def configs(self) -> list[DispatchConfig]:
        return [self._configs[name] for name in sorted(self._configs)]

    async def find(self, item_type: str, item_id: str) -> tuple[Item, str | None] | None:
        item = self._items.get((item_type, item_id))
        return None if item is None else (item, self._contexts.get((item_type, item_id)))

    async def report(self, item_type: str, item_id: str) -> ItemReport:
        key = item_type, item_id
        epoch, progress = self._progress.get(key, (None, None))
        is_current = key in self._items and self._items[key].claim_epoch == epoch
        return ItemReport(progress if is_current else None, self._results.get(key))

    async def attempts(self, item_type: str, item_id: str) -> list[Attempt]:
        return list(self._attempts[item_type, item_id])

    async def items(
        self,
        item_type: str,
        chosen: ItemFilter | None,
        limit: int,
        after: str | None,
        order: ItemOrder = BY_ID,
    ) -> list[Item]:
        rows = sorted(self._matching(item_type, chosen or ItemFilter()), key=order.key, reverse=order.descending)
        if after is not None:
            place = order.place(after)
            rows = [row for row in rows if (order.key(row) < place if order.descending else order.key(row) > place)]
        return rows[:limit]

    def _matching(self, item_type: str, chosen: ItemFilter) -> list[Item]:
        return [item for key, item in self._items.items() if key[0] == item_type and chosen.matches(item)]

    async def count(self, item_type: str, chosen: ItemFilter, at_most: int) -> int:
        return min(at_most, len(self._matching(item_type, chosen)))

    async def progress_of(self, item_type: str, item_ids: Sequence[str]) -> dict[str, Progress]:
        reports = {item_id: (await self.report(item_type, item_id)).progress for item_id in item_ids}
        return {item_id: progress for item_id, progress in reports.items() if progress is not None}

    async def error_groups(self, item_type: str) -> list[ErrorGroup]:
        return grouped(
            ErrorGroup(item.last_error, 1, item.item_id, item.updated_at, item.updated_at)
            for item in self._items.values()
            if item.item_type == item_type and item.status is Status.DEAD_LETTER
        )

    async def lanes(self, item_type: str) -> list[LaneDepth]:
        return lane_depths(
            (item.lane, item.status, 1, item.due_at)
            for item in self._matching(item_type, ItemFilter())
            if item.status not in FINISHED and item.status is not Status.FAILED
        )

    async def queue_history(
        self, item_type: str, last: timedelta, horizon: timedelta, *, now: datetime | None = None
    ) -> QueueHistory:
        tried = {key: attempts for key, attempts in self._attempts.items() if key[0] == item_type}
        return history_of(self._matching(item_type, ItemFilter()), tried, last, horizon, self._now(now))

    async def stats(self, item_type: str, *, now: datetime | None = None) -> QueueStats:
        now = self._now(now)
        workers = of_type(await self.workers.workers(now=now), item_type)
        return stats_of(item_type, self._matching(item_type, ItemFilter()), workers, now)

    async def redirect(
        self, item_type: str, item_ids: Sequence[str] | None, to: Status, *, now: datetime | None = None
    ) -> int:
        return self.redirect_now(item_type, item_ids, to, now=now, follower=self.followers.get(item_type))

    def redirect_now(
        self,
        item_type: str,
        item_ids: Sequence[str] | None,
        to: Status,
        *,
        now: datetime | None = None,
        follower: Follower | None = None,
        in_flight: bool = False,
    ) -> int:
        now = self._now(now)
        if item_ids is None:
            items = [
                item
                for item in self._items.values()
                if item.item_type == item_type and item.status is Status.DEAD_LETTER
            ]
        else:
            items = []
            for item_id in dict.fromkeys(item_ids):
                item = self._items.get((item_type, item_id))
                if item is None:
                    raise NotFound("item", item_id)
                checked_redirection(item.status, to, item_id, in_flight=in_flight)
                items.append(item)
        moves = [ItemMove(item.item_id, item.status, to, item.last_error) for item in items]
        refused = follower.refusals(None, moves) if follower is not None else {}
        if refused and item_ids is not None:
            raise Conflict(str(refused))
        items = [item for item in items if item.item_id not in refused]
        for item in items:
            self._put(redirected(item, to, now))
            self._give_back(item, now)
            action = Action.REQUEUED if to is Status.READY else Action.DISCARDED
            self._log(item_type, item.item_id, item.batch_id, action, item.status, to, item.last_error, now)
            if to is Status.CANCELLED:
                self._contexts.pop((item_type, item.item_id), None)
        if follower is not None:
            follower.follow(None, [move for move in moves if move.item_id not in refused], now)
        self._bells[item_type].set()
        return len(items)

    async def change_items(
        self,
        item_type: str,
        chosen: Sequence[str] | ItemFilter,
        change: ItemChange,
        *,
        now: datetime | None = None,
    ) -> ChangeResult:
        now, is_followed = self._now(now), item_type in self.followers
        before: list[Item] = []
        after: list[Item] = []
        if isinstance(chosen, ItemFilter):
            for item in self._matching(item_type, chosen):
                with contextlib.suppress(Conflict):
                    after.append(change.applied(item, now, is_followed=is_followed))
                    before.append(item)
        else:
            for item_id in dict.fromkeys(chosen):
                if (item_type, item_id) not in self._items:
                    raise NotFound("item", item_id)
                before.append(self._items[item_type, item_id])
            after = [change.applied(item, now, is_followed=is_followed) for item in before]
        for old, new in zip(before, after, strict=True):
            self._put(new)
            self._give_back(old, now)
            if new.status is Status.CANCELLED:
                self._contexts.pop((item_type, new.item_id), None)
            self._log(
                item_type, new.item_id, old.batch_id, change.action, old.status, new.status, change.detail(old), now
            )
        self._bells[item_type].set()
        stopped = [old for old, new in zip(before, after, strict=True) if new.status is Status.CANCELLED]
        flying = [old for old in stopped if old.status in IN_FLIGHT]
        return ChangeResult(
            len(before), [Claim(item_type, old.item_id, old.claim_epoch, old.retry_count, old.lock) for old in flying]
        )

    async def preview(
        self, item_type: str, chosen: ItemFilter, change: ItemChange, *, now: datetime | None = None
    ) -> Preview:
        matching, changing = self._matching(item_type, chosen), 0
        for item in matching:
            with contextlib.suppress(Conflict):
                change.applied(item, self._now(now), is_followed=item_type in self.followers)
                changing += 1
        return Preview(len(matching), changing)

    async def audit(self, item_type: str, item_id: str | None, limit: int, before: int | None) -> list[AuditEntry]:
        rows = (
            entry
            for entry in reversed(self._audit)
            if entry.item_type == item_type
            and (item_id is None or entry.item_id == item_id)
            and (before is None or entry.audit_id < before)
        )
        return list(itertools.islice(rows, limit))

    async def prune(self, before: datetime) -> PruneResult:
        old = [key for key, item in self._items.items() if item.status in FINISHED and item.updated_at < before]
        for key in old:
            del self._items[key]
            self._progress.pop(key, None)
            self._results.pop(key, None)
            self._attempts.pop(key, None)
        kept = [entry for entry in self._audit if entry.created_at >= before]
        gone = len(self._audit) - len(kept)
        self._audit = kept
        return PruneResult(len(old), gone)

    # -- inside --------------------------------------------------------------------------------------------------

    def _held(self, claim: Claim, is_unknown: bool = False) -> Item | None:
        """The item, if the claim still holds it; with `is_unknown`, if it is UNKNOWN since then."""
        item = self._items.get((claim.item_type, claim.item_id))
        statuses = (Status.UNKNOWN,) if is_unknown else IN_FLIGHT
        if item is None or item.claim_epoch != claim.epoch or item.status not in statuses:
            return None
        return item

    def _put(self, item: Item) -> None:
        key = item.item_type, item.item_id
        before = self._items.get(key)
        ready = self._ready[item.item_type]
        if before is not None and before.status is Status.READY:
            ready.remove((before.due_at, before.item_id))
        if item.status is Status.READY:
            insort(ready, (item.due_at, item.item_id))
        self._items[key] = item
        if before is not None:
            self._count(before, item)

    def _count(self, before: Item, item: Item) -> None:
        """Counts the end of a batch's call; the last one makes the callback due."""
        callback = callback_of(item.init_workflow_id)
        counts = None if callback is None else self._batches.get(callback)
        if callback is None or counts is None or not counts.left or before.status is item.status:
            return
        change = {COUNTED[before.status]: -1} if before.status in COUNTED else {}
        if item.status in COUNTED:
            change[COUNTED[item.status]] = change.get(COUNTED[item.status], 0) + 1
        counts = counts._replace(**{name: getattr(counts, name) + number for name, number in change.items()})
        self._batches[callback] = counts
        held = self._items[callback]
        if not counts.left and held.status is Status.READY:
            self._put(replace(held, due_at=item.updated_at, execute_at=item.updated_at))
            self._bells[callback[0]].set()

    def _log(self, *entry: Any) -> None:
        """The fields of an `AuditEntry` but for its number."""
        self._audit.append(AuditEntry(next(self._audit_ids), *entry))

    def _now(self, now: datetime | None) -> datetime:
        return EPOCH + timedelta(microseconds=self._clock.now_us()) if now is None else now
