"""`replan`: moves booked slots, in transactions of bounded time, while bookings continue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from paceline.durations import LATEST_MS, duration_ms, parse_duration, parse_instant, to_ms
from paceline.errors import Conflict, InvalidInput, NotFound
from paceline.slots.carriers import SlotMove
from paceline.slots.model import AssignedSlot, PolicyVersion, checked_name
from paceline.slots.replan.assignment import Candidate, Direction, Limits, PlannedConfig
from paceline.slots.replan.parts import Puller, Reading, after, broken_off
from paceline.slots.replan.places import place
from paceline.slots.replan.spread import assign_spread
from paceline.slots.templates import is_template
from paceline.slots.windows import align

T = TypeVar("T")

NOTICE = timedelta(minutes=1)
LONGEST_NOTICE = timedelta(days=3660)
MAX_TRIES = 8
MOST_SPREAD = 1_000_000
"""Slots that one call spreads: the plan is kept in memory."""
PASSES = 5
"""How often a spread is planned again because others booked the places that it meant to use."""
MOST_WHOLE = 2000
"""Slots of a window that is planned as a whole in any case."""
TARGET_SECONDS = 0.1
"""How long one transaction holds its locks while no booking waits for them, …"""
SHORT_SECONDS = 0.002
"""… and while one does, …"""
CALM_SECONDS = 2.0
"""… which is assumed until no booking has waited for so long."""


class Sizes(NamedTuple):
    """How much a re-plan does in one transaction."""

    min_slots: int = 25
    """Slots at first, and at least while bookings wait for its locks."""
    max_slots: int = 20_000
    max_others: int = 256
    """Further configs whose slots are moved: all of them are locked."""
    pause: float = 3.0
    """While a booking waits, a pause of so many times the transaction's time follows: bookings get three quarters of
    the time."""


class Span(NamedTuple):
    """Which slots of a config are re-planned."""

    name: str
    from_ms: int = 0
    to_ms: int = LATEST_MS
    notice_ms: int = duration_ms(NOTICE)

    def earliest(self, now_ms: int) -> int:
        return max(now_ms + self.notice_ms, self.from_ms)


class Chunk(NamedTuple):
    """The result of one transaction."""

    examined: Sequence[AssignedSlot]
    moves: Sequence[SlotMove]
    following: Reading | None
    """Where the next one continues; None if this was the last."""
    is_awaited: bool = False
    """Whether others waited for its locks, as far as the store knows."""
    seconds: float = 0.0
    """How long it had its locks."""


class PlanReader(Protocol):
    """Reads what a plan needs. Locks nothing."""

    sizes: Sizes

    async def survey(self, span: Span) -> tuple[PolicyVersion, int]:
        """The config's active version, and the time.

        Raises:
            NotFound: there is no such config.
        """
        ...

    async def followers(self, template: str) -> list[str]:
        """The configs that follow a template."""
        ...

    async def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        """The next slots in the order of their times, and whether each may move; those whose work is over are left
        out."""
        ...

    async def counts(self, name: str, from_ms: int) -> PlannedConfig | None:
        """A config, and how full its windows are from a time on: for a plan that is checked later, or only shown. None
        if there is no such config."""
        ...


class ReplanStore(PlanReader, Protocol):
    """Moves slots with what carries them. Every method that moves is one transaction."""

    async def pull_forward(self, span: Span, reading: Reading, limit: int, *, reads_again: bool = False) -> Chunk:
        """Moves the next slots to earlier places. With `reads_again` it reads them again once the configs are locked:
        that takes longer, and rules out concurrent changes.

        Raises:
            Conflict: one of them was changed concurrently; nothing was moved; retry.
        """
        ...

    async def plan_forward(self, span: Span, reading: Reading, limit: int) -> Chunk:
        """What `pull_forward` would move now. Locks no config, and moves nothing.

        Raises:
            Conflict: slots were changed while they were read.
        """
        ...

    async def carry_out(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
        """Makes these planned moves to earlier places, in order, up to the first that is no longer possible.

        Raises:
            Conflict: one of them was changed concurrently; nothing was moved.
        """
        ...

    async def push_back(self, span: Span, moves: Sequence[SlotMove]) -> Chunk:
        """Makes those of these moves to later places that are still possible.

        Raises:
            Conflict: one of them was changed concurrently; nothing was moved; retry.
        """
        ...


class SupposedLimit:
    """A `PlanReader` that shows a config as if it had another limit."""

    def __init__(self, reader: PlanReader, max_per_window: int) -> None:
        self._reader = reader
        self.sizes = reader.sizes
        self._max_per_window = max_per_window

    async def survey(self, span: Span) -> tuple[PolicyVersion, int]:
        active, now_ms = await self._reader.survey(span)
        return self._supposed(active), now_ms

    async def followers(self, template: str) -> list[str]:
        return await self._reader.followers(template)

    async def candidates(self, span: Span, reading: Reading, limit: int) -> list[Candidate]:
        return await self._reader.candidates(span, reading, limit)

    async def counts(self, name: str, from_ms: int) -> PlannedConfig | None:
        config = await self._reader.counts(name, from_ms)
        if config is None:
            return None
        supposed = self._supposed(config.active)
        return PlannedConfig(supposed, config.occupancy.under(supposed.policy, from_ms))

    def _supposed(self, active: PolicyVersion) -> PolicyVersion:
        return replace(active, policy=replace(active.policy, max_per_window=self._max_per_window))


@dataclass(frozen=True, slots=True)
class Replan:
    """What a re-plan did, or would do."""

    config_name: str
    direction: Direction
    dry_run: bool
    examined: int = 0
    moved: int = 0
    saved_ms: int = 0
    """How much earlier all moved slots are together; negative if they were spread."""
    last_before_ms: int | None = None
    last_after_ms: int | None = None
    moves: tuple[SlotMove, ...] = ()
    """Of a dry run: what would be moved."""

    def add(self, examined: Sequence[AssignedSlot], moves: Sequence[SlotMove], *, keep: bool = False) -> Replan:
        """With one more chunk."""
        after = [move.scheduled_ms for move in moves]
        if len(moves) != len(examined):
            moved = {move.slot.event_id for move in moves}
            after += [slot.scheduled_ms for slot in examined if slot.event_id not in moved]
        return replace(
            self,
            examined=self.examined + len(examined),
            moved=self.moved + len(moves),
            saved_ms=self.saved_ms + sum([move.slot.scheduled_ms - move.scheduled_ms for move in moves]),
            last_before_ms=_latest(self.last_before_ms, [slot.scheduled_ms for slot in examined]),
            last_after_ms=_latest(self.last_after_ms, after),
            moves=(*self.moves, *moves) if keep else self.moves,
        )

    def joined(self, other: Replan) -> Replan:
        """With what was done to another config."""
        return replace(
            self,
            examined=self.examined + other.examined,
            moved=self.moved + other.moved,
            saved_ms=self.saved_ms + other.saved_ms,
            last_before_ms=_latest(self.last_before_ms, filter(None, [other.last_before_ms])),
            last_after_ms=_latest(self.last_after_ms, filter(None, [other.last_after_ms])),
            moves=(*self.moves, *other.moves),
        )


def span_of(
    config_name: str,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    notice: timedelta | str | None = None,
) -> Span:
    """A checked span.

    Raises:
        InvalidInput: a value is wrong; the error names it as the wire does: `from`, `to`, `notice`.
    """
    first = 0 if since is None else to_ms(parse_instant(since, "from"))
    last = LATEST_MS if until is None else to_ms(parse_instant(until, "to"))
    if last <= first:
        raise InvalidInput("to", "must be after `from`")
    least = NOTICE if notice is None else parse_duration(notice, "notice")
    if not timedelta(0) <= least <= LONGEST_NOTICE:
        raise InvalidInput("notice", "must be from PT0S to P3660D")
    return Span(checked_name(config_name), first, last, duration_ms(least))


def checked_direction(value: str) -> Direction:
    """Raises: InvalidInput: there is no such direction."""
    try:
        return Direction(value)
    except ValueError:
        raise InvalidInput("direction", f"{value!r:.80} is unknown; use {' or '.join(Direction)}") from None


async def replan(store: ReplanStore, span: Span, direction: Direction, *, dry_run: bool) -> Replan:
    """Re-plans the slots of a span; of a template, those of every config that follows it, one after another.

    Raises:
        InvalidInput: more slots are to be spread than a plan can hold.
        NotFound: there is no such config.
    """
    if dry_run:
        return await preview(store, span, direction)
    work = _spread if direction is Direction.SPREAD else _pull
    return await _of_each(store, span, Replan(span.name, direction, dry_run=False), partial(work, store))


async def preview(reader: PlanReader, span: Span, direction: Direction) -> Replan:
    """What `replan` would move now.

    Raises:
        InvalidInput, NotFound: as `replan`.
    """
    work = _preview_spread if direction is Direction.SPREAD else _preview
    return await _of_each(reader, span, Replan(span.name, direction, dry_run=True), partial(work, reader))


async def _of_each(
    reader: PlanReader, span: Span, result: Replan, work: Callable[[Span, Replan], Awaitable[Replan]]
) -> Replan:
    if not is_template(span.name):
        return await work(span, result)
    await reader.survey(span)
    for name in await reader.followers(span.name):
        with suppress(NotFound):  # idle, and deleted since
            result = result.joined(await work(span._replace(name=name), Replan(name, result.direction, result.dry_run)))
    return result


async def _pull(store: ReplanStore, span: Span, result: Replan) -> Replan:
    active, now_ms = await store.survey(span)
    pace = Pace(store.sizes, active.policy.highest_limit + 1)
    # From the start of a window: its slots make room for those that move in.
    reading: Reading | None = Reading(align(span.earliest(now_ms), active.policy.size_ms))
    while reading is not None:
        if pace.is_calm:
            chunk = await _pull_some(store, span, reading, pace)
        else:
            chunk = await _pull_in_pieces(store, span, reading, pace)
        result = result.add(chunk.examined, chunk.moves)
        reading = chunk.following
    return result


async def _pull_some(store: ReplanStore, span: Span, reading: Reading, pace: Pace) -> Chunk:
    """Plans and moves the next slots in one transaction."""
    try:
        chunk = await store.pull_forward(span, reading, pace.limit)
    except Conflict:
        return await _pull_locked(store, span, reading, pace.limit, pace)
    await pace.give_way(chunk)
    return chunk


async def _pull_locked(store: ReplanStore, span: Span, reading: Reading, limit: int, pace: Pace) -> Chunk:
    """Moves the next slots under lock, despite concurrent changes."""
    chunk = await _retried(partial(store.pull_forward, span, reading, limit, reads_again=True))
    await pace.give_way(chunk)
    return chunk


async def _pull_in_pieces(store: ReplanStore, span: Span, reading: Reading, pace: Pace) -> Chunk:
    """Plans the next windows without a lock, and then moves a few slots per transaction, so that bookings wait only
    briefly. A booking may take a place that was planned; then the rest is planned again."""
    try:
        plan = await store.plan_forward(span, reading, pace.whole)
    except Conflict:
        return await _pull_locked(store, span, reading, pace.whole, pace)
    made: list[SlotMove] = []
    while len(made) < len(plan.moves):
        piece = plan.moves[len(made) : len(made) + pace.limit]
        try:
            chunk = await store.carry_out(span, piece)
        except Conflict:
            done, following = broken_off(plan.examined, plan.moves, len(made), reading, plan.following)
            rest = await _pull_locked(store, span, following, pace.whole, pace)
            return rest._replace(examined=[*done, *rest.examined], moves=[*made, *rest.moves])
        made += chunk.moves
        await pace.give_way(chunk)
        if len(chunk.moves) < len(piece):
            done, following = broken_off(plan.examined, plan.moves, len(made), reading, plan.following)
            return Chunk(done, made, following)
    return plan


class Pace:
    """How many slots one transaction moves: as many as fit into a time, which is short while others wait."""

    def __init__(self, sizes: Sizes, window: int = 0) -> None:
        """`window` slots are enough for a window to be planned as a whole: inside one that is planned in pieces, later
        slots go behind all earlier ones, where it may be crowded."""
        self._sizes = sizes
        self.whole = min(max(sizes.min_slots, min(window, MOST_WHOLE)), sizes.max_slots)
        self.limit = self.whole
        self.is_calm = True
        """Whether no booking waits, or has waited lately."""
        self._calm_from = float("-inf")

    async def give_way(self, chunk: Chunk) -> None:
        """Adapts to what a transaction took. If bookings wait, they go first, and so do those that arrive meanwhile."""
        pause = self.adapt(time.perf_counter(), chunk)
        if pause:
            await asyncio.sleep(pause)

    def adapt(self, now: float, chunk: Chunk) -> float:
        """Adapts to a transaction that ended now. Returns the seconds to wait before the next one."""
        if chunk.is_awaited:
            self._calm_from = now + CALM_SECONDS
        self.is_calm = now >= self._calm_from
        least = self.whole if self.is_calm else self._sizes.min_slots
        # Slots that stay cost almost nothing, so they do not predict the time of moves.
        if self.is_calm or chunk.moves:
            target = TARGET_SECONDS if self.is_calm else SHORT_SECONDS
            growth = min(2.0, target / max(chunk.seconds, 1e-4))
            self.limit = max(least, min(self._sizes.max_slots, round(self.limit * growth)))
        return 0.0 if self.is_calm else self._sizes.pause * chunk.seconds


async def _retried(work: Callable[[], Awaitable[T]]) -> T:
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return await work()
        except Conflict:
            if attempt == MAX_TRIES:
                raise
    raise AssertionError("unreachable")


class _Snapshot:
    """How full the windows of all configs are that a plan needs, as far as they have been read."""

    def __init__(self, store: PlanReader, span: Span, from_ms: int) -> None:
        self._store = store
        self._span = span
        self._from_ms = from_ms
        self.others: dict[str, PlannedConfig] = {}

    async def config(self) -> PlannedConfig:
        """The config that is re-planned."""
        config = await self._store.counts(self._span.name, self._from_ms)
        if config is None:
            raise NotFound("config", self._span.name)
        return config

    async def read_others(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Reads the further configs of these slots. If one does not exist, the slot stays."""
        for name in sorted(other_names(self._span.name, candidates) - self.others.keys()):
            config = await self._store.counts(name, self._from_ms)
            if config is not None:
                self.others[name] = config
        return without_strangers(candidates, {self._span.name, *self.others})


