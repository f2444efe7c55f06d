"""Priorities, lanes with fair turns, and places that all processes share."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from paceline.dispatch.decisions import after_start, after_success, released, unrunnable
from paceline.dispatch.model import ClaimedItem, EnqueueRequest
from paceline.dispatch.ports import STARTED, QueueStore
from paceline.dispatch.status import Status
from paceline.dispatch.turns import Places
from tests.contracts.queue.items import CONFIG, MINUTE, NOW, SECOND, T, claims, get

DAY = timedelta(days=1)


def want(item_id: str, lane: str | None = None, priority: int | None = None, at: timedelta = NOW) -> EnqueueRequest:
    return EnqueueRequest.of("PAY", item_id, {}, T + at, lane=lane, priority=priority)


async def claim(store: QueueStore, limit: int = 100, places: Places | None = None) -> list[ClaimedItem]:
    return (await store.claim("PAY", limit, NOW, places=places or Places(), now=T)).items


async def names(store: QueueStore, limit: int = 100, places: Places | None = None) -> list[str]:
    return [item.claim.item_id for item in await claim(store, limit, places)]


async def test_lanes_are_counted_until_their_items_are_finished(store: QueueStore) -> None:
    requests = [
        EnqueueRequest.of("PAY", f"{lane}-{n}", None, T + n * SECOND, lane=lane) for lane in "ab" for n in (1, 2)
    ]
    await store.enqueue([*requests, EnqueueRequest.of("PAY", "a-3", None, T + SECOND, lane="a")], now=T)
    assert [(lane.lane, lane.ready) for lane in await store.lanes("PAY")] == [("a", 3), ("b", 2)]
    one, two = await claims(store, 2, now=T + MINUTE)
    await store.settle([after_success(one), unrunnable(two, "no")], now=T + MINUTE)
    depths = {lane.lane: lane for lane in await store.lanes("PAY")}
    assert sum(lane.ready for lane in depths.values()) == 3
    assert sum(lane.dead_letters for lane in depths.values()) == 1
    (held,) = await claims(store, 1, now=T + MINUTE)
    assert sum(lane.in_flight for lane in await store.lanes("PAY")) == 1
    assert min(lane.oldest_due_at for lane in depths.values() if lane.oldest_due_at) >= T + SECOND
    assert await store.lanes("OTHER") == [], held


async def test_urgent_items_come_first_and_then_the_earliest(store: QueueStore) -> None:
    await store.enqueue(
        [
            want("last", priority=9, at=-DAY),
            want("middle-late", at=-SECOND),
            want("middle-early", at=-MINUTE),
            want("first", priority=0),
            want("future", priority=0, at=MINUTE),
        ],
        now=T - DAY,
    )
    assert await names(store) == ["first", "middle-early", "middle-late", "last"]
    item = await get(store, "first")
    assert (item.priority, item.lane) == (0, "default")


async def test_an_urgent_future_does_not_hide_what_is_due(store: QueueStore) -> None:
    await store.enqueue([want(f"f{n}", priority=0, at=MINUTE) for n in range(20)] + [want("due", priority=9)], now=T)
    assert await names(store) == ["due"]


async def test_one_lanes_thousand_share_every_claim_with_anothers_ten(store: QueueStore) -> None:
    await store.enqueue([want(f"big{n:04}", "big", priority=0) for n in range(1000)], now=T - MINUTE)
    await store.enqueue([want(f"small{n}", "small", priority=9) for n in range(10)], now=T)
    first = await claim(store, 50)
    assert Counter(item.lane for item in first) == {"big": 40, "small": 10}, "the share of the one goes to the other"
    assert [item.lane for item in first[:4]] in (["big", "small"] * 2, ["small", "big"] * 2)
    assert len(await claim(store, 50)) == 50


async def test_more_lanes_than_a_claim_has_room_for_have_their_turn_one_after_the_other(store: QueueStore) -> None:
    await store.enqueue([want(f"{lane}-{n}", lane) for lane in "abcdefg" for n in range(50)], now=T)
    lanes = [item.lane for _ in range(7) for item in await claim(store, 3)]
    assert Counter(lanes) == dict.fromkeys("abcdefg", 3)
    lanes = [item.lane for _ in range(7) for item in await claim(store, 1)]
    assert Counter(lanes) == dict.fromkeys("abcdefg", 1)


async def test_turns_find_every_item_whatever_its_lane_and_priority(store: QueueStore) -> None:
    wanted = [
        want(f"{lane}{priority}-{n}", lane, priority) for lane in "xyz" for priority in (0, 5, 9) for n in range(7)
    ]
    await store.enqueue([*wanted, want("plain")], now=T)
    taken: list[ClaimedItem] = []
    while some := await claim(store, 4):
        taken += some
    assert sorted(item.claim.item_id for item in taken) == sorted(["plain", *(want.item_id for want in wanted)])
    for lane in "xyz":
        assert [item.priority for item in taken if item.lane == lane] == [0] * 7 + [5] * 7 + [9] * 7


async def test_lanes_and_priorities_stay_through_retries_and_a_requeue(store: QueueStore) -> None:
    await store.enqueue([want("a", "acme", 2)], now=T)
    (item,) = await claim(store)
    await store.settle([released(item.claim, "given back")], now=T)
    (item,) = await claim(store)
    await store.settle([unrunnable(item.claim, "broken")], now=T)
    await store.redirect("PAY", ["a"], Status.READY, now=T)
    (item,) = await claim(store)
    assert (item.lane, item.priority) == ("acme", 2)


async def test_no_more_are_in_flight_than_there_are_places(store: QueueStore) -> None:
    await store.enqueue([want(f"{n:02}", "a") for n in range(20)] + [want(f"b{n}", "b") for n in range(5)], now=T)
    first = await claim(store, 10, Places(in_all=4))
    assert Counter(item.lane for item in first) == {"a": 2, "b": 2}, "lanes share the places"
    assert await names(store, 10, Places(in_all=4)) == []
    await store.settle([after_start(item.claim, STARTED, CONFIG, "B") for item in first], now=T)
    assert await names(store, 10, Places(in_all=4)) == [], "running ones keep their place"
    await store.settle([after_success(first[0].claim), released(first[1].claim, "back")], now=T)
    assert len(await claim(store, 10, Places(in_all=4))) == 2
    assert len(await claim(store, 10, Places(in_all=7))) == 3, "a raised limit offers the new places at once"
    assert await names(store, 10, Places(in_all=1)) == [], "a lowered one takes nobody's"


async def test_a_full_lane_leaves_the_places_of_others(store: QueueStore) -> None:
    await store.enqueue([want(f"a{n}", "a") for n in range(20)] + [want(f"b{n}", "b") for n in range(20)], now=T)
    both = await claim(store, 100, Places(per_lane=2))
    assert Counter(item.lane for item in both) == {"a": 2, "b": 2}
    (ended,) = [item for item in both if item.lane == "a"][:1]
    await store.settle([after_success(ended.claim)], now=T)
    assert [item.lane for item in await claim(store, 100, Places(per_lane=2))] == ["a"]
    assert Counter(item.lane for item in await claim(store, 100, Places(in_all=7, per_lane=5))) == {"b": 2, "a": 1}


async def test_full_lanes_do_not_take_the_turns_of_others(store: QueueStore) -> None:
    await store.enqueue([want(f"{lane}{n}", lane) for lane in "abcd" for n in range(5)], now=T)
    assert len(await claim(store, 3, Places(per_lane=1))) == 3
    (fourth,) = await claim(store, 3, Places(per_lane=1))
    await store.settle([after_success(fourth.claim)], now=T)
    (again,) = await claim(store, 3, Places(per_lane=1))
    assert again.lane == fourth.lane, "three lanes before it are full"


async def test_a_lane_fills_its_share_from_one_priority_after_the_other(store: QueueStore) -> None:
    due = [want(f"{lane}{priority}", lane, priority) for lane in "ab" for priority in (0, 3, 4, 7, 9)]
    later = [want(f"later-{lane}{priority}", lane, priority, at=MINUTE) for lane in "ab" for priority in (1, 3, 8)]
    await store.enqueue([*later, *due], now=T)
    assert await names(store, 6) == ["a0", "b0", "a3", "b3", "a4", "b4"]
    assert await names(store, 6) == ["a7", "b7", "a9", "b9"]


async def test_concurrent_claimers_never_take_more_than_there_are_places(store: QueueStore) -> None:
    await store.enqueue([want(f"{n:03}", f"lane{n % 3}") for n in range(300)], now=T)
    places = Places(in_all=20, per_lane=9)
    batches = await asyncio.gather(*(claim(store, 10, places) for _ in range(12)))
    taken = [item for batch in batches for item in batch]
    assert len(taken) == 20
    assert max(Counter(item.lane for item in taken).values()) <= 9
    assert len({item.claim.item_id for item in taken}) == 20
