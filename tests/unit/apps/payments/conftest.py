from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.slots.model import WindowPolicy
from paceline_payments.model import (
    ITEM_TYPE,
)
from tests.unit.apps.payments.bench import Bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    await bench.slots.configure("default", WindowPolicy(2, "PT4S"))
    await bench.queue.configure(DispatchConfig(item_type=ITEM_TYPE))
    yield bench
    await bench.intake.close()
    await bench.slots.close()
