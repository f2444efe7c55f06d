"""Read-only views over the memory store: pages without gaps, previews that change nothing, checks by field."""

from __future__ import annotations

from typing import Any

import pytest

from paceline import WindowPolicy
from paceline.durations import from_ms, to_ms
from paceline.errors import ConfigurationError, InvalidInput, NotFound, StaleVersion
from paceline.slots.forecast.impact import WarningCode
from paceline.slots.inspection import check_opens, check_version
from paceline.slots.listing import MOST_LISTED, SlotFilter
from paceline.slots.model import PolicyVersion
from paceline.slots.scheduler import SlotScheduler
from paceline.testing import FakeClock
from tests.models.slot_store import MemorySlotStore

START = from_ms(1_800_000_000_000)


@pytest.fixture
async def slots() -> SlotScheduler:
    slots = SlotScheduler(MemorySlotStore(FakeClock(START), seed=1))
    await slots.configure("bank", WindowPolicy(2, "PT1S"))
    return slots


async def booked(slots: SlotScheduler, count: int, config: str = "bank") -> None:
    await slots.assign_many([(f"e{number:03}", START) for number in range(count)], config)


@pytest.mark.parametrize("sort", [None, "-scheduledTime"])
async def test_pages_show_every_slot_once_and_in_order(slots: SlotScheduler, sort: str | None) -> None:
    await booked(slots, 11)
    await slots.cancel("e004")
    seen: list[tuple[int, str]] = []
    cursor: str | None = None
    sizes = []
    while True:
        page, cursor = await slots.page(limit=4, cursor=cursor, sort=sort)
        sizes.append(len(page))
        seen += [(listed.slot.scheduled_ms, listed.slot.event_id) for listed in page]
        if cursor is None:
            break
    assert sizes == [4, 4, 3]
    assert seen == sorted(seen, reverse=sort is not None)
    assert {event for _, event in seen} == {f"e{number:03}" for number in range(11)}
    assert await slots.count() == 11
    assert await slots.count(SlotFilter.of(status="CANCELLED")) == 1


async def test_the_last_page_is_the_last_also_if_it_is_full(slots: SlotScheduler) -> None:
    await booked(slots, 4)
    page, cursor = await slots.page(limit=4)
    assert (len(page), cursor) == (4, None)


@pytest.mark.parametrize("limit", [0, -1, MOST_LISTED + 1])
async def test_a_page_has_bounds(slots: SlotScheduler, limit: int) -> None:
    for call in (slots.page(limit=limit), slots.beginning("e", limit=limit)):
        with pytest.raises(InvalidInput) as caught:
            await call
        assert caught.value.field == "limit"
    assert (await slots.page(limit=MOST_LISTED))[0] == []


async def test_slots_are_found_by_the_beginning_of_their_ids(slots: SlotScheduler) -> None:
    await booked(slots, 12)
    assert [listed.slot.event_id for listed in await slots.beginning("e00", limit=3)] == ["e000", "e001", "e002"]
    assert len(await slots.beginning("e01")) == 2
    assert await slots.beginning("f") == []


async def test_what_never_started_is_found_page_by_page(slots: SlotScheduler) -> None:
    await booked(slots, 7)
    asked: list[int] = []

    async def started(page: Any) -> set[str]:
        asked.append(len(page))
        return {slot.event_id for slot in page if slot.event_id < "e005"}

    later = from_ms(to_ms(START) + 60_000)
    found = [slot async for slot in slots._unstarted(started, later, page=3)]
    assert sorted(slot.event_id for slot in found) == ["e005", "e006"]
    assert asked == [3, 3, 1]
    assert await slots.unstarted(started, before=START) == []


