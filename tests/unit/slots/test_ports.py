"""What is said of a session that holds a config's lock."""

from __future__ import annotations

import pytest

from paceline.slots.ports import LockHolder


@pytest.mark.parametrize(
    ("application", "text"),
    [
        ("reports", "process 4711 (reports), whose last query began 7.2 s ago"),
        ("", "process 4711 (unnamed), whose last query began 7.2 s ago"),
    ],
)
def test_a_holder_is_named_with_its_process_and_the_age_of_its_query(application: str, text: str) -> None:
    assert str(LockHolder(4711, application, query_seconds=7.21, held_seconds=9.0)) == text