def other_names(name: str, candidates: Iterable[Candidate]) -> set[str]:
    """The further configs of slots that may move."""
    names = {
        other
        for candidate in candidates
        if candidate.slot.other_windows and candidate.may_move
        for other in candidate.slot.config_names
    }
    return names - {name}


def few_others(name: str, candidates: Sequence[Candidate], max_others: int) -> Sequence[Candidate]:
    """The first of these slots, as far as they have not too many further configs."""
    names = {name}
    for index, (assigned, may_move, _) in enumerate(candidates):
        if assigned.other_windows and may_move:
            names.update(assigned.config_names)
            if len(names) > 1 + max_others:
                return candidates[:index]
    return candidates


def until_stranger(candidates: Sequence[Candidate], names: set[str]) -> Sequence[Candidate]:
    """The first of these slots, up to one that may move and has a config which is not among these."""
    for index, (assigned, may_move, _) in enumerate(candidates):
        if assigned.other_windows and may_move and not names.issuperset(assigned.config_names):
            return candidates[:index]
    return candidates


def without_strangers(candidates: Sequence[Candidate], names: set[str]) -> list[Candidate]:
    """The same slots; those that have a config which is not among these may not move."""
    return [
        candidate._replace(may_move=False)
        if candidate.slot.other_windows and not names.issuperset(candidate.slot.config_names)
        else candidate
        for candidate in candidates
    ]


