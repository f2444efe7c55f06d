"""Every store of the dispatch queue, as one parametrised fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from paceline.dispatch.ports import QueueStore
from paceline.dispatch.stores import queue_store
from tests.contracts.conftest import SLOT_STORES, slot_store_url
from tests.contracts.queue.items import CONFIG, T


@pytest.fixture(params=SLOT_STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[QueueStore]:
    store = await queue_store(slot_store_url(request.param, request))
    await store.configure(CONFIG, now=T)
    yield store
    await store.close()
