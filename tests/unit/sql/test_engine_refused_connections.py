"""A pool all of whose connections are refused, because others were cut meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from paceline.errors import StoreUnavailable
from paceline.sql.engine import Database


def _refuse(*_: object) -> None:
    raise sa.exc.DisconnectionError("others of its age were cut")


async def test_is_an_outage_and_no_fault_of_ours(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'slots.db'}")
    sa.event.listen(database._engine, "checkout", _refuse)
    with pytest.raises(StoreUnavailable, match="connections were cut"):
        await database.read(lambda connection: connection.execute(sa.text("SELECT 1")).scalar())
    await database.close()
