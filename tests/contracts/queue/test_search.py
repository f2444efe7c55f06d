"""Looking for items by id, error and time, and dead letters grouped by their errors."""

from __future__ import annotations

import pytest

from paceline.dispatch.changes import Redirection
from paceline.dispatch.decisions import unrunnable
from paceline.dispatch.model import EnqueueRequest
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.dispatch.search import SORTS, ErrorGroup, ItemFilter, ItemOrder
from paceline.dispatch.status import Status
from paceline.errors import InvalidInput, NotFound
from tests.contracts.queue.items import MINUTE, NOW, SECOND, T

ERRORS = {
    "a-1": "TimeoutError: it ran longer than 30 s",
    "a-2": "TimeoutError: it ran longer than 45.5 s",
    "A-3": "KeyError: 'invoice 7' in 100%",
    "a_4": "KeyError: 'invoice 81' in 100%",
    "b-5": "KeyError: 'x' in 100",
}


@pytest.fixture
async def dead(store: QueueStore) -> QueueStore:
    """Five dead letters a minute apart, and one item that waits."""
    for minute, (item_id, error) in enumerate(ERRORS.items()):
        at = T + minute * MINUTE
        await store.enqueue([EnqueueRequest.of("PAY", item_id, {}, at)], now=at)
        (item,) = (await store.claim("PAY", 1, NOW, now=at)).items
        await store.settle([unrunnable(item.claim, error)], now=at)
    await store.enqueue([EnqueueRequest.of("PAY", "a-6", {}, T + 9 * MINUTE)], now=T)
    return store


async def ids(store: QueueStore, **chosen: object) -> set[str]:
    return {item.item_id for item in await store.items("PAY", ItemFilter(**chosen), 100, None)}  # type: ignore[arg-type]


async def test_items_are_found_by_what_their_ids_begin_with(dead: QueueStore) -> None:
    assert await ids(dead, prefix="a-") == {"a-1", "a-2", "a-6"}
    assert await ids(dead, prefix="a_") == {"a_4"}
    assert await ids(dead, prefix="a-1") == {"a-1"}
    assert await ids(dead, prefix="%") == set()
    assert await ids(dead, prefix="a-", status=Status.READY) == {"a-6"}


async def test_items_are_found_by_what_their_errors_hold(dead: QueueStore) -> None:
    assert await ids(dead, error="timeouterror") == {"a-1", "a-2"}
    assert await ids(dead, error="KeyError: * in 100%") == {"A-3", "a_4"}
    assert await ids(dead, error="100_") == set()
    assert await ids(dead, error="\\") == set()


async def test_items_are_found_by_their_time(dead: QueueStore) -> None:
    assert await ids(dead, since=T + MINUTE, until=T + 3 * MINUTE) == {"a-2", "A-3"}
    assert await ids(dead, since=T + 9 * MINUTE) == {"a-6"}
    assert await ids(dead, until=T + SECOND) == {"a-1"}


async def test_items_are_found_by_their_lane(dead: QueueStore) -> None:
    await dead.enqueue([EnqueueRequest.of("PAY", "acme-1", {}, T, lane="acme")], now=T)
    assert await ids(dead, lane="acme") == {"acme-1"}
    assert await ids(dead, lane="other") == set()


async def test_pages_of_a_search_follow_each_other(dead: QueueStore) -> None:
    chosen, seen, after = ItemFilter(prefix="a-"), [], None
    while page := await dead.items("PAY", chosen, 2, after):
        seen += [item.item_id for item in page]
        after = page[-1].item_id
    assert sorted(seen) == ["a-1", "a-2", "a-6"]