async def test_a_preview_counts_what_a_change_would_leave_behind_and_changes_nothing(slots: SlotScheduler) -> None:
    await booked(slots, 6)
    version, warnings = await slots.preview("bank", {"max_per_window": 1, "max_delay": "PT1S"})
    assert (version.name, version.version, version.policy.max_per_window) == ("bank", 2, 1)
    assert {warning.code for warning in warnings} == {WarningCode.OVER_LIMIT, WarningCode.PAST_HORIZON}
    assert [active.policy.max_per_window for active in await slots.configs()] == [2]
    assert (await slots.preview("bank", {"max_per_window": 9}))[1] == []


async def test_a_preview_of_a_new_config_is_its_first_version(slots: SlotScheduler) -> None:
    version, warnings = await slots.preview("new", {"max_per_window": 3, "window": "PT1S"})
    assert (version.version, version.policy.max_per_window, warnings) == (1, 3, [])
    with pytest.raises(InvalidInput):
        await slots.preview("new", {"max_per_window": 3})
    with pytest.raises(StaleVersion):
        await slots.preview("bank", {"max_per_window": 3}, if_version=[7])


async def test_a_preview_of_a_template_counts_the_slots_of_its_followers(slots: SlotScheduler) -> None:
    await slots.configure("merchant-*", WindowPolicy(5, "PT1S"))
    for merchant in "ab":
        await slots.assign_many([(f"{merchant}{number}", START) for number in range(4)], f"merchant-{merchant}")
    _, (warning,) = await slots.preview("merchant-*", {"max_per_window": 1})
    assert (warning.code, warning.slots) == (WarningCode.OVER_LIMIT, 6)


async def test_slots_that_are_not_there_explain_nothing(slots: SlotScheduler) -> None:
    with pytest.raises(NotFound):
        await slots.explain("nobody")
    await booked(slots, 1)
    assert (await slots.explain("e000")).record.slot.event_id == "e000"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"events": 0}, "events"),
        ({"at": "soon"}, "at"),
        ({"changes": {"nothing": 1}}, "nothing"),
    ],
)
async def test_a_forecast_that_can_not_be_made_is_refused(
    slots: SlotScheduler, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        await slots.forecast("bank", **options)
    assert caught.value.field == field


async def test_a_change_is_forecast_for_one_config(slots: SlotScheduler) -> None:
    await slots.configure("other", WindowPolicy(9, "PT1S"))
    with pytest.raises(InvalidInput, match="one config") as caught:
        await slots.forecast(["bank", "other"], 3, max_per_window=5)
    assert caught.value.field == "max_per_window"
    slow, fast = await slots.forecast("bank", 20, START), await slots.forecast("bank", 20, START, max_per_window=10)
    assert fast.window_count < slow.window_count


@pytest.mark.parametrize("days", [0, 15])
async def test_a_heat_map_is_of_a_few_days(slots: SlotScheduler, days: int) -> None:
    with pytest.raises(InvalidInput) as caught:
        await slots.heat_map("bank", days)
    assert caught.value.field == "days"


async def test_a_calendar_must_open_within_ten_years() -> None:
    year = 365 * 86_400_000
    blackout = {"from": "2027-01-01T00:00:00Z", "to": "2035-01-01T00:00:00Z"}
    closed = WindowPolicy(1, "PT1H", calendar={"zone": "UTC", "blackouts": [blackout]})
    now = to_ms(START)
    await check_opens(closed, now)
    with pytest.raises(ConfigurationError, match="ten years"):
        await check_opens(WindowPolicy(1, "PT2H", calendar={"zone": "UTC", "open": [{"from": "09:00", "to": "10:00"}]}))
    with pytest.raises(ConfigurationError, match="WindowPolicy"):
        await check_opens({"max_per_window": 1}, now + year)  # type: ignore[arg-type]


def test_a_version_is_the_one_shown_or_the_configs_own() -> None:
    active = PolicyVersion("merchant-*", 4, WindowPolicy(1, "PT1S"), START)
    check_version(None, "m", active, 0)
    check_version([4], "m", active, 0)
    check_version([0], "m", active, 0)
    check_version([0], "m", None, 0)
    for seen in ([3], []):
        with pytest.raises(StaleVersion):
            check_version(seen, "m", active, 0)
