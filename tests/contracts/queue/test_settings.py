"""How item types are dispatched: settings, as every store keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from paceline.dispatch.config import DispatchConfig
from paceline.dispatch.model import Action
from paceline.dispatch.ports import QueueStore
from paceline.dispatch.queue import DispatchQueue
from paceline.errors import ConfigurationError
from tests.contracts.queue.items import (
    CONFIG,
)


async def test_config_is_kept_whole_and_replaced_whole(store: QueueStore) -> None:
    assert await store.config("PAY") == CONFIG
    assert await store.config("NOPE") is None
    other = DispatchConfig(
        item_type="INVOICE",
        enabled=False,
        batch_size=7,
        dispatch_interval_secs=0.25,
        jitter_window_ms=0,
        pre_start_buffer_mins=1.5,
        max_dispatch_retries=0,
        stale_claim_threshold_mins=0.02,
        max_stale_recovery_per_cycle=3,
        exec_workflow_type="W",
        exec_task_queue="q",
        admission_plan="gold",
        retry_backoff_secs=0,
    )
    await store.configure(other)
    assert await store.configs() == [other, CONFIG]
    await store.configure(CONFIG.changed({"enabled": False}))
    assert [config.enabled for config in await store.configs()] == [False, False]
    (entry, *_) = await store.audit("PAY", None, 1, None)
    assert entry.action == Action.CONFIGURED
    assert "enabled=False" in str(entry.detail)


async def test_settings_that_several_make_at_once_for_a_new_type_are_all_made(store: QueueStore) -> None:
    """A kill switch thrown with the first settings of a type stays thrown."""
    queue = DispatchQueue(store)
    for number in range(10):
        await asyncio.gather(
            queue.configure(f"NEW{number}", enabled=False),
            queue.configure(f"NEW{number}", batch_size=7),
            queue.configure(f"NEW{number}", jitter_window_ms=3),
        )
        config = await store.config(f"NEW{number}")
        assert config == DispatchConfig(item_type=f"NEW{number}", enabled=False, batch_size=7, jitter_window_ms=3)
    with pytest.raises(ConfigurationError, match="batch_size"):
        await queue.configure("NEW", batch_size=0)
    assert await store.config("NEW") is None


async def test_settings_changed_by_two_at_once_are_both_changed(store: QueueStore) -> None:
    """A kill switch thrown while somebody changes the batch size stays thrown."""
    changes: list[Mapping[str, object]] = [{"enabled": False}, *({"batchSize": size} for size in range(1, 9))]
    changed = await asyncio.gather(*(store.change("PAY", change) for change in changes))
    config = await store.config("PAY")
    assert config is not None
    assert (config.enabled, config in changed) == (False, True)
    assert await store.change("NOPE", {"enabled": False}) is None
    with pytest.raises(ConfigurationError, match="batchSize"):
        await store.change("PAY", {"enabled": True, "batchSize": 0})
    assert await store.config("PAY") == config


async def test_code_gives_defaults_and_operators_decide(store: QueueStore) -> None:
    first = DispatchConfig(item_type="API", max_dispatch_retries=5, rate="50/second", concurrency=10)
    assert await store.declare(first) == first
    await store.change("API", {"rate": "20/second", "enabled": False})
    second = DispatchConfig(item_type="API", max_dispatch_retries=7, rate="80/second", concurrency=10)
    # The operator's stay; what nobody changed follows the code.
    settings = await store.declare(second)
    assert settings == await store.config("API")
    assert (settings.rate, settings.enabled, settings.max_dispatch_retries, settings.concurrency) == (
        "20/second",
        False,
        7,
        10,
    )
    assert await store.declare(first, only_new=True) == settings
    # Set back to what the code said, it follows the code again.
    await store.change("API", {"rate": "50/second"})
    assert (await store.declare(second)).rate == "80/second"


async def test_settings_that_were_made_before_the_first_worker_stay(store: QueueStore) -> None:
    await store.change("API", {"concurrency": 3}, create=True)
    declared = await store.declare(DispatchConfig(item_type="API", concurrency=10, rate="50/second"))
    assert (declared.concurrency, declared.rate) == (3, "50/second")


async def test_an_operators_admission_plan_keeps_the_rate_of_the_code_out(store: QueueStore) -> None:
    await store.declare(DispatchConfig(item_type="API", rate="50/second"))
    with pytest.raises(ConfigurationError, match="rate: and admissionPlan exclude each other"):
        await store.change("API", {"admissionPlan": "shared"})
    await store.change("API", {"admissionPlan": "shared", "rate": None})
    declared = await store.declare(DispatchConfig(item_type="API", rate="60/second"))
    assert (declared.admission_plan, declared.rate) == ("shared", None)
    await store.change("NEW", {"admissionPlan": "shared"}, create=True)
    declared = await store.declare(DispatchConfig(item_type="NEW", rate="60/second"))
    assert (declared.admission_plan, declared.rate) == ("shared", None)