@pytest.mark.parametrize("sort", SORTS)
async def test_pages_follow_each_other_in_every_order(dead: QueueStore, sort: str) -> None:
    await dead.enqueue([EnqueueRequest.of("PAY", f"same-{n}", {}, T) for n in range(3)], now=T)
    order, queue = ItemOrder.of(sort), DispatchQueue(dead)
    everything = await dead.items("PAY", None, 100, None, order)
    assert everything == sorted(everything, key=order.key, reverse=order.descending)
    seen: list[str] = []
    after = None
    while page := await queue.list("PAY", limit=2, after=after, sort=sort):
        seen += [item.item_id for item in page]
        after = order.cursor(page[-1])
    assert seen == [item.item_id for item in everything]
    assert len(set(seen)) == 9


async def test_items_that_match_are_counted(dead: QueueStore) -> None:
    queue = DispatchQueue(dead)
    assert await queue.count("PAY") == 6
    assert await queue.count("PAY", status="DEAD_LETTER", prefix="a-") == 2
    assert await queue.count("PAY", error_group="KeyError: * in *") == 1
    assert await dead.count("PAY", ItemFilter(), 4) == 4, "no further than it has to"
    assert await queue.count("PAY", lane="nowhere") == 0


async def test_a_group_is_what_it_counts_and_no_more(dead: QueueStore) -> None:
    """`KeyError: * in *` is also part of the errors of another group, and `*` of every error."""
    at = T + 9 * MINUTE
    await dead.enqueue([EnqueueRequest.of("PAY", "number", {}, T)], now=T)
    (item,) = (await dead.claim("PAY", 1, NOW, now=T)).items
    await dead.settle([unrunnable(item.claim, "500")], now=at)
    groups = await dead.error_groups("PAY")
    assert {group.error for group in groups} >= {"*", "KeyError: * in *"}
    for group in groups:
        chosen = ItemFilter(status=Status.DEAD_LETTER, error_group=group.error)
        assert len(await dead.items("PAY", chosen, 100, None)) == group.count, group
        preview = await dead.preview("PAY", chosen, Redirection(Status.READY), now=at)
        assert preview == (group.count, group.count, True)
    page = await dead.items("PAY", ItemFilter(error_group="KeyError: * in *%"), 1, None)
    rest = await dead.items("PAY", ItemFilter(error_group="KeyError: * in *%"), 1, page[-1].item_id)
    assert [one.item_id for one in page + rest] == ["A-3", "a_4"]


async def test_dead_letters_are_grouped_by_their_errors_and_each_group_finds_its_own(dead: QueueStore) -> None:
    groups = await DispatchQueue(dead).error_groups("PAY")
    assert groups == [
        ErrorGroup("KeyError: * in *%", 2, "A-3", T + 2 * MINUTE, T + 3 * MINUTE),
        ErrorGroup("TimeoutError: it ran longer than * s", 2, "a-1", T, T + MINUTE),
        ErrorGroup("KeyError: * in *", 1, "b-5", T + 4 * MINUTE, T + 4 * MINUTE),
    ]
    for group in groups:
        assert group.error is not None
        assert group.example in await ids(dead, error=group.error)
    await dead.redirect("PAY", ["a-1", "a-2"], Status.READY, now=T + 9 * MINUTE)
    assert "TimeoutError" not in str(await dead.error_groups("PAY"))
    assert await dead.error_groups("OTHER") == []


async def test_a_wrong_search_is_refused(store: QueueStore) -> None:
    queue = DispatchQueue(store)
    for call, field in [
        (queue.list("PAY", prefix="a\x00"), "prefix"),
        (queue.list("PAY", error=""), "error"),
        (queue.list("PAY", since="yesterday"), "since"),
        (queue.list("PAY", until="2027-03-01"), "until"),
        (queue.list("PAY", sort="name"), "sort"),
        (queue.list("PAY", sort="executeAt", after="p000"), "cursor"),
        (queue.list("PAY", sort="-updatedAt", after="99999999999999999.x"), "cursor"),
        (queue.list("PAY", error_group=""), "error_group"),
        (queue.count("PAY", status="NEW"), "status"),
    ]:
        with pytest.raises(InvalidInput, match=field):
            await call
    with pytest.raises(NotFound):
        await queue.error_groups("NOBODY")
