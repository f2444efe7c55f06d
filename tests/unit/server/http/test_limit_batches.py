"""The shortcuts of `acquire/batch`: they read and write what the shapes do."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.limits.model import Decision, PlanState, Reason
from paceline.server.http.body import object_of
from paceline.server.http.limit_batches import dump_decisions, plain_charges
from paceline.server.http.problem import Problem
from paceline.server.shapes.limits import (
    MAX_PLANS,
    MAX_REQUESTS,
    DecisionsShown,
    LimitBatchRequest,
    dump_decision,
)
from paceline.server.shapes.shape import InvalidMember

_MEMBERS: Any = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from(["a", "", 1.0, 2.5, [], ["gold"], {}])
_PLANS = st.lists(st.sampled_from(["gold", "daily"]), max_size=2) | _MEMBERS
_REQUEST = st.fixed_dictionaries(
    {}, optional={"key": st.just("a") | _MEMBERS, "plans": _PLANS, "cost": st.just(1) | _MEMBERS, "more": _MEMBERS}
)
_REQUESTS = st.lists(_REQUEST | _MEMBERS, max_size=3) | _MEMBERS
_BODY = st.fixed_dictionaries({"requests": _REQUESTS}, optional={"more": _MEMBERS}) | _MEMBERS


def by_shapes(raw: bytes) -> Any:
    """What the shapes make of a body; `None` if they refuse it."""
    try:
        return LimitBatchRequest.parse(object_of(raw)).charges()
    except (InvalidMember, Problem):
        return None


@given(_BODY)
def test_a_batch_is_read_as_its_shape_says_or_left_to_it(body: Any) -> None:
    raw = json.dumps(body).encode()
    charges = plain_charges(raw)
    assert charges is None or charges == by_shapes(raw)


@pytest.mark.parametrize(
    "requests",
    [
        [{"key": "a", "plans": ["gold"]}, {"plans": ["gold", "daily"], "key": "b", "cost": 5}],
        [{"key": "a", "plans": ["gold"] * MAX_PLANS}],
        [{"key": "a", "plans": ["gold"]}] * MAX_REQUESTS,
    ],
)
def test_a_plain_batch_takes_the_shortcut(requests: Any) -> None:
    raw = json.dumps({"requests": requests}).encode()
    assert plain_charges(raw) == by_shapes(raw) != None  # noqa: E711


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"requests": []}',
        b'{"requests": [{"key": "a", "plans": []}]}',
        b'{"requests": [{"key": "a", "plans": ["gold"], "cost": true}]}',
        b'{"requests": [{"key": "a", "plans": ["gold"], "cots": 1}]}',
        b'{"requests": [' + b"[" * 40 + b"]" * 40 + b"]}",
        json.dumps({"requests": [{"key": "a", "plans": ["gold"] * (MAX_PLANS + 1)}]}).encode(),
        json.dumps({"requests": [{"key": "a", "plans": ["gold"]}] * (MAX_REQUESTS + 1)}).encode(),
    ],
)
def test_a_batch_with_an_error_is_left_to_its_shape(raw: bytes) -> None:
    assert plain_charges(raw) is None
    assert by_shapes(raw) is None


_NAMES = st.sampled_from(["gold", "100%", 'a"b', '"remaining":0', "\\", "ä\u2028", "{left}", '"retryAfter":0.0,', "%d"])
_COUNTS, _TIMES = st.integers(0, 2**50), st.integers(0, 2**53)
_STATES = st.builds(PlanState, _NAMES, st.booleans(), _COUNTS, _COUNTS, _TIMES, _TIMES, st.booleans())
_PLAIN = st.builds(
    Decision.of, st.booleans(), _COUNTS, _COUNTS, _TIMES, _TIMES, _NAMES, st.sampled_from(Reason), st.booleans()
)
_CHAINED = st.builds(
    lambda decision, states: decision.but(chain=tuple(states)), _PLAIN, st.lists(_STATES, min_size=1, max_size=2)
)
_PROBLEM = st.just({"type": "not-found", "status": 404})


@given(st.lists(_PLAIN, max_size=5) | st.lists(_PLAIN | _CHAINED | _PROBLEM, max_size=5))
def test_an_answer_is_written_as_its_shape_says(results: list[Any]) -> None:
    expected = [dump_decision(item) if isinstance(item, Decision) else {"error": item} for item in results]
    written = dump_decisions(results)
    assert orjson.loads(written) == {"decisions": expected}
    DecisionsShown.model_validate_json(written)
