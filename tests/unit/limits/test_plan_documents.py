"""Plans as documents: read back as written, refused by the name that was typed."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from paceline import FixedWindow, Plan, SlidingLog, SlidingWindow, TokenBucket
from paceline.errors import ConfigurationError
from paceline.limits.plan_documents import document_of, plan_from

WINDOW = {"algorithm": "fixed_window", "limit": 1, "window": "PT1S"}


@pytest.mark.parametrize(
    "plan",
    [
        Plan("a", TokenBucket(10, 1)),
        Plan("a", TokenBucket(10, 0.5), on_error="closed"),
        Plan("a", TokenBucket(10, Fraction(1, 3)), shadow=True),
        Plan("a", TokenBucket(10, Fraction(1234567, 9999991))),
        Plan("a", FixedWindow(5, "P1DT1H"), overrides={"vip": SlidingWindow(7, "PT0.5S"), "x": TokenBucket(1, 1)}),
        Plan("a", SlidingLog(5, "PT1S")),
        Plan("a", SlidingLog(5000, "PT1M", "PT0.5S")),
    ],
)
def test_documents_survive_the_wire(plan: Plan) -> None:
    assert plan_from("a", json.loads(json.dumps(document_of(plan)))) == plan


@pytest.mark.parametrize(
    ("document", "field"),
    [
        (None, "plan"),
        ([], "plan"),
        ({}, "algorithm"),
        ({"algorithm": "leaky"}, "algorithm"),
        ({"algorithm": ["token_bucket"]}, "algorithm"),
        ({"algorithm": "token_bucket"}, "capacity"),
        ({"algorithm": "token_bucket", "capacity": 1}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 1, "perSecond": 0}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 1, "perSecond": "1/0"}, "perSecond"),
        ({"algorithm": "token_bucket", "capacity": 1, "per_second": -1}, "per_second"),
        ({"algorithm": "token_bucket", "capacity": 1, "per_second": 1, "perSecond": 1}, "per_second"),
        ({"algorithm": "token_bucket", "capacity": "1", "perSecond": 1}, "capacity"),
        ({"algorithm": "fixed_window", "limit": 1, "window": "P1M"}, "window"),
        ({"algorithm": "fixed_window", "limit": 1, "window": 60}, "window"),
        ({"algorithm": "sliding_log", "limit": 1, "window": "PT1S", "precision": "PT2S"}, "precision"),
        ({**WINDOW, "precision": "PT0.1S"}, "precision"),
        ({**WINDOW, "burst": 2}, "burst"),
        ({**WINDOW, "onError": "x"}, "onError"),
        ({**WINDOW, "on_error": "x"}, "on_error"),
        ({**WINDOW, "shadow": "yes"}, "shadow"),
        ({**WINDOW, "overrides": []}, "overrides"),
        ({**WINDOW, "overrides": {"k": 5}}, "overrides.k"),
        (
            {
                "algorithm": "fixed_window",
                "limit": 1,
                "window": "PT1S",
                "overrides": {"k": {"limit": 0, "window": "PT1S"}},
            },
            "overrides.k.limit",
        ),
        (
            {
                "algorithm": "fixed_window",
                "limit": 1,
                "window": "PT1S",
                "overrides": {"k": {"limit": 1, "per_second": 1}},
            },
            "overrides.k.window",
        ),
    ],
)
def test_what_can_not_work_is_refused_by_the_name_that_was_typed(document: Any, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan_from("a", document)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"rate": 10}, "rate"),
        ({"rate": "10/minute", "algorithm": "fixed_window"}, "rate"),
        ({"rate": "10/minute", "limit": 5}, "limit"),
        ({"rate": "10/minute", "overrides": {"vip": "10/fortnight"}}, "overrides.vip.rate"),
        ({"algorithm": "several", "limits": []}, "limits"),
        ({"algorithm": "several", "limits": [{"algorithm": "fixed_window", "limit": 1}] * 2}, "limits.0.window"),
        ({"algorithm": "several", "limits": "10/minute"}, "limits"),
    ],
)
def test_documents_are_refused_by_the_field_that_is_wrong(document: object, field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan_from("p", document)
    assert caught.value.field == field
