"""The flow of work: what arrives, waits, runs and leaves, per queue and per config. One computation for all who look.

`Flow` is pure. `Flows` reads what it needs from the database, so every process shows the same numbers, and keeps a
quarter of an hour per second of the queues that are watched.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from paceline.clock import uptime
from paceline.dispatch.model import QueueHistory, QueueStats
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.status import Status
from paceline.durations import to_ms
from paceline.errors import NotFound
from paceline.limits.rate_text import parse_rate
from paceline.server.shared_reads import SharedReads
from paceline.slots.listing import SlotHistory
from paceline.slots.model import PolicyVersion
from paceline.slots.scheduler import SlotScheduler

SECONDS = 900
"""What is kept per second."""
AHEAD_SECONDS = 900
"""How far ahead what is due is shown, per second."""
HORIZON = timedelta(days=1)
"""How far ahead what is due is read, to see when the last of it is done."""
OVERLAP_SECONDS = 10
"""Rows whose transactions commit late appear in seconds that were read before: these are read again."""
RENEW_SECONDS = 60.0
"""Everything is read again so often: a transaction of a caller may stay open for long."""
MAX_FLOWS = 64
"""Flows that are kept; the one that was read longest ago is dropped first."""
MAX_AGE_SECONDS = 60.0
"""A flow that takes long to read may be so old."""
PACE_SECONDS = 60
"""Without a limit, work is expected to leave as fast as in the last minute."""


class LimitBy(StrEnum):
    """What sets the limit of a flow."""

    CONFIG = "config"
    """A config of slots."""
    RATE = "rate"
    """The rate of the item type."""
    APPLICATION = "application"
    """The settings of the application that makes the calls."""


@dataclass(frozen=True, slots=True)
class Line:
    """Counts per second; the first is that of `start`, in seconds since 1970."""

    start: int
    counts: Sequence[int]

    @classmethod
    def of(cls, counts: Mapping[int, int], start: int, length: int) -> Line:
        return cls(start, [counts.get(at, 0) for at in range(start, start + length)])


@dataclass(frozen=True, slots=True)
class Flow:
    """The flow of a queue or of a config: now, and in the last quarter of an hour per second."""

    name: str
    at: datetime
    waiting: int
    """What has not begun, also what a worker holds; of a config, the slots to come, within a day."""
    held: int
    """What of it a worker holds."""
    late: int
    """What of it is due."""
    late_by: timedelta | None
    """How long the first of them has been due."""
    running: int
    unknown: int
    dead: int
    limit: float | None
    """How many may begin in a second; None if nothing limits them, or nobody here knows it."""
    limit_by: LimitBy | None
    """What sets the limit."""
    arrived: Line
    begun: Line
    done: Line
    failed: Line
    waited: Line
    """How many waited at the end of each second. It is exact unless dead letters were requeued meanwhile."""
    peaks: Line
    """The most that began, or with a rate of the item type were done, in a sliding second that ended in each second."""
    coming: Mapping[int, int]
    """What waits, by the second that it is due, within a day; what is late is not in it."""
    done_by: datetime | None
    """When the last of what is due within a day will have begun, at the limit, or else at the present pace; None if
    nothing moves, or the queue is paused."""

    @property
    def due(self) -> Line:
        """What is due in the seconds to come."""
        return Line.of(self.coming, int(self.at.timestamp()), AHEAD_SECONDS)

    def left(self, times: Sequence[int]) -> list[int]:
        """How many of those that wait now are not due yet at each of these times, in seconds since 1970."""
        seconds = sorted(self.coming)
        begun = [0, *accumulate(self.coming[second] for second in seconds)]
        return [max(self.waiting - self.late - begun[bisect_right(seconds, at)], 0) for at in times]

    def under(self, limit: float) -> Flow:
        """The flow as it would be expected to go on under another limit."""
        now = int(self.at.timestamp())
        return replace(self, limit=limit, done_by=_instant(done_by(self.late, self.coming, limit, now)))

    @property
    def peak(self) -> int:
        """The most that began in any sliding second."""
        return max(self.peaks.counts, default=0)

    @classmethod
    def of_queue(cls, stats: QueueStats, recent: Recent, limit: float | None, limit_by: LimitBy | None = None) -> Flow:
        """The flow of a queue, from its state and what happened of late."""
        waiting = stats.depth.get(Status.READY, 0) + stats.held
        now = int(recent.until.timestamp())
        return cls(
            name=stats.item_type,
            held=stats.held,
            late=stats.late,
            late_by=stats.late_by,
            running=stats.running,
            unknown=stats.depth.get(Status.UNKNOWN, 0),
            dead=stats.depth.get(Status.DEAD_LETTER, 0),
            limit_by=limit_by,
            done_by=_instant(done_by(stats.late, recent.due, limit or pace(recent, now), now)),
            **_lines(recent, waiting, limit),
        )

    @classmethod
    def of_config(cls, name: str, history: SlotHistory, limit: float) -> Flow:
        """The flow of a config: events arrive at the times that they want, and leave in their slots."""
        past, last = history.past, max(history.booked, default=None)
        recent = Recent(
            until=history.until,
            arrived=history.wanted,
            begun=past,
            peaks=dict(past) | sliding_peaks(history.instants),
            done=past,
            failed={},
            dead={},
            withdrawn={},
            due=history.booked,
        )
        lines = _lines(recent, sum(history.booked.values()), limit)
        none_late: dict[str, Any] = {"held": 0, "late": 0, "late_by": None, "running": 0, "unknown": 0, "dead": 0}
        return cls(name=name, limit_by=LimitBy.CONFIG, done_by=_instant(last), **none_late, **lines)


def _lines(recent: Recent, waiting: int, limit: float | None) -> dict[str, Any]:
    now = int(recent.until.timestamp())
    start = now - SECONDS + 1
    past = {
        name: Line.of(getattr(recent, name), start, SECONDS) for name in ("arrived", "begun", "done", "failed", "peaks")
    }
    return {
        "at": recent.until,
        "waiting": waiting,
        "limit": limit,
        "waited": Line(start, waited(waiting, recent, start, now)),
        "coming": recent.due,
        **past,
    }


def pace(recent: Recent, now: int) -> float:
    """How many began in a second, over the last minute."""
    return sum(recent.begun.get(at, 0) for at in range(now - PACE_SECONDS, now)) / PACE_SECONDS


def _instant(second: int | None) -> datetime | None:
    return None if second is None else datetime.fromtimestamp(second, UTC)


@dataclass(frozen=True, slots=True)
class Recent:
    """What happened of late, per second since 1970."""

    until: datetime
    arrived: Mapping[int, int]
    begun: Mapping[int, int]
    peaks: Mapping[int, int]
    done: Mapping[int, int]
    failed: Mapping[int, int]
    dead: Mapping[int, int]
    withdrawn: Mapping[int, int]
    due: Mapping[int, int]

    @classmethod
    def of(cls, history: QueueHistory) -> Recent:
        """As the store read it. The peaks are those of what began."""
        peaks = dict(history.begun) | sliding_peaks(history.instants)
        return cls(
            history.until,
            history.arrived,
            history.begun,
            peaks,
            history.done,
            history.failed,
            history.dead,
            history.withdrawn,
            history.due,
        )

    def followed_by(self, later: Recent, since: int) -> Recent:
        """This until the second `since`, and what was read later from there on; the last quarter of an hour of it."""
        oldest = int(later.until.timestamp()) - SECONDS - OVERLAP_SECONDS

        def joined(name: str) -> Any:
            earlier, newer = getattr(self, name), getattr(later, name)
            kept = {at: count for at, count in earlier.items() if oldest <= at < since}
            return kept | {at: count for at, count in newer.items() if at >= since}

        return replace(later, **{name: joined(name) for name in LINES})


LINES = ("arrived", "begun", "peaks", "done", "failed", "dead", "withdrawn")


def waited(waiting: int, recent: Recent, start: int, now: int) -> list[int]:
    """How many waited at the end of each second, from how many wait now, backwards: who arrived or came back in a
    second did not wait before it; who began or was cancelled did."""
    line = [0] * (now - start + 1)
    for at in range(now, start - 1, -1):
        line[at - start] = max(waiting, 0)
        came_back = max(recent.failed.get(at, 0) - recent.dead.get(at, 0), 0)
        waiting += recent.begun.get(at, 0) + recent.withdrawn.get(at, 0) - recent.arrived.get(at, 0) - came_back
    return line


def sliding_peaks(instants: Mapping[int, int]) -> dict[int, int]:
    """By second: the most that happened in any second that ends within it. Instants are in microseconds; two that are a
    whole second apart are not in one."""
    ordered = sorted(instants)
    peaks: dict[int, int] = {}
    inside = first = 0
    for at in ordered:
        inside += instants[at]
        while ordered[first] <= at - 1_000_000:
            inside -= instants[ordered[first]]
            first += 1
        second = at // 1_000_000
        peaks[second] = max(peaks.get(second, 0), inside)
    return peaks


def done_by(late: int, due: Mapping[int, int], per_second: float, now: int) -> int | None:
    """When the last of what waits will have begun, in seconds since 1970: what is late at once, the rest not before it
    is due, and no more than `per_second`. None if something waits and nothing moves."""
    if not late and not due:
        return now
    if per_second <= 0:
        return None
    left, at = float(late), float(now)
    for begins in sorted(due):
        left = max(left - (begins - at) * per_second, 0.0)
        left, at = left + due[begins], float(begins)
    return math.ceil(at + left / per_second)


class _Kept(NamedTuple):
    """What was read of a queue: when all of it, and when the last of it, by `uptime`."""

    renewed_at: float
    read_at: float
    recent: Recent


class Flows:
    """Reads flows. Readers share their reads."""

    def __init__(
        self,
        queues: QueueStore,
        slots: SlotScheduler,
        *,
        limits: Mapping[str, float] | None = None,
        clock: Callable[[], float] = uptime,
    ) -> None:
        """`limits` are those of item types whose applications keep them."""
        self._queues = queues
        self._slots = slots
        self._limits = limits or {}
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._reads: SharedReads[Flow] = SharedReads(clock, max_seconds=MAX_AGE_SECONDS)

    async def queue(self, item_type: str) -> Flow:
        """The flow of an item type, read by one reader for all.

        Raises:
            NotFound: there is no such item type.
            StoreUnavailable: the store did not answer.
        """
        config = await self._queues.config(item_type)
        if config is None:
            raise NotFound("item type", item_type)
        limit, limit_by = self._limits.get(item_type), LimitBy.APPLICATION
        if config.rate is not None:
            limit, limit_by = float(parse_rate(config.rate).per_second), LimitBy.RATE
        read = partial(self._read, item_type, limit, limit_by)
        flow = await self._reads.get(("queue", item_type, limit), read)
        return flow if config.enabled or not flow.waiting else replace(flow, done_by=None)

    async def config(self, version: PolicyVersion) -> Flow:
        """The flow of a config.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        return await self._reads.get(("config", version.name, version.version), partial(self._read_config, version))

    async def _read_config(self, version: PolicyVersion) -> Flow:
        history = await self._slots.per_second(version.name, last=timedelta(seconds=SECONDS), ahead=HORIZON)
        now_ms = to_ms(history.until)
        policy = version.policy
        limit = policy.limit_at(now_ms - now_ms % policy.size_ms) * 1000 / policy.size_ms
        return Flow.of_config(version.name, history, limit)

    async def _read(self, item_type: str, limit: float | None, limit_by: LimitBy) -> Flow:
        kept, at = self._kept.pop(item_type, None), self._clock()
        stats = await self._queues.stats(item_type)
        if kept is None or at - kept.renewed_at >= RENEW_SECONDS:
            last = timedelta(seconds=SECONDS + OVERLAP_SECONDS)
            kept = _Kept(at, at, Recent.of(await self._queues.queue_history(item_type, last, HORIZON)))
        else:
            last = timedelta(seconds=at - kept.read_at + OVERLAP_SECONDS)
            later = await self._queues.queue_history(item_type, last, HORIZON)
            # The first second was read in part, and the one after it lacks what its sliding seconds began with.
            since = int((later.until - last).timestamp()) + 2
            kept = _Kept(kept.renewed_at, at, kept.recent.followed_by(Recent.of(later), since))
        self._kept[item_type] = kept
        while len(self._kept) > MAX_FLOWS:
            self._kept.popitem(last=False)
        return Flow.of_queue(stats, kept.recent, limit, None if limit is None else limit_by)
