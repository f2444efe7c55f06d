"""Counts go to the store in batches; none is lost while the store is down."""

from __future__ import annotations

from typing import cast

import pytest

from paceline.errors import StoreUnavailable
from paceline.testing import eventually
from paceline_sms.count_sync import CountSync
from paceline_sms.model import Message
from paceline_sms.ports import NullObserver, QuotaStore
from paceline_sms.quota import Spending
from tests.unit.apps.sms.fakes import MemorySyncs

MESSAGE = Message(1, "m", "id")


def opened(store: MemorySyncs, outdated: set[int] | None = None) -> CountSync:
    users = outdated if outdated is not None else set()
    return CountSync(cast(QuotaStore, store), NullObserver(), users.update)


def spending(user: int = 1, total: int = 1, generation: int = 0) -> Spending:
    return Spending(user, 1, 1_000, generation, total, 1)


async def test_spendings_are_written_together_one_entry_per_copy() -> None:
    store = MemorySyncs()
    sync = opened(store)
    for total in range(1, 6):
        sync.add(spending(total=total))
    sync.add(spending(user=2))
    sync.add(spending(generation=1, total=9))
    sync.remember(MESSAGE, "print")
    sync.remember(Message(1, "m", "other"), None)
    await sync.flush()
    ((spendings, sent_keys, messages),) = store.written
    assert spendings == [Spending(1, 1, 1_000, 0, 5, 5), spending(user=2), spending(generation=1, total=9)]
    assert sent_keys == {"id": "print"}
    assert [message.message_id for message in messages] == ["id", "other"]
    await sync.close()


async def test_spendings_are_written_in_the_background() -> None:
    store = MemorySyncs()
    sync = opened(store)
    sync.add(spending())
    await eventually(lambda: store.written)
    sync.add(spending(total=2))
    await eventually(lambda: len(store.written) == 2)
    await sync.close()


async def test_nothing_is_lost_while_the_store_is_away() -> None:
    store = MemorySyncs()
    store.down = True
    sync = opened(store)
    sync.add(spending(total=1))
    sync.remember(MESSAGE, "print")
    with pytest.raises(StoreUnavailable):
        await sync.flush()
    sync.add(spending(total=2))
    with pytest.raises(StoreUnavailable):
        await sync.flush()
    assert sync.pending == 1
    store.down = False
    await sync.flush()
    await sync.close()
    assert store.written == [([Spending(1, 1, 1_000, 0, 2, 2)], {"id": "print"}, [MESSAGE])]


async def test_closing_tries_once_more_and_does_not_hang() -> None:
    store = MemorySyncs()
    store.down = True
    sync = opened(store)
    sync.add(spending())
    await sync.close()
    assert store.written == []


async def test_users_with_invalid_copies_are_reported() -> None:
    store = MemorySyncs()
    store.outdated = {1}
    outdated: set[int] = set()
    sync = opened(store, outdated)
    sync.add(spending())
    await sync.flush()
    assert outdated == {1}
    await sync.close()
