"""The dispatch queue in a SQL database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import sqlalchemy as sa

from paceline.batching import Batcher
from paceline.dispatch.changes import ChangeResult, ItemChange, Preview
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.encryption import Encryption
from paceline.dispatch.model import (
    CLAIM_BYTES,
    AbandonedClaim,
    Attempt,
    AuditEntry,
    Batch,
    BatchCounts,
    BatchSummary,
    Change,
    Claim,
    EnqueueRequest,
    EnqueueResult,
    Item,
    ItemReport,
    Outlook,
    Progress,
    PruneResult,
    QueueHistory,
    QueueStats,
    SilentClaim,
)
from paceline.dispatch.ports import Follower
from paceline.dispatch.search import BY_ID, ErrorGroup, ItemFilter, ItemOrder, LaneDepth
from paceline.dispatch.settling import Settling
from paceline.dispatch.status import Status
from paceline.dispatch.stores import (
    admin_queries,
    attempts,
    batches,
    changes,
    encrypting,
    following,
    groups,
    history,
    locks,
    outcomes,
    portable,
    portable_claims,
    reports,
    search,
    sqlite,
    transactions,
    waiting,
)
from paceline.dispatch.stores.identity import Identity
from paceline.dispatch.stores.periodic import SqlPeriodicStore
from paceline.dispatch.stores.rows import ClaimRequest, StaleRequest
from paceline.dispatch.stores.workers import SqlWorkerStore
from paceline.dispatch.turns import UNLIMITED, Places
from paceline.dispatch.worker.processes import process_name
from paceline.errors import Conflict, SlotCancelled, StoreError
from paceline.sql.engine import Database
from paceline.sql.hints import notify

if TYPE_CHECKING:
    from paceline.dispatch.stores.claims import Claims

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRIES = 3
SOON = timedelta(seconds=5)
"""Items that are due later than this do not wake a dispatcher."""


class SqlQueueStore:
    """A `QueueStore` on SQLite, PostgreSQL or Oracle. Owns its database and closes it."""

    def __init__(
        self,
        database: Database,
        followers: Mapping[str, Follower] | None = None,
        *,
        claim_bytes: int = CLAIM_BYTES,
        encryption: Encryption | None = None,
    ) -> None:
        self._database = database
        self._encryption = encryption
        self._identity = Identity(database)
        self._claim_bytes = claim_bytes
        self.workers = SqlWorkerStore(database)
        self._followers = dict(followers or {})
        self._hints = database.hints
        self._wakeups: dict[str, asyncio.Event] = {}
        """By item type."""
        self._postgres = database.dialect == "postgresql"
        self._statements: Any = portable
        self._enqueue_alone: Any = None
        """On PostgreSQL, an enqueue without a SQLAlchemy connection."""
        self._claim_statement: Any = portable_claims.claim
        self._claims: Claims | None = None
        if self._postgres:
            # Imported here: the driver is an optional extra.
            from paceline.dispatch.stores import postgres
            from paceline.dispatch.stores.claims import Claims

            self._statements = postgres
            self._enqueue_alone = postgres.enqueue_alone
            self._claims = Claims(database)
        elif database.dialect == "sqlite":
            self._statements, self._claim_statement = sqlite, sqlite.claim
        enqueue = encrypting.encrypting(self._statements.enqueue, encryption)
        self.periodic = SqlPeriodicStore(database, enqueue, self._hints)
        self._settling = Settling(self._write_changes)
        self._configs: Batcher[str, DispatchConfig | None] = Batcher(self._read_configs)
        self._looking_for_stale: Batcher[StaleRequest, list[SilentClaim]] = Batcher(self._read_stale)
        self._claiming: Batcher[tuple[ClaimRequest, datetime | None], Batch] = Batcher(self._claim_together)
        self._served: dict[str, str] = {}
        """By item type: the lane that was served last."""
        self._limited: set[str] = set()
        """Item types with limited places: an execution that ends frees one."""

    # -- dispatching ---------------------------------------------------------------------------------------------

    async def config(self, item_type: str) -> DispatchConfig | None:
        return await self._configs.submit(item_type)

    async def _read_configs(self, item_types: Sequence[str]) -> Sequence[DispatchConfig | StoreError | None]:
        found = await self._database.read(admin_queries.configs_of, item_types)
        for config in found:
            if isinstance(config, DispatchConfig):
                self._note_places(config)
        return found

    def _note_places(self, config: DispatchConfig) -> None:
        (self._limited.add if config.places.are_limited else self._limited.discard)(config.item_type)

    async def outlooks(
        self, item_types: Sequence[str], *, finds_due: bool = True, now: datetime | None = None
    ) -> list[Outlook]:
        for item_type in item_types:
            self._wakeup(item_type)  # subscribed before the look: later items wake `wait`
        found = await self._database.read(admin_queries.outlooks, item_types, finds_due, now)
        for outlook in found:
            self._note_places(outlook.config)
        return found

    async def enqueue(
        self, requests: Sequence[EnqueueRequest], *, within: Any = None, now: datetime | None = None
    ) -> list[EnqueueResult]:
        if any(request.while_waiting for request in requests):
            return await self._enqueue_waiting(requests, within, now)
        unique = {(request.item_type, request.item_id): request for request in reversed(requests)}
        ordered = encrypting.encrypted_requests(self._encryption, [unique[key] for key in sorted(unique)])
        if not ordered:
            return []
        soon = datetime.now(UTC) + SOON
        item_types = {one.item_type for one in ordered if one.execute_at is None or one.execute_at <= soon}
        hints = self._hints.due(item_types) if within is None else sorted(item_types)
        new: set[tuple[str, str]]
        if within is not None:
            new = await transactions.enqueue(
                self._identity, self._database.dialect, self._statements, within, ordered, now, hints
            )
        else:
            new = await self._retried(self._write_items, ordered, now, hints)
            self._hints.wake(item_types)
            if self._postgres:
                self._hints.notify_later(item_types.difference(hints))
        return _results(requests, new)

    async def _enqueue_waiting(
        self, requests: Sequence[EnqueueRequest], within: Any, now: datetime | None
    ) -> list[EnqueueResult]:
        """For calls that are one item while that waits, perhaps with others among them."""
        waiting_ = [request for request in requests if request.while_waiting]
        others = [request for request in requests if not request.while_waiting]
        of_others = iter(await self.enqueue(others, within=within, now=now) if others else ())
        item_types = {request.item_type for request in waiting_}
        if within is not None:
            results = await self._choose_within(waiting_, within, now)
        else:
            hints = self._hints.due(item_types)
            write, encryption = self._statements.enqueue, self._encryption
            results = await self._retried(
                self._database.write, waiting.enqueue, write, encryption, waiting_, now, hints
            )
            self._hints.wake(item_types)
            if self._postgres:
                self._hints.notify_later(item_types.difference(hints))
        of_waiting = iter(results)
        return [next(of_waiting if request.while_waiting else of_others) for request in requests]

    async def _choose_within(
        self, requests: Sequence[EnqueueRequest], within: Any, now: datetime | None
    ) -> list[EnqueueResult]:
        results: dict[tuple[str, str], EnqueueResult] = {}
        for request in sorted(requests, key=lambda one: one[:2]):
            if request[:2] in results:
                continue
            chosen: list[EnqueueResult] = []
            steps = waiting.choose_steps(request, chosen)
            await transactions.run_steps(self._identity, self._database.dialect, within, steps)
            result = chosen[0]
            if not result.existing:
                new = request._replace(item_id=result.item_id, while_waiting=False)
                (result,) = await self.enqueue([new], within=within, now=now)
            results[request[:2]] = result
        return waiting.in_order(requests, results)

    async def _write_items(
        self, requests: Sequence[EnqueueRequest], now: datetime | None, hints: Sequence[str]
    ) -> set[tuple[str, str]]:
        if self._enqueue_alone is not None:
            return await self._enqueue_alone(self._database, requests, now, hints)  # type: ignore[no-any-return]
        return await self._database.write(self._statements.enqueue, requests, now, hints)

    async def enqueue_group(
        self, head: EnqueueRequest, members: Sequence[EnqueueRequest], *, total: int = 0, within: Any = None
    ) -> list[EnqueueResult]:
        if within is not None:
            steps = groups.check_steps(head)
            await transactions.run_steps(self._identity, self._database.dialect, within, steps)
            results = await self.enqueue([*members, head], within=within)
            if not results[-1].existing:
                groups.check_members(head, members, {result[:2] for result in results if not result.existing})
                steps = groups.create_steps(head, total)
                await transactions.run_steps(self._identity, self._database.dialect, within, steps)
            return results
        ordered = sorted(members, key=lambda member: (member.item_type, member.item_id))
        first, *others = encrypting.encrypted_requests(self._encryption, [head, *ordered])
        item_types = {one.item_type for one in (head, *members)}
        new = await self._retried(
            self._database.write,
            groups.enqueue,
            self._statements.enqueue,
            first,
            others,
            total,
            None,
            sorted(item_types),
        )
        self._hints.wake(item_types)
        return _results([*members, head], new)

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
        self._wakeup(item_type)  # subscribed before the claim: later items wake `wait`
        request = ClaimRequest(item_type, limit, look_ahead, self._claim_bytes, places, begins)
        batch = await self._claim(request, now)
        if self._encryption is None:
            return batch
        return batch._replace(items=[encrypting.decrypted_item(self._encryption, item) for item in batch.items])

    async def _claim(self, request: ClaimRequest, now: datetime | None) -> Batch:
        if self._claims is not None:
            return await self._claims.claim(request, now)
        batch = await self._claiming.submit((request._replace(after=self._served.get(request.item_type, "")), now))
        if batch.items:
            self._served[request.item_type] = batch.items[-1].lane
        return batch

    async def _claim_together(self, requests: Sequence[tuple[ClaimRequest, datetime | None]]) -> list[Batch]:
        """Claims of several types at the same moment share a transaction."""
        return await self._database.write(_claim_each, self._claim_statement, requests)

    async def take_locks(self, claims: Sequence[Claim], *, now: datetime | None = None) -> list[bool]:
        return await self._retried(self._database.write, locks.take, claims, now)

    async def stale(
        self, item_type: str, stale_after: timedelta, limit: int, *, now: datetime | None = None
    ) -> list[SilentClaim]:
        return await self._looking_for_stale.submit(StaleRequest(item_type, stale_after, limit, now))

    async def _read_stale(self, requests: Sequence[StaleRequest]) -> list[list[SilentClaim]]:
        return await self._database.read(admin_queries.stale, requests)

    async def abandoned(
        self, item_types: Collection[str], silent_for: timedelta, *, now: datetime | None = None
    ) -> list[AbandonedClaim]:
        return await self._database.read(admin_queries.abandoned, list(item_types), silent_for, process_name(), now)

    async def settle(
        self,
        changes: Sequence[Change],
        *,
        summary: BatchSummary | None = None,
        silent_for: timedelta | None = None,
        now: datetime | None = None,
    ) -> list[bool]:
        alone = now is not None or silent_for is not None
        if alone or any(following.is_followed(change, self._followers) for change in changes):
            # A change that a follower refuses must fail alone.
            done = await self._write_changes(changes, [] if summary is None else [summary], now, silent_for)
        else:
            done = await self._settling.settle(changes, summary)
        if self._limited:
            ended = {change.claim.item_type for change in changes if change.status is not Status.DISPATCHED}
            for item_type in ended & self._limited:
                self._wake_dispatchers(item_type)
        return done

    async def _write_changes(
        self,
        changes: Sequence[Change],
        summaries: Sequence[BatchSummary],
        now: datetime | None = None,
        silent_for: timedelta | None = None,
    ) -> list[bool]:
        if not changes and not summaries:
            return []
        changes = encrypting.encrypted_changes(self._encryption, changes)
        write = self._statements.settle
        if silent_for is None and not any(outcomes.writes_more(change, self._followers) for change in changes):
            flushed: list[bool] = await self._database.flush(write, changes, summaries, now)
            return flushed
        done, due = await self._database.write(
            outcomes.settle, write, self._followers, changes, summaries, silent_for, now
        )
        for item_type in due:
            self._wake_dispatchers(item_type)
        return done

    async def touch(self, claims: Sequence[Claim], *, begins: bool = False, now: datetime | None = None) -> list[bool]:
        if not claims:
            return []
        done: list[bool] = await self._database.flush(self._statements.touch, claims, now, begins)
        return done

    async def holds(self, claims: Sequence[Claim]) -> list[bool]:
        return await self._database.read(admin_queries.holds, claims)

    async def decided(self, claim: Claim) -> bool:
        return await self._database.write(outcomes.end_doubt, claim)

    async def record_progress(
        self, progress: Sequence[tuple[Claim, Progress]], *, now: datetime | None = None
    ) -> list[bool]:
        return await self._database.write(reports.record_progress, progress, now)

    async def wait(self, item_types: Collection[str], timeout: float) -> list[str]:
        events = {item_type: self._wakeup(item_type) for item_type in item_types}
        await self._hints.wait_for_any(events, timeout)
        hinted = [item_type for item_type, event in events.items() if event.is_set()]
        for item_type in hinted:
            events[item_type].clear()
        return hinted

    def beside(self) -> SqlQueueStore | None:
        """A store on the same database with a connection of its own, for another event loop; None if the database is in
        this process's memory."""
        database = self._database.beside()
        return None if database is None else SqlQueueStore(database)

    async def close(self) -> None:
        await self._settling.close()
        await self._database.close()

    # -- operating -----------------------------------------------------------------------------------------------

    async def configure(self, config: DispatchConfig, *, now: datetime | None = None) -> None:
        await self._retried(self._database.write, admin_queries.configure, config, now)
        await self._notify_configured(config, now)

    async def declare(
        self, config: DispatchConfig, *, only_new: bool = False, now: datetime | None = None
    ) -> DispatchConfig:
        stored = await self.config(config.item_type)
        if stored is not None and only_new:
            return stored
        declared = await self._retried(self._database.write, admin_queries.declare, config, now, only_new)
        if declared != stored:
            await self._notify(config.item_type)
        return declared

    async def change(
        self, item_type: str, changes: Mapping[str, Any], *, create: bool = False, now: datetime | None = None
    ) -> DispatchConfig | None:
        config = await self._retried(self._database.write, admin_queries.change, item_type, changes, now, create)
        if config is not None:
            await self._notify_configured(config, now)
        return config

    async def configs(self) -> list[DispatchConfig]:
        return await self._database.read(admin_queries.configs)

    async def find(self, item_type: str, item_id: str) -> tuple[Item, str | None] | None:
        row = await self._database.read(admin_queries.find, item_type, item_id)
        if row is None:
            return None
        return row[0], encrypting.shown(self._encryption, "context", item_type, item_id, row[1])

    async def report(self, item_type: str, item_id: str) -> ItemReport:
        progress, result = await self._database.read(reports.find, item_type, item_id)
        return ItemReport(progress, encrypting.shown(self._encryption, "result", item_type, item_id, result))

    async def attempts(self, item_type: str, item_id: str) -> list[Attempt]:
        return await self._database.read(attempts.find, item_type, item_id)

    async def items(
        self,
        item_type: str,
        chosen: ItemFilter | None,
        limit: int,
        after: str | None,
        order: ItemOrder = BY_ID,
    ) -> list[Item]:
        return await self._database.read(search.items, item_type, chosen, limit, after, order)

    async def count(self, item_type: str, chosen: ItemFilter, at_most: int) -> int:
        return await self._database.read_aside(search.count, item_type, chosen, at_most)

    async def progress_of(self, item_type: str, item_ids: Sequence[str]) -> dict[str, Progress]:
        return await self._database.read(reports.progress_of, item_type, item_ids)

    async def batch(self, item_type: str, item_id: str) -> BatchCounts | None:
        return await self._database.read(batches.find, item_type, item_id)

    async def error_groups(self, item_type: str) -> list[ErrorGroup]:
        return await self._database.read_aside(search.error_groups, item_type)

    async def lanes(self, item_type: str) -> list[LaneDepth]:
        return await self._database.read_aside(search.lanes, item_type)

    async def stats(self, item_type: str, *, now: datetime | None = None) -> QueueStats:
        return await self._database.read(admin_queries.stats, item_type, now)

    async def queue_history(
        self, item_type: str, last: timedelta, horizon: timedelta, *, now: datetime | None = None
    ) -> QueueHistory:
        return await self._database.read_aside(history.read, item_type, last, horizon, now)

    async def redirect(
        self, item_type: str, item_ids: Sequence[str] | None, to: Status, *, now: datetime | None = None
    ) -> int:
        count, follower = 0, self._followers.get(item_type)
        if item_ids is not None:
            count = await self._database.write(admin_queries.redirect, item_type, item_ids, to, now, follower)
        else:
            # Each once, in order of their ids: one that becomes a dead letter again is not redirected again.
            after: str | None = ""
            while after is not None:
                some, after = await self._database.write(
                    admin_queries.redirect_dead, item_type, after, to, now, follower
                )
                count += some
        await self._notify_moved(item_type)
        return count

    async def change_items(
        self,
        item_type: str,
        chosen: Sequence[str] | ItemFilter,
        change: ItemChange,
        *,
        now: datetime | None = None,
    ) -> ChangeResult:
        follower = self._followers.get(item_type)
        count, claims = 0, list[Claim]()
        if not isinstance(chosen, ItemFilter):
            changed = await self._database.write(changes.change_listed, item_type, chosen, change, now, follower)
            count, claims = changed
        else:
            after: str | None = ""
            while after is not None:
                changed, after = await self._database.write(
                    changes.change_matching, item_type, chosen, after or None, change, now, follower
                )
                count, claims = count + changed.total, claims + changed.in_flight
        await self._notify_moved(item_type)
        return ChangeResult(count, claims)

    async def preview(
        self, item_type: str, chosen: ItemFilter, change: ItemChange, *, now: datetime | None = None
    ) -> Preview:
        follower = self._followers.get(item_type)
        return await self._database.read_aside(changes.preview, item_type, chosen, change, now, follower)

    async def audit(self, item_type: str, item_id: str | None, limit: int, before: int | None) -> list[AuditEntry]:
        return await self._database.read(admin_queries.audit_entries, item_type, item_id, limit, before)

    async def prune(self, before: datetime) -> PruneResult:
        items = audit = 0
        while some := await self._database.write(admin_queries.prune_items, before):
            items += some
        while some := await self._database.write(admin_queries.prune_audit, before):
            audit += some
        return PruneResult(items, audit)

    # -- inside --------------------------------------------------------------------------------------------------

    async def _retried(self, transact: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Retries if a concurrent writer inserted the same key, which is then found."""
        for _ in range(MAX_TRIES - 1):
            try:
                return await transact(*args, **kwargs)
            except SlotCancelled:
                raise
            except Conflict:
                continue
        return await transact(*args, **kwargs)

    async def _notify_moved(self, item_type: str) -> None:
        """Resets the claims' positions: items may be due anywhere now."""
        if self._claims is not None:
            self._claims.reset_positions(item_type)
        await self._notify(item_type)

    async def _notify_configured(self, config: DispatchConfig, now: datetime | None) -> None:
        if not config.enabled:
            # In a transaction of its own: one that gives a lock back locks the settings last.
            for item_type in await self._database.write(locks.pass_on, config.item_type, now):
                self._wake_dispatchers(item_type)
        await self._notify(config.item_type)

    def _wakeup(self, item_type: str) -> asyncio.Event:
        event = self._wakeups.get(item_type)
        if event is None:
            event = self._wakeups[item_type] = self._hints.subscribe(item_type)
        return event

    def _wake_dispatchers(self, item_type: str) -> None:
        """Wakes dispatchers of a type with limited places, which has room again. Only a hint: polling finds it too."""
        self._hints.wake([item_type])
        if self._postgres:
            self._hints.notify_later([item_type])

    async def _notify(self, item_type: str) -> None:
        self._hints.wake([item_type])
        if self._postgres:
            await self._database.once(notify, item_type)


def _claim_each(
    connection: sa.Connection,
    claim: Callable[[sa.Connection, ClaimRequest, datetime | None], Batch],
    requests: Sequence[tuple[ClaimRequest, datetime | None]],
) -> list[Batch]:
    return [claim(connection, *request) for request in requests]


def _results(requests: Sequence[EnqueueRequest], new: set[tuple[str, str]]) -> list[EnqueueResult]:
    results = []
    for item_type, item_id, *_ in requests:
        key = item_type, item_id
        results.append(EnqueueResult(item_type, item_id, key not in new))
        new.discard(key)  # a second request for the same item in one call is a duplicate
    return results