async def _preview(store: PlanReader, span: Span, result: Replan) -> Replan:
    """`_pull` without writing: the moves are kept in memory."""
    return await _retried(partial(_pulled, store, span, result))


async def _pulled(store: PlanReader, span: Span, result: Replan) -> Replan:
    active, now_ms = await store.survey(span)
    limits = Limits(active.policy, span.earliest(now_ms))
    reading = Reading(align(limits.earliest_ms, active.policy.size_ms))
    snapshot = _Snapshot(store, span, reading.at_ms)
    config, others = await snapshot.config(), snapshot.others
    limits = replace(limits, policy=config.policy)
    puller = Puller(limits, config, reading, others)
    while True:
        page = await snapshot.read_others(await store.candidates(span, reading, store.sizes.max_slots))
        is_last = len(page) < store.sizes.max_slots
        part = puller.pull(page, is_last=is_last)
        result = result.add(part.examined, part.moves, keep=True)
        if is_last:
            return result
        reading = after(page[-1].slot)


async def _spread(store: ReplanStore, span: Span, result: Replan) -> Replan:
    """Plans all moves in order, then makes them from the last one back: room is made before it is taken, so that no
    window holds more than before on the way."""
    pace = Pace(store.sizes)
    for number in range(PASSES):
        candidates, moves = await _retried(partial(_planned_spread, store, span))
        if number == 0:
            result = result.add([candidate.slot for candidate in candidates], [])
        if not moves:
            return result
        done = 0
        for some in _from_the_last(moves, pace, store.sizes.max_others):
            chunk = await _retried(partial(store.push_back, span, some))
            await pace.give_way(chunk)
            done += len(chunk.moves)
            result = _later(result, chunk.moves)
        if done == len(moves):
            return result
    return result


