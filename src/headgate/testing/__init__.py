"""Fake clocks and real servers for tests, ours and yours."""

from headgate.testing.clock import FakeClock
from headgate.testing.waiting import eventually

__all__ = ["FakeClock", "eventually"]
