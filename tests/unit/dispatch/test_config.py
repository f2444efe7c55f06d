"""Settings of an item type: bounds, wire form, names in errors, derived times."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.errors import ConfigurationError, InvalidInput
from paceline.server.shapes.dispatch import DispatchConfigShown


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("enabled", "yes"),
        ("enabled", 1),
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 2.5),
        ("batch_size", 10_001),
        ("dispatch_interval_secs", 0),
        ("dispatch_interval_secs", float("nan")),
        ("dispatch_interval_secs", float("inf")),
        ("dispatch_interval_secs", 10**400),
        ("dispatch_interval_secs", "5"),
        ("jitter_window_ms", -1),
        ("pre_start_buffer_mins", -0.1),
        ("max_dispatch_retries", -1),
        ("stale_claim_threshold_mins", 0),
        ("max_stale_recovery_per_cycle", 0),
        ("exec_workflow_type", "x" * 256),
        ("exec_task_queue", "a\nb"),
        ("admission_plan", 7),
        ("admission_plan", ""),
        ("retry_backoff_secs", -1),
        ("concurrency", 0),
        ("lane_concurrency", 1.5),
        ("queue", ""),
        ("queue", "a,b"),
        ("queue", "mail "),
        ("rate", "10/moment"),
        ("rate", "10/second burst 5"),
        ("on_unknown", "guess"),
        ("hold_for_secs", -1),
    ],
)
def test_a_setting_out_of_bounds_names_its_field_as_typed(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as snake:
        DispatchConfig(item_type="PAY", **{field: value})
    assert snake.value.field == field
    camel = field.split("_")[0] + "".join(word.capitalize() for word in field.split("_")[1:])
    with pytest.raises(ConfigurationError) as wire:
        DispatchConfig(item_type="PAY").changed({camel: value})
    assert wire.value.field == camel


@pytest.mark.parametrize("name", ["", "1A", "a b", "x" * 65, "päy", "A/B", None, 5])
def test_an_item_type_is_a_plain_word(name: Any) -> None:
    with pytest.raises(InvalidInput, match="item_type"):
        DispatchConfig(item_type=name)


@pytest.mark.parametrize("name", ["unknown", "itemType", "item_type", ""])
def test_an_unknown_setting_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match="batchSize"):
        DispatchConfig(item_type="PAY").changed({name: 1})


@pytest.mark.parametrize("name", ["execWorkflowType", "exec_task_queue"])
def test_a_name_can_be_changed_but_not_emptied(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        DispatchConfig(item_type="PAY").changed({name: ""})


def test_wire_form_and_defaults() -> None:
    config = DispatchConfig(item_type="CARD_PAYMENT")
    wire = DispatchConfigShown.of(config).dump()
    assert wire == {
        "itemType": "CARD_PAYMENT",
        "enabled": True,
        "batchSize": 500,
        "dispatchIntervalSecs": 5,
        "jitterWindowMs": 4000,
        "preStartBufferMins": 0,
        "maxDispatchRetries": 5,
        "staleClaimThresholdMins": 2,
        "maxStaleRecoveryPerCycle": 100,
        "execWorkflowType": "CardPaymentExecWorkflow",
        "execTaskQueue": "card-payment-exec-task-queue",
        "admissionPlan": None,
        "retryBackoffSecs": 5,
        "concurrency": None,
        "laneConcurrency": None,
        "queue": "default",
        "rate": None,
        "onUnknown": "retry",
        "holdForSecs": 86400,
    }
    del wire["itemType"]
    assert DispatchConfig(item_type="CARD_PAYMENT").changed(wire) == config


def test_backoff_doubles_up_to_an_hour() -> None:
    config = DispatchConfig(item_type="PAY", retry_backoff_secs=5)
    assert [config.backoff(n).total_seconds() for n in (1, 2, 3, 10, 1000)] == [5, 10, 20, 2560, 3600]
    assert DispatchConfig(item_type="PAY", retry_backoff_secs=0).backoff(9) == timedelta(0)
    assert DispatchConfig(item_type="PAY", retry_backoff_secs=7200).backoff(3) == timedelta(hours=2)
