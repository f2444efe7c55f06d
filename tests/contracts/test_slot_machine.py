"""Random assigns, batches, raises, lowers, resizes, calendars and cancels, on every store, against a naive model.

The model knows nothing of runs, hints or lazy reading: it keeps a list of booked times, counts them again for every
question, and walks the windows one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from headgate.bootstrap import slot_store
from headgate.iso8601 import to_ms
from headgate.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from headgate.slots.ports import SlotStore
from headgate.slots.windows import align
from tests.contracts.conftest import slot_store_url
from tests.contracts.slot_ledger import check_ledger
from tests.contracts.test_slot_store import NOW, T
from tests.effort import examples

T_MS = to_ms(T)
R = TypeVar("R")

HOURS = {"zone": "Europe/Berlin", "open": [{"from": "16:59:57", "to": "17:00:31"}, {"from": "17:01", "to": "18:30"}]}
"""Opens three seconds before T (17:00 in Berlin) and is closed for half a minute soon after it."""

policies = st.builds(
    WindowPolicy,
    st.integers(1, 5),
    st.sampled_from(["PT1S", "PT4S", "PT0.5S", "PT7S"]),
    spread=st.sampled_from(["jitter", "even"]),
    calendar=st.sampled_from([None, None, HOURS]),
    max_delay=st.sampled_from([None, None, None, "PT20S"]),
)
times = st.one_of(st.just(T_MS), st.integers(T_MS - 2000, T_MS + 40_000))


class Model:
    """One config, by brute force."""

    def __init__(self) -> None:
        self.booked: dict[str, int] = {}

    def window_for(self, policy: WindowPolicy, requested_ms: int, now_ms: int) -> int | None:
        """Where the request must land; None if beyond the horizon."""
        size = policy.size_ms
        effective = max(requested_ms, now_ms)
        start = align(effective, size)
        while policy.max_delay_ms is None or start <= effective + policy.max_delay_ms:
            limit = policy.max_per_window
            if start < effective:
                limit = limit * (start + size - effective) // size
            taken = sum(1 for at in self.booked.values() if start <= at < start + size)
            if taken < limit and self._is_open(policy, start):
                return start
            start += size
        return None

    def _is_open(self, policy: WindowPolicy, start: int) -> bool:
        return policy.calendar is None or policy.calendar.next_open_window(start, policy.size_ms) == start


def machine_on(store: SlotStore, loop: asyncio.AbstractEventLoop) -> type[RuleBasedStateMachine]:
    """The machine's class for one store; every run has a config of its own in it."""

    class SlotMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.name = uuid4().hex
            self.model = Model()
            self.now = NOW
            self.serial = 0
            self.policy = WindowPolicy(2, "PT4S")
            self.run(store.configure(self.name, self.policy, now_ms=self.now))

        def run(self, work: Coroutine[Any, Any, R]) -> R:
            return loop.run_until_complete(work)

        @rule(wanted=st.lists(times, min_size=1, max_size=12))
        def book(self, wanted: list[int]) -> None:
            requests = []
            for at in wanted:
                self.serial += 1
                requests.append(SlotRequest(f"{self.name}-{self.serial}", at))
            for request, booking in zip(
                requests, self.run(store.book(self.name, requests, now_ms=self.now)), strict=True
            ):
                expected = self.model.window_for(self.policy, request.requested_ms, self.now)
                if expected is None:
                    assert not isinstance(booking, AssignedSlot)
                    continue
                assert isinstance(booking, AssignedSlot)
                assert booking.window_start_ms == expected
                assert max(expected, request.requested_ms, self.now) <= booking.scheduled_ms
                assert booking.scheduled_ms < expected + self.policy.size_ms
                self.model.booked[request.event_id] = booking.scheduled_ms

        @rule(pick=st.integers(0, 10**6), at=times)
        def ask_again(self, pick: int, at: int) -> None:
            if self.model.booked:
                event_id = sorted(self.model.booked)[pick % len(self.model.booked)]
                (booking,) = self.run(store.book(self.name, [SlotRequest(event_id, at)], now_ms=self.now))
                assert isinstance(booking, AssignedSlot)
                assert booking.existing
                assert booking.scheduled_ms == self.model.booked[event_id]

        @rule(pick=st.integers(0, 10**6))
        def cancel(self, pick: int) -> None:
            if self.model.booked:
                event_id = sorted(self.model.booked)[pick % len(self.model.booked)]
                assert self.run(store.cancel(event_id)) is not None
                del self.model.booked[event_id]

        @rule(limit=st.integers(1, 6))
        def raise_or_lower(self, limit: int) -> None:
            shape = self.policy
            self.change(WindowPolicy(limit, shape.window, shape.spread, shape.calendar, shape.max_delay))

        @rule(policy=policies)
        def change(self, policy: WindowPolicy) -> None:
            self.policy = policy
            self.run(store.configure(self.name, policy, now_ms=self.now))

        @rule(step=st.sampled_from([1, 250, 1500, 3_598_000]))
        def pass_time(self, step: int) -> None:
            self.now += step

        @invariant()
        def ledger_agrees(self) -> None:
            self.run(check_ledger(store, self.name, self.now))

    return SlotMachine


@pytest.mark.parametrize(("kind", "wanted"), [("memory", 80), ("sqlite", 25), ("postgresql", 25), ("oracle", 25)])
def test_every_store_does_what_the_naive_model_does(kind: str, wanted: int, request: pytest.FixtureRequest) -> None:
    url = slot_store_url(kind, request)
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(slot_store(url))
    try:
        run_state_machine_as_test(
            machine_on(store, loop),
            settings=settings(
                max_examples=examples(wanted),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate, Phase.shrink],
            ),
        )
    finally:
        loop.run_until_complete(store.close())
        loop.close()
