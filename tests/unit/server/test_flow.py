"""The flow of work: what `Flows` computes equals a model that looks at every item at every second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import DispatchQueue, SlotScheduler, WindowPolicy
from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.decisions import after_success
from paceline.dispatch.model import Action, AttemptEnd, AttemptOutcome, Change, Claim, EnqueueRequest
from paceline.dispatch.status import Status
from paceline.errors import NotFound
from paceline.server.flow import SECONDS, Flow, Flows, LimitBy, done_by, sliding_peaks
from paceline.testing import FakeClock
from tests.effort import examples
from tests.models.queue_store import MemoryQueueStore
from tests.models.slot_store import MemorySlotStore

T = datetime(2027, 3, 1, 16, 0, 0, tzinfo=UTC)
START_US = int(T.timestamp()) * 1_000_000
TYPE = "INVOICE"
BACKOFF = 5


@dataclass
class Life:
    """What became of one item, in seconds since `T`."""

    arrived: float
    due: float
    waits: list[tuple[float, float | None]] = field(default_factory=list)
    """When it waited: from, and until it began or was cancelled."""
    begun: list[float] = field(default_factory=list)
    done: float | None = None
    failed: list[float] = field(default_factory=list)
    dead: float | None = None


class History:
    """A queue that lives through steps, and the lives of its items, noted beside it."""

    def __init__(self) -> None:
        self.clock = FakeClock(T)
        self.store = MemoryQueueStore(self.clock)
        self.lives: dict[str, Life] = {}
        self.held: dict[str, Claim] = {}
        self.running: dict[str, Claim] = {}

    @property
    def now(self) -> float:
        return (self.clock.now_us() - START_US) / 1e6

    async def arrive(self, count: int, ahead: int) -> None:
        for _ in range(count):
            name = f"i{len(self.lives)}"
            due = self.now + ahead
            at = T + timedelta(seconds=due)
            await self.store.enqueue([EnqueueRequest.of(TYPE, name, {}, at)])
            self.lives[name] = Life(self.now, due, [(self.now, None)])

    async def claim(self, count: int) -> None:
        batch = await self.store.claim(TYPE, count, timedelta(seconds=2))
        self.held |= {item.claim.item_id: item.claim for item in batch.items}

    async def begin(self, count: int) -> None:
        for name in [*self.held][:count]:
            claim = self.running[name] = self.held.pop(name)
            await self.store.touch([claim], begins=True)
            life = self.lives[name]
            life.begun.append(self.now)
            life.waits[-1] = (life.waits[-1][0], self.now)

    async def end(self, count: int, how: str) -> None:
        for name in [*self.running][:count]:
            claim, life = self.running.pop(name), self.lives[name]
            if how == "done":
                await self.store.settle([after_success(claim)])
                life.done = self.now
                continue
            again = how == "fails"
            path = (Status.FAILED, Status.READY if again else Status.DEAD_LETTER)
            action = Action.FAILED if again else Action.DEAD_LETTERED
            end = AttemptEnd(AttemptOutcome.FAILED)
            pause = timedelta(seconds=BACKOFF)
            change = Change(claim, path, action, claim.retries + 1, error="no", pause=pause, attempt=end)
            await self.store.settle([change])
            life.failed.append(self.now)
            if again:
                life.due = self.now + BACKOFF
                life.waits.append((self.now, None))
            else:
                life.dead = self.now

    def per_second(self, times: Callable[[Life], list[float]]) -> list[int]:
        """The model of a line: every item is looked at for every second."""
        first = int(self.now) - SECONDS + 1
        return [
            sum(int(at) == second for life in self.lives.values() for at in times(life))
            for second in range(first, int(self.now) + 1)
        ]

    def waited(self) -> list[int]:
        """How many waited at the end of each second, or now."""
        first, line = int(self.now) - SECONDS + 1, []
        for second in range(first, int(self.now) + 1):
            line.append(
                sum(
                    int(since) <= second and (until is None or int(until) > second)
                    for life in self.lives.values()
                    for since, until in life.waits
                )
            )
        return line

    def peak(self) -> int:
        begun = [at for life in self.lives.values() for at in life.begun if at >= self.now - SECONDS]
        return max((sum(at - 1 < other <= at for other in begun) for at in begun), default=0)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.integers(1, 5), st.sampled_from([0, 1, 3, 600])),
        st.tuples(st.just("claim"), st.integers(1, 5)),
        st.tuples(st.just("begin"), st.integers(1, 5)),
        st.tuples(st.just("end"), st.integers(1, 5), st.sampled_from(["done", "fails", "dies"])),
        st.tuples(st.just("wait"), st.sampled_from([0.25, 0.75, 1.0, 2.5, 7.0])),
        st.tuples(st.just("look"), st.sampled_from([1.5, 12.25, 90])),
    ),
    max_size=30,
)


def flows_of(history: History) -> Flows:
    return Flows(history.store, SlotScheduler(MemorySlotStore(history.clock)), clock=lambda: history.now)


def first_difference(flow: Flow, history: History) -> None:
    """Raises for what differs between a flow and the model."""
    lives = history.lives.values()
    assert list(flow.arrived.counts) == history.per_second(lambda life: [life.arrived])
    assert list(flow.begun.counts) == history.per_second(lambda life: life.begun)
    assert list(flow.done.counts) == history.per_second(lambda life: [] if life.done is None else [life.done])
    assert list(flow.failed.counts) == history.per_second(lambda life: life.failed)
    assert list(flow.waited.counts) == history.waited()
    assert flow.peak == history.peak()
    waiting = [life for life in lives if life.waits[-1][1] is None]
    late = [history.now - life.due for life in waiting if life.due <= history.now]
    assert (flow.waiting, flow.late, flow.held) == (len(waiting), len(late), len(history.held))
    assert (flow.late_by.total_seconds() if flow.late_by else None) == (max(late) if late else None) or late == [0]
    assert (flow.running, flow.dead) == (len(history.running), sum(life.dead is not None for life in lives))


@settings(max_examples=examples(60))
@given(steps)
def test_a_flow_equals_a_model_that_looks_at_every_item(chosen: list[tuple[object, ...]]) -> None:
    async def live() -> None:
        history = History()
        await history.store.configure(DispatchConfig(item_type=TYPE))
        flows = flows_of(history)
        for name, *arguments in [*chosen, ("look", 1.5), ("look", 90)]:
            if name == "wait":
                history.clock.advance(arguments[0])  # type: ignore[arg-type]
            elif name == "look":
                history.clock.advance(arguments[0])  # type: ignore[arg-type]  # beyond what reads share
                first_difference(await flows.queue(TYPE), history)
            else:
                await getattr(history, str(name))(*arguments)

    asyncio.run(live())


async def test_a_flow_is_read_anew_in_part_and_equals_one_that_is_read_as_a_whole() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE))
    kept = flows_of(history)
    for _ in range(20):
        await history.arrive(4, 0)
        await history.claim(3)
        await history.begin(3)
        await history.end(2, "done")
        history.clock.advance(2.25)
        assert await kept.queue(TYPE) == await flows_of(history).queue(TYPE)


async def test_what_a_worker_holds_is_late_from_its_due_time() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE))
    await history.arrive(3, 0)
    await history.claim(3)
    history.clock.advance(80)
    flow = await flows_of(history).queue(TYPE)
    assert (flow.waiting, flow.held, flow.late, flow.running) == (3, 3, 3, 0)
    assert flow.late_by == timedelta(seconds=80)


async def test_the_limit_is_the_rate_of_the_item_type() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE, rate="30/minute"))
    await history.store.configure(DispatchConfig(item_type="PAYMENT"))
    flows = Flows(history.store, SlotScheduler(MemorySlotStore(history.clock)), limits={"PAYMENT": 50})
    assert (await flows.queue(TYPE)).limit == 0.5
    assert (await flows.queue("PAYMENT")).limit == 50
    with pytest.raises(NotFound, match="no item type named 'NOTHING'"):
        await flows.queue("NOTHING")


async def test_a_paused_queue_has_no_end_while_something_waits() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE, rate="2/second", enabled=False))
    assert (await flows_of(history).queue(TYPE)).done_by is not None
    await history.arrive(10, 0)
    flows = flows_of(history)
    assert (await flows.queue(TYPE)).done_by is None
    await history.store.configure(DispatchConfig(item_type=TYPE, rate="2/second"))
    assert (await flows.queue(TYPE)).done_by is not None


async def test_the_peak_of_a_rate_is_of_what_began_however_its_ends_are_written() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE, rate="2/second"))
    await history.arrive(10, 0)
    await history.claim(10)
    for _ in range(5):
        await history.begin(2)
        history.clock.advance(1)
    await history.end(10, "done")
    history.clock.advance(2)
    assert (await flows_of(history).queue(TYPE)).peak == 2


async def test_what_is_left_at_times_to_come() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE))
    await history.arrive(3, 0)
    await history.arrive(2, 60)
    await history.arrive(4, 100_000)
    await history.claim(1)
    now = int(T.timestamp())
    flow = await flows_of(history).queue(TYPE)
    assert flow.left([now, now + 59, now + 60, now + 90_000]) == [6, 6, 4, 4]


async def test_the_flow_of_a_config_is_that_of_its_slots() -> None:
    clock = FakeClock(T)
    slots = SlotScheduler(MemorySlotStore(clock))
    await slots.configure("bank", WindowPolicy(max_per_window=8, window="4s", spread="even"))
    for number in range(20):
        await slots.assign(f"e{number}", "bank", T)
    clock.advance(6)
    async with DispatchQueue(MemoryQueueStore(clock)) as queue:
        flow = await Flows(queue.store, slots).config(await slots.policy("bank"))
    assert flow.limit == 2
    assert sum(flow.arrived.counts) == 20
    assert flow.arrived.counts[-7] == 20
    assert sum(flow.begun.counts) + sum(flow.due.counts) == 20
    assert flow.waiting == sum(flow.due.counts) > 0
    assert flow.peak <= 3
    assert flow.done_by is not None
    assert T + timedelta(seconds=8) <= flow.done_by <= T + timedelta(seconds=12)


@given(st.dictionaries(st.integers(0, 3_000_000), st.integers(1, 5), max_size=20))
def test_peaks_are_those_of_sliding_seconds(instants: dict[int, int]) -> None:
    expected: dict[int, int] = {}
    for at in instants:
        inside = sum(count for other, count in instants.items() if at - 1_000_000 < other <= at)
        expected[at // 1_000_000] = max(expected.get(at // 1_000_000, 0), inside)
    assert sliding_peaks(instants) == expected


@pytest.mark.parametrize(
    ("late", "due", "per_second", "expected"),
    [
        (0, {}, 0.0, 100),
        (1, {}, 0.0, None),
        (2000, {}, 50.0, 140),
        (0, {130: 50}, 50.0, 131),
        (100, {101: 100}, 50.0, 104),
        (100, {200: 1}, 50.0, 201),
        (3, {}, 2.0, 102),
    ],
)
def test_what_waits_is_done_when_the_limit_has_let_it_through(
    late: int, due: dict[int, int], per_second: float, expected: int | None
) -> None:
    assert done_by(late, due, per_second, 100) == expected


async def test_another_limit_says_when_the_last_would_begin() -> None:
    history = History()
    await history.store.configure(DispatchConfig(item_type=TYPE, rate="2/second"))
    await history.arrive(100, 0)
    flow = await flows_of(history).queue(TYPE)
    assert (flow.limit, flow.limit_by, flow.done_by) == (2, LimitBy.RATE, flow.at + timedelta(seconds=50))
    tried = flow.under(20)
    assert (tried.limit, tried.done_by) == (20, flow.at + timedelta(seconds=5))
