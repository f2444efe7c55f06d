"""Every adapter of a port, as one parametrised fixture."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from headgate.bootstrap import slot_store
from headgate.slots.ports import SlotStore

SLOT_STORES = ["memory", "sqlite", "postgresql", "oracle"]


def slot_store_url(kind: str, request: pytest.FixtureRequest) -> str:
    """Where a fresh slot store of a kind is to be had."""
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'slots.db'}"
    if kind == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    url = os.environ.get("HEADGATE_TEST_ORACLE_URL")
    if not url:
        pytest.skip("no Oracle: set HEADGATE_TEST_ORACLE_URL to run the suite on one")
    return url


@pytest.fixture(params=SLOT_STORES)
async def slots(request: pytest.FixtureRequest) -> AsyncIterator[SlotStore]:
    store = await slot_store(slot_store_url(request.param, request))
    yield store
    await store.close()
