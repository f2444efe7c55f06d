"""Read-only views of a queue: its configs, workers, items, dead letters and audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Unpack

from paceline.dispatch.config import DispatchConfig, checked_type
from paceline.dispatch.encryption import readable
from paceline.dispatch.model import (
    AuditEntry,
    Item,
    ItemDetail,
    Progress,
    QueueStats,
)
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.search import (
    LONGEST_PAGE,
    ErrorGroup,
    FilterOptions,
    ItemOrder,
    LaneDepth,
    checked_filter,
    checked_ids,
    checked_limit,
)
from paceline.dispatch.status import Status
from paceline.dispatch.worker.heartbeats import Worker, unattended
from paceline.errors import InvalidInput, NotFound
from paceline.slots.model import checked_id

MOST_COUNTED = 100_000
"""The highest count of matching items: it is for display, and must stay cheap."""


class QueueViews:
    """The read-only half of a `DispatchQueue`."""

    def __init__(self, store: QueueStore) -> None:
        self.store = store
        self._known: set[str] = set()

    async def config(self, item_type: str) -> DispatchConfig:
        """The item type's settings.

        Raises:
            NotFound: there is no such item type.
        """
        config = await self.store.config(checked_type(item_type))
        if config is None:
            raise NotFound("item type", item_type)
        self._known.add(item_type)
        return config

    async def configs(self) -> list[DispatchConfig]:
        """Every item type's settings."""
        return await self.store.configs()

    async def stats(self, item_type: str, *, now: datetime | None = None) -> QueueStats:
        """How many items have each status, and how late the oldest due one is.

        Raises:
            NotFound: there is no such item type.
        """
        await self.check_known(checked_type(item_type))
        return await self.store.stats(item_type, now=now)

    async def workers(self, *, now: datetime | None = None) -> tuple[Sequence[Worker], Sequence[str]]:
        """The workers of all item types, and the item types without live workers."""
        workers = await self.store.workers.workers(now=now)
        return workers, unattended(workers, [config.item_type for config in await self.store.configs()])

    async def list(
        self,
        item_type: str,
        status: Status | str | None = None,
        *,
        prefix: str | None = None,
        lane: str | None = None,
        error: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        error_group: str | None = None,
        limit: int = 100,
        after: str | None = None,
        sort: str | None = None,
    ) -> list[Item]:
        """A page of items in order of their ids; `after` is the last id of the page before. `prefix` is what their ids
        begin with, `error` what their last errors hold, with `*` for any characters; their times are not before
        `since`, and before `until`. `error_group` is the name of a group as `error_groups` has it.

        `sort` is `id`, `executeAt` or `updatedAt`, with `-` before it for the last first. Sorted by a time, `after` is
        `ItemOrder.of(sort).cursor(item)` of the last item.

        Raises:
            InvalidInput: the status, the limit, an id, a time, the lane, the error or the order is wrong.
            NotFound: there is no such item type.
        """
        await self.check_known(checked_type(item_type))
        order = ItemOrder.of(sort)
        if after is not None:
            order.place(after)
        chosen = checked_filter(
            status=status, prefix=prefix, lane=lane, error=error, since=since, until=until, error_group=error_group
        )
        return await self.store.items(item_type, chosen, checked_limit(limit), after, order)

    async def count(self, item_type: str, **matching: Unpack[FilterOptions]) -> int:
        """How many items match, as in `list`; 100,001 if they are more than 100,000.

        Raises:
            InvalidInput: a value is wrong.
            NotFound: there is no such item type.
        """
        await self.check_known(checked_type(item_type))
        return await self.store.count(item_type, checked_filter(**matching), MOST_COUNTED + 1)

    async def unserved(self, served: Collection[str] = ()) -> dict[str, int]:
        """By item type: the number of READY items that no live worker serves, apart from the types in `served`."""
        _, unattended = await self.workers()
        ready: dict[str, int] = {}
        for item_type in set(unattended).difference(served):
            if count := (await self.store.stats(item_type)).depth.get(Status.READY, 0):
                ready[item_type] = count
        return dict(sorted(ready.items()))

    async def error_groups(self, item_type: str) -> Sequence[ErrorGroup]:
        """Dead letters grouped by their errors, the largest group first. What differs between the errors of a group,
        such as numbers and ids, is `*` in its name; `list(item_type, "DEAD_LETTER", error_group=name)` lists a group.

        Raises:
            NotFound: there is no such item type.
        """
        await self.check_known(checked_type(item_type))
        return await self.store.error_groups(item_type)

    async def lanes(self, item_type: str) -> Sequence[LaneDepth]:
        """The unfinished items per lane, the longest lane first.

        Raises:
            NotFound: there is no such item type.
        """
        await self.check_known(checked_type(item_type))
        return await self.store.lanes(item_type)

    async def progress_of(self, item_type: str, item_ids: Iterable[str]) -> dict[str, Progress]:
        """By item id: the progress of running executions; those without a report are left out.

        Raises:
            InvalidInput: an id is wrong.
        """
        ids = checked_ids(item_ids)
        return await self.store.progress_of(checked_type(item_type), ids) if ids else {}

    async def find(self, item_type: str, item_id: str) -> Item:
        """One item in its present state.

        Raises:
            NotFound: there is no such item.
        """
        row = await self.store.find(checked_type(item_type), checked_id(item_id, "item_id"))
        if row is None:
            raise NotFound("item", item_id)
        return row[0]

    async def show(self, item_type: str, item_id: str) -> ItemDetail:
        """One item with its context and its audit.

        Raises:
            NotFound: there is no such item.
        """
        row = await self.store.find(checked_type(item_type), checked_id(item_id, "item_id"))
        if row is None:
            raise NotFound("item", item_id)
        item, context = row
        entries = await self.store.audit(item_type, item_id, LONGEST_PAGE, None)
        progress, result = await self.store.report(item_type, item_id)
        attempts = await self.store.attempts(item_type, item_id)
        return ItemDetail(item, readable(context), entries[::-1], progress, readable(result), attempts)

    async def audit(
        self, item_type: str, *, item_id: str | None = None, limit: int = 100, before: int | None = None
    ) -> Sequence[AuditEntry]:
        """Audit entries, newest first; `before` is the last `audit_id` of the page before.

        Raises:
            InvalidInput: the id, the limit or `before` is wrong.
            NotFound: there is no such item type.
        """
        await self.check_known(checked_type(item_type))
        if item_id is not None:
            checked_id(item_id, "item_id")
        if before is not None and (not isinstance(before, int) or not 0 < before < 2**63):
            raise InvalidInput("before", "must be the auditId of an entry")
        return await self.store.audit(item_type, item_id, checked_limit(limit), before)

    async def check_known(self, item_type: str) -> None:
        """Raises `NotFound` unless there is this item type."""
        # Only existing types are cached, and types are never deleted, so the cache can't go stale.
        if item_type not in self._known:
            await self.config(item_type)
