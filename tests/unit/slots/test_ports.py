"""What a store says of a locked config."""

from __future__ import annotations

import pytest

from paceline.slots.ports import LockHolder


@pytest.mark.parametrize(("application", "shown"), [("psql", "psql"), ("", "unnamed")])
def test_the_holder_of_a_lock_is_named(application: str, shown: str) -> None:
    holder = LockHolder(4711, application, 12.34, 20.0)
    assert str(holder) == f"process 4711 ({shown}), whose last query began 12.3 s ago"