async def _preview_spread(store: PlanReader, span: Span, result: Replan) -> Replan:
    candidates, moves = await _retried(partial(_planned_spread, store, span))
    return _later(result.add([candidate.slot for candidate in candidates], []), moves, keep=True)


async def _planned_spread(store: PlanReader, span: Span) -> tuple[Sequence[Candidate], Sequence[SlotMove]]:
    """The slots of a span, and the moves that bring them within the limits.

    Raises:
        Conflict: slots were changed while they were read.
    """
    active, now_ms = await store.survey(span)
    earliest = span.earliest(now_ms)
    first = align(earliest, active.policy.size_ms)
    snapshot = _Snapshot(store, span, first)
    candidates = await snapshot.read_others(await _all_candidates(store, span, first))
    config, others = await snapshot.config(), snapshot.others
    limits = Limits(config.policy, earliest)
    assignments = assign_spread(limits, candidates, config, others, await _first_behind(store, span))
    return candidates, place(limits, assignments, config, 0, others, Direction.SPREAD)


async def _first_behind(store: PlanReader, span: Span) -> int:
    """The time of the first slot behind a span."""
    if span.to_ms >= LATEST_MS:
        return LATEST_MS
    behind = await store.candidates(span._replace(to_ms=LATEST_MS), Reading(span.to_ms), 1)
    return behind[0].slot.scheduled_ms if behind else LATEST_MS


