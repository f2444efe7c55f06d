"""PostgreSQL's arrays as text: every element comes back as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("psycopg")

from paceline.sql.pipeline import quoted, texts


@given(st.lists(st.text(st.sampled_from('ab ,{}"\\é'), max_size=4), max_size=5))
def test_texts_are_quoted_one_by_one_or_all_at_once(values: list[str]) -> None:
    assert texts(iter(values)) == "{" + ",".join(map(quoted, values)) + "}"
