"""Connecting to Temporal."""

from __future__ import annotations

from temporalio.client import Client
from temporalio.service import RetryConfig

from headgate.adapters.temporal.converter import DATA_CONVERTER
from headgate.errors import StoreUnavailable

IMPATIENT = RetryConfig(max_retries=2, max_elapsed_time_millis=2_000)
"""A dispatcher that is refused gives its claims back within about a second, instead of sitting on them."""


async def connect(address: str, namespace: str = "default", *, lazy: bool = False) -> Client:
    """A client for workers: calls are retried as long as the SDK sees fit. `lazy` connects with the first call."""
    return await _connect(address, namespace, RetryConfig(), lazy)


async def connect_for_dispatch(address: str, namespace: str = "default", *, lazy: bool = False) -> Client:
    """A client for `TemporalEngine`: a refusal surfaces quickly."""
    return await _connect(address, namespace, IMPATIENT, lazy)


async def _connect(address: str, namespace: str, retry: RetryConfig, lazy: bool) -> Client:
    try:
        return await Client.connect(
            address, namespace=namespace, data_converter=DATA_CONVERTER, retry_config=retry, lazy=lazy
        )
    except RuntimeError as error:
        raise StoreUnavailable(f"no Temporal answers at {address}: {error}") from error
