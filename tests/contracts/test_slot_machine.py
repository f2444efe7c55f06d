"""Random assigns, bursts, raises, resizes, calendars, curves and cancels, on every store, against a naive model.

The model knows nothing of runs, hints or lazy reading: it keeps a list of booked times, counts them, and walks the
windows one by one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from paceline.durations import LATEST_MS, to_ms
from paceline.slots.calendars import Calendar
from paceline.slots.model import AssignedSlot, SlotRequest, WindowPolicy
from paceline.slots.ports import SlotStore
from paceline.slots.stores import slot_store
from paceline.slots.windows import align
from tests.contracts.conftest import slot_store_url
from tests.contracts.slot_windows import CURVE, check_windows, naive_limit
from tests.contracts.test_slot_store import NOW, T
from tests.effort import examples

T_MS = to_ms(T)
R = TypeVar("R")

HOURS = {"zone": "Europe/Berlin", "open": [{"from": "16:59:57", "to": "17:00:31"}, {"from": "17:01", "to": "18:30"}]}
"""Opens three seconds before T (17:00 in Berlin) and is closed for half a minute soon after it."""

BLACKOUT = {"zone": "UTC", "blackouts": [{"from": "2027-03-01T16:00:06Z", "to": "2027-03-01T16:00:41Z"}]}
"""Closed while much of what the other rules ask for lies inside."""
BURST = 330
"""At limits of 1 to 5 a window, more windows than a store reads at once."""

calendars = st.sampled_from([None, None, HOURS, BLACKOUT])
policies = st.builds(
    WindowPolicy,
    st.integers(1, 5),
    st.sampled_from(["PT1S", "PT4S", "PT0.5S", "PT7S"]),
    spread=st.sampled_from(["jitter", "even"]),
    calendar=calendars,
    max_delay=st.sampled_from([None, None, None, "PT20S", "PT0.3S"]),
    curve=st.sampled_from([None, CURVE]),
    first_window=st.sampled_from(["proportional", "whole"]),
)
times = st.one_of(st.just(T_MS), st.integers(T_MS - 2000, T_MS + 40_000))


class Model:
    """One config, by brute force."""

    def __init__(self) -> None:
        self.booked: dict[str, int] = {}
        self._counted: dict[int, Counter[int]] = {}

    def window_for(
        self, policy: WindowPolicy, requested_ms: int, now_ms: int, first_ms: int | None = None
    ) -> int | None:
        """Where the request must land; None if beyond the horizon. Windows before the first are known to be full."""
        size = policy.size_ms
        effective = max(requested_ms, now_ms)
        start = align(effective, size) if first_ms is None else first_ms
        held = self._held(size)
        while policy.max_delay_ms is None or start <= effective + policy.max_delay_ms:
            low, end = max(start, effective), start + size
            if policy.first_window == "whole":
                low = start
            most = naive_limit(policy, start)
            share = limit = most * (end - low) // size
            cut = end
            if policy.max_delay_ms is not None:
                cut = min(end, effective + policy.max_delay_ms + 1)
                least = min(limit, 1) if start <= effective else 0
                limit = max(least, most * (cut - low) // size)
            has_room = held[start] < limit
            if start < effective and policy.first_window == "proportional":
                ahead, within = self._between(effective, end), self._between(effective, cut)
                has_room = held[start] < most and ahead < share and within < limit
            if has_room:
                opening = self.next_open(policy, start)
                if opening == start:
                    return start
                # A night has 150,000 windows of half a second: walking them for each of a burst takes minutes.
                start = opening - size
            start += size
        return None

    def book(self, event_id: str, scheduled_ms: int) -> None:
        self.booked[event_id] = scheduled_ms
        for size, held in self._counted.items():
            held[align(scheduled_ms, size)] += 1

    def cancel(self, event_id: str) -> None:
        del self.booked[event_id]
        self._counted.clear()

    def _held(self, size: int) -> Counter[int]:
        if size not in self._counted:
            self._counted[size] = Counter(align(at, size) for at in self.booked.values())
        return self._counted[size]

    def _between(self, since: int, until: int) -> int:
        return sum(since <= at < until for at in self.booked.values())

    def is_open(self, policy: WindowPolicy, start: int) -> bool:
        return self.next_open(policy, start) == start

    def next_open(self, policy: WindowPolicy, start: int) -> int:
        opening = start if policy.calendar is None else policy.calendar.next_open_window(start, policy.size_ms)
        assert opening is not None, "every calendar here opens again"
        return opening


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

        @rule(at=times)
        def burst(self, at: int) -> None:
            self.book([at] * BURST)

        @rule(requested=st.lists(times, min_size=1, max_size=12))
        def book(self, requested: list[int]) -> None:
            requests = []
            for at in requested:
                self.serial += 1
                requests.append(SlotRequest(f"{self.name}-{self.serial}", at))
            # Windows only get fuller here: the next of a burst need not walk those that the one before it found full.
            reached: dict[int, int] = {}
            for request, booking in zip(
                requests, self.run(store.book(self.name, requests, now_ms=self.now)), strict=True
            ):
                at = request.requested_ms
                expected = self.model.window_for(self.policy, at, self.now, reached.get(at))
                if expected is None:
                    assert not isinstance(booking, AssignedSlot)
                    continue
                reached[at] = expected
                assert isinstance(booking, AssignedSlot)
                assert booking.window_start_ms == expected
                assert max(expected, request.requested_ms, self.now) <= booking.scheduled_ms
                assert booking.scheduled_ms < expected + self.policy.size_ms
                if self.policy.max_delay_ms is not None:
                    assert booking.scheduled_ms - max(request.requested_ms, self.now) <= self.policy.max_delay_ms
                self.model.book(request.event_id, booking.scheduled_ms)

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
                self.model.cancel(event_id)

        @rule(pick=st.integers(0, 10**6), count=st.integers(1, 12))
        def cancel_where_it_is_closed(self, pick: int, count: int) -> None:
            closed = sorted(
                event_id
                for event_id, at in self.model.booked.items()
                if not self.model.is_open(self.policy, align(at, self.policy.size_ms))
            )
            first = pick % len(closed) if closed else 0
            for event_id in closed[first : first + count]:
                assert self.run(store.cancel(event_id)) is not None
                self.model.cancel(event_id)

        @rule(calendar=calendars)
        def open_and_close(self, calendar: dict[str, Any] | None) -> None:
            hours = None if calendar is None else Calendar.from_json(calendar)
            self.change(replace(self.policy, calendar=hours))

        @rule(limit=st.integers(1, 6))
        def raise_or_lower(self, limit: int) -> None:
            self.change(replace(self.policy, max_per_window=limit))

        @rule(policy=policies)
        def change(self, policy: WindowPolicy) -> None:
            self.policy = policy
            self.run(store.configure(self.name, policy, now_ms=self.now))

        @rule(step=st.sampled_from([1, 250, 1500, 3_598_000]))
        def pass_time(self, step: int) -> None:
            self.now += step

        def teardown(self) -> None:
            # The invariant reads every slot of the store: what other runs left would be read again and again.
            self.run(store.prune(LATEST_MS - 1))

        @invariant()
        def stored_windows_agree(self) -> None:
            self.run(check_windows(store, self.name, self.now))

    return SlotMachine


@pytest.mark.parametrize(("kind", "requested"), [("memory", 80), ("sqlite", 25), ("postgresql", 15), ("oracle", 3)])
def test_every_store_does_what_the_naive_model_does(kind: str, requested: int, request: pytest.FixtureRequest) -> None:
    url = slot_store_url(kind, request)
    loop = asyncio.new_event_loop()
    store = loop.run_until_complete(slot_store(url))
    try:
        run_state_machine_as_test(
            machine_on(store, loop),
            settings=settings(
                max_examples=examples(requested),
                stateful_step_count=25,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.explicit, Phase.generate, Phase.shrink],
            ),
        )
    finally:
        loop.run_until_complete(store.close())
        loop.close()
