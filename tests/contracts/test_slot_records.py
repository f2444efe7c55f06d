"""Records of slots on every store: what is listed, and what stays of a cancelled slot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.durations import LATEST_MS, from_ms
from paceline.errors import InvalidInput, SlotOwned
from paceline.slots.explain import Reason
from paceline.slots.listing import EVERYTHING, Cancellation, Cursor, ListedSlot, SlotFilter, SlotStatus
from paceline.slots.model import SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.scheduler import SlotScheduler
from tests.contracts.slot_windows import check_windows
from tests.contracts.test_slot_store import NOW, T_MS, book, wants
from tests.effort import is_thorough


async def listed(
    store: SlotStore,
    selection: SlotFilter = EVERYTHING,
    page: int = 3,
    *,
    latest_first: bool = False,
) -> list[ListedSlot]:
    """All that is listed, in small pages."""
    records: list[ListedSlot] = []
    after: Cursor | None = None
    while some := await store.page(selection, after, page, latest_first=latest_first):
        records += some
        after = Cursor.decoded(some[-1].cursor.encoded())
    return records


async def test_a_cancelled_slot_stays_with_its_reason_and_its_actor(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(10, "PT4S"), now_ms=NOW)
    await book(slots, wants(2))
    was = await slots.cancel("e0", cause=Cancellation("customer left", "ops"))
    assert await slots.find("e0") is None
    assert await slots.record("e0") is None
    (record,) = await listed(slots, SlotFilter(status=SlotStatus.CANCELLED))
    assert record.slot == was
    assert (record.status, record.reason, record.actor) == (SlotStatus.CANCELLED, "customer left", "ops")
    assert record.created_ms == NOW
    assert record.cancelled_ms is not None
    assert [kept.slot.event_id for kept in await listed(slots, SlotFilter(status=SlotStatus.BOOKED))] == ["e1"]
    assert await check_windows(slots, "c", NOW) == {T_MS: 1}


async def test_a_cancelled_event_is_booked_again_as_often_as_it_likes(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    for turn in range(3):
        (again,) = await book(slots, wants(1))
        assert not again.existing
        assert again.window_start_ms == T_MS
        await slots.cancel("e0", cause=Cancellation(f"turn {turn}"))
    (last,) = await book(slots, wants(1))
    records = await listed(slots)
    assert sorted(record.reason or "" for record in records) == ["", "turn 0", "turn 1", "turn 2"]
    assert len({record.cursor for record in records}) == 4
    for page in (1, 2):
        assert await listed(slots, page=page, latest_first=True) == records[::-1]
    assert (await slots.record("e0")) == ListedSlot(last._replace(existing=True), NOW)


async def test_a_slot_that_is_not_cancelled_leaves_no_record(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await slots.book("c", wants(1), now_ms=NOW, owner="payments")
    with pytest.raises(SlotOwned):
        await slots.cancel("e0", cause=Cancellation("not mine"))
    assert await slots.cancel("nobody") is None
    assert [record.status for record in await listed(slots)] == [SlotStatus.BOOKED]


async def test_pages_and_filters_select_what_a_naive_walk_selects(slots: SlotStore) -> None:
    for name, size in (("a", "PT1S"), ("b", "PT4S")):
        await slots.configure(name, WindowPolicy(2, size), now_ms=NOW)
    await book(slots, wants(9, prefix="a"), name="a")
    await book(slots, wants(7, prefix="É"), name="b")
    await slots.book("b", wants(3, prefix="own"), now_ms=NOW, owner="payments")
    for event_id in ("a1", "É1", "a8"):
        await slots.cancel(event_id)
    await book(slots, [SlotRequest("a1", T_MS)], name="b")
    everything = await listed(slots, page=1000)
    assert len(everything) == 20
    assert everything == sorted(everything, key=lambda record: record.cursor)
    selections = [
        SlotFilter(),
        SlotFilter("a"),
        SlotFilter("b", owner="payments"),
        SlotFilter(owner=""),
        SlotFilter(from_ms=T_MS + 1000, to_ms=T_MS + 3000),
        SlotFilter("a", status=SlotStatus.CANCELLED),
        SlotFilter("b", T_MS + 4000, LATEST_MS, SlotStatus.BOOKED, ""),
        SlotFilter("nobody"),
    ]
    for selection in selections:
        expected = [
            record
            for record in everything
            if selection.config_name in (None, record.slot.config_name)
            and selection.from_ms <= record.slot.scheduled_ms < selection.to_ms
            and selection.status in (None, record.status)
            and (selection.owner is None or (record.slot.owner or "") == selection.owner)
        ]
        for page in (1, 3, 1000) if is_thorough() or len(expected) < 6 else (3, 1000):
            assert await listed(slots, selection, page) == expected
            assert await listed(slots, selection, page, latest_first=True) == expected[::-1]
        assert await slots.count(selection) == len(expected)


async def test_slots_are_found_by_what_their_events_begin_with(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(9, "PT4S"), now_ms=NOW)
    await book(slots, [SlotRequest(event_id, T_MS) for event_id in ("pay-1", "pay-2", "pay_3", "Pay-4", "pa")])
    await slots.cancel("pay-2")
    found = {prefix: [record.slot.event_id for record in await slots.beginning(prefix, 9)] for prefix in ("pay-", "%")}
    assert found == {"pay-": ["pay-1"], "%": []}
    assert {record.slot.event_id for record in await slots.beginning("pa", 9)} == {"pa", "pay-1", "pay_3"}
    assert len(await slots.beginning("pa", 2)) == 2


async def test_records_of_cancelled_slots_are_pruned_by_the_time_of_the_cancellation(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1, "PT4S"), now_ms=NOW)
    await book(slots, wants(2))
    await slots.cancel("e0")
    (record,) = await listed(slots, SlotFilter(status=SlotStatus.CANCELLED))
    assert record.cancelled_ms is not None
    await slots.prune(record.cancelled_ms - 1)
    assert len(await listed(slots, SlotFilter(status=SlotStatus.CANCELLED))) == 1
    await slots.prune(record.cancelled_ms + 1)
    assert await listed(slots, SlotFilter(status=SlotStatus.CANCELLED)) == []


async def test_slots_beyond_a_shorter_horizon_are_counted(slots: SlotStore) -> None:
    await slots.configure("c", WindowPolicy(1, "PT4S", spread="even"), now_ms=NOW)
    far = LATEST_MS - 10**9  # still to come, whatever the store's clock says
    booked = await book(slots, wants(5, far))
    delays = sorted(slot.scheduled_ms - far for slot in booked)
    for limit in (0, delays[2] - 1, delays[2], delays[4]):
        assert await slots.count_beyond("c", limit) == sum(delay > limit for delay in delays)
    assert await slots.count_beyond("other", 0) == 0


@given(st.integers(0, LATEST_MS), st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), st.integers(0))
def test_a_cursor_survives_its_text(at: int, event_id: str, serial: int) -> None:
    cursor = Cursor(at, event_id, serial % 2**63)
    assert Cursor.decoded(cursor.encoded()) == cursor


@pytest.mark.parametrize(
    "text", ["", "x", "é", "AAAA", "MQpl", "LTEKZQow", "=" * 9, "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAKZQow"]
)
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        Cursor.decoded(text)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"status": "booked"}, "status"),
        ({"since": "yesterday"}, "from"),
        ({"until": "x"}, "to"),
        ({"since": "2027-03-02T00:00:00Z", "until": "2027-03-01T00:00:00Z"}, "to"),
        ({"owner": "x" * 65}, "owner"),
        ({"owner": "a\n"}, "owner"),
        ({"config_name": ""}, "config_name"),
    ],
)
def test_a_bad_filter_names_its_field(given: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        SlotFilter.of(**given)
    assert caught.value.field == field


async def test_a_slot_under_several_configs_is_listed_under_each(slots: SlotStore) -> None:
    for name, limit in (("bank", 5), ("merchant", 1)):
        await slots.configure(name, WindowPolicy(limit, "PT4S"), now_ms=NOW)
    await slots.book(("bank", "merchant"), wants(3, prefix="both"), now_ms=NOW)
    await book(slots, wants(1, prefix="one"), name="bank")
    await slots.cancel("both1", cause=Cancellation("gone"))
    bank, merchant = await listed(slots, SlotFilter("bank")), await listed(slots, SlotFilter("merchant"))
    assert sorted(record.slot.event_id for record in bank) == ["both0", "both1", "both2", "one0"]
    assert sorted(record.slot.event_id for record in merchant) == ["both0", "both1", "both2"]
    (gone,) = [record for record in merchant if record.status is SlotStatus.CANCELLED]
    assert gone.slot.config_names == ("bank", "merchant")
    explanation = await SlotScheduler(slots).explain("both2")
    assert {step.config_name for step in explanation.steps} == {"bank", "merchant"}
    reasons = {(step.config_name, step.reason) for step in explanation.steps}
    assert reasons == {("bank", Reason.JOINT), ("merchant", Reason.FULL), ("merchant", Reason.JOINT)}


async def test_another_window_size_is_tried_on_the_booked_slots(slots: SlotStore) -> None:
    far = LATEST_MS - 10**9
    far -= far % 60_000
    scheduler = SlotScheduler(slots)
    await slots.configure("c", WindowPolicy(4, "PT4S"))
    await book(slots, wants(50, far))
    await slots.configure("other", WindowPolicy(4, "PT4S"))
    await slots.book(("other", "c"), wants(3, far, "both"))
    at = from_ms(far)
    for window, limit in (("PT1S", 2), ("PT6S", 9), ("PT4S", 5)):
        tried = await scheduler.forecast("c", 30, at, changes={"window": window, "max_per_window": limit})
        await slots.configure("c", WindowPolicy(limit, window))
        made = await scheduler.forecast("c", 30, at)
        assert (tried.windows, tried.next_windows) == (made.windows, made.next_windows)
