"""Senders that are killed, a provider that is slow, hangs, is down and fails, all at once: every accepted message is
delivered; only calls on the wire at a kill are made twice; the quota holds. `make sms-matrix` runs each fault by itself
too, for longer, and compares the delays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.sms_matrix import SENDERS, Size, run_cell
from tests.integration.notification_gateway import stores

SMALL = Size(
    users=12,
    rate=12.0,
    seconds=4.0,
    slow=(0.05, 0.3),
    away=1.0,
    kill_every=1.5,
    lease=2.0,
    timeout=2.0,
    # So that what hangs is tried again at once, instead of being put aside for half a minute.
)


@pytest.mark.parametrize("log", list(SENDERS))
async def test_every_accepted_message_is_delivered_whatever_happens(
    request: pytest.FixtureRequest, tmp_path: Path, log: str
) -> None:
    settings = stores(request, log)
    result = await run_cell(settings, SENDERS[log], "all", SMALL, tmp_path / "senders.log", hangs=True)
    assert result.is_right, result
    assert result.kills >= 2
    assert result.refused > 0
    assert result.accepted > SMALL.rate * SMALL.seconds / 2