def _from_the_last(moves: Sequence[SlotMove], pace: Pace, max_others: int) -> Iterator[Sequence[SlotMove]]:
    """Moves in parts of as many slots as the pace allows, and few configs: the last ones first, each part in order."""
    part: list[SlotMove] = []
    names: set[str] = set()
    for move in reversed(moves):
        if part and (len(part) >= pace.limit or len(names.union(move.slot.config_names)) > max_others):
            yield part[::-1]
            part, names = [], set()
        part.append(move)
        names.update(move.slot.config_names)
    if part:
        yield part[::-1]


def _later(result: Replan, moves: Sequence[SlotMove], *, keep: bool = False) -> Replan:
    added = result.add([], moves, keep=keep)
    return replace(added, last_before_ms=result.last_before_ms)


async def _all_candidates(store: PlanReader, span: Span, from_ms: int) -> list[Candidate]:
    candidates: list[Candidate] = []
    reading = Reading(from_ms)
    while page := await store.candidates(span, reading, store.sizes.max_slots):
        candidates += page
        if len(candidates) > MOST_SPREAD:
            raise InvalidInput("to", f"more than {MOST_SPREAD} slots are to be spread; give an earlier `to`")
        reading = after(page[-1].slot)
    return candidates


def _latest(known: int | None, times: Iterable[int]) -> int | None:
    return max([*times, *([] if known is None else [known])], default=None)
