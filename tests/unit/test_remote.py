"""The JSON form of calls to a service: what is written is read again, and nothing else is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput, NotFound, SlotsExhausted, StaleVersion
from paceline.remote import Method, Need, RemoteApi


class Colour(StrEnum):
    RED = "red"


class Pair(NamedTuple):
    first: Any
    second: Any = None


@dataclass(frozen=True)
class Box:
    content: Any
    size: int = 1


class Offered:
    async def put(self, box: Box, *, owner: str | None = None, **options: Any) -> None: ...


API = RemoteApi("boxes", Offered, {"put": Method(Need.SUBMIT)}, [Box, Colour, Pair])

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(Colour)
    | st.timedeltas()
    | st.datetimes(timezones=st.just(UTC)),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.frozensets(st.text())
        | st.dictionaries(st.text() | st.just("~") | st.sampled_from(Colour) | st.integers(), inner)
        | st.builds(Box, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    assert API.load(API.dump(value)) == value


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("field", "is wrong"),
        NotFound("slot", "e-1"),
        StaleVersion("default", 3),
        SlotsExhausted("default", datetime(2030, 1, 1, tzinfo=UTC)),
    ],
)
def test_errors_are_values(error: Exception) -> None:
    again = API.load(API.dump(error))
    assert type(again) is type(error)
    assert str(again) == str(error)


@pytest.mark.parametrize(
    "value",
    [
        {"~": "Popen", "=": ["ls"]},
        {"~": ["Box"]},
        {"~": "Box", "=": None},
        {"~": "Box", "=": {}},
        {"~": "Colour", "=": "blue"},
        {"~": "datetime", "=": "soon"},
        {"~": "dict", "=": [1]},
        {"~": "dict", "=": [[[], 1]]},
        {"~": "timedelta", "=": [10**12]},
    ],
)
def test_what_nobody_wrote_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="arguments"):
        API.load(value)


def test_what_a_newer_version_adds_is_left_out() -> None:
    assert API.load({"~": "Box", "=": {"content": 1, "colour": "red"}}) == Box(1)


def test_arguments_have_their_names_and_a_caller_has_no_owner() -> None:
    assert API.arguments_of("put", [Box(1)], {"extra": timedelta(0)}) == {
        "box": {"~": "Box", "=": {"content": 1, "size": 1}},
        "extra": {"~": "timedelta", "=": [0, 0, 0]},
    }
    with pytest.raises(InvalidInput, match="owner"):
        API.arguments_of("put", [Box(1)], {"owner": "payments"})
    with pytest.raises(InvalidInput, match="owner"):
        API.loaded("put", {"box": 1, "owner": "payments"})
    with pytest.raises(InvalidInput, match="not those of put"):
        API.loaded("put", {})
