from __future__ import annotations

import pytest

from tests.unit.limits.both import World


@pytest.fixture(params=["sync", "async"])
def world(request: pytest.FixtureRequest) -> World:
    """A limiter's dependencies, once for threads and once for event loops."""
    return World(request.param)
