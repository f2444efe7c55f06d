"""`BlockingDownstream`: what `Downstream` does, for threads."""

from __future__ import annotations

import pytest

from paceline import BlockingDownstream
from paceline.errors import RateLimitExceeded

LIMITS = {"requests": "5/minute", "tokens": "1000/minute"}


def test_threads_have_the_same() -> None:
    with BlockingDownstream("llm", rate="100/second", limits=LIMITS) as llm:
        with llm.call({"tokens": 400}) as call:
            call.settle(tokens=150)
        with llm.call({"tokens": 850}, timeout=5):
            pass
        with pytest.raises(RateLimitExceeded), llm.call({"tokens": 1}, timeout=0):
            raise AssertionError
        llm.pause()
        assert llm.state().paused == "by an operator"
        llm.resume()
        llm.hold_off("a", 5)
        assert llm.state().pauses.keys() == {"a"}
