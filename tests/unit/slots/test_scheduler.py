"""The scheduler over the memory store: gathering, checking, remembering, reconciling."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from paceline.durations import to_ms
from paceline.errors import ConfigurationError, Conflict, InvalidInput, NotFound, SlotsExhausted, StoreUnavailable
from paceline.slots import AssignedSlot, PolicyVersion, SlotRequest, SlotScheduler, WindowPolicy
from paceline.slots.booking.packing import Booking
from paceline.slots.model import BookingGroup
from paceline.testing import FakeClock
from tests.models.slot_store import MemorySlotStore

T = datetime(2027, 3, 1, 16, tzinfo=UTC)
CHANGE_ELSEWHERE = """
import asyncio, sys
from paceline.slots import SlotScheduler, WindowPolicy

async def main():
    async with SlotScheduler.open(sys.argv[1]) as slots:
        print((await slots.configure("default", WindowPolicy(5, "PT4S"))).version)

asyncio.run(main())
"""


class Watched(MemorySlotStore):
    """Counts transactions, and fails as many of them as it is told to."""

    def __init__(self) -> None:
        super().__init__(FakeClock(T - timedelta(hours=1)))
        self.batches: list[int] = []
        self.conflicts = 0
        self.lookups = 0
        self.unavailable = False

    async def book_groups(
        self, groups: Sequence[BookingGroup], *, now_ms: int | None = None, template_configs: int = 0
    ) -> list[list[Booking]]:
        await asyncio.sleep(0)
        if self.conflicts:
            self.conflicts -= 1
            raise Conflict
        self.batches.append(sum(len(group.requests) for group in groups))
        return await super().book_groups(groups, now_ms=now_ms, template_configs=template_configs)

    async def history(self, name: str) -> list[PolicyVersion]:
        self.lookups += 1
        return await super().history(name)

    async def active_version(self, name: str) -> int | None:
        if self.unavailable:
            raise StoreUnavailable("down")
        return await super().active_version(name)


@pytest.fixture
def store() -> Watched:
    return Watched()


@pytest.fixture
async def slots(store: Watched) -> SlotScheduler:
    scheduler = SlotScheduler(store)
    await scheduler.configure("default", WindowPolicy(100, "PT4S"))
    return scheduler


async def test_concurrent_callers_share_transactions(slots: SlotScheduler, store: Watched) -> None:
    booked = await asyncio.gather(*(slots.assign(f"e{n}", "default", T) for n in range(250)))
    assert len({slot.event_id for slot in booked}) == 250
    assert sum(store.batches) == 250
    assert len(store.batches) <= 3


async def test_bad_input_is_named_and_books_nothing(slots: SlotScheduler, store: Watched) -> None:
    bad: list[tuple[str, datetime | str, str]] = [
        ("", T, "event_id"),
        ("x" * 256, T, "event_id"),
        ("e", "2027-03-01T16:00:00", "requested_time"),
        ("e", "9999-12-31T00:00:00Z", "requested_time"),
        ("e", "1960-12-31T00:00:00Z", "requested_time"),
    ]
    for event_id, at, field in bad:
        with pytest.raises(InvalidInput) as refusal:
            await slots.assign(event_id, "default", at)
        assert refusal.value.field == field
        with pytest.raises(InvalidInput):
            await slots.assign_many([("good", T), (event_id, at)], "default")
    assert store.batches == []


async def test_unknown_names_are_not_found_and_leave_nothing_behind(slots: SlotScheduler) -> None:
    for call in (slots.assign("e", "nope", T), slots.policy("nope"), slots.history("nope"), slots.forecast("nope")):
        with pytest.raises(NotFound, match="nope"):
            await call
    with pytest.raises(NotFound):
        await slots.find("e")
    with pytest.raises(NotFound):
        await slots.cancel("e")


async def test_a_conflicting_writer_costs_another_try(slots: SlotScheduler, store: Watched) -> None:
    store.conflicts = 3
    assert (await slots.assign("e", "default", T)).event_id == "e"
    store.conflicts = 99
    with pytest.raises(Conflict):
        await slots.assign("f", "default", T)


async def test_many_raise_the_first_error_after_the_others_have_their_slots(slots: SlotScheduler) -> None:
    await slots.configure("short", WindowPolicy(1, "PT4S", max_delay="PT8S"))
    with pytest.raises(SlotsExhausted) as refusal:
        await slots.assign_many([(f"e{n}", T) for n in range(3)], "short")
    assert refusal.value.earliest == T + timedelta(seconds=8, milliseconds=1)
    assert (await slots.find("e1")).scheduled_time >= T


async def test_a_stream_is_booked_batch_by_batch(store: Watched) -> None:
    slots = SlotScheduler(store, bulk_batch=100)
    await slots.configure("default", WindowPolicy(100, "PT4S"))
    requests = (SlotRequest.of(f"e{n}", T) for n in range(250))
    batches = [batch async for batch in slots.assign_stream(requests, "default")]
    assert [len(batch) for batch in batches] == store.batches == [100, 100, 50]


async def test_a_policy_is_loaded_again_only_when_its_version_changed(slots: SlotScheduler, store: Watched) -> None:
    assert (await slots.policy("default")).version == 1
    assert store.lookups == 0
    await store.configure("default", WindowPolicy(5, "PT4S"))  # by another node
    assert (await slots.policy("default")).version == 2
    assert store.lookups == 1
    assert (await slots.policy("default")).version == 2
    assert store.lookups == 1
    slots.flush()
    assert (await slots.policy("default")).version == 2
    assert store.lookups == 2


async def test_every_process_shows_a_change_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/slots.db"
    async with SlotScheduler.open(url) as slots:
        await slots.configure("default", WindowPolicy(100, "PT4S"))
        await slots.policy("default")
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHANGE_ELSEWHERE, url, stdout=asyncio.subprocess.PIPE
        )
        shown, _ = await other.communicate()
        assert shown.strip() == b"2"
        assert (await slots.policy("default")).policy.max_per_window == 5


async def test_while_the_store_is_unavailable_a_recent_policy_is_shown(store: Watched) -> None:
    slots = SlotScheduler(store, cache_ttl=60)
    forgetful = SlotScheduler(store, cache_ttl=0)
    await slots.configure("default", WindowPolicy(100, "PT4S"))
    await forgetful.policy("default")
    store.unavailable = True
    assert (await slots.policy("default")).version == 1
    for scheduler, name in ((slots, "never-shown"), (forgetful, "default")):
        with pytest.raises(StoreUnavailable):
            await scheduler.policy(name)


async def test_a_calendar_that_never_opens_is_refused(slots: SlotScheduler, store: Watched) -> None:
    never = WindowPolicy(1, "PT2H", calendar={"zone": "UTC", "open": [{"from": "09:00", "to": "10:00"}]})
    with pytest.raises(ConfigurationError, match="calendar"):
        await slots.configure("never", never)
    assert await store.history("never") == []


async def test_leaked_slots_are_freed_or_handed_on(slots: SlotScheduler) -> None:
    booked = await slots.assign_many([(f"e{n}", T) for n in range(250)], "default")
    running = {slot.event_id for slot in booked if int(slot.event_id[1:]) % 5}

    async def started(page: Sequence[AssignedSlot]) -> set[str]:
        return running & {slot.event_id for slot in page}

    handed: list[str] = []

    async def redispatch(slot: AssignedSlot) -> None:
        handed.append(slot.event_id)

    before = T + timedelta(hours=1)
    leaked = await slots.reconcile(started, before=before, redispatch=redispatch, page=7)
    assert {slot.event_id for slot in leaked} == set(handed) == {f"e{n}" for n in range(0, 250, 5)}
    assert (await slots.find("e5")).event_id == "e5"
    assert len(await slots.reconcile(started, before=before, page=7)) == 50
    with pytest.raises(NotFound):
        await slots.find("e5")
    assert (await slots.assign("new", "default", T)).window_start == T


async def test_slots_to_come_are_not_pruned(slots: SlotScheduler) -> None:
    with pytest.raises(InvalidInput, match="before"):
        await slots.prune(datetime.now(UTC) + timedelta(minutes=1))
    assert await slots.prune(datetime.now(UTC) - timedelta(days=1)) == (0, 0)


async def test_close_lets_accepted_work_finish(slots: SlotScheduler) -> None:
    pending = [asyncio.create_task(slots.assign(f"e{n}", "default", T)) for n in range(10)]
    await asyncio.sleep(0)
    await slots.close()
    assert [slot.event_id for slot in await asyncio.gather(*pending)] == [f"e{n}" for n in range(10)]


@pytest.mark.parametrize("limit", [30, 100, 250])
async def test_a_forecast_under_another_limit_is_what_the_change_would_bring(slots: SlotScheduler, limit: int) -> None:
    await slots.assign_many([(f"old-{n}", T) for n in range(350)], "default")
    before = await slots.forecast("default", 500, T)
    tried = await slots.forecast("default", 500, T, max_per_window=limit)
    assert await slots.forecast("default", 500, T) == before
    await slots.configure("default", WindowPolicy(limit, "PT4S"))
    after = await slots.forecast("default", 500, T)
    assert tried.windows == after.windows
    assert tried.next_windows == after.next_windows
    assert tried.drained_by == after.drained_by
    with pytest.raises(ConfigurationError, match="max_per_window"):
        await slots.forecast("default", 1, T, max_per_window=0)


async def test_configs_are_listed(slots: SlotScheduler) -> None:
    await slots.configure("another", WindowPolicy(1, "PT1S"))
    assert [(config.name, config.version) for config in await slots.configs()] == [("another", 1), ("default", 1)]


async def test_contention_is_reported_and_survived(
    slots: SlotScheduler, store: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    store.conflicts = 2
    await slots.assign("e", "default", T)
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lines == ["Window contention on default: another writer was first, trying again"] * 2


async def test_several_configs_are_named_in_either_form(slots: SlotScheduler) -> None:
    await slots.configure("merchant-7", WindowPolicy(1, "PT4S"))
    first = await slots.assign("a", ["default", "merchant-7"], T)
    second = await slots.assign("b", requested_time=T, config_names=("default", "merchant-7"))
    (third,) = await slots.assign_many([("c", T)], config_names=["default", "merchant-7"])
    batches = [batch async for batch in slots.assign_stream([SlotRequest.of("d", T)], ["merchant-7", "default"])]
    fourth = batches[0][0]
    assert isinstance(fourth, AssignedSlot)
    assert [slot.config_names for slot in (first, second, third)] == [("default", "merchant-7")] * 3
    assert fourth.config_names == ("merchant-7", "default")
    starts = [slot.scheduled_ms // 4000 * 4000 for slot in (first, second, third, fourth)]
    assert starts == [to_ms(T) + n * 4000 for n in range(4)]


async def test_callers_of_one_set_of_configs_share_transactions(slots: SlotScheduler, store: Watched) -> None:
    await slots.configure("merchant-7", WindowPolicy(1, "PT4S"))
    calls = [slots.assign(f"e{n}", ["default", "merchant-7"], T) for n in range(40)]
    assert len({slot.scheduled_ms // 4000 for slot in await asyncio.gather(*calls)}) == 40
    assert store.batches == [40]


async def test_wrong_names_are_refused_by_their_place_before_anything_is_booked(
    slots: SlotScheduler, store: Watched
) -> None:
    for names, field in (
        ([], "config_names"),
        (["default", "default"], "config_names[1]"),
        (["a", ""], "config_names[1]"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await slots.assign("e", names, T)
        assert refused.value.field == field
    with pytest.raises(InvalidInput, match="one of the two"):
        await slots.assign("e", "default", T, config_names=["default"])
    assert store.batches == []
